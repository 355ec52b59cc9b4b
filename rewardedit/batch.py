"""The values that all modules exchange: `EditSample` (a row),
`EditBatch` (rows as tensors) and `Scores`.
"""

import copy
import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor

from rewardedit.images import fit, to_labels, to_tensor
from rewardedit.images.values import finite_rows, require_text, require_texts
from rewardedit.untrusted import whole_text

# what spreadsheets, pandas and others write for a missing text
NO_TEXTS = frozenset(("", "nan", "none", "null", "<na>"))

_CHANNELS = {"source": 3, "edited": 3, "target": 3, "mask": 1}  # channels of the fields that are images

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
    label: float | None = None  # how good `edited` is, 0 to 10, if the data set says so
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
        self._require_shapes()
        self._require_texts()

        if self.mask is not None:
            object.__setattr__(self, "mask", to_labels(self.mask))
        given = {}
        for name in ("source", "target", "mask"):
            if getattr(self, name) is not None:
                given[name] = getattr(self, name)
        object.__setattr__(self, "is_finite", finite_rows(given, self.edited))

    def _require_tensors(self) -> None:
        for name in _CHANNELS:
            value = getattr(self, name)
            if not isinstance(value, Tensor | None) or (name in ("source", "edited") and value is None):
                raise ValueError(
                    f"{name}: expected a tensor; got {type(value).__name__}; collate makes batches of images"
                )

    def _require_shapes(self) -> None:
        if self.source.ndim != 4 or not self.source.numel():
            raise ValueError(
                f"source: expected at least one image, (b, 3, h, w); got {tuple(self.source.shape)}"
            )

        b, _, h, w = self.source.shape
        for name, channels in _CHANNELS.items():
            value = getattr(self, name)
            if value is not None and value.shape != (b, channels, h, w):
                raise ValueError(
                    f"{name}: expected {(b, channels, h, w)} to fit source; got {tuple(value.shape)}"
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
        batch._require_shapes()
        return batch

    def _with(self, **values: Any) -> "EditBatch":
        batch = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(batch, name, value)
        return batch

    def to(self, device: torch.device | str) -> "EditBatch":
        """The same batch with its tensors on `device`."""
        tensors = {}
        for column in dataclasses.fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Tensor):
                tensors[column.name] = value.to(device)
        return self._with(**tensors)


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
        parts = {name: values.cpu() for name, values in self.parts.items()}
        return Scores(self.score.cpu(), parts, self.valid.cpu(), self.reason)

    def mean(self) -> Float[Tensor, ""]:
        """Mean over the valid rows, without gradient to invalid ones; 0 if no row is valid."""
        kept = self.score[self.valid]
        return kept.sum() / max(len(kept), 1)


# fields that a data set, or one of its rows, may lack
OPTIONAL = ("target", "mask", "source_caption", "target_caption")


def split_by_fields(
    samples: Sequence[EditSample], fields: Collection[str] = OPTIONAL
) -> list[list[EditSample]]:
    """The rows in their order, cut wherever the next row has other optional fields:
    each part can be collated.

    A batch has a field for all its rows or for none, so that a row's score never depends on its neighbours.
    """

    def lacking(sample: EditSample) -> list[bool]:
        return [getattr(sample, name) is None for name in fields]

    return [list(part) for _, part in itertools.groupby(samples, lacking)]


def common_fields(samples: Sequence[EditSample]) -> list[str]:
    """The optional fields that all of these rows have."""
    names = []
    for name in OPTIONAL:
        if all(getattr(sample, name) is not None for sample in samples):
            names.append(name)
    return names


def collate(
    samples: Sequence[EditSample],
    size: int | None = None,
    policy: str = "crop",
    fields: Collection[str] = OPTIONAL,
) -> EditBatch:
    """Rows to an `EditBatch`; images are brought to `size` × `size` by `images.fit` if `size` is given.

    A row without `edited` gets its target, which is how a data set's own pairs are scored.

    Args:
        fields: which of the optional fields to take; images of the others are not touched.

    Raises:
        ValueError: on no rows, rows with neither `edited` nor `target`, a field that only some rows have, or
            sizes that differ while `size` is None.
    """
    if not samples:
        raise ValueError("collate: expected at least one row; got none")
    unknown = sorted(set(fields) - set(OPTIONAL))
    if unknown:
        raise ValueError(f"collate: expected fields among {', '.join(OPTIONAL)}; got {', '.join(unknown)}")

    edited = _edits(samples)
    required = {
        "source": _stack("source", [sample.source for sample in samples], size, policy),
        "instruction": [sample.instruction for sample in samples],
        "edited": _stack("edited", edited, size, policy),
    }

    optional: dict[str, Any] = {}
    for name in fields:
        values = _optional_field(name, samples)
        if values is not None:
            optional[name] = _stack(name, values, size, policy) if name in _CHANNELS else values
    return EditBatch(**required, **optional)


def _edits(samples: Sequence[EditSample]) -> list[Any]:
    """The edited image of each row, or else its target."""
    edited = []
    for sample in samples:
        image = sample.target if sample.edited is None else sample.edited
        if image is None:
            raise ValueError(f"row {sample.id}: expected an edited image or a target; it has neither")
        edited.append(image)
    return edited


def _optional_field(name: str, samples: Sequence[EditSample]) -> list[Any] | None:
    """A field of all rows; None if no row has it."""
    values = []
    lacking = []
    for sample in samples:
        values.append(getattr(sample, name))
        if values[-1] is None:
            lacking.append(sample.id)
    if len(lacking) == len(samples):
        return None
    if lacking:
        raise ValueError(f"{_rows(lacking)} {name}, but others do; split the rows with split_by_fields")
    return values


def _stack(name: str, images: list[Any], size: int | None, policy: str) -> Tensor:
    tensors = [to_tensor(image, _CHANNELS[name]) for image in images]
    if size is not None:
        tensors = [fit(tensor[None], size, policy)[0] for tensor in tensors]
    sizes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(sizes) > 1:
        raise ValueError(f"{name}: rows differ in size, {sorted(sizes)}; give a size to bring them to one")
    return torch.stack(tensors)


def _rows(ids: list[str]) -> str:
    """ "row 3 has no" or "rows 3, 5, 7 and 4 more have no"."""
    shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    return f"row {shown} has no" if len(ids) == 1 else f"rows {shown} have no"
