"""Rows of a data set among their batch, from which label rules take other images and instructions."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.data.labelled import LabelledEdit, encode_png
from rewardedit.data.reading import RowBatch
from rewardedit.synthesis.label_rules import Measured
from rewardedit.synthesis.labelling import Labelling, Negative
from rewardedit.synthesis.other_instructions import (
    another_object,
    another_words,
    objects_named,
    other_instructions,
)
from rewardedit.synthesis.rules_config import RulesConfig, known

MeasuredImages = Mapping[tuple[int, str], Measured]  # by row number and name of the image or the method


class RowDraws(NamedTuple):
    """Random numbers in [0, 1) of a row by their use, in the order in which they are drawn."""

    source_roundtrip: Tensor
    augmentation: Tensor
    augmented_roundtrip: Tensor
    target_roundtrip: Tensor
    other_image: Tensor
    other_image_roundtrip: Tensor
    other_instruction: Tensor
    object_swap: Tensor
    swapped_object: Tensor


@dataclass(frozen=True)
class DataRow:
    """A row of a data set among the rows of its batch."""

    batch: EditBatch
    source_ids: Sequence[str]  # source ids of the batch's rows
    named_objects: Sequence[str | None]  # by instruction of the batch; () if no rule swaps objects
    i: int  # position in the batch
    number: int  # number in the data set
    base: LabelledEdit  # fields shared by all labelled rows of this row
    measured: MeasuredImages
    labelling: Labelling

    @property
    def rules(self) -> RulesConfig:
        """Settings of the rules."""
        return self.labelling.rules

    @property
    def source(self) -> Float[Tensor, "3 h w"]:
        """Source image, RGB in [0, 1]."""
        return self.batch.source[self.i]

    @cached_property
    def target(self) -> Float[Tensor, "3 h w"]:
        """Target image, RGB in [0, 1]; only of batches that have targets. One tensor for all rules, so that
        it goes through the autoencoder once.
        """
        assert self.batch.target is not None
        return self.batch.target[self.i]

    @cached_property
    def draws(self) -> RowDraws:
        """The row's random numbers."""
        return RowDraws(*self.labelling.draws("row", self.number, len(RowDraws._fields)))

    @cached_property
    def negatives(self) -> list[Negative]:
        """Instructions that the row's target, or an output near it, does not follow: first other rows'
        instructions, then altered forms of its own.
        """
        negatives: list[Negative] = []
        for rule in NEGATIVE_RULES:
            negatives.extend(rule(self))
        return negatives

    def other_instructions(self) -> list[str]:
        """Instructions of rows with other sources, best fit to this row's source first."""
        return other_instructions(self.i, self.batch, self.source_ids)

    def other_row(self) -> int | None:
        """Position of the next row of the batch with another source and another instruction; None if there
        is none.
        """
        instructions = self.batch.instruction
        for step in range(1, len(self.batch)):
            other = (self.i + step) % len(self.batch)
            has_other_source = self.source_ids[other] != self.source_ids[self.i]
            if has_other_source and instructions[other] != instructions[self.i]:
                return other
        return None


def data_rows(
    chunk: RowBatch, source_ids: Sequence[str], measured: MeasuredImages, labelling: Labelling
) -> list[DataRow]:
    """The rows of a batch as the rules take them.

    Args:
        source_ids: source ids of the rows of `chunk`.
    """
    batch = chunk.batch
    assert batch is not None
    named_objects = objects_named(batch.instruction) if labelling.rules.negatives.object_swap else ()
    before = batch.source_caption or [None] * len(batch)
    after = batch.target_caption or [None] * len(batch)

    rows: list[DataRow] = []
    for i, number in enumerate(chunk.numbers):
        base = LabelledEdit(
            id=chunk.ids[i],
            source=encode_png(batch.source[i]),
            edited=b"",
            instruction=batch.instruction[i],
            label=0.0,
            rule="",
            source_id=source_ids[i],
            source_caption=before[i],
            target_caption=after[i],
        )
        rows.append(DataRow(batch, source_ids, named_objects, i, number, base, measured, labelling))

    return rows


def other_rows_instructions(row: DataRow) -> Iterator[Negative]:
    """Other rows' instructions: as many as the setting's whole part, one more by its fraction."""
    count = int(known(row.rules.negatives.other_instruction) + row.draws.other_instruction)
    for n, text in enumerate(row.other_instructions()[:count]):
        suffix = f"another_instruction-{n + 1}" if n else "another_instruction"
        yield Negative(suffix, "another_instruction", text)


def swapped_object(row: DataRow) -> Iterator[Negative]:
    """The row's instruction for another object of the image, for a share of rows."""
    if row.draws.object_swap >= row.rules.negatives.object_swap:
        return
    text = another_object(row.i, row.batch, row.named_objects, float(row.draws.swapped_object))
    if text is not None:
        yield Negative("another_object", "another_object", text)


def swapped_words(row: DataRow) -> Iterator[Negative]:
    """The row's instruction with one of its words replaced, a few times."""
    negatives = row.rules.negatives
    if not negatives.word_swap:
        return
    choice = random.Random(f"{row.labelling.seed} {row.number}")
    texts = another_words(row.i, row.batch, negatives.word_groups, negatives.word_swap, choice)
    for n, text in enumerate(texts):
        yield Negative(f"another_word-{n + 1}", "another_word", text)


NEGATIVE_RULES: tuple[Callable[[DataRow], Iterator[Negative]], ...] = (
    other_rows_instructions,
    swapped_object,
    swapped_words,
)
