"""Bodies of many faulty entries: refused by their lengths, before a model or an error is made of each."""

import pytest

from tests.serving.helpers import L1, client_of

SAMPLE = {"history": [], "required_rewards": ["l1"]}


@pytest.fixture(scope="module")
def client():
    with client_of(L1, max_items=4) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/v1/score", {"items": [{}] * 5}, 413, "items: expected at most 4; got 5; send fewer"),
        ("/v1/score", {"items": [], "scorers": [3] * 65}, 413, "scorers: expected at most 64; got 65"),
        ("/v1/score", {"items": [dict.fromkeys(map(str, range(21)))]}, 422, "items.0: expected at most 20"),
        ("/v1/score", dict.fromkeys(map(str, range(21))), 422, "body: expected at most 20 fields; got 21"),
        ("/score", {"requests": [{}] * 5}, 413, "requests: expected at most 4; got 5; set request_batch"),
        ("/score", {"requests": [SAMPLE | {"history": [3] * 65}]}, 413, "requests.0.history: expected at mo"),
        ("/score", {"requests": [SAMPLE | {"required_rewards": [3] * 65}]}, 413, "requests.0.required"),
        ("/compute", {"prompt": [3] * 5}, 200, "prompt: expected at most 4; got 5"),
        ("/compute", {"prompt": [], "image": [3] * 5}, 200, "image: expected at most 4; got 5"),
        ("/compute", {"prompt": [], "condition_images": [[]] * 5}, 200, "condition_images: expected at most"),
        ("/compute", {"prompt": [], "condition_images": [[3] * 65]}, 200, "condition_images.0: expected at"),
    ],
)
def test_long_lists_are_refused_before_models_are_made(client, path, body, status, error):
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(error)


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/score", {"items": [{"source": ""}] * 4}, "items.0.edited: field required; items.0.instruction"),
        ("/score", {"requests": [{"history": 3}] * 4}, "requests.0.history: input should be a valid list"),
        ("/compute", {"prompt": [3] * 4}, "prompt.0: input should be a valid string"),
        ("/compute", {"prompt": [], "condition_images": [[3, 3], [3]]}, "condition_images.0.0: input should"),
    ],
)
def test_only_the_first_faulty_entry_is_an_error(client, path, body, error):
    found = client.post(path, json=body).json()["error"]
    assert found.startswith(error)
    assert ".1." not in found
    assert "prompt.1" not in found


def test_metadata_of_a_sample_may_hold_anything(client):
    sample = SAMPLE | {"metadata": {str(i): [0] * 100 for i in range(100)}}
    assert client.post("/score", json={"requests": [sample]}).status_code == 200
