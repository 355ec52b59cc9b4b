"""Which other instructions a row's target is labelled under."""

import pytest
import torch

from rewardedit.batch import EditBatch
from rewardedit.synthesis.label_rules import RulesConfig
from rewardedit.synthesis.labelling import other_instructions, words_of

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


def test_what_the_picture_shows_and_the_row_leaves_alone_comes_first():
    found = other_instructions(0, batch([CAPTION] * len(INSTRUCTIONS)), list("abcdef"))
    assert found[:2] == ["remove the blue cross", "move the black square to the left"]
    assert sorted(found) == sorted(set(INSTRUCTIONS[1:])), "each stands once, and its own never"
    assert found[2:] == ["paint the green star white", "erase the red circle"], "the rest as the rows are"


def test_what_may_be_there_already_comes_last():
    added = ["", "white", "", "", "left", ""]
    targets = [f"{CAPTION}, {word}" for word in added]
    captions = [f"{CAPTION}, with a left edge", *[CAPTION] * (len(INSTRUCTIONS) - 1)]
    found = other_instructions(0, batch(captions, targets), list("abcdef"))
    assert found[0] == "remove the blue cross"
    assert found[-1] == "move the black square to the left"


def test_without_captions_the_rows_order_holds_and_rows_of_the_same_source_are_left_out():
    found = other_instructions(3, batch(), list("abaddf"))
    assert found == [INSTRUCTIONS[0], INSTRUCTIONS[1], INSTRUCTIONS[2]]


def test_small_words_name_nothing():
    assert words_of("Move it TO the top-left, on a star") == {"move", "top", "left", "star"}


def test_there_may_be_more_than_one_a_row_and_never_less_than_none():
    assert RulesConfig(another_instruction=3.0).share("another_instruction") == 3
    with pytest.raises(ValueError, match="another_instruction: expected at least 0; got -1"):
        RulesConfig(another_instruction=-1.0)
    with pytest.raises(ValueError, match="another_image: expected a share"):
        RulesConfig(another_image=1.5)
