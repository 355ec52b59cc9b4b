"""UniRL's own client against a running server."""

import httpx
import pytest
import requests
import torch

from tests.serving.helpers import STRICT, base64_of, picture, server_of

remote = pytest.importorskip("unirl.reward.remote")
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def address():
    with server_of({"l1": "l1", "strict": STRICT}, token=TOKEN, max_items=8) as address:
        yield address.replace("http://", f"http://any:{TOKEN}@")


def backend(address: str, *names: str, **settings):
    spec = remote.RemoteRewardSpec(
        base_url=address,
        required_rewards=names,
        image_format="PNG",
        retry_delay=0.05,
        require_identity_echo=True,
        **settings,
    )
    return remote.RemoteRewardBackend(config=spec, base_device="cpu")


def request(instructions: list[str], has_source: bool = True):
    from unirl.types.primitives import Images, Texts
    from unirl.types.reward import RewardRequest

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, len(instructions), 3, 16, 24), generator=generator) / 255
    source, edited = map(Images.from_dense, images)
    made = RewardRequest(
        generated={"image": edited},
        conditioning={"image": source} if has_source else {},
        generation_prompt=Texts(texts=instructions),
        sample_ids=[str(i) for i in range(len(instructions))],
    )
    return made, images


def test_the_client_reads_the_right_scores(address):
    client = backend(address, "strict", "l1")
    assert client.is_available()
    made, images = request(["one", "two", "three"])
    answer = client.compute_rewards(made)
    # the client cuts values to bytes
    source, edited = images.mul(255).byte().float() / 255
    assert answer.successes == [True] * 3
    assert answer.component_rewards["strict"] == pytest.approx(edited.mean((1, 2, 3)).tolist(), abs=1e-6)
    l1 = 1 - (source - edited).abs().mean((1, 2, 3))
    assert answer.component_rewards["l1"] == pytest.approx(l1.tolist(), abs=1e-6)


def test_a_failed_sample_is_named_and_has_no_reward(address):
    made, _ = request(["one", "void", "refuse", "three"])
    answer = backend(address, "strict").compute_rewards(made)
    assert answer.successes == [True, False, False, True]
    assert answer.errors[1] == "strict: the score is not finite"
    assert answer.errors[2] == "strict: this instruction is refused"


def test_a_sample_without_its_source_fails(address):
    made, _ = request(["one"], has_source=False)
    answer = backend(address, "l1").compute_rewards(made)
    assert answer.successes == [False]
    assert answer.errors == ["l1: history: expected two images, the source and the edit; got 1"]


def test_an_unknown_reward_is_refused_with_the_names(address):
    with pytest.raises(ValueError, match=r"available=\['l1', 'strict'\]"):
        backend(address, "l2").is_available()


def test_a_scorer_of_another_version_is_refused(address):
    scorers = requests.get(f"{address}/v1/scorers").json()["scorers"]
    own = next(info["fingerprint"] for info in scorers if info["name"] == "l1")
    made, _ = request(["one"])
    assert backend(address, "l1", expected_scorer_version=own).compute_rewards(made).successes == [True]
    with pytest.raises(ValueError, match="scorer_version"):
        backend(address, "l1", expected_scorer_version="0").compute_rewards(made)


def test_a_wrong_token_is_refused(address):
    made, _ = request(["one"])
    with pytest.raises(requests.HTTPError, match="401"):
        backend(address.replace(TOKEN, "wrong"), "l1").compute_rewards(made)


def test_captions_come_in_the_metadata_and_versions_are_checked(address):
    turns = [{"text": "x", "image_b64": base64_of(picture(i))} for i in range(2)]
    sample = {"history": turns, "required_rewards": ["l1", "l7"], "metadata": {"source_caption": "a"}}
    answer = httpx.post(f"{address}/score", json={"requests": [sample]}).json()
    assert list(answer["results"][0]) == ["l1"]
    assert next(iter(answer["results"][0]["l1"])) == "score"
    assert answer["errors"] == [{"l7": "not served; expected one of l1, strict"}]
    assert httpx.post(f"{address}/score", json={"requests": [sample] * 9}).status_code == 413
    other = {"protocol_version": "2", "requests": [sample]}
    assert httpx.post(f"{address}/score", json=other).status_code == 400
