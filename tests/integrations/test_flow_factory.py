"""Reward models in a stand-in of Flow-Factory, written from its stated contract."""

import importlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

from rewardedit.images import to_pil
from tests.integrations.standin import settings
from tests.integrations.test_edit_reward import images, length

pytestmark = pytest.mark.usefixtures("other_projects")


def model(place: int, scorer: Any) -> Any:
    """A reward of the page's settings, with another scorer."""
    config = settings("EditPointwise")["rewards"][place] | {"scorer": scorer, "dtype": None}
    module, _, name = config["reward_model"].rpartition(".")
    made = getattr(importlib.import_module(module), name)
    return made(SimpleNamespace(**config), SimpleNamespace(device="cpu"))


def samples(count: int = 3) -> list[dict[str, Any]]:
    """Edits that are less and less like their source."""
    source, other = images((8, 8), (8, 8))
    mixed = [to_pil(source.lerp(other, i / count)) for i in range(count)]
    return [
        {"prompt": "make it warmer", "image": image, "condition_images": [to_pil(source)], "metadata": None}
        for image in mixed
    ]


def test_pointwise_gives_each_edit_s_score():
    from flow_factory.rewards.abc import call

    rewards = call(model(0, "l1"), samples()).rewards
    assert rewards[0] == 1
    assert rewards[0] > rewards[1] > rewards[2]


def test_groupwise_gives_ranks_and_equal_scores_share():
    from flow_factory.rewards.abc import call

    group = model(1, "l1")
    output = call(group, samples())
    assert output.rewards.tolist() == [1, 0.5, 0]
    assert len(output.extra_info["scores"]) == 3
    twice = samples(2)
    assert call(group, [*twice, twice[0]]).rewards.tolist() == [0.75, 0, 0.75]
    assert call(group, samples(1)).rewards.tolist() == [0]


def test_a_sample_without_a_source_ends_the_batch():
    from flow_factory.rewards.abc import call

    rows = samples()
    rows[1]["condition_images"] = None  # Flow-Factory then drops the field for all
    for place in (0, 1):
        with pytest.raises(ValueError, match="source: expected the source image of each of 3 edits; got 0"):
            call(model(place, "l1"), rows)
    rows[1]["condition_images"] = []
    with pytest.raises(ValueError, match="got none for 1"):
        call(model(0, "l1"), rows)
    rows[1]["condition_images"] = rows[0]["condition_images"] * 2
    with pytest.raises(ValueError, match="expected one source an edit; got 2"):
        call(model(0, "l1"), rows)


def test_captions_come_from_the_row_and_failures_raise():
    from flow_factory.rewards.abc import call

    rows = [row | {"metadata": json.dumps({"target_caption": "a cat"})} for row in samples(2)]
    assert call(model(0, length), rows).rewards.tolist() == [5, 5]
    rows[1]["metadata"] = "{}"
    with pytest.raises(ValueError, match=r"1 of 2 edits have no score; edit 1: .*needs target_caption"):
        call(model(0, length), rows)
