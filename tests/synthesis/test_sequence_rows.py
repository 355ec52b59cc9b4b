"""Rows that the rules make of edit sequences."""

from typing import Literal

import torch

from rewardedit.data.sequences import EditSequence
from rewardedit.images import to_pil
from rewardedit.synthesis.label_rules import ANOTHER_TURN
from rewardedit.synthesis.rules_config import NegativesConfig, RulesConfig
from rewardedit.synthesis.sequence_rows import sequence_rows
from tests.synthesis.rows import labelling_of


def turns_of(share: float, *instructions: str, turns: Literal["one", "all"] = "all"):
    """The rows of a sequence in which every turn makes the image a tenth brighter."""
    n = len(instructions)
    images = tuple(to_pil(torch.full((3, 2, 2), i / 10)) for i in range(n + 1))
    sequence = EditSequence("s", images, instructions, tuple("abcdef"[: n + 1]))
    rules = RulesConfig(vae_roundtrip=0.0, turns=turns, negatives=NegativesConfig(later_turn=share))
    labelling = labelling_of(rules)
    return [sequence_rows(sequence, i, "source", 2, "stretch", labelling) for i in range(20)]


def test_a_turn_under_a_later_turns_instruction_has_failed():
    rows = turns_of(1.0, "one", "two", "three")[0]
    others = {row.id: row for row in rows if row.rule == ANOTHER_TURN}
    assert {name: row.instruction for name, row in others.items()} == {
        "s/0-1-1/another_turn-2": "two",
        "s/0-1-1/another_turn-3": "three",
        "s/1-2-2/another_turn-3": "three",
    }
    by_id = {row.id: row for row in rows}
    for name, row in others.items():
        own = by_id[name.split("/another")[0]]
        assert own.label == 10
        assert (row.label, row.source_caption, row.target_caption) == (0.0, None, None)
        assert (row.source, row.edited, row.sequence_id, row.source_id) == (
            own.source, own.edited, "s", "source",
        )  # fmt: skip
    assert len(rows) == len(by_id) == 4 * 6 + 3


def test_a_sequence_gives_one_drawn_choice_unless_all_are_asked_for():
    drawn = turns_of(0.0, "one", "two", "three", turns="one")
    assert [len(rows) for rows in drawn] == [1] * 20
    assert drawn == turns_of(0.0, "one", "two", "three", turns="one"), "by the seed and the number"
    every = {row.id for row in turns_of(0.0, "one", "two", "three")[0]}
    assert {rows[0].id for rows in drawn} <= every
    assert len({rows[0].id for rows in drawn}) > 8
    assert RulesConfig().turns == "one"
    later = turns_of(1.0, "one", "two", "three", turns="one")
    assert [[row.rule == ANOTHER_TURN for row in rows] for rows in later] == [[False, True]] * 20


def test_a_turn_has_the_captions_of_its_source_and_its_target():
    rows = {row.id: row for row in turns_of(0.0, "one", "two", "three")[0]}
    assert len(rows) == 4 * 6
    for name, row in rows.items():
        source, target, _ = (int(number) for number in name.removeprefix("s/").split("-"))
        assert (row.source_caption, row.target_caption) == ("abcd"[source], "abcd"[target]), name


def test_turns_stand_under_later_ones_in_a_share_of_cases_and_never_under_their_own_words():
    assert not [row for rows in turns_of(1.0, "one", "one") for row in rows if row.rule == ANOTHER_TURN]
    assert not [row for rows in turns_of(0.0, "one", "two") for row in rows if row.rule == ANOTHER_TURN]
    half = turns_of(0.5, "one", "two", "three")
    assert 15 < sum(row.rule == ANOTHER_TURN for rows in half for row in rows) < 45
