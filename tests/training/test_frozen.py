"""The frozen VAE as a copy in half precision, for the passes of a training's steps."""

import torch

from rewardedit.diffusion.families import family_of
from rewardedit.training.trainable import half_vae
from tests.models import tiny_pipeline


def test_a_vae_in_half_precision_decodes_the_same_under_autocast_with_the_same_gradient():
    pipe = tiny_pipeline()
    vae = pipe.vae.requires_grad_(False)
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    copied = half_vae(vae, torch.bfloat16)
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def result(used: torch.nn.Module) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            images = family_of(pipe).decode(used, latents)
        return images, *torch.autograd.grad(images.square().sum(), latents)

    assert all(map(torch.equal, result(copied), result(vae)))
    assert {p.dtype for p in copied.parameters()} == {torch.bfloat16, torch.float32}  # norms stay in fp32
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())
    assert {p.dtype for p in vae.parameters()} == {torch.float32}


def test_without_mixed_precision_a_vae_is_its_own_copy():
    vae = tiny_pipeline().vae
    assert half_vae(vae, None) is vae
