"""Other instructions that a row's target is labelled with."""

import random

import pytest
import torch

from rewardedit.batch import EditBatch
from rewardedit.synthesis.other_instructions import (
    another_object,
    another_words,
    objects_named,
    other_instructions,
    words_of,
)
from tests.synthesis.rows import CAPTION, INSTRUCTIONS, batch


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


def asked(texts: list[str], *captions: str, u: float = 0.0) -> list[str | None]:
    """Each row's instruction for another object."""
    images = torch.zeros(len(texts), 3, 2, 2)
    rows = EditBatch(images, texts, images, source_caption=[*captions])
    return [another_object(i, rows, objects_named(texts), u) for i in range(len(texts))]


def test_an_instruction_names_another_object_of_its_image():
    texts = ["make the red circle blue", "remove the green star", "enlarge the black cross"]
    first = "a small red circle at top left, a green star and a black cross, on a pink background"
    found = asked(texts, first, "a green star", "a black cross", u=0.0)
    assert found == ["make the black cross blue", None, None]
    assert asked(texts, first, "", "", u=0.99)[0] == "make the green star blue"
    texts[0] = "Make the Red Circle blue"
    assert asked(texts, first, "", "", u=0.99)[0] == "Make the green star blue"


@pytest.mark.parametrize(
    ("text", "caption"),
    [
        ("make the circle blue", "a red circle on a pink background"),  # it is the red circle
        ("make the small circle blue", "a small red circle, a large cross"),
        ("make the green star blue", "a green star, a red cross and a circle"),  # no clause has all the words
        ("make the background blue", "a red circle on a pink background"),
        ("make it blue", "a red circle"),
        ("add a white cross", "a red circle"),  # it changes no object
        ("move the star near the star", "a star, a red circle"),  # which of the two is not known
        ("make the cat blue", "a dog, a red circle"),  # what it changes is not known from the caption
    ],
)
def test_what_may_be_the_same_object_is_not_taken(text, caption):
    assert asked([text, "remove the red circle"], caption, "")[0] is None


def test_an_altered_place_is_near_nothing_that_the_image_has():
    """An edit may lie near another object by chance."""
    texts = ["put a cross near the circle", "remove the star", "erase the square"]
    images = torch.zeros(3, 3, 2, 2)
    alike = [("circle", "star", "square", "cross")]

    def words(caption: str) -> set[str]:
        rows = EditBatch(images, texts, images, source_caption=[caption, "", ""])
        return set(another_words(0, rows, alike, 20, random.Random(0)))

    near = {f"put a cross near the {name}" for name in ("star", "square", "cross")}
    put = {f"put a {name} near the circle" for name in ("circle", "star", "square")}
    assert words("a circle on a pink background") == near | put
    assert words("a circle, a star") == (near | put) - {"put a cross near the star"}


def test_a_name_that_says_less_is_the_same_object_and_captions_are_needed():
    texts = ["make the red circle blue", "remove the circle"]
    assert asked(texts, "a red circle, a green circle", "")[0] is None
    images = torch.zeros(2, 3, 2, 2)
    rows = EditBatch(images, texts, images)
    assert another_object(0, rows, objects_named(texts), 0.0) is None
