"""Editing methods behind one interface: they make an edited image from a source, an instruction and, if
needed, captions of the image before and after.

A method is called with b `EditRequests` and returns b images. Its output for a row does not depend on the
other rows of the batch: each row has its own seed, and pipelines that mix rows are called row by row. For
methods without a diffusers pipeline (Prompt-to-Prompt, Text2LIVE, MGIE, an API), pass a folder of their
outputs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit import devices
from rewardedit.config import require_unset
from rewardedit.data.folders import by_stem, list_images
from rewardedit.diffusion.editors import SamplingConfig, load_editor
from rewardedit.diffusion.edits import Edits
from rewardedit.diffusion.schedulers import set_ddim, set_scheduler
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.images import fit, load_image
from rewardedit.processes import print_on_main
from rewardedit.synthesis.label_rules import Grade
from rewardedit.untrusted import file_name, is_system_error

NO_CAPTIONS = "it has no captions"


@dataclass(frozen=True)
class EditRequests:
    """A batch of b requested edits."""

    ids: list[str]
    source: Float[Tensor, "b 3 h w"]  # RGB in [0, 1]
    instruction: list[str]
    seeds: list[int]
    source_caption: list[str] | None = None
    target_caption: list[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | list[int]) -> "EditRequests":
        """Requests of a slice, or of the given row numbers."""

        def take(values: Any) -> Any:
            if values is None:
                return None
            if isinstance(rows, slice) or isinstance(values, Tensor):
                return values[rows]
            return [values[row] for row in rows]

        return EditRequests(*map(take, vars(self).values()))

    def one_by_one(self) -> Iterator["EditRequests"]:  # each row as its own batch
        return (self[i : i + 1] for i in range(len(self)))

    def generators(self) -> list[torch.Generator]:  # noise generators, one per row
        return [torch.Generator().manual_seed(seed) for seed in self.seeds]


Method = Callable[[EditRequests], Edits | Float[Tensor, "b 3 h w"]]
# An editor reads the instruction; `inpainting` needs a mask, and makes pairs with known differences; all
# other kinds but `folder` use a text-to-image model and two captions.
Kind = Literal["editor", "sdedit", "diffedit", "pix2pix_zero", "cycle_diffusion", "folder", "inpainting"]

_GRAPHS = ("graphs",)
_KEPT = ("cross_attention_guidance",)
_STRENGTH = ("strength",)
_INVERTS = ("image_guidance_scale", "scheduler")  # methods that invert sample with the same scheduler
_SAMPLING = ("num_inference_steps", "guidance_scale", "dtype")
# Settings that each kind of method does not use.
UNUSED: dict[Kind, tuple[str, ...]] = {
    "editor": (*_KEPT, *_STRENGTH),
    "sdedit": ("image_guidance_scale", *_GRAPHS, *_KEPT),
    "diffedit": (*_INVERTS, *_GRAPHS, *_KEPT),
    "pix2pix_zero": (*_INVERTS, *_GRAPHS, *_STRENGTH),
    "cycle_diffusion": (*_INVERTS, *_GRAPHS, *_KEPT),
    "folder": (*_SAMPLING, *_INVERTS, *_GRAPHS, *_KEPT, *_STRENGTH),
    "inpainting": (*_INVERTS, *_GRAPHS, *_KEPT, *_STRENGTH),
}


@dataclass(frozen=True)
class MethodConfig:
    """An editing method and its sampling settings. The defaults are ImagenHub's for editors that follow
    instructions, as in ADIEE (App. B); the recipe has those of other methods.
    """

    # kind of method; editor: InstructPix2Pix and its successors; folder: made elsewhere, as by FLUX-Kontext;
    # inpainting: of pairs.inpainted alone
    kind: Kind = "editor"
    model: str = ""  # hub name or folder of the model; with kind=folder, the folder of images ID.png
    grade: Grade = "other"  # usual quality of its outputs: strong, weak, or other for neither
    num_inference_steps: int = 100  # denoising steps
    guidance_scale: float = 7.5  # guidance scale of the text
    image_guidance_scale: float = 1.5  # guidance scale of the source, for editors that support it
    # share of the noise that the source gets: SDEdit, CycleDiffusion, DiffEdit's inversion
    strength: float = 0.8
    # sampler; None: DDIM for methods that invert the source, otherwise the model's own
    scheduler: Literal["ddim", "euler_ancestral"] | None = None
    cross_attention_guidance: float = 0.15  # weight of the source's attention in Pix2Pix-Zero
    # type of the weights; None: float32 on a CPU, on a GPU float16, for editors by flow matching bfloat16
    dtype: str | None = None
    graphs: bool = False  # on a GPU, record an editor's steps as CUDA graphs and replay them

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: expected a hub name or folder of the method's model, or of its outputs")
        if not 0 < self.strength <= 1:
            raise ValueError(f"strength: expected above 0 and at most 1; got {self.strength}")
        if self.num_inference_steps < 1:
            raise ValueError(f"num_inference_steps: expected at least 1; got {self.num_inference_steps}")
        devices.inference_dtype(self.dtype)
        require_unset(self, UNUSED[self.kind], f"on kind: {self.kind}; leave it out")

    @property
    def needs_captions(self) -> bool:  # not every data set has them
        return self.kind not in ("editor", "folder", "inpainting")


def load_method(config: MethodConfig, policy: str = "crop") -> Method:
    """Loads a method.

    Args:
        policy: how non-square outputs made elsewhere are made square; the same as for the sources.

    Raises:
        ValueError: if its model or folder is missing, or diffusers no longer has its pipeline.
    """
    if config.kind == "inpainting":
        raise ValueError(
            "kind: inpainting needs a mask, which edits have not; expected an editor or another method here"
        )
    if config.kind == "folder":
        return FolderOfOutputs(config.model, policy)
    if config.kind == "editor":
        return edit_with(config)
    return PROMPT_METHODS[config.kind](config)


def edit_with(config: MethodConfig) -> Method:
    """Method that samples from an editor that follows instructions."""
    dtype = "auto" if config.dtype is None else devices.inference_dtype(config.dtype)
    device = devices.default_device()
    if config.graphs and device == "cpu":
        print_on_main("graphs: not recorded (no GPU)")
    editor = load_editor(config.model, device=device, dtype=dtype, graphs=config.graphs)
    set_scheduler(editor.pipe, config.scheduler)
    settings = SamplingConfig(config.num_inference_steps, config.guidance_scale, config.image_guidance_scale)

    def edit(requests: EditRequests) -> Edits:
        return editor.sample(
            editor.encode(requests.source, requests.instruction), requests.seeds, settings=settings
        )

    return edit


class FolderOfOutputs:
    """Outputs made elsewhere: FOLDER/ID.png (or another format), by the row's id; a slash in an id is an
    underscore in the file name.

    Raises:
        ValueError: if there is no such folder, or two files have the same name; when called, if a row's
            output is missing.
    """

    def __init__(self, folder: str, policy: str = "crop") -> None:
        self.folder = Path(folder)
        self.policy = policy
        if not self.folder.is_dir():
            raise ValueError(f"{folder}: expected a folder of edited images")
        self.outputs = by_stem(list_images(self.folder))

    def __call__(self, requests: EditRequests) -> Float[Tensor, "b 3 h w"]:
        size = requests.source.shape[-1]
        return torch.cat([fit(load_image(self.find(name))[None], size, self.policy) for name in requests.ids])

    def find(self, name: str) -> Path:
        """File of a row's output."""
        stem = file_name(name.replace("/", "_"))
        if stem not in self.outputs:
            raise ValueError(f"{self.folder}: no output {stem}.png for row {name}")
        return self.outputs[stem]


def sdedit(config: MethodConfig) -> Method:
    """SDEdit (Meng et al. 2021): the noised source is denoised towards the target caption."""
    pipe = _pipeline("StableDiffusionImg2ImgPipeline", config)
    set_scheduler(pipe, config.scheduler)

    def edit(requests: EditRequests) -> Float[Tensor, "b 3 h w"]:
        return pipe(
            requests.target_caption,
            image=requests.source,
            strength=config.strength,
            num_inference_steps=config.num_inference_steps,
            guidance_scale=config.guidance_scale,
            generator=requests.generators(),
            output_type="pt",
        ).images

    return edit


def diffedit(config: MethodConfig) -> Method:
    """DiffEdit (Couairon et al. 2022): the inverted source is denoised towards the target caption, only where
    the predictions for the two captions differ.
    """
    pipe = _pipeline("StableDiffusionDiffEditPipeline", config, inverse_scheduler=None)
    set_ddim(pipe)
    steps = {"num_inference_steps": config.num_inference_steps}

    def edit(requests: EditRequests) -> Float[Tensor, "b 3 h w"]:
        # The mask's threshold is a mean over all rows of a call, so each row is passed alone.
        masks = []
        for one in requests.one_by_one():
            mask = pipe.generate_mask(
                one.source,
                one.target_caption,
                source_prompt=one.source_caption,
                guidance_scale=config.guidance_scale,
                generator=one.generators()[0],
                output_type="np",
                **steps,
            )
            masks.append(mask)

        inverted = pipe.invert(
            requests.source_caption,
            image=requests.source,
            inpaint_strength=config.strength,
            generator=requests.generators(),
            **steps,
        ).latents
        return pipe(
            requests.target_caption,
            mask_image=torch.cat(list(map(torch.as_tensor, masks)))[:, None].float(),
            image_latents=inverted,
            negative_prompt=requests.source_caption,
            inpaint_strength=config.strength,
            guidance_scale=config.guidance_scale,
            generator=requests.generators(),
            output_type="pt",
            **steps,
        ).images

    return edit


def pix2pix_zero(config: MethodConfig) -> Method:
    """Pix2Pix-Zero (Parmar et al. 2023): the inverted source is moved along the difference of the captions
    while its cross-attention is kept. As in ADIEE, the captions take the place of the edit's words.
    """
    none: dict[str, Any] = {"inverse_scheduler": None, "caption_generator": None, "caption_processor": None}
    pipe = _pipeline("StableDiffusionPix2PixZeroPipeline", config, **none)
    set_ddim(pipe)
    processors = pipe.unet.attn_processors
    steps = {"num_inference_steps": config.num_inference_steps}

    def edit_one(one: EditRequests) -> Float[Tensor, "1 3 h w"]:
        assert one.source_caption is not None
        assert one.target_caption is not None
        pipe.unet.set_attn_processor(dict(processors))  # the pipeline leaves its own behind
        generator = one.generators()[0]
        inverted = pipe.invert(one.source_caption[0], image=one.source, generator=generator, **steps).latents
        return pipe(
            one.source_caption[0],
            source_embeds=pipe.get_embeds(one.source_caption),
            target_embeds=pipe.get_embeds(one.target_caption),
            height=one.source.shape[-2],
            width=one.source.shape[-1],
            guidance_scale=config.guidance_scale,
            cross_attention_guidance_amount=config.cross_attention_guidance,
            negative_prompt=one.source_caption[0],
            latents=inverted,
            generator=generator,
            output_type="pt",
            **steps,
        ).images

    return lambda wanted: torch.cat(list(map(edit_one, wanted.one_by_one())))


def cycle_diffusion(config: MethodConfig) -> Method:
    """CycleDiffusion (Wu and De la Torre 2023): the source's own noises, with the target caption."""
    from diffusers import DDIMScheduler

    pipe = _pipeline("CycleDiffusionPipeline", config)
    # If a step did not lower the noise, or left none, its posterior would be 0 / 0.
    posterior = {"set_alpha_to_one": False, "steps_offset": 1, "timestep_spacing": "leading"}
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, **posterior)
    if pipe.scheduler.config.prediction_type != "epsilon":
        raise ValueError(
            f"cycle_diffusion: expected a model that predicts the noise; {config.model} predicts "
            f"{pipe.scheduler.config.prediction_type}"
        )

    def edit_one(one: EditRequests) -> Float[Tensor, "1 3 h w"]:
        return pipe(
            one.target_caption,
            source_prompt=one.source_caption,
            image=one.source,
            strength=config.strength,
            num_inference_steps=config.num_inference_steps,
            guidance_scale=config.guidance_scale,
            generator=one.generators()[0],
            output_type="pt",
        ).images

    return lambda wanted: torch.cat(list(map(edit_one, wanted.one_by_one())))


PROMPT_METHODS: dict[str, Callable[[MethodConfig], Method]] = {
    "sdedit": sdedit,
    "diffedit": diffedit,
    "pix2pix_zero": pix2pix_zero,
    "cycle_diffusion": cycle_diffusion,
}


def _pipeline(class_name: str, config: MethodConfig, **more: Any) -> Any:
    """A diffusers pipeline on the components of a text-to-image model.

    Raises:
        ValueError: if the installed diffusers has no such pipeline, or the model is missing.
    """
    import diffusers

    try:
        pipeline = getattr(diffusers, class_name)
    except (AttributeError, ImportError, RuntimeError) as error:  # RuntimeError: a lazy import failed
        raise ValueError(
            f"{config.kind}: diffusers {diffusers.__version__} no longer has {class_name}; make the outputs "
            "with an earlier version, and use that folder: kind=folder"
        ) from error
    dtype = devices.inference_dtype(config.dtype)
    parts = load_text_to_image(config.model, device=devices.default_device(), dtype=dtype).components
    parts.pop("image_encoder", None)
    pipe = pipeline(**parts, **more, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def edit_rows(method: Method, config: MethodConfig, requests: EditRequests) -> list[Tensor | str]:
    """Edits each row with a method: (3, h, w) in [0, 1], in the source's size, or the reason for a failure.

    A batch that fails as a whole is repeated row by row, so that one bad row does not spoil the others. A
    fault of the GPU or a disk is not a row's fault and is raised.
    """
    if config.needs_captions:
        lacking = [not (before and after) for before, after in zip(*_captions(requests), strict=True)]
        if any(lacking):
            kept = [row for row, lacks in enumerate(lacking) if not lacks]
            captioned_edits = iter(edit_rows(method, config, requests[kept]) if kept else [])
            return [NO_CAPTIONS if bad else next(captioned_edits) for bad in lacking]
    try:
        made = method(requests)
    except (ValueError, RuntimeError, OSError) as error:
        if is_system_error(error):
            raise
        if len(requests) > 1:
            edited = []
            for one in requests.one_by_one():
                edited += edit_rows(method, config, one)
            return edited
        return [(str(error).strip() or type(error).__name__).splitlines()[0]]
    edits = (Edits.of(made) if isinstance(made, Tensor) else made).to("cpu")
    if edits.images.shape != requests.source.shape:
        raise ValueError(
            f"{config.model}: expected images {tuple(requests.source.shape)}; got {tuple(edits.images.shape)}"
        )
    return [reason or image for image, reason in zip(edits.images, edits.reason, strict=True)]


def _captions(requests: EditRequests) -> tuple[list[str], list[str]]:
    return requests.source_caption or [""] * len(requests), requests.target_caption or [""] * len(requests)
