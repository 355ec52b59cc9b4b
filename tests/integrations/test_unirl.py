"""The backend in UniRL's own types (unirl 0.2.0, installed), and the scorer in a stand-in of its service."""

import importlib
from typing import Any

import pytest
import torch
from unirl.reward.base import DifferentiableReward
from unirl.types.primitives import Image, Images, Texts
from unirl.types.reward import RewardRequest

from rewardedit import EditBatch, load_scorer
from rewardedit.images import to_pil
from rewardedit.integrations.unirl import EditRewardBackend, EditRewardSpec
from tests.integrations.standin import settings
from tests.integrations.test_edit_reward import images, length


def build(tree: Any, **changed: Any) -> Any:
    """Makes what a Hydra tree describes: `_target_` and its arguments."""
    if not isinstance(tree, dict):
        return tree
    values = {name: build(value) for name, value in (tree | changed).items()}
    path = values.pop("_target_", None)
    if path is None:
        return values
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**values)


def packed(*tensors: torch.Tensor) -> Images:
    return Images.from_list([Image(tensor) for tensor in tensors])


def request(source: Images | None, edited: Images, **more: Any) -> RewardRequest:
    conditioning = {} if source is None else {"image": source}
    texts = Texts(["make it warmer"] * len(edited))
    return RewardRequest({"image": edited}, conditioning, texts, texts, **more)


def backend(scorer: Any = "l1") -> EditRewardBackend:
    return EditRewardBackend(config=EditRewardSpec(scorer=scorer), base_device="cpu")


def test_a_request_gets_the_scores_of_the_direct_call():
    source = images((8, 8), (12, 8))
    edited = images((8, 8), (12, 8), seed=1)
    response = backend("l1:0.5,psnr:0.1").compute_rewards(request(packed(*source), packed(*edited)))
    assert response.successes == [True, True]
    assert response.errors == [None, None]
    direct = load_scorer("l1:0.5,psnr:0.1")
    for i in range(2):
        batch = EditBatch(source[i][None], ["make it warmer"], edited[i][None])
        assert response.rewards[i] == pytest.approx(float(direct(batch).score), abs=1e-5)
    assert set(response.component_rewards) == {"l1", "psnr"}


def test_a_request_without_its_source_raises():
    with pytest.raises(ValueError, match="source: expected the source image of each of 1 edits; got 0"):
        backend().compute_rewards(request(None, packed(*images((8, 8)))))


def test_a_failed_sample_is_named_and_stops_the_service():
    source, edited = images((8, 8), (8, 8))
    metadata = [{"target_caption": "a cat"}, None]
    asked = request(packed(source, source), packed(edited, edited), metadata=metadata)
    response = backend(length).compute_rewards(asked)
    assert response.successes == [True, False]
    assert "needs target_caption" in str(response.errors[1])
    assert response.rewards[0] == 5
    assert response.rewards[1] != response.rewards[1], "a filler stands for a failed sample"


def test_a_gradient_reaches_the_edits_by_the_source_in_the_record(tmp_path):
    source, edited = images((8, 8), (16, 16))
    to_pil(source).save(tmp_path / "source.png")
    reward = backend()
    assert isinstance(reward, DifferentiableReward)
    media = edited[None].clone().requires_grad_()
    for given in (source, str(tmp_path / "source.png")):
        score = reward.compute_rewards_differentiable(media, ["make it warmer"], [{"source": given}])
        (gradient,) = torch.autograd.grad(score.sum(), media)
        assert bool(gradient.abs().sum() > 0)
    with pytest.raises(ValueError, match="got none for 0"):
        reward.compute_rewards_differentiable(media, ["make it warmer"], [{}])


def test_the_page_s_settings_build_a_service():
    tree = settings("EditRewardSpec")["reward"]
    tree["backend"]["base_device"] = "cpu"
    tree["backend"]["config"]["scorer"] = "l1"
    pytest.importorskip("ray")
    service = build(tree)
    assert service.preferred_input_kind == "image"
    response = service.compute_rewards(request(packed(*images((8, 8))), packed(*images((8, 8)))))
    assert response.rewards == pytest.approx([1])


@pytest.mark.usefixtures("other_projects")
def test_the_service_s_scorer_reads_the_source_from_the_turn_before():
    from reward_service.scorers.base import ScoreItem

    from rewardedit.integrations.unirl_service import EditScorer

    source, edited = map(to_pil, images((8, 8), (8, 8)))
    one = EditScorer("l1", "cpu")
    good = ScoreItem([("make it warmer", source), ("make it warmer", edited)])
    empty = ScoreItem([("", source), ("", edited)])
    first, second = one.score([good, empty])
    batch = EditBatch(images((8, 8))[0][None], ["make it warmer"], images((8, 8), (8, 8))[1][None])
    assert first["score"] == pytest.approx(float(load_scorer("l1")(batch).score), abs=1e-6)
    assert second["score"] != second["score"]
    with pytest.raises(ValueError, match="got none for 1"):
        one.score([good, ScoreItem([("make it warmer", edited)])])
