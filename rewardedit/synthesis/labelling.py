"""Labels a data set's own images, the outputs of editing methods and edit sequences by the rules."""

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.data.labelled import LabelledEdit, encode_png
from rewardedit.data.reading import RowBatch
from rewardedit.data.sequences import EditSequence
from rewardedit.images import fit, to_tensor
from rewardedit.synthesis.augmentations import allowed_augmentations, augment
from rewardedit.synthesis.damage import damage_target
from rewardedit.synthesis.distance_to_target import labels_by_target
from rewardedit.synthesis.label_rules import (
    ANOTHER_INSTRUCTION,
    ANOTHER_TURN,
    DAMAGED,
    FAILED,
    OWN_LABELS,
    RIGHT,
    UNREACHED,
    Grade,
    Measured,
    RulesConfig,
    Thresholds,
    label_output,
)
from rewardedit.synthesis.measured import METRICS, decode_output
from rewardedit.synthesis.multi_turn import (
    TurnEdit,
    chosen_edits,
    joined_instruction,
    later_turns,
    turn_rule,
)
from rewardedit.synthesis.other_instructions import (
    another_object,
    another_words,
    objects_named,
    other_instructions,
)
from rewardedit.synthesis.outputs import Output

Reconstruct = Callable[[Float[Tensor, "b 3 h w"]], Float[Tensor, "b 3 h w"]]
DRAWS = 9  # random numbers of a row
RIGHT_FROM = 8.0  # outputs with at least this label fail under the same instructions as the target
MAX_NEGATIVES = 3  # number of best-fitting other instructions from which an output's is drawn
# For a row with an instruction that is not its own: captions would reveal the original instruction.
NO_CAPTIONS = {"source_caption": None, "target_caption": None}
VAE_BATCH_SIZE = 8  # images that go through the autoencoder together


@dataclass(frozen=True)
class Labelling:
    """Rules, thresholds and models that label rows."""

    rules: RulesConfig
    thresholds: Thresholds
    grades: dict[str, Grade]  # grade of each method
    reconstruct: Reconstruct  # encodes and decodes images with the autoencoder
    elsewhere: frozenset[str]  # methods whose outputs were made elsewhere, not by our autoencoder
    seed: int


@dataclass(frozen=True)
class Draft:
    """A row whose edited image is not encoded yet."""

    row: LabelledEdit
    edited: Float[Tensor, "3 h w"]


@dataclass(frozen=True)
class NotFollowed:
    """An instruction that a row's target does not follow."""

    name: str  # suffix of the row's id
    rule: str
    instruction: str


def own_rows(
    part: RowBatch,
    source_ids: Sequence[str],
    measured: dict[tuple[int, str], Measured],
    labelling: Labelling,
) -> list[LabelledEdit]:
    """Labelled rows of the images of the data set itself: targets, sources and images derived from them.

    Args:
        part: rows with their targets, if any.
        source_ids: source ids of the rows of `part`.
    """
    batch = part.batch
    assert batch is not None
    rules = labelling.rules
    drafts: list[Draft] = []
    named = objects_named(batch.instruction) if rules.another_object else []
    for i, number in enumerate(part.numbers):
        u = draws(labelling.seed, number)
        base = _row(part, batch, i, source_ids[i])

        def add(
            rule: str, edited: Tensor, through: Tensor, name: str = "", base: LabelledEdit = base, **more: Any
        ) -> None:
            drafts.append(_draft(base, rule, edited, through, rules, name, **more))

        add("source", batch.source[i], u[0], **_values(measured.get((number, "source"))))
        names = allowed_augmentations(base.instruction, base.source_caption, base.target_caption)
        if names:
            name = names[int(u[1] * len(names))]
            add("augmented_source", augment(batch.source[i], name), u[2], method=name)
        if batch.target is None:
            continue
        target = batch.target[i]
        add("target", target, u[3], **_values(measured.get((number, "target"))))
        other = _another(i, batch, source_ids)
        if other is not None and u[4] < rules.share("another_image"):
            add("another_image", batch.target[other], u[5], other_source_id=source_ids[other])
        # All of these show the same image as the row's own instruction does: no trace reveals the right one.
        asked = not_followed(i, number, batch, source_ids, named, labelling)
        for wrong in asked:
            add(wrong.rule, target, u[3], wrong.name, instruction=wrong.instruction, **NO_CAPTIONS)
        drafts.extend(damaged_drafts(base, batch.source[i], target, asked, number, labelling))
    return finished(drafts, labelling)


def damaged_drafts(
    base: LabelledEdit,
    source: Tensor,
    target: Tensor,
    asked: Sequence[NotFollowed],
    number: int,
    labelling: Labelling,
) -> list[Draft]:
    """Damaged forms of a row's target, each with the row's instruction and with one it does not follow."""
    rules = labelling.rules
    drafts: list[Draft] = []
    generator = seeded(labelling.seed + 5, number)
    for of in range(rules.damages_per_target):
        through = torch.rand((), generator=generator)
        found = damage_target(source, target, generator, rules.damage_kinds)
        if found is None:
            continue
        image, kind, label = found
        name = f"{DAMAGED}-{of + 1}"
        drafts.append(_draft(base, DAMAGED, image, through, rules, name, label=label, method=kind))
        if asked:
            wrong = asked[-1 - of % len(asked)]  # from the end: those most similar to the row's own
            more = {"method": kind, "instruction": wrong.instruction, **NO_CAPTIONS}
            drafts.append(_draft(base, wrong.rule, image, through, rules, f"{name}/{wrong.name}", **more))
    return drafts


def _draft(
    base: LabelledEdit,
    rule: str,
    edited: Tensor,
    through: Tensor,
    rules: RulesConfig,
    name: str = "",
    **more: Any,
) -> Draft:
    """A row labelled by a rule. Its image goes through the autoencoder if `through`, in [0, 1), is below the
    share `rules.vae_roundtrip`.
    """
    values = {"label": OWN_LABELS.get(rule), **more}
    row = replace(base, id=f"{base.id}/{name or rule}", rule=rule, **values)
    if through < rules.share("vae_roundtrip"):  # measurements are of the image before reconstruction
        row = replace(row, vae_roundtrip=True, **_values(None))
    return Draft(row, edited)


def not_followed(
    i: int,
    number: int,
    batch: EditBatch,
    source_ids: Sequence[str],
    named: Sequence[str | None],
    labelling: Labelling,
) -> list[NotFollowed]:
    """Instructions that the row's target, or an output near it, does not follow: first other rows'
    instructions, then altered forms of its own.

    Args:
        named: result of `objects_named` for the batch's instructions.
    """
    rules = labelling.rules
    u = draws(labelling.seed, number)
    count = int(rules.share("another_instruction") + u[6])
    found = []
    for of, text in enumerate(other_instructions(i, batch, source_ids)[:count]):
        name = f"another_instruction-{of + 1}" if of else "another_instruction"
        found.append(NotFollowed(name, "another_instruction", text))
    text = another_object(i, batch, named, float(u[8])) if u[7] < rules.another_object else None
    if text is not None:
        found.append(NotFollowed("another_object", "another_object", text))
    if rules.another_word:
        choice = random.Random(f"{labelling.seed} {number}")
        texts = another_words(i, batch, rules.word_groups, rules.another_word, choice)
        for of, text in enumerate(texts):
            found.append(NotFollowed(f"another_word-{of + 1}", "another_word", text))
    return found


def output_rows(
    part: RowBatch,
    source_ids: Sequence[str],
    method: str,
    outputs: Sequence[Output],
    measured: dict[tuple[int, str], Measured],
    labelling: Labelling,
    seed: int,
) -> list[LabelledEdit]:
    """Labelled rows of a method's outputs, one per row of `part`; outputs that no rule labels are dropped.
    Some are also paired with instructions that they do not follow.

    Outputs went through an autoencoder when they were made; of outputs made elsewhere, a share goes through
    it here, as for targets and sources.
    """
    batch, rules = part.batch, labelling.rules
    assert batch is not None
    elsewhere = method in labelling.elsewhere
    images = list(map(decode_output, outputs))
    by_target = labels_by_target(batch, images, rules) if rules.distance_to_target else None
    named = objects_named(batch.instruction) if rules.another_object else []
    drafts: list[Draft] = []
    for i, (number, image, output) in enumerate(zip(part.numbers, images, outputs, strict=True)):
        if image is None:
            continue

        measures = measured[number, method]
        base = _row(part, batch, i, source_ids[i])
        through = elsewhere and bool(draws(labelling.seed + 2, number)[0] < rules.share("vae_roundtrip"))
        row = replace(
            base,
            id=f"{base.id}/{method}",
            edited=b"" if elsewhere else output.image,
            method=method,
            seed=None if elsewhere else seed + number,
            vae_roundtrip=through or not elsewhere,
        )

        if by_target is None:
            rule, label = label_output(measures, labelling.thresholds, labelling.grades[method])
        else:
            rule, label = by_target[i]
        if label is not None:
            values = _values(None if through else measures)
            drafts.append(Draft(replace(row, label=label, rule=rule, **values), image))

        if rule == UNREACHED and label is not None:
            asked = not_followed(i, number, batch, source_ids, named, labelling)
            if label < RIGHT_FROM:
                # A wrong output may follow an instruction with a word altered, but hardly another row's.
                asked = [other for other in asked if other.rule == "another_instruction"]
        else:
            asked = of_another_row(i, number, method, batch, source_ids, labelling)
        drafts += [Draft(under_another(row, other), image) for other in asked]
    return finished(drafts, labelling) if elsewhere else [draft.row for draft in drafts]


def of_another_row(
    i: int, number: int, method: str, batch: EditBatch, source_ids: Sequence[str], labelling: Labelling
) -> list[NotFollowed]:
    """Another row's instruction for a share of all outputs, labelled or not."""
    # Each method has its own random numbers; otherwise all outputs of a row would get the same instruction.
    u = draws(labelling.seed + 3 + zlib.crc32(method.encode()), number)
    if u[0] >= labelling.rules.output_another_instruction:
        return []
    others = other_instructions(i, batch, source_ids)[:MAX_NEGATIVES]
    chosen = others[int(u[1] * len(others)) :][:1]
    return [NotFollowed(ANOTHER_INSTRUCTION, ANOTHER_INSTRUCTION, text) for text in chosen]


def under_another(row: LabelledEdit, asked: NotFollowed) -> LabelledEdit:
    """The same edit, labelled as failed under an instruction that it does not follow."""
    return replace(
        row,
        id=f"{row.id}/{asked.name}",
        instruction=asked.instruction,
        label=FAILED,
        rule=asked.rule,
        **NO_CAPTIONS,
    )


def sequence_rows(
    sequence: EditSequence, number: int, source_id: str, size: int, policy: str, labelling: Labelling
) -> list[LabelledEdit]:
    """Labelled rows of a sequence (ADIEE Eq. 4), for one of its choices or for all; for a share of its turns
    also a failed row with a later turn's instruction.
    """
    images = [fit(to_tensor(image, 3)[None], size, policy)[0] for image in sequence.images]
    through = draws(labelling.seed + 1, number, len(images)) < labelling.rules.share("vae_roundtrip")
    # Each image has one form as a source and one as an edit: a sequence is decoded and encoded once.
    stored = list(map(encode_png, images))
    answers = list(map(encode_png, through_autoencoder(images, through.tolist(), labelling)))

    def row_of(edit: TurnEdit) -> LabelledEdit:
        return LabelledEdit(
            id=f"{sequence.id}/{edit.source}-{edit.target}-{edit.edited}",
            source=stored[edit.source],
            edited=answers[edit.edited],
            instruction=joined_instruction(sequence, edit),
            label=edit.label,
            rule=turn_rule(edit.source, edit.target, edit.edited),
            source_id=source_id,
            sequence_id=sequence.id,
            vae_roundtrip=bool(through[edit.edited]),
            source_caption=None if sequence.captions is None else sequence.captions[edit.source],
            target_caption=None if sequence.captions is None else sequence.captions[edit.target],
        )

    rules = labelling.rules
    draw = float(draws(labelling.seed + 7, number, 1))
    rows = list(map(row_of, chosen_edits(len(sequence.instructions), rules.turns, draw)))

    pairs = list(later_turns(sequence))
    further = draws(labelling.seed + 4, number, len(pairs)) < rules.another_turn
    asked_later = list(compress(pairs, further.tolist()))
    for turn, later in asked_later[: 1 if rules.turns == "one" else None]:
        own = row_of(TurnEdit(turn, turn + 1, turn + 1, RIGHT))
        asked = NotFollowed(f"{ANOTHER_TURN}-{later + 1}", ANOTHER_TURN, sequence.instructions[later])
        rows.append(under_another(own, asked))
    return rows


def finished(drafts: Sequence[Draft], labelling: Labelling) -> list[LabelledEdit]:
    """Rows with their edited images, reconstructed by the autoencoder if marked so. An image that several
    rows share is processed once.
    """
    keys = [(id(draft.edited), draft.row.vae_roundtrip) for draft in drafts]
    images = dict(zip(keys, (draft.edited for draft in drafts), strict=True))
    edited = through_autoencoder(list(images.values()), [marked for _, marked in images], labelling)
    stored = dict(zip(images, map(encode_png, edited), strict=True))
    return [replace(draft.row, edited=stored[key]) for draft, key in zip(drafts, keys, strict=True)]


def through_autoencoder(
    images: Sequence[Tensor], marked: Sequence[bool], labelling: Labelling
) -> list[Float[Tensor, "3 h w"]]:
    """Passes the marked images through the autoencoder, a few at a time; returns all images."""
    found = list(images)
    chosen = list(compress(range(len(images)), marked))
    for first in range(0, len(chosen), VAE_BATCH_SIZE):
        part = chosen[first : first + VAE_BATCH_SIZE]
        made = labelling.reconstruct(torch.stack([images[i] for i in part]))
        for i, image in zip(part, made, strict=True):
            found[i] = image
    return found


def draws(seed: int, number: int, n: int = DRAWS) -> Float[Tensor, " n"]:
    """Random numbers in [0, 1) of a row, the same in whichever process labels it."""
    return torch.rand(n, generator=seeded(seed, number))


def seeded(seed: int, number: int) -> torch.Generator:
    """Generator of a row's random numbers."""
    return torch.Generator().manual_seed(seed * 1_000_003 + number)


def _row(part: RowBatch, batch: EditBatch, i: int, source_id: str) -> LabelledEdit:
    """Fields shared by all labelled rows of one data set row."""
    return LabelledEdit(
        id=part.ids[i],
        source=encode_png(batch.source[i]),
        edited=b"",
        instruction=batch.instruction[i],
        label=0.0,
        rule="",
        source_id=source_id,
        source_caption=None if batch.source_caption is None else batch.source_caption[i],
        target_caption=None if batch.target_caption is None else batch.target_caption[i],
    )


def _another(i: int, batch: EditBatch, source_ids: Sequence[str]) -> int | None:
    """Next row of the batch with another source and another instruction; None if there is none."""
    for step in range(1, len(batch)):
        other = (i + step) % len(batch)
        if source_ids[other] != source_ids[i] and batch.instruction[other] != batch.instruction[i]:
            return other
    return None


def _values(measured: Measured | None) -> dict[str, float | None]:
    """Measurements of an image by metric; None for unknown ones."""
    if measured is None:
        return dict.fromkeys(METRICS)
    return dict(zip(METRICS, (measured.clip_d, *measured.similarity), strict=True))
