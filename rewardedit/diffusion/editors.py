"""Loading, asking and saving editors: stock diffusers InstructPix2Pix pipelines, with what a reward-conditioned one adds."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from rewardedit.assets import resolve
from rewardedit.attention import AttentionChoice, Backend, set_attention
from rewardedit.files import replaced, write_json
from rewardedit.images import to_pil
from rewardedit.reward_prompt import RewardEmbedding, RewardPrompt

SETTINGS, EMBEDDING, LORA = "editing.json", "reward_embedding.safetensors", "pytorch_lora_weights.safetensors"


@dataclass(frozen=True)
class EditSettings:
    """How an editor is asked; the defaults are those of diffusers and InstructPix2Pix."""

    steps: int = 100  # denoising steps
    text_guidance: float = 7.5  # s_T
    image_guidance: float = 1.5  # s_I


@dataclass(frozen=True)
class Encoded:
    """What a pipeline is called with for b edits: encoded once, used for any number of noises, masks and settings."""

    inputs: dict[str, Any]  # tensors (b, …) or lists of b

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def rows(self, index: Sequence[int]) -> "Encoded":
        """These rows, in this order; a row may come more than once."""

        def take(value: Any) -> Any:
            return value[list(index)] if isinstance(value, Tensor) else [value[i] for i in index]

        return Encoded({name: take(value) for name, value in self.inputs.items()})


@dataclass
class Editor:
    """A pipeline, and the reward prompt it was fine-tuned with (None for one that was not)."""

    pipe: Any
    settings: EditSettings
    prompt: RewardPrompt | None = None
    embedding: RewardEmbedding | None = None
    attention: AttentionChoice | None = None

    def __call__(
        self,
        source: Float[Tensor, "b 3 h w"],
        instruction: Sequence[str],
        seeds: Sequence[int],
        *,
        score: float = 10.0,
        settings: EditSettings | None = None,
        **options: Any,
    ) -> Float[Tensor, "b 3 h w"]:
        """Edited pictures, RGB in [0, 1]; a reward-conditioned editor is asked for `score` (0–10), by default its best.

        Each row has its own seed, so a row comes out the same in any batch (up to rounding). `options` go to the pipeline.

        Raises:
            ValueError: where sources, instructions and seeds differ in number, or a side is not a multiple of the VAE's.
        """
        return self.run(self.encode(source, instruction, score=score), seeds, settings=settings, **options)

    @torch.no_grad()
    def encode(self, source: Float[Tensor, "b 3 h w"], instruction: Sequence[str], *, score: float = 10.0) -> Encoded:
        """Sources and instructions as the pipeline wants them.

        Raises:
            ValueError: where they differ in number, or a side is not a multiple of the VAE's.
        """
        b, factor = len(source), self.pipe.vae_scale_factor
        if b != len(instruction):
            raise ValueError(f"expected one instruction a picture; got {b} and {len(instruction)}")
        if source.shape[-1] % factor or source.shape[-2] % factor:
            raise ValueError(f"source: expected sides that are multiples of {factor}; got {tuple(source.shape[-2:])}")
        label = self.prompt.label(score) if self.prompt else None
        texts = write_prompts(self.pipe, list(instruction), [label] * b, self.prompt)
        if not self.fused:
            return Encoded({"prompt": texts, "image": [to_pil(picture) for picture in source]})
        embeds = self._embeds(texts, score)
        image = self.pipe.image_processor.preprocess(source.to(self.pipe.device))
        device, dtype = self.pipe.device, embeds["prompt_embeds"].dtype
        return Encoded({**embeds, "image": self.pipe.prepare_image_latents(image, b, 1, dtype, device, False)})

    @torch.no_grad()
    def run(
        self, encoded: Encoded, seeds: Sequence[int], *, settings: EditSettings | None = None, **options: Any
    ) -> Float[Tensor, "b 3 h w"]:
        """Edited pictures of encoded rows, RGB in [0, 1], each from the noise of its seed.

        Raises:
            ValueError: where rows and seeds differ in number.
        """
        if len(encoded) != len(seeds):
            raise ValueError(f"expected one seed a picture; got {len(encoded)} pictures and {len(seeds)} seeds")
        settings = settings or self.settings
        asked: dict[str, Any] = {"num_inference_steps": settings.steps}
        if self.fused:
            asked |= {"guidance_scale": settings.text_guidance, "image_guidance_scale": settings.image_guidance}
        generator = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        out = self.pipe(**encoded.inputs, generator=generator, output_type="pt", **{**asked, **options})
        return out.images.float().cpu().clamp(0, 1)

    @property
    def fused(self) -> bool:
        """An InstructPix2Pix pipeline, with text and image guidance from one call of its UNet."""
        return "InstructPix2Pix" in type(self.pipe).__name__

    def _embeds(self, texts: list[str], score: float) -> dict[str, Tensor]:
        if getattr(self.pipe, "text_encoder_2", None) is not None:
            names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
            return dict(zip(names, self.pipe.encode_prompt(texts, device=self.pipe.device), strict=True))
        embeds, nothing = encode_prompts(self.pipe, texts), encode_prompts(self.pipe, [""]).expand(len(texts), -1, -1)
        if self.prompt is not None and self.embedding is not None:
            label = torch.full((len(texts),), self.prompt.label(score), device=self.pipe.device)
            null = torch.full_like(label, self.embedding.vectors.num_embeddings - 1)
            embeds, nothing = self.embedding(embeds, label), self.embedding(nothing, null)
        return {"prompt_embeds": embeds, "negative_prompt_embeds": nothing}


def write_prompts(pipe: Any, instructions: list[str], labels: Sequence[int | None], prompt: RewardPrompt | None) -> list[str]:
    """The instructions with their labels written in, those without a label as they are.

    Where a text is longer than the tokenizer reads, its instruction is cut and never its label; a warning counts them.
    """
    if prompt is None or prompt.embedding:
        return instructions
    most = pipe.tokenizer.model_max_length

    def fits(text: str) -> bool:
        return len(pipe.tokenizer(text, verbose=False).input_ids) <= most

    written: dict[tuple[str, int], str] = {}
    cut = 0
    for own in {(text, label) for text, label in zip(instructions, labels, strict=True) if label is not None}:
        written[own] = prompt.write(*own)
        if not fits(written[own]):
            written[own] = prompt.write(prompt.shorten(*own, fits), own[1])
            cut += 1
    if cut:
        warnings.warn(
            f"{cut} of {len(written)} texts are longer than the tokenizer's {most} tokens: "
            "their instructions are cut, their labels kept",
            stacklevel=2,
        )
    return [text if label is None else written[text, label] for text, label in zip(instructions, labels, strict=True)]


def tokenize(pipe: Any, texts: list[str]) -> Any:
    """Tokens and attention mask of texts, padded and cut to the tokenizer's length as the stock pipeline does."""
    return pipe.tokenizer(
        texts, padding="max_length", max_length=pipe.tokenizer.model_max_length, truncation=True, return_tensors="pt"
    )


@torch.no_grad()
def encode_prompts(pipe: Any, texts: list[str]) -> Float[Tensor, "b n d"]:
    """The text encoder's last hidden states, as the stock pipeline feeds them to the UNet.

    Raises:
        ValueError: for a pipeline with two text encoders (SDXL), which this does not cover.
    """
    if getattr(pipe, "text_encoder_2", None) is not None:
        raise ValueError("expected an editor with one text encoder; SDXL editors cannot be fine-tuned here")
    tokens = tokenize(pipe, texts)
    mask = tokens.attention_mask if getattr(pipe.text_encoder.config, "use_attention_mask", False) else None
    return pipe.text_encoder(tokens.input_ids.to(pipe.device), attention_mask=mask)[0]


@torch.no_grad()
def encode_images(pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
    """Latent modes, unscaled: what InstructPix2Pix conditions on. Times `vae.config.scaling_factor` they are the target's."""
    image = (image * 2 - 1).to(pipe.device, pipe.vae.dtype)
    return pipe.vae.encode(image).latent_dist.mode()


def as_editor(pipe: Any) -> Editor:
    """A stock pipeline as an `Editor` with diffusers' default settings; an `Editor` as it is."""
    return pipe if isinstance(pipe, Editor) else Editor(pipe, EditSettings())


def load_editor(
    name: str,
    *,
    attention: Backend = "auto",
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Editor:
    """An editor by hub name, "shapes-editor", a pipeline folder, or a run's folder (its pipeline/ or lora/).

    Raises:
        ValueError: where there is no InstructPix2Pix pipeline of that name.
    """
    path = Path(resolve(locate(name)))
    settings = json.loads((path / SETTINGS).read_text()) if (path / SETTINGS).is_file() else {}
    base = settings.pop("base", None)
    pipe = _load_pipeline(base or (str(path) if path.exists() else name), dtype)
    if (path / LORA).is_file():
        pipe.load_lora_weights(str(path))
    pipe = pipe.to(device)
    pipe.set_progress_bar_config(disable=True)
    prompt = RewardPrompt.load(path)
    embedding = None
    if prompt is not None and prompt.embedding:
        weights = load_file(path / EMBEDDING)
        labels, dim = weights["vectors.weight"].shape
        embedding = RewardEmbedding(labels - 1, dim).to(device, dtype)
        embedding.load_state_dict(weights)
    choice = set_attention(pipe.unet, attention)
    return Editor(pipe, EditSettings(**settings), prompt, embedding, choice)


def locate(name: str) -> str:
    """Where an editor is: in a run's folder its pipeline/ or lora/; any other name as it is."""
    inner = [Path(name) / kind for kind in ("pipeline", "lora") if (Path(name) / kind).is_dir()]
    return str(inner[0]) if inner else name


def _load_pipeline(name: str, dtype: torch.dtype) -> Any:
    from diffusers import (
        DiffusionPipeline,
        StableDiffusionInstructPix2PixPipeline,
        StableDiffusionXLInstructPix2PixPipeline,
    )

    no_checker = {"safety_checker": None, "requires_safety_checker": False}
    try:
        config = DiffusionPipeline.load_config(resolve(name))
        kind = str(config.get("_class_name"))
        if kind == "StableDiffusionXLInstructPix2PixPipeline":
            return StableDiffusionXLInstructPix2PixPipeline.from_pretrained(resolve(name), dtype=dtype)
        if kind not in ("StableDiffusionInstructPix2PixPipeline", "StableDiffusionPipeline"):
            raise ValueError(f"editor {name!r} is a {kind}; expected an InstructPix2Pix pipeline")
        return StableDiffusionInstructPix2PixPipeline.from_pretrained(resolve(name), dtype=dtype, **no_checker)
    except OSError as error:
        raise ValueError(
            f"editor {name!r}: no diffusers pipeline can be loaded from there ({str(error).splitlines()[0]})"
        ) from error


def keep_settings(folder: Path, settings: EditSettings, more: dict[str, Any] | None = None) -> None:
    """Writes beside a saved editor how it is to be asked; what else stands in that file stays."""
    path = folder / SETTINGS
    known = json.loads(path.read_text()) if path.is_file() else {}
    write_json(path, {**known, **asdict(settings), **(more or {})})


def save_editor(editor: Editor, folder: Path, *, base: str | None = None) -> None:
    """Writes a pipeline that stock diffusers loads, with the reward prompt and how to ask beside it.

    The folder is written aside and renamed, in the place of an earlier one: it is there whole or not at all. With `base`,
    the UNet's LoRA weights alone are written, and the name of the pipeline that they belong to.
    """
    with replaced(folder) as aside:
        aside.mkdir()
        _write_editor(editor, aside, base)


def _write_editor(editor: Editor, folder: Path, base: str | None) -> None:
    keep_settings(folder, editor.settings, {} if base is None else {"base": base})
    if base is None:
        editor.pipe.save_pretrained(folder)
    else:
        from diffusers import StableDiffusionInstructPix2PixPipeline
        from diffusers.utils import convert_state_dict_to_diffusers
        from peft import get_peft_model_state_dict

        layers = convert_state_dict_to_diffusers(get_peft_model_state_dict(editor.pipe.unet))
        StableDiffusionInstructPix2PixPipeline.save_lora_weights(folder, unet_lora_layers=layers)
    if editor.prompt is not None:
        editor.prompt.save(folder)
    if editor.embedding is not None:
        save_file({k: v.contiguous().cpu() for k, v in editor.embedding.state_dict().items()}, folder / EMBEDDING)
