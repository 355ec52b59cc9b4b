"""FLUX.2 klein, base (with classifier-free guidance) and distilled (four steps, without any).

Its latents are patches of 2 × 2 locations of the autoencoder's, normalised by that one's batch norm; a token
is one of their locations.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit.diffusion.families.base import Conditioning, EditFamily, execution_device, size_inputs
from rewardedit.diffusion.families.flow import FlowEditor, Size, Texts, pack, unpack
from rewardedit.diffusion.families.mask_hook import MaskHook
from rewardedit.diffusion.families.true_cfg import TwoCalls
from rewardedit.images import clamp_straight_through, to_pil
from rewardedit.language.texts import note_cut
from rewardedit.models import pretrained
from rewardedit.prepared import Prepared

TOKENS = 512  # most tokens that are read from a prompt, the pipeline's default
MOST_PIXELS = 1024 * 1024  # of a source that the pipeline reads as it is
REFERENCE = 10  # time coordinate of the source's tokens; the target's is 0
DISTILLED_STEPS = 4
NO_GUIDANCE = "FLUX.2 klein (distilled) has no classifier-free guidance; take FLUX.2-klein-base"


def empirical_shift(scheduler: Any, tokens: int, steps: int) -> float:
    """μ of FLUX.2's schedule."""
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

    return compute_empirical_mu(image_seq_len=tokens, num_steps=steps)


class Flux2Klein(FlowEditor):
    """The base model: can be sampled from, guided, rolled out and fine-tuned by a LoRA."""

    pipelines = ("Flux2KleinPipeline",)
    loadable = pipelines
    patch = 1
    guided: bool = True  # by classifier-free guidance
    one_row_a_call = True  # a list of images is one edit's references
    lora_targets = (
        "to_q",
        "to_k",
        "to_v",
        "to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
        "to_add_out",
        "to_qkv_mlp_proj",
    )
    quantized_parts = ("transformer", "text_encoder")
    shift = staticmethod(empirical_shift)

    def variant(self, settings: Mapping[str, Any]) -> EditFamily:
        return DISTILLED if settings.get("is_distilled") else self

    def load(self, folder: str, class_name: str, dtype: torch.dtype) -> Any:
        import diffusers

        return pretrained.load(diffusers.Flux2KleinPipeline, folder, dtype=dtype)

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        return [(pipe.tokenizer, tokens_read(pipe))]

    def guidance_options(self, guidance_scale: float, image_guidance_scale: float) -> dict[str, Any]:
        return {"guidance_scale": guidance_scale}

    @torch.no_grad()
    def encode(self, pipe: Any, source: Float[Tensor, "b 3 h w"], prompts: list[str]) -> Prepared:
        """Prompts, encoded, and sources; edits have the sources' size."""
        for tokenizer, max_length in self.readers(pipe):
            note_cut(tokenizer, prompts, max_length, "the editor")
        embeds = {"prompt_embeds": self.encode_texts(pipe, prompts)["embeds"]}
        if self.guided:
            empty = self.encode_texts(pipe, [""])["embeds"]
            embeds["negative_prompt_embeds"] = empty.expand(len(prompts), -1, -1)
        return Prepared({**embeds, "image": list(map(to_pil, source)), **size_inputs(source)})

    @torch.no_grad()
    def encode_texts(
        self, pipe: Any, prompts: list[str], source: Float[Tensor, "b 3 h w"] | None = None
    ) -> dict[str, Tensor]:
        """Hidden states of three layers of Qwen3, side by side."""
        embeds, _ = pipe.encode_prompt(
            prompts, device=execution_device(pipe), max_sequence_length=tokens_read(pipe)
        )
        return {"embeds": embeds}

    @torch.no_grad()
    def encode_images(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Patches of latent modes, normalised."""
        return encode_pixels(pipe, image * 2 - 1)

    @torch.no_grad()
    def encode_sources(self, pipe: Any, source: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latents of sources as the pipeline reads them: laid out as images of PIL are, which decides the
        last bits.

        Raises:
            ValueError: for sources that the pipeline scales down before it reads them.
        """
        height, width = source.shape[-2:]
        if height * width > MOST_PIXELS:
            raise ValueError(
                f"data.size: expected at most {MOST_PIXELS:,} pixels, as FLUX.2 klein's pipeline scales "
                f"larger sources down; got {height} × {width}"
            )
        read = pipe.image_processor.preprocess(list(map(to_pil, source)), height, width)
        return encode_pixels(pipe, read)

    def decode(self, vae: Any, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        mean, std = norm(vae, latents)
        patches = latents * std + mean
        modes = unpack(pack(patches, 1), patches.shape[-2:], 2)
        decoded = vae.decode(modes.to(vae.dtype), return_dict=False)[0]
        return clamp_straight_through(decoded.float() / 2 + 0.5)

    def mask_hook(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> MaskHook:
        return TwoCalls(self, pipe, mask, between)

    def target_size(self, kwargs: dict[str, Any]) -> Size:
        ids = kwargs["img_ids"][0]
        h, w = (ids[ids[:, 0] == 0][:, 1:3].max(0).values + 1).tolist()
        return h, w

    def blank_conditioning(self, denoiser: Any, source: Float[Tensor, "b c h w"]) -> Conditioning:
        return Conditioning(source.new_empty(len(source), TOKENS, self.prompt_dim(denoiser)), source)

    def call(
        self,
        denoiser: Any,
        tokens: Float[Tensor, "b n d"],
        time: Float[Tensor, " b"],
        texts: Texts,
        sizes: tuple[Size, Size],
        guidance_scale: float | None,
    ) -> Float[Tensor, "b n e"]:
        device = tokens.device
        places = [position_ids(size, REFERENCE * index, device) for index, size in enumerate(sizes)]
        words = torch.zeros(texts.embeds.shape[1], 4, dtype=torch.long, device=device)
        words[:, 3] = torch.arange(len(words), device=device)
        return denoiser(
            hidden_states=tokens,
            timestep=time,
            guidance=None,
            encoder_hidden_states=texts.embeds,
            txt_ids=words.expand(len(tokens), -1, -1),
            img_ids=torch.cat(places).expand(len(tokens), -1, -1),
            joint_attention_kwargs=None,
            return_dict=False,
        )[0]


class DistilledFlux2Klein(Flux2Klein):
    """The distilled model, without guidance."""

    guided = False
    guided_rows = 1

    def variant(self, settings: Mapping[str, Any]) -> EditFamily:
        return self

    def default_sampling(self, pipe: Any) -> dict[str, Any]:
        return {"num_inference_steps": DISTILLED_STEPS, "guidance_scale": 1.0}

    def mask_hook(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> MaskHook:
        raise ValueError(f"mask guidance: {NO_GUIDANCE}, or choose the best of N by a scorer of preservation")

    def require_guidance(self, guidance_scale: float | None, cond: Conditioning) -> None:
        if guidance_scale is not None:
            raise ValueError(f"guidance_scale: {NO_GUIDANCE}, or leave guidance_scale out")
        super().require_guidance(guidance_scale, cond)


DISTILLED = DistilledFlux2Klein()


def tokens_read(pipe: Any) -> int:
    """Tokens to which prompts are padded: the pipeline's default, or fewer if its tokenizer says so."""
    return min(TOKENS, pipe.tokenizer.model_max_length)


def encode_pixels(pipe: Any, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
    """Latents of images in [−1, 1]."""
    modes = pipe.vae.encode(pixels.to(execution_device(pipe), pipe.vae.dtype)).latent_dist.mode()
    patches = unpack(pack(modes, 2), (modes.shape[-2] // 2, modes.shape[-1] // 2), 1)
    mean, std = norm(pipe.vae, patches)
    return (patches - mean) / std


def norm(vae: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (1, c, 1, 1) by which the autoencoder's patches are normalised."""
    mean = vae.bn.running_mean.view(1, -1, 1, 1).to(like)
    std = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps).to(like)
    return mean, std


def position_ids(size: Size, time: int, device: torch.device) -> Int[Tensor, "n 4"]:
    """Time coordinate, row, column and 0 of each token."""
    rows, columns = (torch.arange(side, device=device) for side in size)
    grid = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([torch.full_like(grid[0], time), *grid, torch.zeros_like(grid[0])], -1).flatten(0, 1)
