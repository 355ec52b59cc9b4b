"""Texts that a model does not read to their end are counted and told, and their rows carry a flag."""

import warnings

import pytest
import torch

from rewardedit import EditBatch, load_editor, load_scorer
from rewardedit.language.texts import note_cut, noting, tokenize
from rewardedit.regions.detector import Detector
from rewardedit.scoring import TEXT_CUT, score_batch
from tests.models import small, small_tokenizer

LONG = "turn the small red circle into a blue star " * 12
UNKNOWN = "could you recolour the circle"  # to the small tokenizers a "u" at the end of a word is unknown


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    """Nobody has been warned yet."""
    monkeypatch.setattr("rewardedit.language.texts._told", set())


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ("add a red circle", False),
        ("", False),
        ("circle " * 75, False),  # with the two tokens around it as many as are read
        ("circle " * 76, True),
        (LONG, True),
        (UNKNOWN, True),
        ("the cube, recoloured", False),
    ],
)
def test_a_text_is_cut_where_it_is_too_long_or_ends_within(text, is_cut, tokenizer):
    with noting() as cut:
        assert note_cut(tokenizer, [text], 77, "a model") == [is_cut]
    assert cut == ({text} if is_cut else set())


def test_the_warning_counts_and_comes_once_for_each_model(tokenizer):
    texts = ["add a star", LONG, UNKNOWN]
    with pytest.warns(UserWarning, match="2 of 3 texts are cut: a model reads at most 77 tokens"):
        whole = tokenize(tokenizer, texts, 77, "a model", padding=True)
    plain = tokenizer(texts, padding=True, truncation=True, max_length=77, return_tensors="pt")
    assert torch.equal(whole.input_ids, plain.input_ids), "texts are cut as before"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        note_cut(tokenizer, texts, 77, "a model")
    with pytest.warns(UserWarning, match="another model"):
        note_cut(tokenizer, texts, 77, "another model")


def test_what_an_inner_block_notes_its_outer_one_has_too(tokenizer):
    with noting() as outer:
        with noting() as inner:
            note_cut(tokenizer, [LONG], 77, "a model")
        note_cut(tokenizer, [UNKNOWN], 77, "a model")
    assert inner == {LONG}
    assert outer == {LONG, UNKNOWN}


def batch_of(*instructions: str, **texts: list[str]) -> EditBatch:
    images = torch.rand(2, len(instructions), 3, 64, 64, generator=torch.Generator().manual_seed(0))
    return EditBatch(images[0], list(instructions), images[1], **texts)


@pytest.mark.parametrize("name", ["clip_d", "clip_t", "vifi_clip", "adiee", "vlm_judge"])
def test_rows_whose_texts_are_cut_carry_a_flag(name, tiny_judge):
    options = {"checkpoint": tiny_judge} if name == "vlm_judge" else {}
    scorer = load_scorer(small({name: options}))
    cut = UNKNOWN if name in ("adiee", "vlm_judge") else LONG
    scores = score_batch(batch_of("remove the circle", cut, "add a star"), {name: scorer})[name]
    assert scores.parts[TEXT_CUT].nan_to_num(0).tolist() == [0, 1, 0]
    plain = score_batch(batch_of("remove the circle"), {name: scorer})[name]
    assert TEXT_CUT not in plain.parts


def test_captions_count_as_texts_of_their_row():
    batch = batch_of("go", "go", source_caption=["a star", LONG], target_caption=["a circle", "a star"])
    scores = score_batch(batch, {"clip_d": load_scorer("clip_d", checkpoint="shapes/clip")})["clip_d"]
    assert scores.parts[TEXT_CUT].nan_to_num(0).tolist() == [0, 1]


def test_captions_that_differ_behind_the_cut_are_not_called_the_same():
    captions = [LONG + "a red cube", LONG + "a green ball"]
    batch = batch_of("go", source_caption=captions[:1], target_caption=captions[1:])
    (reason,) = load_scorer("clip_d", checkpoint="shapes/clip")(batch).reason
    assert reason.startswith("source and target texts differ only in what the model does not read")
    batch = batch_of("go", source_caption=captions[:1], target_caption=captions[:1])
    (reason,) = load_scorer("clip_d", checkpoint="shapes/clip")(batch).reason
    assert reason == "source and target texts are the same: no direction"


def test_editors_and_detectors_note_what_they_cut(tiny_editor):
    editor = load_editor(tiny_editor)
    detector = Detector.from_pretrained("shapes/detector")
    with noting() as cut, pytest.warns(UserWarning, match="texts are cut: the editor reads at most 32"):
        editor.encode(torch.rand(2, 3, 32, 32), ["add a star", LONG])
    assert cut == {LONG}
    with noting() as cut, pytest.warns(UserWarning, match="texts are cut: the detector reads at most"):
        detector(torch.rand(1, 3, 64, 64), [LONG])
    assert len(cut) == 1
