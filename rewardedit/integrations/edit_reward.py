"""`EditReward`, on which all adapters are built: edits as lists of images in, scores or reasons out."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch, EditSample, ImageLike, PixelSample, Scores, collate_pixels
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.data.reading import PreparedRows, Unreadable
from rewardedit.images import to_float, to_tensor
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scoring import score_batch
from rewardedit.selection import join

BATCH_SIZE = 16  # edits scored at once by default
_LOCK = threading.RLock()  # a scorer is loaded once and runs in one thread at a time


class EditReward:
    """Scores lists of edits by one scorer, which is loaded at the first use.

    Args:
        scorer: as for `load_scorer`: a name, a weighted sum, a mapping with options, "file.py:function", or a
            plain function.
        device: where it runs; None: on a GPU if there is one.
        batch_size: most edits scored at once.
    """

    def __init__(
        self,
        scorer: str | Mapping[str, Any] | Callable[[EditBatch], Tensor],
        device: torch.device | str | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self.spec = scorer
        self.device = device or devices.default_device()
        self.batch_size = batch_size

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer, on its device."""
        with _LOCK:
            return load_scorer(self.spec, device=self.device)

    def __call__(
        self,
        source: Sequence[Any] | None,
        edited: Sequence[Any],
        instruction: Sequence[str],
        rows: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Scores:
        """Scores n edits; each edited image is resized to its source's size, and edits of one size are scored
        together. A row that cannot be read or scored is invalid, with its reason.

        Args:
            source: n images: PIL images, arrays (h, w, 3), or tensors (3, h, w), in [0, 1] or of bytes.
            edited: n images, likewise.
            rows: further columns of the edits, of which those that the scorer needs are used, by the names of
                `EditBatch`: captions as texts; target and mask as images.

        Raises:
            ValueError: if there are no edits, a source is missing, or numbers differ.
        """
        sources = require_sources(source, len(edited))
        if len(instruction) != len(edited):
            raise ValueError(
                f"expected an instruction for each of {len(edited)} edits; got {len(instruction)}"
            )

        fields = self.scorer.required_fields
        read = PreparedRows(_Edits(fields, sources, edited, instruction, rows or [{}] * len(edited)))
        groups: dict[Any, list[PixelSample]] = defaultdict(list)
        parts: list[Scores] = []
        order: list[int] = []
        for number in range(len(read)):
            row = read[number]
            if isinstance(row, Unreadable):
                parts.append(Scores.make(torch.full((1,), torch.nan), reason=[row.reason]))
                order.append(number)
            else:
                groups[row.source.shape[1:], *(getattr(row, name) is None for name in fields)].append(row)

        with _LOCK:
            for group in groups.values():
                parts += in_batches(group, BatchSize(self.batch_size), self._score)
                order += [int(row.id) for row in group]
        return _in_order(join(parts), order)

    def _score(self, rows: list[PixelSample]) -> Scores:
        batch = collate_pixels(rows, fields=self.scorer.required_fields)
        return score_batch(batch, {"reward": self.scorer}, self.device)["reward"]


class _Edits:
    """Rows of an `EditReward`, made one by one, so that a bad one leaves the others alone."""

    def __init__(self, fields: Collection[str], *columns: Sequence[Any]) -> None:
        self.fields = fields
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> EditSample:
        source, edited, instruction, row = (column[index] for column in self.columns)
        further = {name: row[name] for name in self.fields if row and row.get(name) is not None}
        return EditSample(str(index), _as_image(source), instruction, _as_image(edited), **further)


def require_sources(source: Sequence[Any] | None, count: int) -> list[Any]:
    """Returns the sources as a list.

    Raises:
        ValueError: if there are no edits, or not a source for each of them.
    """
    if not count:
        raise ValueError("expected at least one edit; got none")
    sources = [] if source is None else list(source)
    missing = [str(number) for number, image in enumerate(sources) if image is None]
    if len(sources) != count or missing:
        got = f"none for {', '.join(missing)}" if missing and len(sources) == count else f"{len(sources)}"
        raise ValueError(
            f"source: expected the source image of each of {count} edits; got {got}; an edit has no score "
            "without its source: have the caller pass it on"
        )
    return sources


def rewards_of(scores: Scores) -> list[float]:
    """The scores as numbers.

    Raises:
        ValueError: if one is invalid: a training that goes on with a filler learns from it.
    """
    failed = [(number, reason) for number, reason in enumerate(scores.reason) if reason is not None]
    if failed:
        number, reason = failed[0]
        raise ValueError(
            f"{len(failed)} of {len(scores.reason)} edits have no score; edit {number}: {reason}"
        )
    return scores.score.tolist()


def _as_image(image: Any) -> ImageLike:
    """An image as a row holds it: a PIL image as it is, others as tensors in [0, 1]."""
    if isinstance(image, Image.Image):
        return image
    return to_tensor(to_float(image) if isinstance(image, Tensor) else image, channels=3)


def _in_order(scores: Scores, order: list[int]) -> Scores:
    """Undoes an order: the row at place i of the scores is number `order[i]` of the result."""
    places = torch.tensor(order).argsort()
    parts = {name: values[places] for name, values in scores.parts.items()}
    reason = [scores.reason[place] for place in places.tolist()]
    return Scores(scores.score[places], parts, scores.valid[places], reason)
