"""Instructions with one word altered."""

import random

import pytest

from rewardedit.instructions.swap_word import swap_word
from rewardedit.shapes.vlm_tasks import WORD_GROUPS
from rewardedit.shapes.vocabulary import SHAPES


def all_of(instruction: str, alike, **more) -> set[str | None]:
    choice = random.Random(0)
    return {swap_word(instruction, alike, choice, **more) for _ in range(200)}


@pytest.mark.parametrize(
    ("instruction", "possible"),
    [
        ("move the box to the left", {"move the box to the right"}),
        ("shift it to the top", {"shift it to the bottom"}),
        ("it should be bigger", {"it should be smaller"}),
        ("put it above", {"put it below", "put it under"}),
        ("put it below", {"put it above"}),
        ("put it under", {"put it above"}),
        ("get rid of it", {None}),
        ("an eye, a small one", {"an eye, a medium one", "an eye, a large one"}),
        (
            "use an orange one",
            {f"use a {name} one" for name in ("red", "green", "blue", "yellow", "purple", "white", "black")},
        ),
    ],
)
def test_one_word_of_an_instruction_is_altered(instruction, possible):
    assert all_of(instruction, WORD_GROUPS) == possible


def test_shapes_can_be_altered_before_all_else():
    choice = random.Random(0)
    for share, least, most in ((0.0, 0.15, 0.35), (0.6, 0.6, 0.8), (1.0, 1.0, 1.0)):
        texts = [
            swap_word("make the small red star larger", WORD_GROUPS, choice, SHAPES, share)
            for _ in range(400)
        ]
        found = sum("star" not in str(text) for text in texts) / 400
        assert least <= found <= most


def test_an_article_fits_its_word():
    found = {swap_word("draw a red thing", WORD_GROUPS, random.Random(i)) for i in range(60)}
    assert "draw an orange thing" in found
    assert "draw a blue thing" in found
    assert all_of("An orange box", [("orange", "red")]) == {"A red box"}


def test_other_articles_stay_as_they_are():
    """Any other change besides the word would reveal that an instruction is altered."""
    found = all_of("give a unicorn an hour and a red hat", [("red", "orange", "blue")])
    assert found == {"give a unicorn an hour and an orange hat", "give a unicorn an hour and a blue hat"}


def test_a_word_is_found_in_any_case_and_only_as_a_whole():
    assert all_of("Left of the leftover box", [("left", "right")]) == {"right of the leftover box"}
    assert all_of("the reddish box", [("red", "blue")]) == {None}


def test_words_in_a_row_and_signs_are_taken_as_they_are():
    assert all_of("paint it light blue", [("light", "light blue", "red")]) == {
        "paint it light", "paint it red",
    }  # fmt: skip
    assert all_of("write c++ on it", [("c++", "c")]) == {"write c on it"}


def test_only_known_words_come_in():
    kinds = [("red", "blue", "Light Green", "pink")]
    assert all_of("a red box", kinds, known={"red", "light", "green"}) == {"a Light Green box"}
    assert all_of("a red box", kinds, known={"red", "light"}) == {None}


def test_either_of_two_words_is_altered():
    found = all_of("red on red", [("red", "blue")])
    assert found == {"blue on red", "red on blue"}
