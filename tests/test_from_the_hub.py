"""Uploads by `rewardedit push` load completely by their hub name; here offline, from the hub's cache."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rewardedit import RewardScale, load_editor, load_scorer
from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.diffusion.saving import save_editor
from rewardedit.models import resolve_model
from rewardedit.reward_prompt import PRESETS, RewardEmbedding
from rewardedit.scorers.adiee_head import HEAD, AdieeSettings
from rewardedit.scorers.vifi_clip import ViFiClip
from rewardedit.shapes import Shapes
from rewardedit.trainers.adiee_scorer import Config, TrainConfig, make_scorer
from rewardedit.training import trainable

NAME = "me/mine"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub's; called with a folder, it holds that as the repository NAME."""
    root = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))

    def hold(folder: Path) -> None:
        repo = root / f"models--{NAME.replace('/', '--')}"
        shutil.copytree(folder, repo / "snapshots" / "abc")
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text("abc")

    return hold


def test_a_reward_conditioned_pipeline_has_its_prompt_embedding_and_settings(cache, tiny_editor, tmp_path):
    editor = load_editor(tiny_editor)
    prompt = PRESETS["learned"](RewardScale((0.0, 0.5, 1.0)))
    embedding = RewardEmbedding(len(prompt.words), editor.pipe.text_encoder.config.hidden_size)
    torch.nn.init.normal_(embedding.vectors.weight)
    own = replace(editor, settings=SamplingConfig(3, 2.0, 1.25), prompt=prompt, embedding=embedding)
    save_editor(own, tmp_path / "pipeline")
    cache(tmp_path / "pipeline")
    found = load_editor(NAME)
    assert found.settings == own.settings
    assert found.prompt == prompt
    assert torch.equal(found.embedding.vectors.weight, embedding.vectors.weight)
    samples = Shapes("val").batch(0, 1)
    edits = [one(samples.source, samples.instruction, [0]) for one in (found, own)]
    torch.testing.assert_close(*edits)


def test_a_lora_is_laid_over_the_base_that_it_names(cache, tiny_editor, tmp_path):
    editor = load_editor(tiny_editor)
    trainable.add_lora(
        editor.family, editor.family.denoiser(editor.pipe), trainable.TrainConfig(max_steps=1, lora_rank=2)
    )
    save_editor(editor, tmp_path / "lora", base=tiny_editor)
    cache(tmp_path / "lora")
    names = {name for name, _ in load_editor(NAME).pipe.unet.named_parameters()}
    assert any("lora" in name for name in names)


def test_a_temporal_scorer_is_no_mean_of_frames(cache):
    cache(Path(resolve_model("shapes/vifi-clip")))
    found = ViFiClip.from_pretrained(NAME)
    assert found.temporal is not None
    ours = load_scorer("vifi_clip", checkpoint="shapes/vifi-clip").state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in found.state_dict().items())


def test_a_scorer_s_head_goes_on_training(cache):
    folder = Path(resolve_model("shapes/adiee"))
    cache(folder)
    settings, weights = AdieeSettings.read(folder), load_file(folder / HEAD)
    data = {"labelled": DataConfig(name="labelled", path="rows", size=64)}
    train = TrainConfig(gradient_checkpointing=False)
    config = Config("x", data, NAME, head=settings.head, side=settings.side, lora_rank=None, train=train)
    head = make_scorer(config)[0].head
    assert all(torch.equal(value, weights[name]) for name, value in head.state_dict().items())
    with pytest.raises(ValueError, match="expected a scorer with"):
        make_scorer(replace(config, side=8))


def test_a_name_that_the_hub_does_not_know_is_said(cache):
    for load in (load_editor, lambda name: load_scorer("adiee", checkpoint=name)):
        with pytest.raises(
            ValueError, match=r"nobody/nothing.*(cannot be fetched|not there|cannot be reached)"
        ):
            load("nobody/nothing")
