"""Rows that the rules make from targets, outputs and sequences."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from rewardedit.batch import EditBatch, PixelBatch
from rewardedit.data import RowBatch
from rewardedit.data.labelled import encode_png, write_labelled
from rewardedit.data.sequences import EditSequence
from rewardedit.images import to_pil
from rewardedit.synthesis.counts import summary
from rewardedit.synthesis.damage import DAMAGES
from rewardedit.synthesis.label_rules import (
    ANOTHER_INSTRUCTION,
    ANOTHER_TURN,
    DAMAGED,
    Measured,
    RulesConfig,
    Thresholds,
)
from rewardedit.synthesis.labelling import Labelling, output_rows, own_rows, sequence_rows
from rewardedit.synthesis.other_instructions import other_instructions
from rewardedit.synthesis.outputs import Output, write_outputs

INSTRUCTIONS = [
    "remove the red circle",
    "paint the green star white",
    "erase the red circle",
    "remove the blue cross",
    "move the black square to the left",
    "remove the blue cross",
]
CAPTION = "a red circle, a blue cross and a black square on a pink background"


def batch(captions=None, targets=None):
    images = torch.zeros(len(INSTRUCTIONS), 3, 2, 2)
    return EditBatch(images, INSTRUCTIONS, images, source_caption=captions, target_caption=targets)


def part_of(rows: EditBatch) -> RowBatch:
    """The batch as it is read."""
    found = {name: getattr(rows, name) for name in ("source", "edited", "target", "mask")}
    images = {name: image for name, image in found.items() if image is not None}
    pixels = PixelBatch(images, rows.instruction, rows.source_caption, rows.target_caption)
    return RowBatch(list(range(len(rows))), [f"row-{i}" for i in range(len(rows))], pixels, {})


def test_there_may_be_more_than_one_a_row_and_never_less_than_none():
    assert RulesConfig(another_instruction=3.0).share("another_instruction") == 3
    with pytest.raises(ValueError, match="another_instruction: expected at least 0; got -1"):
        RulesConfig(another_instruction=-1.0)
    with pytest.raises(ValueError, match="another_image: expected a share"):
        RulesConfig(another_image=1.5)


def rows_of(share: float, *methods: str):
    """The rows of outputs that no rule labels, but for the first, which made no progress."""
    n = len(INSTRUCTIONS)
    part = part_of(batch([CAPTION] * n, [CAPTION] * n))
    outputs = [Output(i, encode_png(torch.full((3, 2, 2), i / 10))) for i in range(n - 1)]
    outputs.append(Output(n - 1, None, "it failed"))
    rules = RulesConfig(output_another_instruction=share)
    limits = Thresholds(0.2, (0.1, 0.1))
    grades = dict.fromkeys(methods, "other")
    labelling = Labelling(rules, limits, grades, lambda images: images, frozenset(), 0)
    found = []
    for method in methods:
        measured = {(i, method): Measured(0.0 if i == 0 else 0.5, (0.9, 0.9)) for i in range(n)}
        found += output_rows(part, list("abcdef"), method, outputs, measured, labelling, 42)
    return found


def test_an_output_under_another_instruction_has_failed_whatever_its_own_label_is():
    rows = rows_of(1.0, "editor")
    assert [(row.id, row.rule) for row in rows if row.rule != ANOTHER_INSTRUCTION] == [
        ("row-0/editor", "no_progress")
    ]
    others = [row for row in rows if row.rule == ANOTHER_INSTRUCTION]
    assert [row.id for row in others] == [f"row-{i}/editor/{ANOTHER_INSTRUCTION}" for i in range(5)]
    for i, row in enumerate(others):
        hardest = other_instructions(i, batch([CAPTION] * 6, [CAPTION] * 6), list("abcdef"))[:3]
        assert row.instruction in hardest
        assert (row.label, row.method, row.seed, row.vae_roundtrip) == (0.0, "editor", 42 + i, True)
        assert (row.source_caption, row.target_caption, row.clip_d) == (None, None, None)
        assert row.edited == encode_png(torch.full((3, 2, 2), i / 10))


def test_outputs_of_one_row_stand_under_unlike_instructions():
    rows = rows_of(1.0, *"abcdefgh")
    asked = {
        row.instruction for row in rows if row.id.startswith("row-1/") and row.rule == ANOTHER_INSTRUCTION
    }
    assert len(asked) == 3
    assert not [row for row in rows_of(0.0, "a") if row.rule == ANOTHER_INSTRUCTION]
    assert 0 < sum(row.rule == ANOTHER_INSTRUCTION for row in rows_of(0.5, *"abcdefgh")) < 40


def test_an_output_under_another_instruction_does_not_count_as_kept(tmp_path):
    write_labelled(rows_of(1.0, "editor"), tmp_path / "train-00000.parquet")
    outputs = [Output(i, b"png") for i in range(5)]
    write_outputs([*outputs, Output(5, None, "it failed")], tmp_path / "part.parquet")
    found = summary([tmp_path / "train-00000.parquet"], {"editor": [tmp_path / "part.parquet"]})
    assert found["rules"] == {ANOTHER_INSTRUCTION: 5, "no_progress": 1}
    assert found["methods"] == {"editor": {"made": 5, "kept": 1, "dropped": 4}}


def own_of(share: float):
    n = len(INSTRUCTIONS)
    rows = batch([CAPTION] * n, [CAPTION] * n)
    part = part_of(replace(rows, target=rows.edited))
    rules = RulesConfig("paper", another_object=share)
    labelling = Labelling(rules, Thresholds(0.2, (0.1, 0.1)), {}, lambda images: images, frozenset(), 0)
    return [row for row in own_rows(part, list("abcdef"), {}, labelling) if row.rule == "another_object"]


def test_a_target_under_its_instruction_for_another_object_has_failed():
    rows = {row.id: row for row in own_of(1.0)}
    # The second row's star is not in the caption; no other clause of it has the words of a green star.
    assert set(rows) == {f"row-{i}/another_object" for i in (0, 2, 3, 4, 5)}
    assert rows["row-3/another_object"].instruction in ("remove the red circle", "remove the black square")
    for row in rows.values():
        assert (row.label, row.method) == (0.0, None)
        assert (row.source_caption, row.target_caption, row.clip_d) == (None, None, None)
    assert own_of(0.0) == []
    assert 0 < len(own_of(0.5)) < 5


def test_a_target_is_the_same_image_under_every_instruction():
    """No trace of the autoencoder tells which of them is its own; the image is made once."""
    n = len(INSTRUCTIONS)
    rows = replace(batch([CAPTION] * n, [CAPTION] * n), target=torch.rand(n, 3, 2, 2))
    part = part_of(rows)
    rules = RulesConfig(vae_roundtrip=0.5, another_image=0.0, another_instruction=2.0, another_object=1.0)
    made = []

    def reconstruct(images):
        made.extend(images)
        return torch.rand_like(images)

    labelling = Labelling(rules, Thresholds(0.2, (0.1, 0.1)), {}, reconstruct, frozenset(), 0)
    found = [row for row in own_rows(part, list("abcdef"), {}, labelling) if "source" not in row.rule]
    shown = {}
    for row in found:
        shown.setdefault(row.id.split("/")[0], set()).add((row.edited, row.vae_roundtrip))
    assert {len(images) for images in shown.values()} == {1}
    assert len(found) > 3 * n
    through = [images.pop()[1] for images in shown.values()]
    assert set(through) == {True, False}
    targets = [image for image in made if any(torch.equal(image, target) for target in rows.target)]
    assert len(targets) == sum(through)


def own_with(reconstruct=lambda images: images, **rules):
    """The own rows of targets in which a bright square appears, by the id of their row."""
    n = len(INSTRUCTIONS)
    source = torch.full((n, 3, 32, 32), 0.5)
    target = source.clone()
    target[:, :, 4:14, 4:14] = torch.linspace(0.7, 1, n)[:, None, None, None]
    rows = EditBatch(source, INSTRUCTIONS, source, target=target, source_caption=[CAPTION] * n)
    part = part_of(rows)
    settings = RulesConfig("paper", **rules)
    labelling = Labelling(settings, Thresholds(0.2, (0.1, 0.1)), {}, reconstruct, frozenset(), 0)
    return own_rows(part, list("abcdef"), {}, labelling)


ALIKE = (("red", "blue", "black", "pink"), ("left", "right"))


def test_a_target_under_its_instruction_with_a_word_altered_has_failed():
    rows = [row for row in own_with(another_word=2, word_groups=ALIKE) if row.rule == "another_word"]
    asked = {}
    for row in rows:
        asked.setdefault(row.id.split("/")[0], []).append(row.instruction)
        assert (row.label, row.source_caption, row.target_caption) == (0.0, None, None)
    # "pink" and "right" stand in no instruction, where they would tell a wrong one; the second row's star is
    # green, which is no word of these kinds.
    assert sorted(asked) == [f"row-{i}" for i in (0, 2, 3, 4, 5)]
    assert sorted(asked["row-0"]) == ["remove the black circle", "remove the blue circle"]
    assert len({row.id for row in rows}) == len(rows) == 10
    assert sum(row.rule == "another_word" for row in own_with(another_word=1, word_groups=ALIKE)) == 5
    assert not [row for row in own_with() if row.rule == "another_word"]


def test_kinds_of_words_are_needed_to_alter_one():
    with pytest.raises(ValueError, match=r"another_word needs word groups: set word_groups"):
        RulesConfig(another_word=1)
    for name in ("another_word", "damages_per_target"):
        with pytest.raises(ValueError, match=f"{name}: expected at least 0; got -1"):
            RulesConfig(**{name: -1, "word_groups": ALIKE})


def test_damaged_targets_stand_under_their_own_instruction_and_under_one_that_they_do_not_follow():
    rows = own_with(damages_per_target=3, another_word=2, another_instruction=1.0, word_groups=ALIKE)
    by_id = {row.id: row for row in rows}
    assert len(by_id) == len(rows)
    own = [row for row in rows if row.rule == DAMAGED]
    assert [row.id for row in own] == [f"row-{i}/{DAMAGED}-{of}" for i in range(6) for of in (1, 2, 3)]
    assert len({row.label for row in own}) > 3
    for row in own:
        assert row.label in DAMAGES[row.method].labels
        assert row.instruction == INSTRUCTIONS[int(row.id[4])]
        assert row.edited != by_id[f"{row.id.split('/')[0]}/target"].edited
        others = [by_id[name] for name in by_id if name.startswith(f"{row.id}/")]
        assert [other.edited for other in others] == [row.edited]
        assert others[0].label == 0
        assert others[0].instruction != row.instruction
        assert others[0].method == row.method
        assert others[0].target_caption is None
    of_first = [row.id for row in rows if row.id.startswith("row-0/damaged") and row.rule != DAMAGED]
    assert of_first == [
        f"row-0/{DAMAGED}-1/another_word-2",
        f"row-0/{DAMAGED}-2/another_word-1",
        f"row-0/{DAMAGED}-3/another_instruction",
    ]
    assert not [row for row in own_with() if "damaged" in row.id]


def test_damages_are_of_the_kinds_that_are_asked_for():
    rows = own_with(damages_per_target=3, damage_kinds=("ghost", "stained"))
    assert {row.method for row in rows if row.rule == DAMAGED} == {"ghost", "stained"}
    with pytest.raises(ValueError, match=r"damages: expected some of ghost, bent, .*; got burnt"):
        RulesConfig(damage_kinds=("ghost", "burnt"))


def test_outputs_of_moves_whose_object_is_still_in_its_place_have_failed_where_rules_say_so():
    image = torch.full((3, 32, 32), 0.5)
    source, target, copy = image.clone(), image.clone(), image.clone()
    source[:, 2:10, 2:10] = target[:, 20:28, 20:28] = 1
    copy[:, 2:10, 2:10] = copy[:, 20:28, 2:10] = 1
    instructions = ["move the white square down", "remove the white square"]

    def labelled(**rules) -> list[tuple[str, float]]:
        rows = EditBatch(torch.stack([source] * 2), instructions, torch.stack([source] * 2))
        rows = replace(rows, target=torch.stack([target, target]))
        labelling = Labelling(
            RulesConfig(distance_to_target=((0.0, 10.0), (0.9, 1.0)), **rules),
            Thresholds(0.2, (0.1, 0.1)),
            {"editor": "strong"},
            lambda images: images,
            frozenset(),
            0,
        )
        outputs = [Output(i, encode_png(copy)) for i in range(2)]
        part = part_of(rows)
        measured = {(i, "editor"): Measured(0.0, (0.9, 0.9)) for i in range(2)}
        found = output_rows(part, ["a", "b"], "editor", outputs, measured, labelling, 42)
        return [(row.rule, row.label) for row in found if row.id in ("row-0/editor", "row-1/editor")]

    assert labelled() == [("unreached", 1.0)]  # a move far from its target has no label
    assert labelled(object_not_moved=True) == [("left_behind", 0.0), ("unreached", 1.0)]
    with pytest.raises(ValueError, match="object_not_moved: expected labels in distance_to_target"):
        RulesConfig(object_not_moved=True)


def test_a_target_whose_damage_nobody_would_see_has_no_damaged_form(monkeypatch):
    monkeypatch.setattr("rewardedit.synthesis.damage.VISIBLE", 1.0)
    assert not [
        row
        for row in own_with(damages_per_target=3, another_word=1, word_groups=ALIKE)
        if "damaged" in row.id
    ]


def test_a_share_of_damaged_targets_goes_through_the_autoencoder():
    white = encode_png(torch.ones(3, 32, 32))
    rows = own_with(torch.ones_like, damages_per_target=3, vae_roundtrip=0.5)
    through = [row.edited == white for row in rows if row.rule == DAMAGED]
    assert 4 < sum(through) < 14
    assert through == [row.vae_roundtrip for row in rows if row.rule == DAMAGED]
    assert [row.edited for row in rows] == [
        row.edited for row in own_with(torch.ones_like, damages_per_target=3, vae_roundtrip=0.5)
    ]


def turns_of(share: float, *instructions: str, turns: Literal["one", "all"] = "all"):
    """The rows of a sequence in which every turn makes the image a tenth brighter."""
    n = len(instructions)
    images = tuple(to_pil(torch.full((3, 2, 2), i / 10)) for i in range(n + 1))
    sequence = EditSequence("s", images, instructions, tuple("abcdef"[: n + 1]))
    limits = Thresholds(0.2, (0.1, 0.1))
    rules = RulesConfig(another_turn=share, vae_roundtrip=0.0, turns=turns)
    labelling = Labelling(rules, limits, {}, lambda images: images, frozenset(), 0)
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
    with pytest.raises(ValueError, match="another_turn: expected a share"):
        RulesConfig(another_turn=2.0)


def compared(edited: list[torch.Tensor | None], unreached=((0.0, 10.0), (1.0, 0.0)), others=0.0, more=None):
    """The rows of a method's outputs for three removals, whose sources are black and targets white."""
    n = len(edited)
    source = torch.zeros(n, 3, 32, 32)
    rows = EditBatch(source, INSTRUCTIONS[2 : 2 + n], source, target=torch.ones_like(source))
    part = part_of(rows)
    outputs = [
        Output(i, None, "it failed") if image is None else Output(i, encode_png(image))
        for i, image in enumerate(edited)
    ]
    alike = (("circle", "cross"), ("red", "blue"))
    rules = RulesConfig(
        another_word=1,
        another_instruction=others,
        word_groups=alike,
        distance_to_target=unreached,
        **(more or {}),
    )
    grades = {"editor": "strong"}
    labelling = Labelling(rules, Thresholds(0.2, (0.1, 0.1)), grades, lambda images: images, frozenset(), 0)
    measured = {(i, "editor"): Measured(0.0, (0.9, 0.9)) for i in range(n)}
    return output_rows(part, list("abc")[:n], "editor", outputs, measured, labelling, 42)


def test_an_output_is_labelled_by_how_far_it_is_from_the_target_and_fails_where_the_target_does():
    white, black, half = torch.ones(3, 32, 32), torch.zeros(3, 32, 32), torch.ones(3, 32, 32)
    half[:, :, 16:] = 0
    rows = {row.id: row for row in compared([white, black, white])}
    assert (rows["row-0/editor"].rule, rows["row-0/editor"].label) == ("unreached", 10.0)
    assert (rows["row-1/editor"].rule, rows["row-1/editor"].label) == ("untouched", 0.0)
    # The last one moves something, which may lie elsewhere: it has a label where it is near its target.
    assert rows["row-2/editor"].label == 10.0
    wrong = rows["row-0/editor/another_word-1"]
    assert (wrong.rule, wrong.label, wrong.method) == ("another_word", 0.0, "editor")
    assert wrong.instruction in ("erase the red cross", "erase the blue circle")
    assert wrong.edited == rows["row-0/editor"].edited
    assert not [name for name in rows if name.startswith("row-1/editor/")]

    (partly,) = compared([half])
    assert partly.rule == "unreached"
    assert partly.label == pytest.approx(5.0, abs=0.6)
    assert compared([None, white, half])[0].id == "row-1/editor"  # the first has no image, the last no label
    assert [row.id for row in compared([half, half, half])] == ["row-0/editor", "row-1/editor"]


def test_what_is_wrong_fails_under_other_rows_instructions_and_may_follow_its_own_altered():
    half = torch.ones(3, 32, 32)
    half[:, :, 16:] = 0
    rows = [row for row in compared([half, half], others=1.0) if row.rule != "unreached"]
    assert [(row.id, row.label) for row in rows] == [
        ("row-0/editor/another_instruction", 0.0),
        ("row-1/editor/another_instruction", 0.0),
    ]
    assert [row.instruction for row in rows] == [INSTRUCTIONS[3], INSTRUCTIONS[2]]


def test_an_output_stands_under_an_instruction_once():
    rules = {"output_another_instruction": 1.0}
    rows = compared([torch.ones(3, 32, 32), torch.zeros(3, 32, 32)], others=2.0, more=rules)
    asked = [(row.edited, row.instruction) for row in rows]
    assert len(asked) == len(set(asked))
    # What is untouched has no label by distance: it stands under another row's as any output may.
    assert [row.rule for row in rows if row.id.startswith("row-1/")] == ["untouched", ANOTHER_INSTRUCTION]


@pytest.mark.parametrize(("label", "right"), [(7.9, False), (8.0, True)])
def test_what_is_labelled_as_right_fails_where_the_target_does(label, right):
    rows = compared([torch.ones(3, 32, 32)] * 3, unreached=((0.0, label), (1.0, 0.0)))
    assert ("another_word" in {row.rule for row in rows}) is right


def test_without_the_rule_outputs_are_labelled_by_thresholds_alone():
    assert {row.rule for row in compared([torch.ones(3, 32, 32)], unreached=())} == {"no_progress"}


def test_outputs_under_altered_instructions_do_not_count_as_kept(tmp_path):
    write_labelled(
        compared([torch.ones(3, 32, 32), torch.zeros(3, 32, 32)]), tmp_path / "train-00000.parquet"
    )
    write_outputs([Output(i, b"png") for i in range(2)], tmp_path / "part.parquet")
    found = summary([tmp_path / "train-00000.parquet"], {"editor": [tmp_path / "part.parquet"]})
    assert found["methods"] == {"editor": {"made": 2, "kept": 2, "dropped": 0}}
