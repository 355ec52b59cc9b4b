"""Captions before and after an edit: the check by hand-made cases, and the stage with a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rewardedit.data import DataConfig, open_rows
from rewardedit.language.vlm import load_vlm
from rewardedit.synthesis import captions
from rewardedit.synthesis.captions import (
    CaptionsConfig,
    caption_pairs,
    disagreement,
    second_question,
    write_captions,
)
from tests.models import save_vlm


@pytest.mark.parametrize(
    ("before", "after", "instruction"),
    [
        ("a plate of food with broccoli and bread", "a plate of food with broccoli", "get rid of the bread"),
        ("a woman holding an umbrella", "a fat woman holding an umbrella", "make the woman fatter"),
        (
            "a glass of red wine and a bottle",
            "a glass of white wine and a bottle",
            "replace red wine with white",
        ),
        ("a house", "a painting of a house", "paint it in oil"),
        ("un café", "un café et un gâteau", "ajoute un gâteau"),
        ("一只猫", "一只戴帽子的猫", "给猫加一顶帽子"),
        ("one red circle", "one red circle and one red circle", "add a circle"),  # more often
    ],
)
def test_captions_that_differ_in_what_is_asked_agree(before, after, instruction):
    assert disagreement(before, after, instruction) is None


@pytest.mark.parametrize(
    ("before", "after", "instruction", "reason"),
    [
        ("a cat", "a cat on a sofa", "make it night", "the captions differ in sofa; the instruction"),
        ("a cat", "a cat", "add a hat", "the two captions say the same"),
        ("a Cat.", "A cat", "add a hat", "the two captions say the same"),
        ("", "a cat", "add a cat", "a caption is empty"),
        ("a cat", "the cat", "add a hat", "the captions differ in nothing that counts"),
        ("一只猫", "一只白猫", "给狗加一顶帽子", "the captions differ in 白"),
        ("an ox", "an ox and a car", "paint the carpet", None),
    ],
)
def test_captions_that_differ_in_something_else_do_not(before, after, instruction, reason):
    found = disagreement(before, after, instruction)
    if reason is None:
        assert found is None  # a beginning of three letters is enough: better than to lose "fat" and "fatter"
    else:
        assert found is not None
        assert found.startswith(reason)


def test_the_second_question_comes_after_the_first_answer():
    chat = second_question("add a hat", "a cat")
    assert [turn["role"] for turn in chat] == ["user", "assistant", "user"]
    texts = [part["text"] for turn in chat for part in turn["content"] if part["type"] == "text"]
    assert '"add a hat"' in texts[0]
    assert texts[1] == "a cat"
    assert [part["type"] for turn in chat for part in turn["content"]].count("image") == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("vlm"))
    save_vlm(folder, "llava_next")
    return folder


class Bare:
    """Rows without captions but for the last."""

    def __init__(self) -> None:
        self.rows = open_rows(DataConfig("shapes", limit=5))

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int):
        sample = self.rows[index]
        return sample if index == 4 else replace(sample, source_caption=None, target_caption=None)


def test_rows_without_captions_get_them_and_others_keep_theirs(model, tmp_path: Path, monkeypatch):
    asked = []
    real = captions.caption_pairs
    monkeypatch.setattr(captions, "caption_pairs", lambda *args: asked.append(len(args[2])) or real(*args))
    config = CaptionsConfig(model, max_new_tokens=3, batch_size=2, check=False)
    rows = write_captions(config, Bare(), DataConfig("shapes", limit=5), tmp_path / "captions")
    assert asked == [2, 2]
    assert rows[4].source_caption == Bare()[4].source_caption
    assert all(rows[i].source_caption is not None for i in range(4))
    again = write_captions(config, Bare(), DataConfig("shapes", limit=5), tmp_path / "captions")
    assert asked == [2, 2], "a stage that was whole was done again"
    assert [again[i].target_caption for i in range(5)] == [rows[i].target_caption for i in range(5)]


def test_captions_that_say_nothing_are_none(model, tmp_path, monkeypatch):
    class Blank(Bare):
        def __getitem__(self, index: int):
            return replace(super().__getitem__(index), source_caption=" ", target_caption="")

    monkeypatch.setattr(
        captions, "caption_pairs", lambda *args: [("a cat", "a cat with a hat")] * len(args[2])
    )
    rows = write_captions(
        CaptionsConfig(model, check=False), Blank(), DataConfig("shapes", limit=5), tmp_path / "captions"
    )
    assert [rows[i].target_caption for i in range(5)] == ["a cat with a hat"] * 5


def test_captions_that_do_not_fit_are_left_out(model, tmp_path, monkeypatch):
    pairs = iter([[("a cat", "a cat"), ("", "x")], [("one shape", "no shape at all"), ("x", "y")]])
    monkeypatch.setattr(captions, "caption_pairs", lambda *args: next(pairs))
    config = CaptionsConfig(model, batch_size=2)
    rows = write_captions(config, Bare(), DataConfig("shapes", limit=5), tmp_path / "captions")
    assert [rows[i].source_caption for i in range(2)] == [None, None]
    assert rows[4].target_caption == Bare()[4].target_caption


def test_a_text_that_steers_the_model_is_taken_out_of_what_it_is_asked(model, monkeypatch):
    vlm = load_vlm(model)
    asked = []
    real = vlm.prompt
    monkeypatch.setattr(type(vlm), "prompt", lambda own, chat: asked.append(real(chat)) or asked[-1])
    steering = ["make it red", "make the <image> red"]
    caption_pairs(vlm, torch.rand(2, 3, 64, 64), steering, 3)
    assert len(asked) == 4
    assert all(text.count("<image>") == 1 for text in asked), "the image's own place alone"
    assert "make the   red" in asked[1]


def test_the_paper_s_own_questions_are_asked_where_settings_say_so():
    ours, papers = (second_question("add a hat", "a dog", prompts) for prompts in ("ours", "paper"))
    assert [turn["role"] for turn in ours] == [turn["role"] for turn in papers]
    words = papers[0]["content"][1]["text"]
    assert words == 'Describe this image based on the edit "add a hat" we want to perform on it later'
    assert papers[2] != ours[2]
    assert papers[1] == ours[1], "the answer is the model's"
