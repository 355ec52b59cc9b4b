"""Judges that grade by the logprobs of an endpoint: a real HTTP server on this machine."""

import dataclasses
import json
import math
from collections.abc import Iterator

import pytest

from rewardedit import load_scorer
from rewardedit.language.endpoint import Endpoint, EndpointError
from rewardedit.scorers.vlm_judge import VlmJudge
from tests.language.test_first_token import completion, position
from tests.scorers.test_vlm_judge import VIESCORE, Handler, example, make_batch, served


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from served(monkeypatch)


def reply(**probabilities: float) -> None:
    """All questions get these probabilities; those of the instruction "other" an answer in words."""
    words = completion([position("The", The=0.875, **{"7": 0.0625, "9": 0.0625})])
    digits = completion([position("7", **probabilities)])
    Handler.reply = staticmethod(lambda text: (200, words if '"other"' in text else digits))


def judge(server: str, **options: object) -> VlmJudge:
    return load_scorer("vlm_judge", checkpoint=f"{server}#m", answer="digits", **options)


def test_a_grade_is_the_mean_over_the_digits_of_one_token(server):
    reply(**{"7": 0.5, "_8": 0.25, "10": 0.125, "no": 0.125})
    scores = judge(server)(make_batch())
    expected = (7 * 0.5 + 8 * 0.25) / 0.75 * 10 / 9
    for name in VIESCORE:
        assert scores.parts[name].tolist() == pytest.approx([expected] * 2)
        assert scores.parts[f"{name}_digit_probability"].tolist() == pytest.approx([0.75] * 2)
    assert scores.score.tolist() == pytest.approx([expected] * 2)
    asked = Handler.seen[0]
    assert (asked["logprobs"], asked["top_logprobs"], asked["max_tokens"]) == (True, 20, 3)
    assert "logprob_token_ids" not in asked
    assert asked["messages"][-1]["content"][-1]["text"].endswith(
        "Answer with one digit and nothing else, from 0, the lowest grade, to 9, the highest."
    )


def test_a_row_whose_digits_are_unlikely_is_invalid(server):
    reply(**{"7": 1.0})
    batch = dataclasses.replace(make_batch(), instruction=["add a hat", "other"])
    scores = judge(server)(batch)
    assert scores.valid.tolist() == [True, False]
    assert scores.parts["followed_digit_probability"].tolist() == pytest.approx([1, 0.125])
    said = "followed: the digits hold 0.125 of the probability, less than 0.5; the most probable first token"
    assert str(scores.reason[1]).startswith(f"{said} is 'The'")
    least = judge(server, min_digit_probability=0.1)(batch)
    assert least.valid.all()
    assert least.parts["followed"].tolist() == pytest.approx([7 * 10 / 9, 8 * 10 / 9])


def test_the_ids_of_digits_are_asked_of_servers_that_know_them(server):
    reply(**{str(digit): 0.1 for digit in range(10)})
    ids = list(range(15, 25))
    exact = judge(server, digit_ids=ids)
    assert exact(make_batch(1)).parts["clean"].tolist() == pytest.approx([5])
    assert all(one["logprob_token_ids"] == ids for one in Handler.seen)
    assert exact.fingerprint["decoding"]["token_ids"] == ids
    assert exact.fingerprint != judge(server).fingerprint
    assert json.loads(json.dumps(exact.fingerprint)) == exact.fingerprint


def test_a_server_without_logprobs_is_told_apart(server):
    for status, content in ((200, completion(None)), (400, b'{"error": "logprobs are not available"}')):
        Handler.reply = staticmethod(lambda text, found=(status, content): found)
        with pytest.raises(EndpointError, match=r"no.* use answer='text' where there are no logprobs"):
            judge(server)(make_batch())
    Handler.reply = staticmethod(lambda text: (401, b"{}"))
    with pytest.raises(EndpointError, match="401") as refused:
        judge(server)(make_batch())
    assert "logprobs" not in str(refused.value)


def test_an_outage_is_no_bad_row_and_a_refusal_is(server):
    reply(**{"7": 1.0})
    digits = VlmJudge(Endpoint(server, "m", pause=0.001, retries=0), "m", answer="digits")
    Handler.reply = staticmethod(lambda text: (503, b"{}"))
    with pytest.raises(EndpointError, match="503"):
        digits(make_batch())
    Handler.reply = staticmethod(lambda text: (200, completion(None, "stop", "no")))
    scores = digits(make_batch())
    assert not scores.valid.any()
    assert scores.parts["clean_digit_probability"].isnan().all()
    assert str(scores.reason[0]).startswith("followed: the model refused to answer: no")


def test_an_example_is_answered_by_one_digit(server):
    reply(**{"7": 1.0})
    shown = VlmJudge(Endpoint(server, "m"), "m", answer="digits", example=example(VIESCORE, 6.5))
    assert shown(make_batch(1)).valid.all()
    assert [turn["content"] for turn in Handler.seen[0]["messages"]][1] == "6"


def test_nothing_is_read_from_probabilities_of_zero(server):
    never = {"token": "7", "logprob": -9999.0, "top_logprobs": []}
    Handler.reply = staticmethod(lambda text: (200, completion([never])))
    scores = judge(server, min_digit_probability=math.ulp(0.0))(make_batch(1))
    assert not scores.valid.any()
