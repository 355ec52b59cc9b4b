"""Plans: UNet calls and time of candidates and of reward feedback learning."""

import re

import pytest

from rewardedit.data import DataConfig
from rewardedit.relabel import RelabelConfig
from rewardedit.synthesis.candidates import CandidatesConfig
from rewardedit.trainers import refl, reward_conditioned
from rewardedit.training import estimate, timing
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import RewardConfig
from rewardedit.training.trainable import TrainConfig

DATA = DataConfig("shapes", limit=12, size=32)
CLIP_D = {"clip_d": {"checkpoint": "shapes/clip"}}
TRAIN = TrainConfig(max_steps=1000, batch_size=8, micro_batch_size=2, tracker="none")


def plan_of_candidates(editor: str, **settings: int) -> str:
    candidates = CandidatesConfig(editors=(editor, editor), **settings)
    config = reward_conditioned.Config(
        "x", DATA, RelabelConfig("l1"), base=editor, candidates=candidates, train=TRAIN
    )
    return "\n".join(estimate.plan(config))


@pytest.mark.usefixtures("unmeasured_memory")
@pytest.mark.parametrize(("steps", "batch", "calls"), [(5, 4, "30"), (5, 8, "20"), (1000, 4, "6,000")])
def test_candidates_cost_what_their_steps_and_batches_say(steps, batch, calls, tiny_editor):
    lines = plan_of_candidates(tiny_editor, num_inference_steps=steps, batch_size=batch)
    assert f"for {calls} UNet calls, each of {batch} edits" in lines
    assert "UNet calls an update: 4 with gradient on 2 rows\n" in lines


def test_calls_take_their_time_on_a_gpu_however_few_their_rows(tiny_editor, monkeypatch):
    monkeypatch.setattr(estimate.devices, "default_device", lambda: "cuda")
    monkeypatch.setattr(timing, "_rate", lambda precision: 1e15)
    assert "estimated: 60 minutes for 120,000 UNet" in estimate.plan_sampling({tiny_editor: 120_000}, 32, 1)
    monkeypatch.setattr(timing, "_rate", lambda precision: 1e6)
    slow = estimate.plan_sampling({tiny_editor: 120_000}, 32, 1)
    assert float(re.findall(r"estimated: ([\d.]+) hours", slow)[0]) > 2


def test_refl_says_how_often_its_unet_is_called(tiny_editor):
    reward = RewardConfig("l1", num_inference_steps=(6, 8), grad_steps=2, reference_weight=0.1)
    train = TrainConfig(max_steps=1000, batch_size=8, micro_batch_size=2, tracker="none", lora_rank=2)
    watch = MonitorConfig(n=2, held_out=CLIP_D)
    config = refl.Config("x", DATA, reward, tiny_editor, train, watch, variants=("refl", "pairs_only"))
    lines = "\n".join(refl.plan(config))
    expected = "UNet calls an update: 16 with gradient on 2 rows, 4 without on 8 rows, 4 without on 2 rows"
    assert expected in lines
    assert re.search(
        rf"training time on this machine: about \d+ minutes for 2 × 1,000 updates, {estimate.HOURS_OF}",
        lines,
    )
    assert re.search(r"memory, GiB: .*rollouts [\d.]+, prompts [\d.]+, step [\d.]+", lines)
