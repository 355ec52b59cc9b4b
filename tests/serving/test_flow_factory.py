"""Requests in the form that Flow-Factory's client sends; the client itself is not on the package index."""

import pytest

from tests.serving.helpers import L1, STRICT, base64_of, client_of, direct, edit


@pytest.fixture(scope="module")
def client():
    with client_of({"strict": STRICT}, max_body_mb=1) as client:
        yield client


def recorded(n: int = 3, **changes) -> dict:
    """The body of a request with n edits."""
    edits = [edit(i) for i in range(n)]
    body = {
        "prompt": [fields["instruction"] for fields in edits],
        "image": [base64_of(fields["edited"]) for fields in edits],
        "video": None,
        "condition_images": [[base64_of(fields["source"])] for fields in edits],
        "condition_videos": None,
    }
    return body | changes


def test_rewards_equal_direct_calls(client):
    answer = client.post("/compute", json=recorded())
    expected = [direct(STRICT, edit(i)) for i in range(3)]
    assert answer.json() == {"rewards": pytest.approx(expected, abs=1e-6)}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"condition_images": None}, "condition_images: expected the source image of each edit; got none"),
        ({"condition_images": [["AAAA"]]}, "condition_images: expected 3, one for each prompt; got 1"),
        ({"condition_images": [["AAAA"], [], ["AAAA"]]}, "sample 1: expected one source image; got 0"),
        ({"image": None}, "image: expected one edited image for each prompt; got none"),
        ({"image": ["AAAA"] * 4}, "image: expected 3, one for each prompt; got 4"),
        ({"image": ["AAAA"] * 3}, "sample 0: edited: the bytes are not an image"),
        ({"prompt": ["one", "void", "three"]}, "sample 1: the score is not finite"),
        ({"prompt": ["one", "fail", "three"]}, "sample 1: KeyError"),
        ({"prompt": None}, "prompt: input should be a valid list"),
        ({"video": ["A" * 2**21]}, "body: expected at most 1 MiB"),
    ],
)
def test_a_failure_is_an_error_with_its_reason(client, changes, error):
    answer = client.post("/compute", json=recorded(**changes))
    assert answer.status_code == 200
    assert answer.json().keys() == {"error"}
    assert error in answer.json()["error"]


def test_one_of_several_scorers_is_chosen_by_the_address():
    with client_of({**L1, "strict": STRICT}) as client:
        assert "append /flow-factory/NAME" in client.post("/compute", json=recorded()).json()["error"]
        assert client.get("/flow-factory/l1/health").status_code == 200
        answer = client.post("/flow-factory/l1/compute", json=recorded()).json()
        assert answer["rewards"] == pytest.approx([direct("l1", edit(i)) for i in range(3)], abs=1e-6)
        error = client.post("/flow-factory/l2/compute", json=recorded()).json()["error"]
        assert error == "scorers: expected some of l1, strict; got l2"
