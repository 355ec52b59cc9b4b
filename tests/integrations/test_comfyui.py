"""ComfyUI's nodes in a stand-in of its contract (V3)."""

import asyncio
import inspect
from typing import Any

import pytest
import torch

from rewardedit.integrations.comfyui import batches
from tests.integrations.test_edit_reward import images

pytestmark = pytest.mark.usefixtures("other_projects")


@pytest.fixture
def nodes() -> dict[str, Any]:
    """The nodes of the package by their ids."""
    from rewardedit.integrations.comfyui.nodes import comfy_entrypoint

    async def listed() -> list[Any]:
        return await (await comfy_entrypoint()).get_node_list()

    return {node.define_schema().node_id: node for node in asyncio.run(listed())}


def shown(*sizes: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Images as ComfyUI has them: (b, h, w, 3)."""
    return torch.stack(images(*sizes, seed=seed)).movedim(1, -1)


def test_inputs_are_the_parameters_of_each_node(nodes):
    assert set(nodes) == {"RewardeditScore", "RewardeditHeatMap", "RewardeditBest"}
    for node in nodes.values():
        declared = [one.id for one in node.define_schema().inputs]
        assert list(inspect.signature(node.execute).parameters) == declared
        assert not vars(node).keys() & {"__init__", "NODE_CLASS_MAPPINGS"}


def test_a_batch_is_scored_against_one_source_or_as_many(nodes):
    source, edited = shown((8, 8)), shown((8, 8), (8, 8), seed=1)
    values = {"instruction": "make it warmer", "scorer": "l1"}
    mean, lines = nodes["RewardeditScore"].run(source=source, edited=edited, **values)
    each = 1 - (source - edited).abs().flatten(1).mean(1)
    assert mean == pytest.approx(float(each.mean()), abs=1e-6)
    assert lines == "\n".join(f"{float(score):.4f}" for score in each)
    again, _ = nodes["RewardeditScore"].run(source=source.expand(2, -1, -1, -1), edited=edited, **values)
    assert again == mean
    for wrong in (None, shown((8, 8), (8, 8), (8, 8))):
        with pytest.raises(ValueError, match="source: expected one image, or one for each of 2 edits; got"):
            nodes["RewardeditScore"].run(source=wrong, edited=edited, **values)
    with pytest.raises(ValueError, match="2 of 2 edits have no score"):
        nodes["RewardeditScore"].run(source=source, edited=edited, instruction=" ", scorer="l1")


def test_a_mask_and_options_reach_the_scorer(nodes):
    source, edited = shown((8, 8)), shown((8, 8), seed=1)
    mask = torch.zeros(1, 8, 8)
    mask[:, :4] = 1
    values = {"source": source, "edited": edited, "instruction": "make it warmer"}
    outside, _ = nodes["RewardeditScore"].run(**values, scorer="{l1: {region: outside}}", mask=mask)
    expected = 1 - float((source - edited)[:, 4:].abs().mean())
    assert outside == pytest.approx(expected, abs=1e-6)


def test_the_best_edit_of_a_batch_is_chosen(nodes):
    source = shown((8, 8))
    other = shown((8, 8), seed=1)
    edited = torch.cat([source.lerp(other, share) for share in (0.9, 0.1, 0.5)])
    values = {"source": source, "edited": edited, "instruction": "make it warmer", "scorer": "l1"}
    best, score, number = nodes["RewardeditBest"].run(**values)
    assert number == 1
    assert torch.equal(best, edited[1:2])
    assert score == pytest.approx(1 - float((source - edited[1:2]).abs().mean()), abs=1e-6)


def test_a_heat_map_has_the_source_s_size_and_colours(nodes):
    source, edited = shown((64, 48)), shown((32, 24), seed=1)
    values = {"source": source, "edited": edited, "instruction": "make it warmer"}
    (heat,) = nodes["RewardeditHeatMap"].run(**values, scorer="l1")
    assert heat.shape == source.shape
    assert bool((heat[..., 0] > heat[..., 1] + 0.05).any()), "l1 falls with every change: red"
    with pytest.raises(ValueError, match="no gradient"):
        nodes["RewardeditHeatMap"].run(**values, scorer="tests/integrations/test_edit_reward.py:length")


def test_a_scorer_stays_loaded_between_runs():
    assert batches.reward("l1") is batches.reward("l1")
