"""Weights that the package does not ship: real classes, random values."""

import pytest
import torch
from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

from tests.scorers.golden.make_golden import write_random_weights


@pytest.fixture(scope="session")
def random_lpips(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with random AlexNet weights for LPIPS, laid out as the published ones."""
    folder = tmp_path_factory.mktemp("lpips")
    write_random_weights(folder, "alex")
    return str(folder)


@pytest.fixture(scope="session")
def tiny_dino(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random DINOv2 that, like the published ones, cuts the middle out of a larger picture."""
    torch.manual_seed(0)
    folder = str(tmp_path_factory.mktemp("dino"))
    config = Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=8, initializer_range=0.3
    )
    Dinov2Model(config).save_pretrained(folder)
    BitImageProcessorPil(size={"shortest_edge": 72}, crop_size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder
