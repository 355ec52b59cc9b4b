"""An editor without weights, for estimates of the memory that a training of it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rewardedit.diffusion.families import Conditioning, EditFamily
from rewardedit.diffusion.quantized import largest_layer, saved_bytes
from rewardedit.models.four_bit import Bits
from rewardedit.training.meta import FULL, HALF, parameters, peak_memory
from rewardedit.training.trainable import autocast_type


@dataclass(frozen=True)
class Blueprint:
    """An editor without weights, on `meta`, and the side of the images to edit."""

    family: EditFamily
    unet: Any
    vae: Any
    text_encoders: Sequence[nn.Module]
    size: int
    takes_source: bool  # true if the UNet had channels for a source image before any were added

    @classmethod
    def make(
        cls, family: EditFamily, denoiser: Any, vae: Any, text_encoders: Sequence[nn.Module], size: int
    ) -> "Blueprint":
        """An editor of these parts, which are on `meta`; in bf16 where the family is loaded so on a GPU."""
        takes_source = family.takes_source(denoiser)
        with torch.device("meta"):
            family.add_source_channels(denoiser)
        for part in (denoiser, vae, *text_encoders):
            part.requires_grad_(False)
            if family.lora_only:
                part.to(torch.bfloat16)
        return cls(family, denoiser, vae, text_encoders, size, takes_source)

    @property
    def number(self) -> int:
        """Bytes of a number of its frozen weights."""
        return HALF if self.family.lora_only else FULL

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The parts that may be quantised, by their names in the pipeline."""
        names = ("text_encoder", "text_encoder_2", "text_encoder_3")
        return {self.family.denoiser_name: self.unet, **dict(zip(names, self.text_encoders, strict=False))}

    def bytes(self, number: int | None = None, quantize: Bits | None = None) -> int:
        """Bytes of all weights, with `number` bytes each; None: as they are loaded."""
        number = number or self.number
        total = sum(map(parameters, (self.unet, self.vae, *self.text_encoders))) * number
        return total if quantize is None else total - saved_bytes(self.family, self.parts, number)

    def saved_of_denoiser(self, number: int) -> int:
        """Bytes that 4 bits save of the denoiser, whose frozen weights have `number` bytes each."""
        return saved_bytes(self.family, {self.family.denoiser_name: self.unet}, number)

    def text_bytes(self, quantize: Bits | None = None) -> int:
        """Bytes of the text encoders."""
        total = sum(map(parameters, self.text_encoders)) * self.number
        parts = {name: part for name, part in self.parts.items() if part is not self.unet}
        return total if quantize is None else total - saved_bytes(self.family, parts, self.number)

    @property
    def restored(self) -> int:
        """Bytes of the largest layer of those in 4 bits while it computes."""
        return HALF * largest_layer(self.family, self.parts)

    def latents(self, batch: int) -> Tensor:
        shape = self.family.latent_shape(self.unet, self.vae, self.size)
        return torch.empty(batch, *shape, device="meta")

    def images(self, batch: int) -> Tensor:
        return torch.empty(batch, 3, self.size, self.size, device="meta")

    def conditioning(self, batch: int) -> Conditioning:
        return self.family.blank_conditioning(self.unet, self.latents(batch))

    def times(self, batch: int) -> Tensor:
        return torch.zeros(batch, dtype=torch.long, device="meta")

    def predict(self, unet: Any, batch: int = 1) -> Tensor:
        latents = self.latents(batch).to(unet.dtype)
        cond = self.family.blank_conditioning(self.unet, latents)
        return self.family.predict(unet, latents, self.times(batch), cond)

    @cached_property
    def encoded(self) -> int:
        """Bytes that encoding an image needs, in the type of the weights."""
        image = self.images(1).to(self.vae.dtype)
        if self.vae.encoder.conv_in.weight.ndim == 5:  # of a video's autoencoder
            image = image.unsqueeze(2)
        with torch.no_grad():
            return peak_memory(lambda: self.vae.encode(image).latent_dist.mode()).peak

    @cached_property
    def sampled(self) -> int:
        """Bytes that sampling an edit needs, in the type of the weights: the UNet's calls or decoding,
        whichever is more.
        """
        half = autocast_type("bf16") if self.family.lora_only else None
        with torch.no_grad():
            called = peak_memory(lambda: self.predict(self.unet), half).peak
            decoded = peak_memory(lambda: self.family.decode(self.vae, self.latents(1)), half).peak
        return max(self.family.guided_rows * called, decoded)
