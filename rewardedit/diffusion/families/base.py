"""`EditFamily`: everything specific to one architecture of editors. All other code goes through it."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rewardedit.diffusion.schedulers import holds_for
from rewardedit.images import to_pil
from rewardedit.language.texts import note_cut
from rewardedit.prepared import Broadcast, Prepared


@dataclass(frozen=True)
class Conditioning:
    """The conditioning of b edits, encoded once."""

    embeds: Float[Tensor, "b n d"]  # of the prompts
    source: Float[Tensor, "b c h w"]  # latents of the sources: modes, unscaled
    null_embeds: Float[Tensor, "1 n d"] | None = None  # of the empty prompt; needed for guidance
    # at the latents' size: 1 where the text guidance applies (BPM Eq. 4)
    mask: Float[Tensor, "b 1 h w"] | None = None

    def take(self, rows: slice) -> "Conditioning":
        """The conditioning of some of the edits."""
        mask = None if self.mask is None else self.mask[rows]
        return Conditioning(self.embeds[rows], self.source[rows], self.null_embeds, mask)


class EditFamily:
    """An architecture of editors: how it is loaded, conditioned, guided and trained. It holds no weights.

    This class itself stands for any pipeline that takes prompts and images, which can only be sampled from.
    Subclasses add what else their pipelines can do. `pipe` is a stock diffusers pipeline; `denoiser` is its
    denoiser, bare or wrapped for training on several processes.
    """

    pipelines: tuple[str, ...] = ()  # class names of its stock pipelines
    loadable: tuple[str, ...] = ()  # class names of saved pipelines that `load` can convert
    denoiser_name: str = "transformer"  # the pipeline's attribute
    lora_targets: tuple[str, ...] = ()  # names of the layers that a LoRA adapts

    def denoiser(self, pipe: Any) -> nn.Module:
        """The denoising network of a pipeline, which is fine-tuned."""
        return getattr(pipe, self.denoiser_name)

    def load(self, folder: str, class_name: str, dtype: torch.dtype) -> Any:
        """Loads the pipeline of a folder, or of a hub name."""
        raise ValueError(f"{class_name}: cannot be loaded as an editor")

    def encode(self, pipe: Any, source: Float[Tensor, "b 3 h w"], prompts: list[str]) -> Prepared:
        """Inputs for calls of the pipeline, with any number of noises and settings."""
        for tokenizer, max_length in self.readers(pipe):
            if tokenizer is not None:  # without one, a pipeline is given embeddings
                note_cut(tokenizer, prompts, max_length, "the editor")
        return Prepared({"prompt": prompts, "image": list(map(to_pil, source))})

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        """Tokenizers of a pipeline that is called with texts, and the most tokens each reads of a text."""
        return []

    def guidance_options(self, guidance_scale: float, image_guidance_scale: float) -> dict[str, Any]:
        """The pipeline's options for these guidance scales; empty if it has no such guidance."""
        return {}

    def mask_hook(
        self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]
    ) -> "MaskHook":
        """A forward hook of the denoiser that restricts the text guidance to the mask.

        Raises:
            ValueError: for a family that has none.
        """
        raise self._unknown(pipe, "mask guidance")

    def add_source_channels(self, denoiser: Any) -> None:
        """Extends a text-to-image denoiser so that it can be conditioned on a source image;
        others stay as they are.
        """

    def save_lora(self, denoiser: Any, folder: Path) -> None:
        """Writes the denoiser's LoRA weights where the pipeline's `load_lora_weights` finds them."""
        raise self._untrained()

    def prompt_dim(self, denoiser: Any) -> int:
        """The width of a prompt's embeddings."""
        raise self._untrained()

    def tokenize(self, pipe: Any, prompts: list[str]) -> Any:
        """Tokens and attention mask of prompts, padded and cut to the tokenizer's length."""
        raise self._untrained()

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> Float[Tensor, "b n d"]:
        """The prompts' embeddings, as the denoiser gets them."""
        raise self._untrained()

    def encode_images(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latents of images in [0, 1], as the denoiser is conditioned on them."""
        raise self._untrained()

    def decode(self, vae: Any, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        """Decodes the latents at the end of a rollout to images, RGB in [0, 1],
        with a gradient also where they saturate.
        """
        raise self._untrained()

    @torch.no_grad()
    def reconstruct(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        """Reconstruction of images by the autoencoder, RGB in [0, 1]: every edited image has its traces."""
        latents = self.encode_images(pipe, image) * pipe.vae.config.scaling_factor
        return self.decode(pipe.vae, latents).float().cpu().clamp(0, 1)

    def predict(
        self,
        denoiser: Any,
        x_t: Float[Tensor, "b c h w"],
        t: Tensor,
        cond: Conditioning,
        guidance_scale: float | None = None,
        image_guidance_scale: float = 1.0,
    ) -> Float[Tensor, "b c h w"]:
        """The denoiser's prediction for noisy latents, scaled as its scheduler expects them.

        Args:
            t: one for all rows, or (b,).
            cond: of the b rows.
            guidance_scale: None: without classifier-free guidance; with it `cond.null_embeds` is needed.
        """
        raise self._untrained()

    def loss(
        self,
        denoiser: Any,
        scheduler: Any,
        x_0: Float[Tensor, "b c h w"],
        noise: Float[Tensor, "b c h w"],
        t: Int[Tensor, " b"],
        cond: Conditioning,
        *,
        min_snr: float | None = None,
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> Float[Tensor, " b"]:
        """The family's training objective, one value a row."""
        raise self._untrained()

    def _untrained(self) -> ValueError:
        return ValueError(
            f"{type(self).__name__}: this family can be sampled from, and not be trained or rolled out"
        )

    def _unknown(self, pipe: Any, what: str) -> ValueError:
        from rewardedit.diffusion.families import FAMILIES

        known = ", ".join(chain.from_iterable(family.pipelines for family in FAMILIES))
        return ValueError(f"{what}: {type(pipe).__name__} is not one of {known}")


class MaskHook:
    """Common part of the families' hooks: the mask at the latents' size,
    and the test whether it applies to a step.
    """

    def __init__(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> None:
        self.pipe = pipe
        self.mask = mask
        self.between = between
        self.fitted: Tensor | None = None
        self.times: Tensor | None = None  # the pipeline's time steps in the current call

    def __call__(self, denoiser: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Called by torch after each forward pass; a return value other than None replaces the output."""
        raise NotImplementedError

    def begins(self) -> bool:
        """True at the first step of a pipeline call, which creates new time steps: state of an earlier,
        perhaps failed call must be dropped.
        """
        times = self.pipe.scheduler.timesteps
        begins = times is not self.times
        self.times = times
        return begins

    def holds_for(self, timestep: Tensor | float) -> bool:
        """True if the mask applies to a step."""
        return holds_for(self.between, self.pipe.scheduler, timestep)

    def rows(self, n: int) -> Float[Tensor, "n 1 h w"]:
        """The mask's rows for n sources.

        Raises:
            ValueError: if n is not a multiple of their number.
        """
        if n % len(self.mask):
            raise ValueError(
                f"mask: {len(self.mask)} rows do not fit {n} sources; expected one for each, or one for all"
            )
        return self.mask.repeat(n // len(self.mask), 1, 1, 1)

    def close(self) -> None:
        """Called when the `mask_guidance` block ends without an error."""


def size_inputs(source: Float[Tensor, "b 3 h w"]) -> dict[str, Any]:
    """The source's size as inputs of a pipeline that does not take it from the image."""
    height, width = source.shape[-2:]
    return {"height": Broadcast(height), "width": Broadcast(width)}
