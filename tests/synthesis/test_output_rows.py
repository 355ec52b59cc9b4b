"""Rows that the rules make of methods' outputs."""

from dataclasses import replace

import pytest
import torch

from rewardedit.batch import EditBatch
from rewardedit.data.labelled import encode_png, write_labelled
from rewardedit.synthesis.counts import summary
from rewardedit.synthesis.label_rules import ANOTHER_INSTRUCTION, Measured
from rewardedit.synthesis.other_instructions import other_instructions
from rewardedit.synthesis.output_rows import output_rows
from rewardedit.synthesis.outputs import Output, write_outputs
from rewardedit.synthesis.rules_config import ByTargetConfig, NegativesConfig, RulesConfig
from tests.synthesis.rows import CAPTION, INSTRUCTIONS, batch, labelling_of, part_of


def rows_of(share: float, *methods: str):
    """The rows of outputs that no rule labels, but for the first, which made no progress."""
    n = len(INSTRUCTIONS)
    part = part_of(batch([CAPTION] * n, [CAPTION] * n))
    outputs = [Output(i, encode_png(torch.full((3, 2, 2), i / 10))) for i in range(n - 1)]
    outputs.append(Output(n - 1, None, "it failed"))
    rules = RulesConfig(negatives=NegativesConfig(output_other_instruction=share))
    labelling = labelling_of(rules, dict.fromkeys(methods, "other"), seed=7)
    found = []
    for method in methods:
        measured = {(i, method): Measured(0.0 if i == 0 else 0.5, (0.9, 0.9)) for i in range(n)}
        found += output_rows(part, list("abcdef"), method, outputs, measured, labelling)
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
        assert (row.label, row.method, row.seed, row.vae_roundtrip) == (0.0, "editor", 7 + i, True)
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


def test_outputs_of_moves_whose_object_is_still_in_its_place_have_failed_where_rules_say_so():
    image = torch.full((3, 32, 32), 0.5)
    source, target, copy = image.clone(), image.clone(), image.clone()
    source[:, 2:10, 2:10] = target[:, 20:28, 20:28] = 1
    copy[:, 2:10, 2:10] = copy[:, 20:28, 2:10] = 1
    instructions = ["move the white square down", "remove the white square"]

    def labelled(object_not_moved: bool) -> list[tuple[str, float]]:
        rows = EditBatch(torch.stack([source] * 2), instructions, torch.stack([source] * 2))
        rows = replace(rows, target=torch.stack([target, target]))
        by_target = ByTargetConfig(((0.0, 10.0), (0.9, 1.0)), object_not_moved)
        labelling = labelling_of(RulesConfig(by_target=by_target), {"editor": "strong"})
        outputs = [Output(i, encode_png(copy)) for i in range(2)]
        part = part_of(rows)
        measured = {(i, "editor"): Measured(0.0, (0.9, 0.9)) for i in range(2)}
        found = output_rows(part, ["a", "b"], "editor", outputs, measured, labelling)
        return [(row.rule, row.label) for row in found if row.id in ("row-0/editor", "row-1/editor")]

    assert labelled(False) == [("unreached", 1.0)]  # a move far from its target has no label
    assert labelled(True) == [("left_behind", 0.0), ("unreached", 1.0)]


def compared(
    edited: list[torch.Tensor | None],
    labels: tuple[tuple[float, float], ...] = ((0.0, 10.0), (1.0, 0.0)),
    others: float = 0.0,
    of_outputs: float = 0.0,
):
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
    negatives = NegativesConfig(None, others, 0.0, 1, alike, of_outputs)
    rules = RulesConfig(negatives=negatives, by_target=ByTargetConfig(labels) if labels else None)
    labelling = labelling_of(rules, {"editor": "strong"})
    measured = {(i, "editor"): Measured(0.0, (0.9, 0.9)) for i in range(n)}
    return output_rows(part, list("abc")[:n], "editor", outputs, measured, labelling)


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
    rows = compared([torch.ones(3, 32, 32), torch.zeros(3, 32, 32)], others=2.0, of_outputs=1.0)
    asked = [(row.edited, row.instruction) for row in rows]
    assert len(asked) == len(set(asked))
    # What is untouched has no label by distance: it stands under another row's as any output may.
    assert [row.rule for row in rows if row.id.startswith("row-1/")] == ["untouched", ANOTHER_INSTRUCTION]


@pytest.mark.parametrize(("label", "right"), [(7.9, False), (8.0, True)])
def test_what_is_labelled_as_right_fails_where_the_target_does(label, right):
    rows = compared([torch.ones(3, 32, 32)] * 3, labels=((0.0, label), (1.0, 0.0)))
    assert ("another_word" in {row.rule for row in rows}) is right


def test_without_the_rule_outputs_are_labelled_by_thresholds_alone():
    assert {row.rule for row in compared([torch.ones(3, 32, 32)], labels=())} == {"no_progress"}


def test_outputs_under_altered_instructions_do_not_count_as_kept(tmp_path):
    write_labelled(
        compared([torch.ones(3, 32, 32), torch.zeros(3, 32, 32)]), tmp_path / "train-00000.parquet"
    )
    write_outputs([Output(i, b"png") for i in range(2)], tmp_path / "part.parquet")
    found = summary([tmp_path / "train-00000.parquet"], {"editor": [tmp_path / "part.parquet"]})
    assert found["methods"] == {"editor": {"made": 2, "kept": 2, "dropped": 0}}
