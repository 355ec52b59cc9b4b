"""A picture of how BPM judges an edit: the objects that it found, and the value of each part."""

from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.images import resize, to_pil
from rewardedit.instructions.parsed import Parsed, ParsedEdit
from rewardedit.regions.base import EditRegions, Instances
from rewardedit.reports.captioned import PAPER, TEXT, captioned
from rewardedit.reports.verdict import verdict
from rewardedit.scorers.bpm.bpm import Bpm

SIDE = 384  # pixels of the longer side of each panel
COLOURS = {"source": (40, 90, 220), "target": (20, 140, 60), "reference": (220, 120, 10)}
VEIL = (255, 60, 160)  # colour over the region that may change


def explain(scorer: Bpm, batch: EditBatch) -> Image.Image:
    """Draws one edit: the source with the source object's boxes, the edited image with the target's and the
    reference's, and the edited image with a veil over the region that may change; below, the
    instruction, the verdict in a sentence, the parsed instruction and each part's value.

    Raises:
        ValueError: if the batch does not hold exactly one edit.
    """
    if len(batch) != 1:
        raise ValueError(f"explain: expected one edit; got {len(batch)}")
    prepared = scorer.prepare(batch.source, batch.instruction)
    (regions,) = scorer.locate(batch, prepared)
    scores = scorer(batch, prepared)
    parsed = prepared.inputs["parsed"][0]
    edited = batch.edited.detach()
    # The regions that fill a missing side are not drawn there.
    before = [] if regions.is_added else [("source", _name(parsed, "source"), regions.source)]
    after = [] if regions.is_removed else [("target", _name(parsed, "target"), regions.edited)]
    after.append(("reference", _name(parsed, "reference"), regions.reference))
    panels = [
        _panel(batch.source, before),
        _panel(edited, after),
        _panel(_veiled(edited, regions), []),
    ]
    titles = ("source", "edited", "may change")
    parts = {name: float(part[0]) for name, part in scores.parts.items()}
    shown = [f"{name} {value:.2f}" for name, value in parts.items() if value == value]
    lines = [
        batch.instruction[0],
        verdict(scorer, float(scores.score[0]), parts, scores.reason[0]),
        f"Read as: {_asked(parsed)}",
        *([f"Parts, higher is better: {', '.join(shown)}"] if shown else []),
    ]
    return captioned(list(zip(titles, panels, strict=True)), lines)


def _name(parsed: Parsed, side: str) -> str:
    return (getattr(parsed, side) or "") if isinstance(parsed, ParsedEdit) else ""


def _asked(parsed: Parsed) -> str:
    """The parsed instruction in one line."""
    if not isinstance(parsed, ParsedEdit):
        return "could not be parsed"
    said = [f"{parsed.edit_type}: {parsed.source or 'nothing'} to {parsed.target or 'nothing'}"]
    if parsed.size != "unchanged":
        said.append(parsed.size)
    if parsed.position != "unchanged":
        said.append(f"{parsed.position} of {parsed.reference}" if parsed.reference else parsed.position)
    return ", ".join(said)


def _panel(image: Float[Tensor, "1 3 h w"], found: list[tuple[str, str, Instances | None]]) -> Image.Image:
    """The image with the boxes of the objects found, each with its name and confidence."""
    h, w = image.shape[-2:]
    scale = SIDE / max(h, w)
    panel = to_pil(resize(image, (round(h * scale), round(w * scale)), "bilinear")[0])
    draw = ImageDraw.Draw(panel)
    font = ImageFont.load_default(TEXT)
    for kind, name, instances in found:
        if instances is None:
            continue
        for box, confidence in zip(instances.boxes.tolist(), instances.confidence.tolist(), strict=True):
            x0, y0, x1, y1 = (scale * edge for edge in box)
            draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=COLOURS[kind], width=2)
            label = f"{name} {confidence:.2f}"
            over = y0 - TEXT - 4 if y0 > TEXT + 4 else min(y1, panel.height - TEXT - 4)
            at = (min(x0, panel.width - draw.textlength(label, font) - 4), over)
            draw.rectangle((*at, at[0] + draw.textlength(label, font) + 4, at[1] + TEXT + 4), COLOURS[kind])
            draw.text((at[0] + 2, at[1]), label, PAPER, font)
    return panel


def _veiled(image: Float[Tensor, "1 3 h w"], regions: EditRegions) -> Float[Tensor, "1 3 h w"]:
    """The image with a coloured veil over the region that may change."""
    veil = image.new_tensor(VEIL)[:, None, None] / 255
    may = regions.mask[None, None].to(image)
    return image * (1 - 0.6 * may) + 0.6 * may * veil
