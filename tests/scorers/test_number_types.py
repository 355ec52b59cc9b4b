"""Number types and bits of the scorers that are vision-language models."""

from typing import Any

import pytest
import torch

from rewardedit import devices, load_scorer
from rewardedit.batch import EditBatch
from rewardedit.language.vlm import load_vlm
from rewardedit.scorers.adiee import Adiee, width_of
from rewardedit.scorers.adiee_head import AdieeSettings, ScoreHead
from rewardedit.scorers.adiee_text import add_token
from rewardedit.scorers.vlm_pairs import PairJudge
from rewardedit.training.estimate import plan_of
from tests.models import save_judge

SCORERS = [("vlm_judge", "shapes/vlm"), ("adiee", "shapes/adiee"), ("dice", "shapes/dice")]


def types(model: torch.nn.Module) -> set[torch.dtype]:
    return {weight.dtype for weight in model.parameters()}


def language_model(scorer: Any) -> torch.nn.Module:
    return scorer.detector.dice.vlm.model if hasattr(scorer, "detector") else scorer.model


@pytest.mark.parametrize(("name", "checkpoint"), SCORERS)
def test_a_gpu_loads_judges_in_bfloat16(name, checkpoint, monkeypatch):
    def load(**options: Any) -> set[torch.dtype]:
        return types(language_model(load_scorer(name, device="cpu", checkpoint=checkpoint, **options)))

    assert load() == {torch.float32}
    monkeypatch.setattr(devices, "default_device", lambda: "cuda")
    assert load() == {torch.bfloat16}
    assert load(dtype="float32") == {torch.float32}


def test_a_gpu_loads_judges_of_pairs_in_bfloat16(monkeypatch):
    monkeypatch.setattr(devices, "default_device", lambda: "cuda")
    assert types(PairJudge.from_pretrained("shapes/vlm").model) == {torch.bfloat16}


def test_a_plan_counts_judges_as_a_gpu_loads_them():
    """On a machine without one, too."""
    loaded: list[set[torch.dtype]] = []

    def part() -> str:
        loaded.append(types(load_scorer("vlm_judge", checkpoint="shapes/vlm").model))
        return "planned"

    plan_of(part)
    assert loaded == [{torch.bfloat16}]


def bits(model: torch.nn.Module) -> int:
    return sum(type(layer).__name__ == "Linear4bit" for layer in model.modules())


def test_judges_are_loaded_in_four_bits(tmp_path):
    pytest.importorskip("bitsandbytes")
    folder = save_judge(str(tmp_path / "judge"), width=64)  # bitsandbytes packs rows of 64
    judge = load_scorer("vlm_judge", checkpoint=folder, quantize="4bit")
    assert bits(judge.model) == 14, "the two layers of its language model"
    image = torch.rand(1, 3, 32, 32)
    assert 0 <= judge(EditBatch(image, ["add a cup"], image.flip(3))).score.item() <= 10
    assert bits(PairJudge.from_pretrained(folder, quantize="4bit").model) == 14


def test_an_adiee_scorer_is_loaded_in_four_bits(tmp_path):
    pytest.importorskip("bitsandbytes")
    vlm = load_vlm(save_judge(str(tmp_path / "judge"), width=64))
    add_token(vlm.model, vlm.processor)
    settings = AdieeSettings()
    (tmp_path / "adiee").mkdir()
    Adiee(vlm, ScoreHead(width_of(vlm.model), settings), settings).save(tmp_path / "adiee")
    scorer = load_scorer("adiee", checkpoint=str(tmp_path / "adiee"), quantize="4bit")
    assert bits(scorer.model) == 14
    image = torch.rand(1, 3, 32, 32)
    assert 0 <= scorer(EditBatch(image, ["add a cup"], image.flip(3))).score.item() <= 10


def test_quantize_is_checked_and_goes_with_a_model():
    for name, checkpoint in SCORERS:
        with pytest.raises(ValueError, match=r"quantize: expected .*4bit.*; got '2bit'"):
            load_scorer(name, checkpoint=checkpoint, quantize="2bit")
    with pytest.raises(ValueError, match="quantize: has no effect on an endpoint; leave it out"):
        load_scorer("vlm_judge", checkpoint="http://localhost:1/v1#any", quantize="4bit")
