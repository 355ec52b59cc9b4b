"""Probabilities of an answer's first token, as servers write them."""

import json
import math

import pytest

from rewardedit.language.answers import AnswerError
from rewardedit.language.first_token import NoLogprobs, read_first_token


def position(token: str, **probabilities: float) -> dict:
    """A token of an answer with its candidates, by name ("_7" is " 7")."""
    top = [
        {"token": name.replace("_", " "), "logprob": math.log(value), "bytes": None}
        for name, value in probabilities.items()
    ]
    chosen = next((one["logprob"] for one in top if one["token"] == token), math.log(0.1))
    return {"token": token, "logprob": chosen, "bytes": None, "top_logprobs": top}


def completion(positions: list | None, reason: str = "length", refusal: str | None = None) -> bytes:
    choice = {
        "message": {"content": "7", "refusal": refusal},
        "finish_reason": reason,
        "logprobs": None if positions is None else {"content": positions},
    }
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def test_tokens_that_differ_by_blanks_count_together():
    content = completion([position("7", **{"7": 0.5, "_7": 0.25, "\u25817": 0.125, "10": 0.0625})])
    assert read_first_token(content, 3) == (pytest.approx({"7": 0.875, "10": 0.0625}), 5, 1)


def test_blank_tokens_before_the_digit_are_passed_over():
    content = completion([position(" ", **{"_": 0.9}), position("\u2581"), position("8", **{"8": 0.75})])
    found, *_ = read_first_token(content, 3)
    assert found == pytest.approx({"8": 0.75})
    only = completion([position(" "), position("\n")])
    assert str(read_first_token(only, 3)[0]) == "the answer begins with 2 blank tokens"


def test_the_chosen_token_counts_outside_of_the_top():
    found, *_ = read_first_token(completion([position("7", **{"8": 0.5})]), 3)
    assert found == pytest.approx({"7": 0.1, "8": 0.5})


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (completion(None), NoLogprobs, "the endpoint returned no logprobs"),
        (completion([]), NoLogprobs, "the endpoint returned no logprobs"),
        (completion(None, "content_filter"), AnswerError, "the endpoint withheld the answer"),
        (completion(None, "stop", "no"), AnswerError, "the model refused to answer: no"),
    ],
)
def test_an_answer_without_logprobs_says_why(content, error, message):
    found, *_ = read_first_token(content, 3)
    assert type(found) is error
    assert message in str(found)


@pytest.mark.parametrize(
    "fault",
    [{"logprob": 2.0}, {"logprob": None}, {"token": 7}, {"top_logprobs": [{"token": "7"}]}, {"logprob": "x"}],
)
def test_malformed_logprobs_are_no_completion(fault):
    with pytest.raises(ValueError, match="expected logprobs of a chat completion"):
        read_first_token(completion([position("7", **{"7": 0.5}) | fault]), 3)
    with pytest.raises(ValueError, match="expected a chat completion; got <html>"):
        read_first_token(b"<html>", 3)
