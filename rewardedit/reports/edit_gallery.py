"""Gallery page of the edits made by `rewardedit edit`."""

from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from rewardedit.images import load_image, resize
from rewardedit.reports.report import Gallery, Report

THUMBNAIL = 256  # pixels of the longer side in the gallery
MOST_SHOWN = 200  # most edits in the gallery, whose page embeds their images


def write_gallery(
    done: list[dict[str, Any]],
    folder: Path,
    model: str,
    scorer: str | None,
    note: str,
    with_masks: bool = False,
) -> None:
    """Writes one row per turn: source, edit with its score, and mask; only the first of many edits.

    Args:
        done: records of jobs, whose images lie in `folder`.
        scorer: name of the scorer of the edits.
        note: text above the gallery on how the edits were made.
    """
    gallery = Gallery(["source", "edited", *(["mask"] if with_masks else [])])
    for record in done[:MOST_SHOWN]:
        for turn in record["turns"]:
            score = turn.get("score")
            caption = "" if scorer is None else turn.get("reason") or f"{scorer} {score:.3f}"
            cells = [(turn["source"], ""), (turn["image"], caption)]
            if with_masks:
                cells.append((turn["mask"], ""))
            gallery.row(turn["instruction"], [(_thumbnail(folder / name), text) for name, text in cells])
    report = Report(f"edits by {model}")
    if len(done) > MOST_SHOWN:
        report.text(f"The first {MOST_SHOWN} of {len(done)} edits; the others lie beside this page.")
    report.gallery(note, gallery)
    report.save(folder / "gallery.html")


def _thumbnail(path: Path) -> Float[Tensor, "3 h w"]:
    image = load_image(path)
    scale = THUMBNAIL / max(image.shape[-2:])
    if scale >= 1:
        return image
    h, w = (max(1, round(side * scale)) for side in image.shape[-2:])
    return resize(image[None], (h, w))[0]
