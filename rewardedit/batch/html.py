"""HTML of edits and scores, as notebooks show it: small images in the text, everything else escaped."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import resize, to_pil

SIDE = 224  # pixels of the longer side of an image in the text, which is shown at half its size
SHOWN = 112  # pixels of the height at which images are shown
MOST_ROWS = 32
QUALITY = 85  # of JPEG
IMAGE = f"height:{SHOWN}px;max-width:{2 * SHOWN}px;object-fit:contain"
CELL = "text-align:left;vertical-align:top;padding:4px 8px"
FAULT = "color:#d9363e"


class Html:
    """HTML that a notebook shows."""

    def __init__(self, html: str) -> None:
        self.html = html

    def _repr_html_(self) -> str:
        return self.html


def image_cell(image: Float[Tensor, "c h w"]) -> str:
    """An image, RGB or a mask in [0, 1], as an element; values that are not finite are gray."""
    image = image.detach().float().cpu().nan_to_num(0.5, 0.5, 0.5).clamp(0, 1)
    scale = SIDE / max(image.shape[-2:])
    if scale < 1:
        height, width = (max(1, round(side * scale)) for side in image.shape[-2:])
        image = resize(image[None], (height, width))[0]
    file = io.BytesIO()
    to_pil(image.expand(3, -1, -1)).save(file, "JPEG", quality=QUALITY)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" style="{IMAGE}" alt="">'


def number_cell(value: float) -> str:
    """A number with four digits; a dash if it is not finite."""
    return f"{value:.4g}" if math.isfinite(value) else "–"


def reason_cell(reason: str | None) -> str:
    """The reason why a row is invalid, in red; empty if it is valid."""
    return "" if reason is None else f'<span style="{FAULT}">{escape(reason)}</span>'


def score_columns(
    score: Float[Tensor, " b"], parts: Mapping[str, Float[Tensor, " b"]], reasons: Sequence[str | None]
) -> dict[str, list[str]]:
    """Columns of the scores, their parts, and the reasons of invalid rows if there are any."""
    columns = {"score": [f"<b>{number_cell(value)}</b>" for value in _shown(score)]}
    for name, values in parts.items():
        columns[name] = list(map(number_cell, _shown(values)))
    if any(reason is not None for reason in reasons):
        columns["invalid because"] = list(map(reason_cell, reasons[:MOST_ROWS]))
    return columns


def edit_columns(
    images: Mapping[str, Float[Tensor, "b c h w"]], texts: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Columns of images and texts."""
    columns = {name: list(map(image_cell, batch[:MOST_ROWS])) for name, batch in images.items()}
    for name, values in texts.items():
        columns[name] = list(map(escape, values[:MOST_ROWS]))
    return columns


def table(columns: Mapping[str, Sequence[str]], count: int) -> str:
    """A table with a row for each edit, of which there are `count`; the first `MOST_ROWS` are shown."""
    heads = "".join(f'<th style="{CELL}">{escape(name)}</th>' for name in columns)
    rows = []
    for cells in zip(*columns.values(), strict=True):
        rows.append("<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>")
    more = f"<p>{count - len(rows)} more rows are not shown.</p>" if count > len(rows) else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"


def gallery(figures: Sequence[tuple[Float[Tensor, "3 h w"], str, str | None]], count: int) -> str:
    """Images side by side, each with its caption and the reason why it is invalid; the first is outlined.

    Args:
        count: number of candidates, of which some have no image.
    """
    cells = []
    for number, (image, caption, reason) in enumerate(islice(figures, MOST_ROWS)):
        outline = "outline:3px solid #2e7d32;" if number == 0 and reason is None else ""
        said = f"{escape(caption)}<br>{reason_cell(reason)}" if reason else escape(caption)
        shown = f'<span style="display:inline-block;{outline}">{image_cell(image)}</span>'
        style = f"margin:6px;max-width:{2 * SHOWN}px"
        cells.append(f'<figure style="{style}">{shown}<figcaption>{said}</figcaption></figure>')
    more = f"<p>{count - len(cells)} more candidates are not shown.</p>" if count > len(cells) else ""
    return f'<div style="display:flex;flex-wrap:wrap">{"".join(cells)}</div>{more}'


def _shown(values: Float[Tensor, " b"]) -> list[float]:
    return values[:MOST_ROWS].detach().to("cpu", torch.float64).tolist()
