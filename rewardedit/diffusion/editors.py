"""Loading and running editors: stock diffusers pipelines, with the additions of a reward-conditioned one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rewardedit import config as configs
from rewardedit import devices
from rewardedit.batch_sizes import BatchSize
from rewardedit.diffusion.attention import AttentionChoice, Backend, set_attention
from rewardedit.diffusion.compiling import Compilation, compile_blocks
from rewardedit.diffusion.decoding import ALL, decoding_what_fits
from rewardedit.diffusion.editor_files import (
    EMBEDDING,
    SETTINGS,
    files_of_editor,
    find_lora,
    own_lora,
    read_beside,
)
from rewardedit.diffusion.edits import Edits
from rewardedit.diffusion.families import (
    EditFamily,
    family_of,
    require_family,
)
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.quantized import quantize_pipeline, require_quantizable
from rewardedit.diffusion.replaying import Replay, replay_calls
from rewardedit.images import ImagesLike, read_images, resize
from rewardedit.images.values import require_texts
from rewardedit.language.texts import LOCK, note
from rewardedit.models import pretrained, resolve_model
from rewardedit.models.four_bit import Bits
from rewardedit.models.half_weights import HalfWeights
from rewardedit.prepared import Prepared
from rewardedit.reward_prompt import RewardEmbedding, RewardPrompt

OPTIONS = ("lora", "device", "dtype", "compile", "graphs", "quantize")  # how a pipeline is loaded


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling settings; the defaults are those of diffusers and InstructPix2Pix."""

    num_inference_steps: int = 100  # number of denoising steps
    guidance_scale: float = 7.5  # text guidance scale, s_T
    image_guidance_scale: float = 1.5  # image guidance scale, s_I

    def __post_init__(self) -> None:
        if not isinstance(self.num_inference_steps, int):
            got = self.num_inference_steps
            raise ValueError(f"num_inference_steps: expected a whole number; got {got!r}")
        if self.num_inference_steps < 1:
            raise ValueError(f"num_inference_steps: expected at least 1; got {self.num_inference_steps}")
        if self.guidance_scale is not None and not self.guidance_scale >= 0:
            raise ValueError(f"guidance_scale: expected at least 0; got {self.guidance_scale:g}")
        # A pipeline's own default may be None, for guidance that it lacks.
        if self.guidance_scale is not None and self.guidance_scale > 1 and self.image_guidance_scale < 1:
            raise ValueError(
                "image_guidance_scale: expected at least 1 beside a guidance_scale above 1, as pipelines "
                f"leave out both otherwise; got {self.image_guidance_scale:g}"
            )


@dataclass
class Editor:
    """A pipeline, and the reward prompt it was fine-tuned with (None for one that was not)."""

    pipe: Any
    settings: SamplingConfig
    prompt: RewardPrompt | None = None
    embedding: RewardEmbedding | None = None
    attention: AttentionChoice | None = None
    compilation: Compilation | None = None  # None: not compiled
    replay: Replay | None = None  # None: no CUDA graphs
    # images that the VAE decodes at a time: all, until memory runs out
    decoded_at_once: BatchSize = field(default_factory=lambda: BatchSize(ALL))
    quantize: Bits | None = None  # bits of its large frozen parts; None: as they were loaded
    half: HalfWeights | None = None  # frozen weights that are held in bf16; None: as they were loaded

    def __call__(
        self,
        source: ImagesLike,
        instruction: str | Sequence[str],
        seeds: int | Sequence[int] = 0,
        *,
        target_score: float = 10.0,
        settings: SamplingConfig | None = None,
        **options: Any,
    ) -> Float[Tensor, "b 3 h w"]:
        """Edited images, RGB in [0, 1]; a reward-conditioned editor is prompted for `target_score` (0–10),
        by default its best.

        Each row has its own seed, so a row comes out the same in any batch (up to rounding): `seeds` lists
        them, or is the first row's, from which they count up. `options` go to the pipeline.

        Args:
            source: a path, a PIL image, an array (h, w, 3), a tensor (3, h, w) or (b, 3, h, w) in [0, 1], or
                a list of images of one size.
            instruction: one for each image.

        Raises:
            ValueError: if sources, instructions and seeds differ in number, a side is not a multiple that
                the editor needs (see `resize`), or a row has no edit, for the reasons of `sample`.
        """
        encoded = self.encode(source, instruction, target_score=target_score)
        seeds = range(seeds, seeds + len(encoded)) if isinstance(seeds, int) else seeds
        return self.sample(encoded, seeds, settings=settings, **options).to("cpu").require_all()

    def resize(self, image: ImagesLike, size: int | None = None) -> Float[Tensor, "b 3 h w"]:
        """Images in [0, 1] at a size that can be edited: both sides rounded to multiples that the editor
        needs, which are 8 pixels for Stable Diffusion and 16 for editors by flow matching.

        Args:
            image: as a call takes its sources.
            size: the shorter side in pixels; None: the image's own.

        Raises:
            ValueError: for a size below 1, or what is no image.
        """
        if size is not None and size < 1:
            raise ValueError(f"size: expected at least 1; got {size}")
        image = read_images(image)
        height, width = image.shape[-2:]
        scale = 1.0 if size is None else size / min(height, width)
        factor = self.family.side_multiple(self.pipe)
        h, w = (max(factor, round(side * scale / factor) * factor) for side in (height, width))
        return resize(image, (h, w))

    @torch.no_grad()
    def encode(
        self, source: ImagesLike, instruction: str | Sequence[str], *, target_score: float = 10.0
    ) -> Prepared:
        """Encodes sources and instructions, as a call takes them, into the pipeline's inputs.

        Raises:
            ValueError: if they differ in number, a source's values are not in [0, 1], a text is not text, or
                a side is not a multiple that the editor needs, see `resize`.
        """
        source = read_images(source)
        instruction = [instruction] if isinstance(instruction, str) else list(instruction)
        require_texts("instruction", instruction)
        b = len(source)
        factor = self.family.side_multiple(self.pipe)
        if b != len(instruction):
            raise ValueError(f"expected one instruction an image; got {b} and {len(instruction)}")
        if source.shape[-1] % factor or source.shape[-2] % factor:
            raise ValueError(
                f"source: expected sides that are multiples of {factor}, as this editor needs; got "
                f"{tuple(source.shape[-2:])}; edit editor.resize(source), with editor = load_editor(…)"
            )

        label = self.prompt.label(target_score) if self.prompt else None
        prompts = write_prompts(self.pipe, instruction, [label] * b, self.prompt)
        if self.embedding is not None:
            return self.family.encode(self.pipe, source, prompts, self.embedding, label)
        return self.family.encode(self.pipe, source, prompts)

    @torch.no_grad()
    def sample(
        self,
        encoded: Prepared,
        seeds: Sequence[int],
        *,
        settings: SamplingConfig | None = None,
        **options: Any,
    ) -> Edits:
        """Edited images of encoded rows, each from the noise of its seed, on the pipeline's device; a row
        whose image overflowed, or was withheld by its safety checker, has a reason in its place.

        Raises:
            ValueError: if rows and seeds differ in number.
        """
        if len(encoded) != len(seeds):
            raise ValueError(f"expected one seed an image; got {len(encoded)} images and {len(seeds)} seeds")
        options = self.call_options(settings, **options)
        one_by_one = self.family.one_row_a_call and len(encoded) > 1
        calls = [[row] for row in range(len(encoded))] if one_by_one else [list(range(len(encoded)))]
        edits = []
        for rows in calls:
            generator = [torch.Generator().manual_seed(int(seeds[row])) for row in rows]
            inputs = self.family.call_inputs(encoded.take(rows) if one_by_one else encoded) | options
            if "max_area" in inputs:  # FLUX.1 Kontext scales height and width to it
                inputs["max_area"] = inputs["height"] * inputs["width"]
            with decoding_what_fits(self.pipe, self.decoded_at_once):
                output = self.pipe(generator=generator, output_type="pt", **inputs)
            edits.append(Edits.of_output(output))
        return Edits.join(edits)

    def call_options(self, settings: SamplingConfig | None = None, **options: Any) -> dict[str, Any]:
        """The pipeline's options for these settings (None: the editor's own) and further `options`."""
        settings = settings or self.settings
        guidance = self.family.guidance_options(settings.guidance_scale, settings.image_guidance_scale)
        return {"num_inference_steps": settings.num_inference_steps, **guidance, **options}

    @property
    def family(self) -> EditFamily:
        """The family of its pipeline."""
        return family_of(self.pipe)


def write_prompts(
    pipe: Any, instructions: list[str], labels: Sequence[int | None], prompt: RewardPrompt | None
) -> list[str]:
    """The instructions with their labels written in; those without a label stay as they are.

    If a text is longer than the tokenizer reads, its instruction is cut and never its label;
    a warning counts such texts.
    """
    if prompt is None or prompt.embedding:
        return instructions
    readers = family_of(pipe).readers(pipe) or [(pipe.tokenizer, pipe.tokenizer.model_max_length)]
    tokenizer, most = readers[0]

    def fits(text: str) -> bool:
        with LOCK:
            return len(tokenizer(text, verbose=False).input_ids) <= most

    labelled = list(zip(instructions, labels, strict=True))
    written: dict[tuple[str, int | None], str] = {}
    cut: list[str] = []
    for text, label in set(labelled):
        if label is None:
            continue
        written[text, label] = prompt.write(text, label)
        if not fits(written[text, label]):
            written[text, label] = prompt.write(prompt.shorten(text, label, fits), label)
            cut.append(text)

    note(cut, len(written), most, "the editor", "their labels are kept")
    return [written.get((text, label), text) for text, label in labelled]


def as_editor(pipe: Any) -> Editor:
    """A stock pipeline as an `Editor` with the settings that are its own default; an `Editor` as it is."""
    if isinstance(pipe, Editor):
        return pipe
    return Editor(pipe, SamplingConfig(**family_of(pipe).default_sampling(pipe)))


def load_editor(
    name: str | Any,
    *,
    lora: str | None = None,
    attention: Backend = "auto",
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    compile: bool = False,
    graphs: bool = False,
    quantize: Bits | Literal["auto"] | None = "auto",
) -> Editor:
    """Loads an editor by hub name, "shapes/editor", a pipeline folder, or a run's folder (its pipeline/ or
    lora/); wraps a stock pipeline that is loaded already, as `as_editor`, and leaves it where and as it is.

    Args:
        lora: a folder or a file with LoRA weights for it, such as diffusers and the recipes save.
        device: "auto": a GPU if there is one.
        dtype: of the weights; "auto": float16 on a GPU (bfloat16 for editors by flow matching, which
            overflow in it), float32 on a CPU.
        compile: compile the repeated blocks of the denoiser at their first call; the result differs by
            rounding.
        graphs: on a GPU, record the denoiser's calls as CUDA graphs, once for each shape, and replay them.
            Weights that moved, as by `enable_model_cpu_offload`, other adapters, their scales, and other
            attention processors are noticed, and calls recorded anew. Other changes inside the denoiser, as
            by FreeU, an IP-Adapter's scale or hooks of its layers, have no effect until
            `editor.replay.release()`.
        quantize: "4bit" stores the linear layers of an editor by flow matching in 4 bits (NF4); "auto": as
            they were when its LoRA was trained.

    Raises:
        ValueError: if no editor's pipeline has that name, no LoRA fits it, or it cannot be quantised.
    """
    if not isinstance(name, str | Path):
        if not callable(name):
            raise ValueError(f"editor: expected a name, a folder or a pipeline; got {type(name).__name__}")
        if lora is not None or device != "auto" or dtype != "auto" or compile or graphs or quantize != "auto":
            raise ValueError(f"load_editor: {', '.join(OPTIONS)} do not apply to a loaded pipeline")
        return as_editor(name)

    name = str(name)
    device = devices.default_device() if device == "auto" else device
    on_cpu = torch.device(device).type == "cpu"
    parsed = None if dtype == "auto" else devices.parse_dtype(dtype)
    if parsed is None and on_cpu:
        parsed = torch.float32

    if lora is None:
        path = files_of_editor(name)
        settings, own_base, bits = read_beside(path)
        weights = own_lora(name, path, own_base)
        base = name if own_base is None else own_base
    else:
        weights = find_lora(lora)
        path = weights.parent
        settings, _, bits = read_beside(path)
        base = name

    asked = _settings_of(path, settings, base)

    bits = bits if quantize == "auto" else quantize
    pipe = _load_pipeline(base, parsed, bits, device)
    if not settings and not isinstance(family_of(pipe), InstructPix2Pix):
        asked = as_editor(pipe).settings
    if weights is not None:
        _add_lora(pipe, weights, base)
    pipe = pipe.to(device)
    pipe.set_progress_bar_config(disable=True)

    prompt = RewardPrompt.load(path)
    embedding = None
    if prompt is not None and prompt.embedding:
        embedding = _load_embedding(path, device, pipe.dtype)
    denoiser = family_of(pipe).denoiser(pipe)
    choice = set_attention(denoiser, attention)
    compilation = compile_blocks(denoiser) if compile else None
    replay = replay_calls(denoiser) if graphs else None
    return Editor(pipe, asked, prompt, embedding, choice, compilation, replay, quantize=bits)


def _settings_of(path: Path, settings: dict[str, Any], base: Any) -> SamplingConfig:
    """Sampling settings that were read next to an editor.

    Raises:
        ValueError: if one is unknown or has a wrong value, or the base is not a name.
    """
    known = [field.name for field in fields(SamplingConfig)]
    if set(settings) - set(known):
        raise ValueError(
            f"{path / SETTINGS}: expected {', '.join(known)}; got {', '.join(settings)}: save it in these "
            "names"
        )
    if not isinstance(base, str):
        raise ValueError(f"{path / SETTINGS}: base: expected the name of a pipeline; got another value")
    return configs.build(SamplingConfig, settings, f"{path / SETTINGS}: ")


def _load_embedding(path: Path, device: str | torch.device, dtype: torch.dtype) -> RewardEmbedding:
    with pretrained.reading(str(path)):
        vectors = load_file(path / EMBEDDING)
        labels, dim = vectors["vectors.weight"].shape
        embedding = RewardEmbedding(labels - 1, dim).to(device, dtype)
        embedding.load_state_dict(vectors)
    return embedding


def _add_lora(pipe: Any, weights: Path, base: str) -> None:
    try:
        with pretrained.reading(str(weights)):
            pipe.load_lora_weights(str(weights.parent), weight_name=weights.name, use_safetensors=True)
    except (ValueError, KeyError, RuntimeError, AttributeError, OSError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"lora {str(weights)!r}: does not fit {base} ({first})") from error
    if not pipe.get_list_adapters():
        raise ValueError(f"lora {str(weights)!r}: holds no weights for {base}")


def _load_pipeline(name: str, dtype: torch.dtype | None, bits: Any, device: str | torch.device) -> Any:
    """The pipeline of a folder or hub name, in its family's type on a GPU if none is given. Its layers in 4
    bits are on `device`, and all else on the CPU.
    """
    if bits not in (None, "4bit"):
        raise ValueError(f"quantize: expected 4bit, auto or None; got {str(bits)[:80]!r}")
    try:
        index = pretrained.load_index(resolve_model(name))
        family = require_family(name, index)
        if bits is not None:
            require_quantizable(family)
        pipe = family.load(resolve_model(name), index["_class_name"], dtype or family.gpu_dtype)
    except OSError as error:
        raise ValueError(
            f"editor {name!r}: no diffusers pipeline can be loaded ({str(error).splitlines()[0]})"
        ) from error
    if bits is not None:
        quantize_pipeline(family, pipe, device)
    return pipe
