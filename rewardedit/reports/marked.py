"""Explanations of a score: images with marked boxes, lines of text, and the same as JSON or a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from rewardedit.batch import Scores
from rewardedit.files import write_json
from rewardedit.images import resize, to_pil, to_tensor
from rewardedit.reports.captioned import INK, PAPER, TEXT, captioned
from rewardedit.reports.report import Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage

SIDE = 384  # pixels of the longer side of each panel
VEIL = (255, 60, 160)  # colour of a veil
SUFFIXES = (".png", ".html", ".json")  # of an explanation's file
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Mark:
    """A box to be drawn, with its label."""

    box: tuple[float, float, float, float]  # xyxy in pixels of the image
    colour: Colour
    label: str


@dataclass(frozen=True)
class Explanation:
    """An explanation of one edit's score."""

    scorer: str  # its name for people
    scores: Scores  # the scores of the edit
    instruction: str
    panels: Sequence[tuple[str, Image.Image]]  # images with their titles
    lines: Sequence[str]  # the verdict, and what it rests on
    details: Sequence[str]  # the table's content as lines below the image
    table: Mapping[str, Mapping[str, float | str | None]]  # rows of the page's table, by name
    record: Mapping[str, Any]  # all of it for programs

    def image(self) -> Image.Image:
        """The panels side by side, the lines below."""
        return captioned(self.panels, [self.instruction, *self.lines, *self.details])

    def save(self, path: Path) -> None:
        """Writes an image (.png), a page with its images beside it (.html), or the record (.json).

        Raises:
            ValueError: on another suffix.
        """
        require_suffix(path)
        if path.suffix == ".json":
            write_json(path, dict(self.record))
        elif path.suffix == ".html":
            self._page().save(path)
        else:
            self.image().save(path)

    def _page(self) -> Report:
        title = f"{self.scorer}: {self.instruction}"
        report = Report(title)
        for line in self.lines:
            report.text(line)
        images = [WallImage(title, to_tensor(panel, 3)) for title, panel in self.panels]
        wall = Wall()
        wall.add(WallEdit(self.instruction, images))
        report.wall("", wall)
        if self.table:
            report.table("", self.table)
        return report


def require_suffix(path: Path) -> None:
    """Raises ValueError unless an explanation can be written to a file of this name."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--explain {path}: expected a name that ends in {', '.join(SUFFIXES)}")


def panel(image: Float[Tensor, "1 3 h w"], marks: Sequence[Mark]) -> Image.Image:
    """The image at the size of a panel, with its marks."""
    h, w = image.shape[-2:]
    scale = SIDE / max(h, w)
    drawn = to_pil(resize(image, (max(1, round(h * scale)), max(1, round(w * scale))), "bilinear")[0])
    draw = ImageDraw.Draw(drawn)
    font = ImageFont.load_default(TEXT)
    for mark in marks:
        x0, y0, x1, y1 = (scale * edge for edge in mark.box)
        draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=mark.colour, width=2)
        width = draw.textlength(mark.label, font) + 4
        over = y0 - TEXT - 4 if y0 > TEXT + 4 else min(y1, drawn.height - TEXT - 4)
        at = (min(x0, drawn.width - width), over)
        draw.rectangle((*at, at[0] + width, at[1] + TEXT + 4), mark.colour)
        draw.text((at[0] + 2, at[1]), mark.label, _ink_on(mark.colour), font)
    return drawn


def _ink_on(colour: Colour) -> Colour:
    """Dark ink on a light colour, and white on a dark one."""
    red, green, blue = colour
    return INK if 0.3 * red + 0.6 * green + 0.1 * blue > 140 else PAPER


def veiled(image: Float[Tensor, "1 3 h w"], region: Bool[Tensor, "h w"]) -> Float[Tensor, "1 3 h w"]:
    """The image with a coloured veil over a region."""
    veil = image.new_tensor(VEIL)[:, None, None] / 255
    inside = region[None, None].to(image)
    return image * (1 - 0.6 * inside) + 0.6 * inside * veil
