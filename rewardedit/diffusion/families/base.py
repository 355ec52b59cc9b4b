"""`EditFamily`: everything specific to one architecture of editors. All other code goes through it."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rewardedit.diffusion.families.mask_hook import MaskHook
from rewardedit.diffusion.noising import noising
from rewardedit.diffusion.schedulers import pred_x0_coefficients
from rewardedit.images import to_pil
from rewardedit.language.texts import note_cut
from rewardedit.prepared import Broadcast, Prepared


@dataclass(frozen=True)
class Conditioning:
    """The conditioning of b edits, encoded once.

    What belongs to the empty prompt is needed for guidance; it has one row for all edits,
    or one for each where the text encoder sees the source.
    """

    embeds: Float[Tensor, "b n d"]  # embeddings of the prompts
    source: Float[Tensor, "b c _ _"]  # latents of the sources, as the family's `encode_sources` gives them
    null_embeds: Float[Tensor, "_ n2 d"] | None = None  # embeddings of the empty prompt
    # at the latents' size: 1 where the text guidance applies (BPM Eq. 4)
    mask: Float[Tensor, "b 1 _ _"] | None = None
    pooled: Float[Tensor, "b e"] | None = None  # pooled embeddings of the prompts, by a second text encoder
    null_pooled: Float[Tensor, "_ e"] | None = None
    lengths: Int[Tensor, " b"] | None = None  # tokens of each prompt; None: all n
    null_lengths: Int[Tensor, " _"] | None = None

    def take(self, rows: slice) -> "Conditioning":
        """The conditioning of some of the edits."""
        taken = {}
        for name, value in vars(self).items():
            if value is None or (name.startswith("null_") and len(value) == 1):
                taken[name] = value
            else:
                taken[name] = value[rows]
        return Conditioning(**taken)

    def repeat(self, n: int) -> "Conditioning":
        """The conditioning of all edits n times, one after another."""
        repeated = {}
        for name, value in vars(self).items():
            shared = value is None or (name.startswith("null_") and len(value) == 1)
            repeated[name] = value if shared else torch.cat([value] * n)
        return Conditioning(**repeated)


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
    lora_only: bool = False  # too large to be trained whole on one card; loaded in bf16 on a GPU
    quantized_parts: tuple[str, ...] = ()  # frozen parts of its pipelines that 4 bits are enough for
    quantized_except: tuple[str, ...] = ()  # layers of the denoiser that 4 bits are not enough for
    gpu_dtype: torch.dtype = torch.float16  # of the weights on a GPU, where none is given
    guided_rows: int = 3  # rows through the denoiser for a guided edit: text, image and neither
    one_row_a_call: bool = False  # a call of its pipeline edits one source
    text_guidance: str = "guidance_scale above 1"  # options of a call with classifier-free guidance
    text_sees_source: bool = False  # embeddings are of a prompt and its source

    def variant(self, settings: Mapping[str, Any]) -> "EditFamily":
        """The family of a pipeline with these settings: of its index file, or of a loaded one."""
        return self

    def default_sampling(self, pipe: Any) -> dict[str, Any]:
        """The pipeline's own defaults of `SamplingConfig`'s fields, those that it has."""
        options = inspect.signature(pipe.__call__).parameters
        names = ("num_inference_steps", "guidance_scale", "image_guidance_scale")
        return {name: options[name].default for name in names if name in options}

    def side_multiple(self, pipe: Any) -> int:
        """The number of which an image's sides must be multiples, in pixels."""
        return pipe.vae_scale_factor

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

    def call_inputs(self, encoded: Prepared) -> dict[str, Any]:
        """Keyword arguments of a pipeline's call for encoded rows."""
        return {k: v.value if isinstance(v, Broadcast) else v for k, v in encoded.inputs.items()}

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        """Tokenizers of a pipeline that is called with texts, and the most tokens each reads of a text."""
        return []

    def guidance_options(self, guidance_scale: float, image_guidance_scale: float) -> dict[str, Any]:
        """The pipeline's options for these guidance scales; empty if it has no such guidance."""
        return {}

    def mask_hook(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> MaskHook:
        """A forward hook of the denoiser that restricts the text guidance to the mask.

        Raises:
            ValueError: for a family that has none.
        """
        raise self._unknown(pipe, "mask guidance")

    def guides_text(self, options: Mapping[str, Any]) -> bool:
        """True if a call of the pipeline with these options has classifier-free guidance."""
        return (options.get("guidance_scale") or 0) > 1

    def unguided(self) -> ValueError:
        """The error of mask guidance in a call that has no classifier-free guidance."""
        return ValueError(
            f"mask guidance needs classifier-free guidance: call the pipeline with {self.text_guidance}; "
            "without it there is one prediction a step and no text term to restrict"
        )

    def takes_source(self, denoiser: Any) -> bool:
        """True if a denoiser can be conditioned on a source image as it is."""
        return True

    def latent_shape(self, denoiser: Any, vae: Any, size: int) -> tuple[int, int, int]:
        """(c, h, w) of the latents of images with sides of so many pixels."""
        side = size // 2 ** (len(vae.config.block_out_channels) - 1)
        return denoiser.config.out_channels, side, side

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

    def encode_texts(
        self, pipe: Any, prompts: list[str], source: Float[Tensor, "b 3 h w"] | None = None
    ) -> dict[str, Tensor]:
        """All that `Conditioning` holds of prompts, by its names of them; and `tokens` (b, n), where the
        text encoder can be trained.

        Args:
            source: of each prompt, in [0, 1]; for families with `text_sees_source`.
        """
        embeds = self.encode_prompts(pipe, prompts)
        return {"embeds": embeds, "tokens": self.tokenize(pipe, prompts).input_ids}

    def encode_images(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latents of images in [0, 1]; those that are denoised are multiplied by `latent_scaling`."""
        raise self._untrained()

    def encode_sources(self, pipe: Any, source: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latents of sources in [0, 1], as the denoiser is conditioned on them."""
        return self.encode_images(pipe, source)

    def latent_scaling(self, vae: Any) -> float:
        """Factor from `encode_images` to the latents that are denoised."""
        return float(vae.config.scaling_factor)

    def decode(self, vae: Any, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        """Decodes the latents at the end of a rollout to images, RGB in [0, 1],
        with a gradient also where they saturate.
        """
        raise self._untrained()

    def checkpoint_decoder(self, vae: Any, enabled: bool) -> None:
        """Turns gradient checkpointing of an autoencoder's decoder, for `decode`, on or off."""
        (vae.enable_gradient_checkpointing if enabled else vae.disable_gradient_checkpointing)()

    @torch.no_grad()
    def reconstruct(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        """Reconstruction of images by the autoencoder, RGB in [0, 1]: every edited image has its traces."""
        latents = self.encode_images(pipe, image) * self.latent_scaling(pipe.vae)
        return self.decode(pipe.vae, latents).float().cpu().clamp(0, 1)

    def training_scheduler(self, scheduler: Any) -> Any:
        """Scheduler that noises latents in training, on a pipeline's schedule."""
        return noising(scheduler)

    def noised(
        self,
        scheduler: Any,
        x_0: Float[Tensor, "b c h w"],
        noise: Float[Tensor, "b c h w"],
        t: Int[Tensor, " b"],
    ) -> tuple[Float[Tensor, "b c h w"], Tensor]:
        """Noised latents for time steps from 0 (least noise) to `num_train_timesteps` − 1, and the times that
        the denoiser is told.

        Args:
            scheduler: as `training_scheduler` returns it.
        """
        return scheduler.add_noise(x_0, noise, t), t

    def training_times(self, timesteps: Tensor) -> Int[Tensor, " n"]:
        """Time steps at which a rollout calls the denoiser as those of `noised`, each once, from the largest
        on.
        """
        return timesteps.round().long().unique().flip(0)

    def clean(
        self,
        scheduler: Any,
        model_pred: Float[Tensor, "b c h w"],
        x_t: Float[Tensor, "b c h w"],
        t: Tensor,
    ) -> Float[Tensor, "b c h w"]:
        """The clean latents that predictions imply, in fp32.

        Args:
            scheduler: as `training_scheduler` returns it.
            x_t: noised latents, as `noised` returns them.
            t: (b,) their time steps.
        """
        pairs = [pred_x0_coefficients(scheduler, time, 0) for time in t.tolist()]
        a, b = x_t.new_tensor(pairs, dtype=torch.float32).T[:, :, None, None, None]
        return a * x_t.float() + b * model_pred.float()

    def set_timesteps(self, scheduler: Any, steps: int, latents: Float[Tensor, "b c h w"]) -> None:
        """Prepares a scheduler for sampling latents of this shape, as the pipeline does."""
        scheduler.set_timesteps(steps, device=latents.device)

    def initial_latents(self, scheduler: Any, noise: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Latents with which sampling begins, from noise of unit variance."""
        return noise * scheduler.init_noise_sigma

    def model_input(
        self, scheduler: Any, latents: Float[Tensor, "b c h w"], t: Tensor
    ) -> Float[Tensor, "b c h w"]:
        """Latents as the denoiser gets them at a step."""
        return scheduler.scale_model_input(latents, t)

    def to_latents(self, stepped: Tensor, height: int, width: int, vae_factor: int) -> Tensor:
        """Latents (b, c, h, w) of what a pipeline's scheduler steps, for images of this size."""
        return stepped

    def from_latents(self, latents: Float[Tensor, "b c h w"]) -> Tensor:
        """Inverse of `to_latents`."""
        return latents

    def require_guidance(self, guidance_scale: float | None, cond: Conditioning) -> None:
        """Raises ValueError if a rollout cannot be guided so, or its mask has nothing to restrict."""
        if guidance_scale is None and cond.mask is not None:
            raise ValueError(
                "mask: it restricts the text guidance, which is off; set guidance_scale, or leave the mask "
                "out"
            )
        if guidance_scale is not None and cond.null_embeds is None:
            raise ValueError("guidance needs the empty prompt's embedding: Conditioning(null_embeds=…)")

    def blank_conditioning(self, denoiser: Any, source: Float[Tensor, "b c h w"]) -> Conditioning:
        """Conditioning of the shapes that edits of these sources have, to measure memory and operations."""
        return Conditioning(source.new_empty(len(source), 77, self.prompt_dim(denoiser)), source)

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

    def target(
        self,
        scheduler: Any,
        x_0: Float[Tensor, "b c h w"],
        noise: Float[Tensor, "b c h w"],
        t: Int[Tensor, " b"],
    ) -> Float[Tensor, "b c h w"]:
        """The value that a prediction for noised latents should have.

        Args:
            scheduler: as `training_scheduler` returns it.
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


def execution_device(pipe: Any) -> torch.device:
    """The device that a pipeline computes on; after `enable_model_cpu_offload` its weights may wait in main
    memory.
    """
    return pipe._execution_device


def size_inputs(source: Float[Tensor, "b 3 h w"]) -> dict[str, Any]:
    """The source's size as inputs of a pipeline that does not take it from the image."""
    height, width = source.shape[-2:]
    return {"height": Broadcast(height), "width": Broadcast(width)}
