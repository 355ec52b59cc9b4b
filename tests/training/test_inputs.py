"""Inputs of a fine-tuning step: scaled targets, sources as modes, and dropped conditioning left out."""

import numpy as np
import pytest
import torch

from rewardedit.batch import collate
from rewardedit.data import DataConfig, open_rows
from rewardedit.data.worlds import WorldConfig
from rewardedit.diffusion.editors import load_editor
from rewardedit.files import read_log
from rewardedit.trainers.reward_conditioned import finetune
from rewardedit.training.latents import LatentCache, make_cache
from rewardedit.training.trainable import RewardLabels, TrainConfig

DATA = DataConfig("shapes", limit=8, size=32, shapes=WorldConfig(quality_mix={"right": 1.0}))


@pytest.fixture(scope="module")
def cache(tiny_editor, tmp_path_factory) -> LatentCache:
    return make_cache(
        open_rows(DATA), DATA, load_editor(tiny_editor), tmp_path_factory.mktemp("cache") / "latents"
    )


def test_latents_of_edits_are_scaled_and_those_of_sources_are_not(tiny_editor, cache):
    vae = load_editor(tiny_editor).pipe.vae
    rows = open_rows(DATA)
    batch = collate([rows[i] for i in range(8)], DATA.size, DATA.resize)
    with torch.no_grad():
        edited, source = (
            vae.encode(image * 2 - 1).latent_dist.mode() for image in (batch.edited, batch.source)
        )
    made = cache.latents(torch.arange(8))
    torch.testing.assert_close(made[0], edited * 0.18215, rtol=2e-3, atol=1e-4)  # kept in half precision
    torch.testing.assert_close(made[1], source, rtol=2e-3, atol=1e-3)


def test_what_is_dropped_does_not_matter_and_an_unasked_edit_is_the_source(tiny_editor, cache, tmp_path):
    """A third of the steps loses the text, a third both, a third the source.
    At a learning rate that changes no weight losses can be compared.
    """
    other = LatentCache(**{**vars(cache), "source": np.array(cache.source)[::-1].copy()})

    def losses(name: str, cache: LatentCache, null_text_target: str = "edited") -> torch.Tensor:
        settings = {
            "max_steps": 15,
            "batch_size": 1,
            "lr": 1e-30,
            "conditioning_dropout": 1 / 3,
            "log_every": 1,
            "tracker": "none",
            "ema": None,
        }
        finetune(
            TrainConfig(**settings, null_text_target=null_text_target),
            tiny_editor,
            cache,
            RewardLabels(None, [0] * 8),
            tmp_path / name,
        )
        return torch.tensor([line["loss"] for line in read_log(tmp_path / name)])

    plain = losses("plain", cache)
    no_source = losses("other", other) == plain
    assert 5 <= no_source.sum() <= 14  # of 15; 10 are expected
    null_text_target = losses("source", cache, "source") != plain
    assert 2 <= null_text_target.sum() <= 9  # 5 are expected
    assert not (null_text_target & no_source).any()
