"""The questions of the ADIEE scorer, in our words and in the paper's."""

from dataclasses import replace

import pytest

from rewardedit.scorers.adiee_head import AdieeSettings
from rewardedit.scorers.adiee_text import PAPER_QUESTIONS, QUESTIONS, question, turns


def test_the_paper_prints_four_questions_and_asks_them_of_two_images_or_of_halves():
    assert len(PAPER_QUESTIONS) == len(QUESTIONS) == 4
    first = question(0, "add a hat", "pair", "paper")
    assert first == (
        'Can you rate how successful the edit instruction "add a hat" has been executed from the first '
        "image to the second image with a score from 0 to 10?"
    )
    assert "from the left half to the right half" in question(3, "add a hat", "concat", "paper")
    for number in range(4):
        assert turns(number, "add a hat", "pair") == turns(number, "add a hat", "pair", "ours")
        assert turns(number, "add a hat", "pair", "paper") != turns(number, "add a hat", "pair")


@pytest.mark.parametrize("prompts", ["ours", "paper"])
def test_a_scorer_s_settings_keep_the_words_that_it_was_trained_with(prompts, tmp_path):
    settings = replace(AdieeSettings(), prompts=prompts)
    assert settings.prompts == prompts
    assert AdieeSettings().prompts == "ours", "of scorers that were saved before there was a choice"
