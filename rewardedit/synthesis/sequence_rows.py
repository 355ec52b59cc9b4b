"""Labelled rows of edit sequences (ADIEE Sec. 3.2, Eq. 4)."""

from itertools import compress

from rewardedit.data.labelled import LabelledEdit, encode_png
from rewardedit.data.sequences import EditSequence
from rewardedit.images import fit, to_tensor
from rewardedit.synthesis.label_rules import ANOTHER_TURN, RIGHT
from rewardedit.synthesis.labelling import Labelling, Negative, through_autoencoder, with_negative
from rewardedit.synthesis.multi_turn import (
    TurnEdit,
    chosen_edits,
    joined_instruction,
    later_turns,
    turn_rule,
)
from rewardedit.synthesis.rules_config import known


def sequence_rows(
    sequence: EditSequence, number: int, source_id: str, size: int, policy: str, labelling: Labelling
) -> list[LabelledEdit]:
    """Labelled rows of a sequence (ADIEE Eq. 4), for one of its choices or for all; for a share of its turns
    also a failed row with a later turn's instruction.
    """
    rules = labelling.rules
    images = [fit(to_tensor(image, 3)[None], size, policy)[0] for image in sequence.images]
    through = labelling.draws("turn_roundtrip", number, len(images)) < known(rules.vae_roundtrip)
    # Each image has one form as a source and one as an edit: a sequence is decoded and encoded once.
    sources = list(map(encode_png, images))
    edits = list(map(encode_png, through_autoencoder(images, through.tolist(), labelling)))

    def row_of(edit: TurnEdit) -> LabelledEdit:
        return LabelledEdit(
            id=f"{sequence.id}/{edit.source}-{edit.target}-{edit.edited}",
            source=sources[edit.source],
            edited=edits[edit.edited],
            instruction=joined_instruction(sequence, edit),
            label=edit.label,
            rule=turn_rule(edit.source, edit.target, edit.edited),
            source_id=source_id,
            sequence_id=sequence.id,
            vae_roundtrip=bool(through[edit.edited]),
            source_caption=None if sequence.captions is None else sequence.captions[edit.source],
            target_caption=None if sequence.captions is None else sequence.captions[edit.target],
        )

    choice = float(labelling.draws("turn_choice", number, 1))
    rows = list(map(row_of, chosen_edits(len(sequence.instructions), rules.turns, choice)))
    for edit, negative in later_turn_negatives(sequence, number, labelling):
        rows.append(with_negative(row_of(edit), negative))
    return rows


def later_turn_negatives(
    sequence: EditSequence, number: int, labelling: Labelling
) -> list[tuple[TurnEdit, Negative]]:
    """A share of a sequence's turns, each with a later turn's instruction."""
    rules = labelling.rules
    pairs = list(later_turns(sequence))
    is_taken = labelling.draws("later_turn", number, len(pairs)) < rules.negatives.later_turn
    taken = list(compress(pairs, is_taken.tolist()))

    negatives: list[tuple[TurnEdit, Negative]] = []
    for turn, later in taken[: 1 if rules.turns == "one" else None]:
        negative = Negative(f"{ANOTHER_TURN}-{later + 1}", ANOTHER_TURN, sequence.instructions[later])
        negatives.append((TurnEdit(turn, turn + 1, turn + 1, RIGHT), negative))
    return negatives
