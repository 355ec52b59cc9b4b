"""`EditSample` (a row), `EditBatch` (rows as tensors) and `Scores`."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor

from rewardedit.batch import html
from rewardedit.images import to_labels
from rewardedit.images.values import finite_rows, require_fit, require_text, require_texts
from rewardedit.untrusted import whole_text

# what spreadsheets, pandas and others write for a missing text
NO_TEXTS = frozenset(("", "nan", "none", "null", "<na>"))

CHANNELS = {"source": 3, "edited": 3, "target": 3, "mask": 1}  # channels of the fields that are images

ImageLike = Image.Image | Float[Tensor, "3 _ _"]  # a tensor is RGB in [0, 1]


@dataclass(frozen=True)
class EditSample:
    """One row of a data set: an edit, or an instruction that waits for one (`edited` is None).

    Empty captions, such as "nan", become None; in captions and the id, halves of surrogate pairs, which no
    file can hold, become "�".

    Raises:
        ValueError: if the instruction is empty, or holds such a half.
    """

    id: str
    source: ImageLike
    instruction: str
    edited: ImageLike | None = None
    target: ImageLike | None = None
    mask: Image.Image | Float[Tensor, "1 _ _"] | None = None  # 1 where change is wanted
    source_caption: str | None = None
    target_caption: str | None = None
    edit_type: str | None = None  # the type of edit, as the data set names it: for tables of results by kind
    label: float | None = None  # quality of `edited`, 0 to 10, if the data set gives it
    # the same by named axes, such as alignment, consistency and quality
    axes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", whole_text(self.id))
        require_text(f"row {self.id}: instruction", self.instruction)
        if text_or_none(self.instruction) is None:
            said = self.instruction.strip() or "nothing"
            raise ValueError(f"row {self.id}: expected an instruction; got {said}")
        for name in ("source_caption", "target_caption", "edit_type"):
            text = text_or_none(getattr(self, name))
            object.__setattr__(self, name, None if text is None else whole_text(text))


def text_or_none(text: str | None) -> str | None:
    """Returns the text as it is; None for an empty one: blank, "nan", "None", "null"."""
    return None if text is None or text.strip().lower() in NO_TEXTS else text


@dataclass(frozen=True)
class EditPair:
    """Two edits of one source image by one instruction, and which of them people prefer.

    Raises:
        ValueError: if one has no edited image, or the two have different instructions.
    """

    id: str
    left: EditSample
    right: EditSample
    preferred: Literal["left", "right", "tie"]
    aspect: str | None = None  # aspect compared, as the data set names it; None: the edits as a whole

    def __post_init__(self) -> None:
        if self.left.edited is None or self.right.edited is None:
            raise ValueError(f"pair {self.id}: expected two edited images; one is missing")
        if self.left.instruction != self.right.instruction:
            raise ValueError(
                f"pair {self.id}: expected one instruction; got {self.left.instruction!r} and "
                f"{self.right.instruction!r}"
            )


@dataclass(frozen=True)
class EditBatch:
    """b edits. Images are RGB in [0, 1]; fields that a data set lacks are None.

    Values are checked here, once: slices and moves to another device are not checked again. An edited image
    that is not finite is accepted, but no scorer can score it: it makes one row of a training invalid.

    Raises:
        ValueError: for no edits or no pixels, or if a field does not hold b entries, images differ in size or
            have values outside of [0, 1], or a text is not text.
    """

    source: Float[Tensor, "b 3 h w"]
    instruction: list[str]
    edited: Float[Tensor, "b 3 h w"]  # may carry a gradient
    target: Float[Tensor, "b 3 h w"] | None = None  # ground-truth edit, if a data set has one
    mask: Float[Tensor, "b 1 h w"] | None = None  # 1 where change is wanted
    source_caption: list[str] | None = None
    target_caption: list[str] | None = None
    # Tells which edited images are finite: set when they are checked, and not a field of the batch.
    is_finite: ClassVar[tuple[bool, ...]] = ()

    def __post_init__(self) -> None:
        self._require_tensors()
        require_shapes({name: getattr(self, name) for name in CHANNELS})
        self._require_texts()

        if self.mask is not None:
            object.__setattr__(self, "mask", to_labels(self.mask))
        given = {}
        for name in ("source", "target", "mask"):
            if getattr(self, name) is not None:
                given[name] = getattr(self, name)
        object.__setattr__(self, "is_finite", finite_rows(given, self.edited))

    def _require_tensors(self) -> None:
        for name in CHANNELS:
            value = getattr(self, name)
            if not isinstance(value, Tensor | None) or (name in ("source", "edited") and value is None):
                raise ValueError(
                    f"{name}: expected a tensor; got {type(value).__name__}; collate makes batches of images"
                )

    def _require_texts(self) -> None:
        b = len(self.source)
        for name in ("instruction", "source_caption", "target_caption"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, str) or len(value) != b:
                got = "a single string" if isinstance(value, str) else f"{len(value)}"
                raise ValueError(f"{name}: expected a list of {b} strings, one a row; got {got}")
            require_texts(name, value)

    @classmethod
    def unchecked(cls, **values: Any) -> "EditBatch":
        """A batch of values that are known to be good: nothing is checked, so that no GPU is waited for."""
        batch = object.__new__(cls)
        empty = {column.name: None for column in dataclasses.fields(cls)}
        return batch._with(**empty | values, is_finite=(True,) * len(values["source"]))

    def __len__(self) -> int:
        return len(self.instruction)

    def __getitem__(self, rows: slice | list[int]) -> "EditBatch":
        """The rows of a slice, or of a list of their numbers, as a batch."""

        def take(value: Any) -> Any:
            if value is None or isinstance(value, Tensor) or isinstance(rows, slice):
                return value if value is None else value[rows]
            return [value[row] for row in rows]

        values = {}
        for column in dataclasses.fields(self):
            values[column.name] = take(getattr(self, column.name))
        if not len(values["source"]):
            raise ValueError(f"EditBatch: expected at least one of its {len(self)} rows; got none")
        return self._with(**values, is_finite=tuple(take(list(self.is_finite))))

    def with_edited(self, edited: Float[Tensor, "b 3 h w"]) -> "EditBatch":
        """The same batch with a view of its edited images, which are not checked again."""
        return self._with(edited=edited)

    def with_candidates(self, edited: Float[Tensor, "k 3 h w"], is_finite: Sequence[bool]) -> "EditBatch":
        """The only row of this batch once for each edited image, as views. Values are not checked again.

        Args:
            is_finite: tells which of the edited images are finite.

        Raises:
            ValueError: if the edited images do not have the source's size.
        """
        values: dict[str, Any] = {}
        for column in dataclasses.fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Tensor):
                values[column.name] = value.expand(len(edited), -1, -1, -1)
            elif value is not None:
                values[column.name] = value * len(edited)
        batch = self._with(**{**values, "edited": edited}, is_finite=tuple(is_finite))
        require_shapes({name: getattr(batch, name) for name in CHANNELS})
        return batch

    def _with(self, **values: Any) -> "EditBatch":
        batch = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(batch, name, value)
        return batch

    def show(self, scores: "Scores") -> html.Html:
        """A table of the edits with their scores, for notebooks.

        Raises:
            ValueError: if there is not one score an edit.
        """
        if len(scores.reason) != len(self):
            raise ValueError(f"scores: expected {len(self)}, one an edit; got {len(scores.reason)}")
        return html.Html(html.table(self._columns() | scores.columns(), len(self)))

    def _repr_html_(self) -> str | None:
        return None if self.source.is_meta else html.table(self._columns(), len(self))

    def _columns(self) -> dict[str, list[str]]:
        """Cells of a table's columns, in HTML."""
        images = {}
        texts = {}
        for column in dataclasses.fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Tensor):
                images[column.name] = value
            elif value is not None:
                texts[column.name.replace("_", " ")] = value
        return html.edit_columns(images, texts)

    def to(self, device: torch.device | str) -> "EditBatch":
        """The same batch with its tensors on `device`."""
        tensors = {}
        for column in dataclasses.fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Tensor):
                tensors[column.name] = value.to(device)
        return self._with(**tensors)


def require_shapes(images: Mapping[str, Tensor | None]) -> None:
    """Raises ValueError where the images of an edit, by its fields, are none, differ in size or number, or
    have other channels.
    """
    source = images["source"]
    assert source is not None
    if source.ndim != 4 or not source.numel():
        raise ValueError(f"source: expected at least one image, (b, 3, h, w); got {tuple(source.shape)}")

    b, _, h, w = source.shape
    for name, value in images.items():
        if value is not None:
            require_fit(name, value, (b, CHANNELS[name], h, w))


@dataclass(frozen=True)
class Scores:
    """A scorer's scores of b edits; higher is better.

    `score` is NaN exactly where `valid` is False; there `reason` says why, and elsewhere it is None. A row
    whose score is not finite is never valid, whatever a scorer says.
    """

    score: Float[Tensor, " b"]
    parts: dict[str, Float[Tensor, " b"]]  # named components, on their own scales
    valid: Bool[Tensor, " b"]
    reason: list[str | None]

    def __post_init__(self) -> None:
        if self.score.is_meta:  # without values
            return
        wrong = self.valid & ~self.score.detach().isfinite()
        if wrong.any():
            reasons = zip(self.reason, wrong.tolist(), strict=True)
            reason = ["the score is not finite" if is_wrong else text for text, is_wrong in reasons]
            nothing = torch.full_like(self.score, torch.nan)
            object.__setattr__(self, "score", torch.where(wrong, nothing, self.score))
            object.__setattr__(self, "valid", self.valid & ~wrong)
            object.__setattr__(self, "reason", reason)

    @classmethod
    def make(
        cls,
        score: Float[Tensor, " b"],
        parts: dict[str, Float[Tensor, " b"]] | None = None,
        reason: list[str | None] | None = None,
    ) -> "Scores":
        """Scores whose invalid rows are those with a reason, and those whose score is not finite;
        their score becomes NaN without touching gradients.
        """
        reasons: list[str | None] = reason or [None] * len(score)
        valid = torch.tensor([r is None for r in reasons], dtype=torch.bool, device=score.device)
        return cls(torch.where(valid, score, torch.full_like(score, torch.nan)), parts or {}, valid, reasons)

    def cpu(self) -> "Scores":
        """The same scores with their tensors in main memory."""
        return self.to("cpu")

    def to(self, device: torch.device | str) -> "Scores":
        """The same scores with their tensors on `device`."""
        parts = {name: values.to(device) for name, values in self.parts.items()}
        return Scores(self.score.to(device), parts, self.valid.to(device), self.reason)

    def columns(self) -> dict[str, list[str]]:
        """Cells of a table's columns, in HTML: score, parts, and why a row is invalid."""
        return html.score_columns(self.score, self.parts, self.reason)

    def _repr_html_(self) -> str | None:
        return None if self.score.is_meta else html.table(self.columns(), len(self.reason))

    def mean(self) -> Float[Tensor, ""]:
        """Mean over the valid rows, without gradient to invalid ones; 0 if no row is valid."""
        kept = self.score[self.valid]
        return kept.sum() / max(len(kept), 1)
