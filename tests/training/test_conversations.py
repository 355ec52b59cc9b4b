"""Conversations to learn from: mixed evenly, and in the words in which the model is asked later."""

import pytest
import torch

from rewardedit.data import DataConfig
from rewardedit.data.difference_rows import DifferenceRow
from rewardedit.language.vlm import load_vlm
from rewardedit.regions.differences import Difference
from rewardedit.scorers.dice_text import DiceFormat, detection_chat, parse_differences, parse_judgement
from rewardedit.trainers.vlm_sft import Config, lazy_dataset, open_task
from rewardedit.training.conversations import (
    TaskRows,
    as_texts,
    coherence_examples,
    difference_examples,
    merged_order,
)
from tests.models import VLMS, save_vlm

SHORT = DiceFormat("short", 2, False)
DICE = DataConfig("dice_d", "x")
FOUND = (Difference("REMOVE", "red circle", (0.25, 0.5, 0.5, 0.75)),)


def row(**more) -> DifferenceRow:
    return DifferenceRow("x", torch.zeros(3, 32, 32), torch.ones(3, 16, 16), FOUND, **more)


def tasks(*counts: int) -> list[TaskRows]:
    return [TaskRows(list(range(count)), lambda one: [{"row": one}]) for count in counts]


def test_tasks_are_mixed_evenly_and_repeat():
    order = merged_order(tasks(30, 10), 0, 80)
    assert [sum(task == 0 for task, _ in order[i : i + 8]) for i in range(0, 80, 8)] == [6] * 10
    assert sorted(index for task, index in order if task == 1) == sorted([*range(10)] * 2)
    assert order == merged_order(tasks(30, 10), 0, 80)
    assert order != merged_order(tasks(30, 10), 1, 80)
    even = merged_order(tasks(30, 10), 0, 80, [0.5, 0.5])
    assert sum(task for task, _ in even) == 40


def test_rows_in_random_order_are_read_as_they_come():
    (task,) = tasks(5)
    shuffled = TaskRows(task.rows, task.examples, is_shuffled=True)
    assert [index for _, index in merged_order([shuffled], 0, 7)] == [0, 1, 2, 3, 4, 0, 1]


def test_answers_can_be_read_again():
    (example,) = difference_examples(row(), SHORT)
    assert parse_differences(example["completion"][0]["content"][0]["text"]).differences == FOUND
    assert [image.size for image in example["images"]] == [(32, 32)] * 2, (
        "the edited image has the source's size"
    )
    for coherent in (True, False):
        judged = row(instruction="remove it", coherent=coherent, reason="it was asked for.")
        (example,) = coherence_examples(judged, DiceFormat())
        text = example["completion"][0]["content"][0]["text"]
        assert parse_judgement(text).coherent is coherent
        assert parse_judgement(text).reason == "it was asked for."
        assert len(example["images"][1].getcolors()) == 2, "a frame"


def test_texts_that_steer_the_model_are_not_learned():
    steering = DifferenceRow(
        "x", *[torch.zeros(3, 8, 8)] * 2, (Difference("ADD", "a <image> b", FOUND[0].box),)
    )
    (example,) = difference_examples(steering, SHORT, ["<image>"])
    assert "image" not in example["completion"][0]["content"][0]["text"]


@pytest.mark.parametrize("kind", [*VLMS, "shapes/vlm"])
def test_the_prompt_is_that_of_use(kind, tmp_path):
    if kind != "shapes/vlm":
        save_vlm(str(tmp_path), kind)
    vlm = load_vlm(kind if kind == "shapes/vlm" else str(tmp_path))
    (example,) = difference_examples(row(), SHORT)
    texts = as_texts(vlm, example)
    assert texts["prompt"] == vlm.prompt(detection_chat("short"))
    assert texts["completion"].strip().startswith('["REMOVE: red circle')
    assert vlm.processor.tokenizer.eos_token in texts["completion"]
    assert texts["completion"].count("REMOVE") == 1


def test_verdicts_of_the_code_s_layout_open_their_own_answer(tmp_path):
    """At use the published judge writes the opening of its turn itself; the detector's chat has it."""
    save_vlm(str(tmp_path), "idefics3")
    vlm = load_vlm(str(tmp_path))
    config = Config("x", {"coherence": DICE}, answers=DiceFormat("code"))
    opened = "assistant:"
    for task, is_opened in (("differences", True), ("coherence", False)):
        rows = [row(instruction="remove it", coherent=True if task == "coherence" else None)]
        own = open_task(task, DICE, config, usable=rows)
        (texts,) = lazy_dataset(config, vlm, [own], [(0, 0)])
        assert texts["prompt"].endswith(opened) is is_opened
        assert texts["completion"].startswith(opened) is not is_opened


def test_weights_of_the_model_are_not_hashed_with_its_rows(tmp_path, monkeypatch):
    """Data sets hash what their functions hold: for 7 billion weights that takes minutes and 50 GB."""
    save_vlm(str(tmp_path), "idefics3")
    vlm = load_vlm(str(tmp_path))
    hashed = []

    def reduce(model: torch.nn.Module, protocol: int):
        hashed.append(model)
        return object.__reduce_ex__(model, protocol)

    monkeypatch.setattr(type(vlm.model), "__reduce_ex__", reduce)
    config = Config("x", {"differences": DICE})
    lazy_dataset(config, vlm, [open_task("differences", DICE, config, usable=[row()])], [(0, 0)])
    assert not hashed


def test_a_verdict_needs_one_difference_and_an_instruction():
    with pytest.raises(ValueError, match="expected one difference and an instruction"):
        row(coherent=True)
