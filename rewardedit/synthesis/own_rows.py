"""Labelled rows of a data set's own images: sources, targets and images derived from them (ADIEE Sec. 3.1).

Each rule is a function that takes a row and yields drafts of labelled rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rewardedit.data.labelled import LabelledEdit
from rewardedit.data.reading import RowBatch
from rewardedit.synthesis.augmentations import allowed_augmentations, augment
from rewardedit.synthesis.damage import damage_target
from rewardedit.synthesis.data_rows import DataRow, MeasuredImages, data_rows
from rewardedit.synthesis.label_rules import DAMAGED, OWN_LABELS
from rewardedit.synthesis.labelling import NO_CAPTIONS, Draft, Labelling, finished, measurements
from rewardedit.synthesis.rules_config import known

RowRule = Callable[[DataRow], Iterator[Draft]]


def own_rows(
    chunk: RowBatch, source_ids: Sequence[str], measured: MeasuredImages, labelling: Labelling
) -> list[LabelledEdit]:
    """Labelled rows of the images of the data set itself: targets, sources and images derived from them.

    Args:
        chunk: rows with their targets, if any.
        source_ids: source ids of the rows of `chunk`.
    """
    assert chunk.batch is not None
    rules = SOURCE_RULES if chunk.batch.target is None else (*SOURCE_RULES, *TARGET_RULES)
    drafts: list[Draft] = []
    for row in data_rows(chunk, source_ids, measured, labelling):
        for rule in rules:
            drafts.extend(rule(row))
    return finished(drafts, labelling)


def source_row(row: DataRow) -> Iterator[Draft]:
    """The source: nothing is done."""
    values = measurements(row.measured.get((row.number, "source")))
    yield _draft(row, "source", row.source, row.draws.source_roundtrip, **values)


def augmented_source_row(row: DataRow) -> Iterator[Draft]:
    """The source with a random augmentation that the texts allow."""
    base = row.base
    names = allowed_augmentations(base.instruction, base.source_caption, base.target_caption)
    if names:
        name = names[int(row.draws.augmentation * len(names))]
        image = augment(row.source, name)
        yield _draft(row, "augmented_source", image, row.draws.augmented_roundtrip, method=name)


def target_row(row: DataRow) -> Iterator[Draft]:
    """The target: all is done."""
    values = measurements(row.measured.get((row.number, "target")))
    yield _draft(row, "target", row.target, row.draws.target_roundtrip, **values)


def other_image_row(row: DataRow) -> Iterator[Draft]:
    """Another row's target, for a share of rows."""
    other = row.other_row()
    if other is None or row.draws.other_image >= known(row.rules.negatives.other_image):
        return
    assert row.batch.target is not None
    image, source_id = row.batch.target[other], row.source_ids[other]
    yield _draft(row, "another_image", image, row.draws.other_image_roundtrip, other_source_id=source_id)


def negative_rows(row: DataRow) -> Iterator[Draft]:
    """The target under instructions that it does not follow. All show the same image as under its own
    instruction: no trace of the autoencoder reveals the right one.
    """
    for negative in row.negatives:
        more = {"instruction": negative.instruction, **NO_CAPTIONS}
        yield _draft(row, negative.rule, row.target, row.draws.target_roundtrip, negative.suffix, **more)


def damaged_rows(row: DataRow) -> Iterator[Draft]:
    """Damaged forms of the target, each with the row's instruction and with one it does not follow."""
    damage = row.rules.damage
    if damage is None:
        return
    generator = row.labelling.generator("damage", row.number)
    for n in range(damage.per_target):
        through = torch.rand((), generator=generator)
        damaged = damage_target(row.source, row.target, generator, damage.kinds)
        if damaged is None:
            continue

        image, kind, label = damaged
        suffix = f"{DAMAGED}-{n + 1}"
        yield _draft(row, DAMAGED, image, through, suffix, label=label, method=kind)

        if row.negatives:
            # From the end: those most similar to the row's own instruction.
            negative = row.negatives[-1 - n % len(row.negatives)]
            more = {"method": kind, "instruction": negative.instruction, **NO_CAPTIONS}
            yield _draft(row, negative.rule, image, through, f"{suffix}/{negative.suffix}", **more)


SOURCE_RULES: tuple[RowRule, ...] = (source_row, augmented_source_row)
TARGET_RULES: tuple[RowRule, ...] = (target_row, other_image_row, negative_rows, damaged_rows)


def _draft(row: DataRow, rule: str, edited: Tensor, through: Tensor, suffix: str = "", **more: Any) -> Draft:
    """A row labelled by a rule. Its image goes through the autoencoder if `through`, in [0, 1), is below the
    share `vae_roundtrip`.
    """
    values = {"label": OWN_LABELS.get(rule), **more}
    labelled = replace(row.base, id=f"{row.base.id}/{suffix or rule}", rule=rule, **values)
    if through < known(row.rules.vae_roundtrip):  # measurements are of the image before reconstruction
        labelled = replace(labelled, vae_roundtrip=True, **measurements(None))
    return Draft(labelled, edited)
