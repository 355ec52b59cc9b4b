"""The wall of a comparison of editors: source and edits of each request, with their scores."""

import os
import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from rewardedit.data.editor_rows import EditorRows
from rewardedit.evaluation.editor_records import Requests
from rewardedit.images import as_pil
from rewardedit.processes import processes
from rewardedit.reports.plain_names import decimals, fixed, scorer_name
from rewardedit.reports.wall import Wall, WallEdit, WallImage, save_image
from rewardedit.untrusted import CONTENT_ERRORS, file_name, is_system_error

MOST_SHOWN = 2000  # requests on the wall
IMAGES = "images"  # the folder of the wall's images, beside the page
FULL = 1024  # pixels of the longer side of an image at full size
SMALL = 256  # pixels of the longer side of a thumbnail
Draw = Callable[[int], tuple[str, Image.Image]]  # of a row: the drawing's name, and the drawing


@dataclass(frozen=True)
class Shown:
    """The content of a wall of editors."""

    rows: EditorRows
    requests: Requests
    reasons: Mapping[tuple[str, str, str], str]  # reasons of invalid scores, by scorer, editor and request
    commands: Mapping[str, str] = field(
        default_factory=dict
    )  # options of `rewardedit score` that draw an edit
    draw: Draw | None = None
    drawn: frozenset[str] = frozenset()  # requests whose edits are drawn now

    @property
    def editors(self) -> list[str]:
        return list(self.requests.scores.editors)

    @cached_property
    def before(self) -> str:
        """The label of the source, which no editor has."""
        return "before" if "before" not in self.editors else "source image"

    @cached_property
    def index(self) -> dict[tuple[str, str], int]:
        """The number of the row of a request and an editor."""
        return {(self.rows.requests[i], editor): i for i, (editor, _) in enumerate(self.rows.rows)}


def editor_wall(of: Shown, folder: Path) -> Wall:
    """Writes the images of at most `MOST_SHOWN` requests into `folder`, with thumbnails, and returns the wall
    that shows them.
    """
    requests = of.requests
    spread, disagreement = spreads(requests.scores.scores)
    chosen = chosen_requests(spread, disagreement, MOST_SHOWN)
    hidden = not processes().is_main_process
    write = partial(_write_images, of, folder)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        images = list(tqdm(threads.map(write, chosen), "images", len(chosen), delay=5, disable=hidden))

    scorers = [scorer_name(scorer).name for scorer in requests.scores.scores]
    note = "The outline marks the best edit by the chosen scorer." if len(of.editors) > 1 else ""
    if len(chosen) < len(requests.ids):
        total = len(requests.ids)
        note += f" {len(chosen)} of {total} requests are shown: those with the largest differences."
    wall = Wall(left=of.before, right=of.editors[0], note=note.strip(), editors=of.editors, scorers=scorers)
    for request, pictures in zip(chosen, images, strict=True):
        edit = _edit(of, request)
        for picture in pictures:
            if picture.file and picture.label in edit.columns:
                place = list(edit.columns).index(picture.label)
                picture.note = " · ".join(f"{name} {cells[place]}" for name, cells in edit.scores)
        edit.images = pictures
        edit.hidden = _drawings(of, request, folder)
        edit.disagreement = float(disagreement[request])
        wall.add(edit)
    return wall


def spreads(scores: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Two measures of each request (n,), NaN where there is none.

    The first is the greatest difference between the editors' scores by the first scorer. The second is the
    disagreement of the scorers: their scores less each one's mean over the editors, in its own standard
    deviations, and of these the greatest difference between two scorers for one editor.
    """
    first = next(iter(scores.values()))
    known = np.where(np.isfinite(first).sum(1)[:, None] > 1, first, np.nan)
    spread = np.fmax.reduce(known, 1) - np.fmin.reduce(known, 1)
    standardised = []
    for values in scores.values():
        finite = values[np.isfinite(values)]
        if len(finite) > 1 and finite.std() > 0 and values.shape[1] > 1:
            standardised.append((values - values.mean(1, keepdims=True)) / finite.std())
    if len(standardised) < 2:
        return spread, np.full(len(first), np.nan)
    stacked = np.stack(standardised)
    return spread, (stacked.max(0) - stacked.min(0)).max(1)


def chosen_requests(spread: np.ndarray, disagreement: np.ndarray, most: int) -> list[int]:
    """At most so many requests, in the order of the data: of more, half are those with the greatest spread
    of the editors, and half those with the greatest disagreement of the scorers.
    """
    if len(spread) <= most:
        return list(range(len(spread)))
    by_spread = largest(spread)[: most - most // 2]
    chosen = dict.fromkeys([*by_spread, *largest(disagreement)])
    return sorted(list(chosen)[:most])


def largest(values: np.ndarray) -> list[int]:
    """The order of values from the largest on, NaN last."""
    return np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable").tolist()


def _write_images(of: Shown, folder: Path, request: int) -> list[WallImage]:
    """Saves source and edits of a request."""
    stem = f"{request + 1:0{len(str(len(of.requests.ids)))}}"
    source = WallImage(of.before)
    images: list[WallImage] = []
    for number, editor in enumerate(of.editors, 1):
        images.append(WallImage(editor))
        row = of.index.get((of.requests.ids[request], editor))
        if row is None:
            continue
        try:
            sample = of.rows[row]
            edited = as_pil(sample.edited if sample.edited is not None else sample.target)
            images[-1] = _save(editor, edited, folder, f"{stem}-{number}")
            if not source.file:
                source = _save(of.before, as_pil(sample.source), folder, f"{stem}-0")
        except CONTENT_ERRORS as error:  # its score says why it cannot be read
            if is_system_error(error):
                raise
    return [source, *images]


def _save(label: str, image: Image.Image, folder: Path, stem: str) -> WallImage:
    """Saves an image at full size, and a thumbnail of it if it is large."""
    image.thumbnail((FULL, FULL))
    full = save_image(image, folder / stem)
    if max(image.size) <= SMALL:
        return WallImage(label, file=f"{IMAGES}/{full.name}")
    image.thumbnail((SMALL, SMALL))
    small = save_image(image, folder / f"{stem}-small")
    return WallImage(label, file=f"{IMAGES}/{full.name}", thumbnail=f"{IMAGES}/{small.name}")


def _drawings(of: Shown, request: int, folder: Path) -> list[WallImage]:
    """Saves drawings of a request's edits, if it is to have them."""
    images: list[WallImage] = []
    if of.draw is None or of.requests.ids[request] not in of.drawn:
        return images
    for number, editor in enumerate(of.editors, 1):
        row = of.index.get((of.requests.ids[request], editor))
        if row is None:
            continue
        try:
            what, drawing = of.draw(row)
        except CONTENT_ERRORS as error:
            if is_system_error(error):
                raise
            continue
        file = f"drawing-{request + 1}-{number}.png"
        drawing.save(folder / file)
        images.append(WallImage(f"{what} of {editor}", file=f"{IMAGES}/{file}"))
    return images


def _edit(of: Shown, request: int) -> WallEdit:
    """A request's scores and facts, without its images."""
    requests = of.requests
    values = []
    lines = []
    for scorer, scores in requests.scores.scores.items():
        numbers = [float(value) if np.isfinite(value) else None for value in scores[request]]
        values.append(numbers)
        digits = decimals(numbers)
        lines.append((scorer_name(scorer).name, [fixed(number, digits) for number in numbers]))

    facts = [("name", requests.names[request])]
    commands: list[tuple[str, str]] = []
    for number, editor in enumerate(of.editors):
        if not requests.scores.made[request, number]:
            facts.append((editor, "no edit of this request"))
            continue
        reasons = _reasons(of, request, editor)
        facts += reasons
        commands += _commands(of, request, editor) if len(reasons) < len(lines) else []

    kind = requests.scores.kind[request] if len(requests.scores.kind) else ""
    title = requests.instructions[request] or requests.names[request]
    return WallEdit(
        title,
        [],
        kind=kind,
        facts=facts,
        commands=commands,
        columns=of.editors,
        scores=lines,
        values=values,
    )


def _reasons(of: Shown, request: int, editor: str) -> list[tuple[str, str]]:
    """The reasons why an editor's edit has no score, by scorer."""
    reasons = []
    for scorer in of.requests.scores.scores:
        if reason := of.reasons.get((scorer, editor, of.requests.ids[request])):
            reasons.append((f"{editor}: no {scorer_name(scorer).name}", reason))
    return reasons


def _commands(of: Shown, request: int, editor: str) -> list[tuple[str, str]]:
    """Commands that draw an editor's edit, if its images are files."""
    requests = of.requests
    files = of.rows.files_of(of.index[requests.ids[request], editor])
    if files is None:
        return []
    commands = []
    for what, options in of.commands.items():
        out = f"{file_name(requests.names[request])}-{file_name(editor)}.png"
        words = shlex.join(["rewardedit", "score", *files, requests.instructions[request]])
        commands.append((f"{what} of {editor}", f"{words} {options} {shlex.quote(out)}"))
    return commands
