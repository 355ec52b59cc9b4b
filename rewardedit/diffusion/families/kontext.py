"""FLUX.1 Kontext (arXiv 2506.15742).

Its guidance is distilled: a scale that the transformer is told. Classifier-free guidance with a negative
prompt can be added to it in the pipeline (`true_cfg_scale`), which mask guidance needs; rollouts have the
former alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.families.base import Conditioning, execution_device, size_inputs
from rewardedit.diffusion.families.flow import (
    FlowEditor,
    Size,
    Texts,
    denoiser_config,
    dynamic_shift,
)
from rewardedit.diffusion.families.mask_hook import MaskHook
from rewardedit.diffusion.families.true_cfg import TRUE_CFG, TwoCalls
from rewardedit.images import clamp_straight_through
from rewardedit.language.texts import note_cut
from rewardedit.models import pretrained
from rewardedit.prepared import Broadcast, Prepared

T5_TOKENS = 512  # read from a prompt by the pipeline
NEGATIVE = ("negative_prompt", "negative_prompt_embeds")  # options of the pipeline
UNGUIDED = 1.0  # scale that the transformer is told where none is given


class FluxKontext(FlowEditor):
    """Can be sampled from, guided, rolled out and fine-tuned by a LoRA."""

    pipelines = ("FluxKontextPipeline",)
    loadable = pipelines
    lora_targets = (
        "to_q",
        "to_k",
        "to_v",
        "to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
        "to_add_out",
    )
    quantized_parts = ("transformer", "text_encoder_2")  # CLIP is small
    shift = staticmethod(dynamic_shift)
    guided_rows = 1
    text_guidance = (
        f"{TRUE_CFG}, as in Python's two_round_edit(editor, source, instruction, true_cfg_scale=2.0, "
        'negative_prompt=" ")'
    )

    def load(self, folder: str, class_name: str, dtype: torch.dtype) -> Any:
        import diffusers

        return pretrained.load(diffusers.FluxKontextPipeline, folder, dtype=dtype)

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        return [(pipe.tokenizer_2, T5_TOKENS)]

    def guidance_options(self, guidance_scale: float, image_guidance_scale: float) -> dict[str, Any]:
        return {} if guidance_scale is None else {"guidance_scale": guidance_scale}

    @torch.no_grad()
    def encode(self, pipe: Any, source: Float[Tensor, "b 3 h w"], prompts: list[str]) -> Prepared:
        """Prompts and sources, encoded; edits have the sources' size, where the pipeline alone would choose
        one of about a million pixels.
        """
        for tokenizer, max_length in self.readers(pipe):
            note_cut(tokenizer, prompts, max_length, "the editor")
        texts = self.encode_texts(pipe, prompts)
        height, width = source.shape[-2:]
        return Prepared(
            {
                "prompt_embeds": texts["embeds"],
                "pooled_prompt_embeds": texts["pooled"],
                "image": self.encode_images(pipe, source),
                "max_area": Broadcast(height * width),
                **size_inputs(source),
            }
        )

    @torch.no_grad()
    def encode_texts(
        self, pipe: Any, prompts: list[str], source: Float[Tensor, "b 3 h w"] | None = None
    ) -> dict[str, Tensor]:
        """T5's hidden states and CLIP's pooled output."""
        embeds, pooled, _ = pipe.encode_prompt(prompts, prompts, device=execution_device(pipe))
        return {"embeds": embeds, "pooled": pooled}

    @torch.no_grad()
    def encode_images(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latent modes, shifted and scaled."""
        config = pipe.vae.config
        latents = pipe.vae.encode(
            (image * 2 - 1).to(execution_device(pipe), pipe.vae.dtype)
        ).latent_dist.mode()
        return (latents - config.shift_factor) * config.scaling_factor

    def decode(self, vae: Any, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        modes = latents / vae.config.scaling_factor + vae.config.shift_factor
        decoded = vae.decode(modes.to(vae.dtype), return_dict=False)[0]
        return clamp_straight_through(decoded.float() / 2 + 0.5)

    def mask_hook(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> MaskHook:
        return TwoCalls(self, pipe, mask, between)

    def guides_text(self, options: Mapping[str, Any]) -> bool:
        has_negative = any(options.get(name) is not None for name in NEGATIVE)
        return has_negative and options.get("true_cfg_scale", 1.0) > 1

    def target_size(self, kwargs: dict[str, Any]) -> Size:
        ids = kwargs["img_ids"]
        h, w = (ids[ids[:, 0] == 0][:, 1:].max(0).values.int() + 1).tolist()
        return h, w

    def require_guidance(self, guidance_scale: float | None, cond: Conditioning) -> None:
        if cond.mask is not None:
            raise ValueError(
                "mask: FLUX.1 Kontext's guidance is distilled, so that a rollout has no text term to "
                "restrict; leave the mask out, or sample its pipeline under mask_guidance with "
                "true_cfg_scale above 1"
            )

    def has_guidance(self, guidance_scale: float | None) -> bool:
        return False

    def blank_conditioning(self, denoiser: Any, source: Float[Tensor, "b c h w"]) -> Conditioning:
        config = denoiser_config(denoiser)
        embeds = source.new_empty(len(source), T5_TOKENS, config.joint_attention_dim)
        pooled = source.new_empty(len(source), config.pooled_projection_dim)
        return Conditioning(embeds, source, pooled=pooled)

    def call(
        self,
        denoiser: Any,
        tokens: Float[Tensor, "b n d"],
        time: Float[Tensor, " b"],
        texts: Texts,
        sizes: tuple[Size, Size],
        guidance_scale: float | None,
    ) -> Float[Tensor, "b n e"]:
        guidance = None
        if denoiser_config(denoiser).guidance_embeds:
            scale = UNGUIDED if guidance_scale is None else guidance_scale
            guidance = torch.full((len(tokens),), scale, device=tokens.device, dtype=torch.float32)
        ids = torch.cat([position_ids(size, index, tokens) for index, size in enumerate(sizes)])
        return denoiser(
            hidden_states=tokens,
            timestep=time,
            guidance=guidance,
            pooled_projections=texts.pooled,
            encoder_hidden_states=texts.embeds,
            txt_ids=tokens.new_zeros(texts.embeds.shape[1], 3),
            img_ids=ids,
            joint_attention_kwargs={},
            return_dict=False,
        )[0]


def position_ids(size: Size, index: int, like: Tensor) -> Float[Tensor, "n 3"]:
    """Image, row and column of each token."""
    rows, columns = (torch.arange(side, device=like.device, dtype=like.dtype) for side in size)
    grid = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([torch.full_like(grid[0], index), *grid], -1).flatten(0, 1)
