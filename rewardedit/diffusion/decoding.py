"""Decoding of as many latents at a time as fit into memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DecoderOutput
from torch import Tensor

from rewardedit.batch_sizes import BatchSize, in_batches

ALL = 2**31  # rows, of which memory is to decide


@contextmanager
def decoding_what_fits(pipe: Any, size: BatchSize) -> Iterator[None]:
    """Within this context, the VAE of a pipeline decodes at most `size.rows` latents at a time. Where memory
    runs out it halves that, and the denoising steps before are not lost.

    The VAE's own slices (`enable_vae_slicing`) are of one row, also where all fit.
    """
    vae = getattr(pipe, "vae", None)
    if vae is None:
        yield
        return
    plain = vae.decode
    replaced = vars(vae).get("decode")  # a function that somebody else has put in the method's place

    def decode(latents: Tensor, return_dict: bool = True, **options: Any) -> Any:
        def decoded(rows: Tensor) -> Tensor:
            return plain(rows, return_dict=False, **options)[0]

        images = list(in_batches(latents, size, decoded))
        image = images[0] if len(images) == 1 else torch.cat(images)
        return DecoderOutput(sample=image) if return_dict else (image,)

    vae.decode = decode
    try:
        yield
    finally:
        if replaced is None:
            del vae.decode
        else:
            vae.decode = replaced
