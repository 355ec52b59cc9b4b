"""Images side by side with titles above and lines of text below, as one image."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

TEXT = 15  # pixels high
LEADING = 8  # pixels between lines
GAP = 12
PAPER = (255, 255, 255)
INK = (30, 30, 30)


def captioned(panels: Sequence[tuple[str, Image.Image]], lines: Sequence[str]) -> Image.Image:
    """Draws the panels in a row, each with its title, and the lines below; long lines are wrapped."""
    font = ImageFont.load_default(TEXT)
    width = sum(panel.width for _, panel in panels) + GAP * (len(panels) + 1)
    top = TEXT + 2 * GAP
    below = top + max(panel.height for _, panel in panels) + GAP
    wrapped = []
    for line in lines:
        wrapped += wrap(line, width - 2 * GAP, font)
    page = Image.new("RGB", (width, below + len(wrapped) * (TEXT + LEADING) + GAP), PAPER)
    draw = ImageDraw.Draw(page)

    left = GAP
    for title, panel in panels:
        draw.text((left, GAP), title, INK, font)
        page.paste(panel, (left, top))
        left += panel.width + GAP
    for number, line in enumerate(wrapped):
        draw.text((GAP, below + number * (TEXT + LEADING)), line, INK, font)
    return page


def wrap(text: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> list[str]:
    """Lines of a text that are at most `width` pixels wide; a longer word stays whole."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
