"""`EditFamily`: what is particular to one architecture of editors. Everything else asks the family."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rewardedit.diffusion.schedulers import holds_for
from rewardedit.encoded import Encoded, Shared
from rewardedit.images import to_pil
from rewardedit.language.texts import note_cut


@dataclass(frozen=True)
class Conditioning:
    """What b edits are conditioned on, encoded once."""

    embeds: Float[Tensor, "b n d"]  # of the prompts
    source: Float[Tensor, "b c h w"]  # latents of the sources: modes, unscaled
    null_embeds: Float[Tensor, "1 n d"] | None = None  # of the empty prompt; needed for guidance
    # at the latents' size: where the text guidance holds (BPM Eq. 4)
    mask: Float[Tensor, "b 1 h w"] | None = None


class EditFamily:
    """An architecture of editors: how it is loaded, conditioned, guided and trained. It holds no weights.

    This class itself stands for any pipeline that takes prompts and images: it can be sampled from, and no
    more. Subclasses say what else theirs can do. `pipe` is a stock diffusers pipeline; `denoiser` is its
    denoiser, bare or wrapped for training on several processes.
    """

    pipelines: tuple[str, ...] = ()  # class names of its stock pipelines
    loadable: tuple[str, ...] = ()  # class names of saved pipelines that `load` can make one of
    denoiser_name: str = "transformer"  # the pipeline's attribute
    lora_targets: tuple[str, ...] = ()  # names of the layers that a LoRA adapts

    def denoiser(self, pipe: Any) -> nn.Module:
        """The part of a pipeline that predicts, and that is fine-tuned."""
        return getattr(pipe, self.denoiser_name)

    def load(self, folder: str, class_name: str, dtype: torch.dtype) -> Any:
        """The pipeline of a folder, or of a hub name."""
        raise ValueError(f"{class_name}: cannot be loaded as an editor")

    def encode(self, pipe: Any, source: Float[Tensor, "b 3 h w"], prompts: list[str]) -> Encoded:
        """What the pipeline is called with, for any number of noises and settings."""
        for tokenizer, max_length in self.readers(pipe):
            if tokenizer is not None:  # a pipeline may be loaded without, to be given embeddings
                note_cut(tokenizer, prompts, max_length, "the editor")
        return Encoded({"prompt": prompts, "image": [to_pil(image) for image in source]})

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        """The tokenizers of a pipeline that is called with texts, and how many tokens each reads of one."""
        return []

    def guidance_options(self, guidance_scale: float, image_guidance_scale: float) -> dict[str, Any]:
        """The pipeline's options for these guidance scales; none where it has no such guidance."""
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
        """Makes of a text-to-image denoiser one that can be conditioned on a source image;
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
        """Images of latents as a rollout ends with them, RGB in [0, 1],
        with a gradient also where they saturate.
        """
        raise self._untrained()

    @torch.no_grad()
    def reconstruct(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        """What the autoencoder leaves of images, RGB in [0, 1]: every edited image has its traces."""
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
        """What the denoiser predicts of noisy latents, scaled as its scheduler wants them.

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

        known = ", ".join(name for family in FAMILIES for name in family.pipelines)
        return ValueError(f"{what}: {type(pipe).__name__} is not one of {known}")


class MaskHook:
    """What the families' hooks share: the mask at the latents' size,
    and whether a step is one of those meant.
    """

    def __init__(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> None:
        self.pipe = pipe
        self.mask = mask
        self.between = between
        self.fitted: Tensor | None = None
        self.times: Tensor | None = None  # the pipeline's time steps in the present call

    def __call__(self, denoiser: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Called by torch after each forward pass; what it returns, if anything, takes the output's place."""
        raise NotImplementedError

    def begins(self) -> bool:
        """Whether a call of the pipeline begins, which makes its time steps anew: what an earlier one,
        perhaps a failed one, left is void.
        """
        times = self.pipe.scheduler.timesteps
        begins = times is not self.times
        self.times = times
        return begins

    def holds_for(self, timestep: Tensor | float) -> bool:
        """Whether the mask holds for a step."""
        return holds_for(self.between, self.pipe.scheduler, timestep)

    def rows(self, n: int) -> Float[Tensor, "n 1 h w"]:
        """The mask's rows for n sources.

        Raises:
            ValueError: where their numbers do not fit.
        """
        if n % len(self.mask):
            raise ValueError(
                f"mask: {len(self.mask)} rows do not fit {n} sources; expected one for each, or one for all"
            )
        return self.mask.repeat(n // len(self.mask), 1, 1, 1)

    def close(self) -> None:
        """Called when the block ends without an error."""


def size_inputs(source: Float[Tensor, "b 3 h w"]) -> dict[str, Any]:
    """The source's size as inputs of a pipeline that does not take it from the image."""
    height, width = source.shape[-2:]
    return {"height": Shared(height), "width": Shared(width)}
