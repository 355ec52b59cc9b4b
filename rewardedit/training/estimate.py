"""Plans of recipes, computed before anything runs: rows, trained parameters, memory, time, missing
files.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import diffusers
import torch
import transformers
from diffusers import UNet2DConditionModel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from rewardedit import devices
from rewardedit.data import Rows, open_rows, require_size
from rewardedit.data.stream import StreamedRows, count_rows, read_or_stream
from rewardedit.devices import Precision
from rewardedit.diffusion.families import Conditioning, EditFamily, require_family
from rewardedit.diffusion.families.flow import FlowEditor
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.evaluation.held_out import comparison_data, comparison_plan
from rewardedit.models import pretrained, resolve_model
from rewardedit.processes import processes
from rewardedit.scorers import load_scorer
from rewardedit.stages.lazy import Lazy
from rewardedit.training import memory
from rewardedit.training.blueprint import Blueprint
from rewardedit.training.memory import trained_unet
from rewardedit.training.meta import parameters, table
from rewardedit.training.reward import RewardConfig
from rewardedit.training.savers import fit_training, memory_of_pairs
from rewardedit.training.trainable import (
    TrainConfig,
    autocast_type,
    require_lora,
    require_pipeline,
    require_source_channels,
)

SIDE = 512  # pixels a side of images that a recipe does not bring to one size
EFFICIENCY = 0.35  # speed of training a UNet, as a share of that of a plain matrix product

# Least seconds of a UNet's forward pass on CUDA, however few its rows: its kernels are launched one by one.
# Stable Diffusion 1.5's took 26 to 43 ms with three rows of 512 pixels a side on an H200.
LAUNCH = 0.03


class PlanIncomplete(ValueError):
    """Something that a plan needs is missing; `lines` holds the parts that do not need it."""

    def __init__(self, lines: list[str], reason: str) -> None:
        super().__init__(reason)
        self.lines = lines


def plan_of(*parts: Callable[[], str | list[str]]) -> list[str]:
    """Collects the lines of all parts of a plan.

    Raises:
        PlanIncomplete: if a part raises a ValueError, with the lines of the others and the first reason.
    """
    lines: list[str] = []
    reasons: list[str] = []
    for part in parts:
        try:
            made = part()
        except ValueError as error:
            reasons.append(str(error))
            continue
        lines += [made] if isinstance(made, str) else made
    if reasons:
        raise PlanIncomplete(lines, reasons[0])
    return [*lines, "all files and models are there"]


def plan(config: Any) -> list[str]:
    """Lines to print for a reward-conditioned recipe.

    Raises:
        PlanIncomplete: naming the first file, data set or model that is missing.
    """
    editors = config.candidates.editors if config.candidates else ()
    per_row = 1 if config.candidates is None else 1 + int(config.candidates.source) + len(editors)
    editor = Lazy(lambda: load_blueprint(config.base, require_size(config.data)))

    @Lazy
    def found() -> Rows | StreamedRows:
        data = comparison_data(config.evaluate, config.data)
        return read_or_stream(data) if config.candidates is None else open_rows(data)

    def rows() -> list[str]:
        n = count_rows(found())
        said = "streamed" if n is None else f"{n} × {per_row} candidates = {n * per_row}"
        return [f"rows: {said}; variants: {', '.join(config.variants)}", *comparison_plan(config.evaluate)]

    def candidates() -> list[str]:
        calls: Counter[str] = Counter()
        for name in editors:
            if "unet" in _pipeline_config(name):
                batches = math.ceil((count_rows(found()) or 0) / config.candidates.batch_size)
                calls[name] += batches * config.candidates.num_inference_steps
        return [plan_sampling(calls, config.data.size, config.candidates.batch_size)] if calls else []

    train = Lazy(lambda: fit_training(config.train, memory_of_pairs(editor)))

    def training() -> list[str]:
        settings, said = train()
        return [*said, *plan_training(editor(), settings, [None] * len(config.variants))]

    def needed() -> str:
        base = editor()
        fitted = replace(config, train=train()[0])
        scorer = load_scorer(config.relabel.scorer, device="cpu")
        return memory_line(
            lambda processes: memory.reward_conditioned_memory(fitted, base, scorer, processes)
        )

    return plan_of(rows, candidates, training, needed)


def require_trainable(train: TrainConfig, base: str, size: int) -> None:
    """Checks the training settings before any stage runs, so that no stage runs in vain.

    Raises:
        ValueError: if a batch does not divide among the processes, fp16 is requested without a GPU, or a
            LoRA for a base without channels for the source image.
    """
    train.micro_batches(processes().num_processes)
    devices.require_precision(train.mixed_precision)
    require_lora(load_family(base), train)
    if train.lora_rank:
        require_source_channels(load_blueprint(base, size).takes_source, train)


def require_guidance(base: str, guidance_scale: float | None, image_guidance_scale: float) -> None:
    """Raises ValueError if rollouts of a base cannot be guided so."""
    family = load_family(base)
    nothing = torch.zeros(1, 1, 1)
    family.require_guidance(guidance_scale, Conditioning(nothing, nothing[None], nothing))
    if image_guidance_scale != 1.0 and isinstance(family, FlowEditor):
        raise ValueError(
            f"image_guidance_scale: has no effect on {type(family).__name__}, whose guidance is the text's "
            "alone; leave it out"
        )


@dataclass(frozen=True)
class UnetCalls:
    """Mean number of one kind of UNet calls in an update, on one process."""

    number: float
    rows: int  # rows of each call
    gradient: bool

    @property
    def passes(self) -> float:
        """Forward passes that take as long; the backward pass takes as long as two."""
        return self.number * (3 if self.gradient else 1)

    def __str__(self) -> str:
        with_gradient = "with gradient" if self.gradient else "without"
        return f"{self.number:g} {with_gradient} on {self.rows} row{'s' * (self.rows > 1)}"


def unet_calls(
    train: TrainConfig, reward: RewardConfig | None, processes: int, guided_rows: int = 3
) -> list[UnetCalls]:
    """UNet calls of an update: of the pairs, of rollouts, and of the distance to the starting model.

    Args:
        guided_rows: rows through the UNet for an edit with guidance, those of one call or of several.
    """
    rows, micro_batches = train.micro_batches(processes)
    with_gradient = Counter({rows: float(micro_batches)})
    without: Counter[int] = Counter()
    if reward is not None and reward.weight:
        guided = guided_rows if reward.guidance_scale else 1
        at_once = reward.micro_batches_at_once(rows, micro_batches)
        before = reward.mean_steps - reward.mean_grad_steps
        with_gradient[rows * guided] += micro_batches * reward.mean_grad_steps
        without[at_once * rows * guided] += math.ceil(micro_batches / at_once) * before
    if reward is not None and reward.reference_weight:
        with_gradient[rows] += micro_batches
        without[rows] += micro_batches

    found = []
    for gradient, calls in ((True, with_gradient), (False, without)):
        found += [UnetCalls(number, size, gradient) for size, number in calls.items() if number]
    return found


def plan_training(editor: Blueprint, train: TrainConfig, rewards: Sequence[RewardConfig | None]) -> list[str]:
    """Parameters and time of fine-tuning an editor once for each reward; None is a training without one."""
    guided = editor.family.guided_rows
    count = processes().num_processes
    return plan_updates(editor, train, [unet_calls(train, reward, count, guided) for reward in rewards])


def plan_updates(
    editor: Blueprint, train: TrainConfig, trainings: Sequence[Sequence[UnetCalls]]
) -> list[str]:
    """Parameters and time of several trainings of an editor, by the UNet calls of an update of each."""
    unet = trained_unet(editor, train)
    trained = sum(p.numel() for p in unet.parameters() if p.requires_grad)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        editor.predict(editor.unet, 1)
    seconds = 0.0
    for calls in trainings:
        for call in calls:
            operations = counter.get_total_flops() * call.rows
            seconds += train.max_steps * call.passes * _seconds(operations, train.mixed_precision)
    first = ", ".join(map(str, trainings[0]))
    return [
        f"trained parameters: {trained / 1e6:.2f} M of {parameters(unet) / 1e6:.2f} M",
        f"UNet calls an update: {first}",
        f"training time on this machine, estimated: {_duration(seconds)} for {len(trainings)} × "
        f"{train.max_steps:,} updates",
    ]


def time_line(what: str, operations: float, precision: Precision) -> str:
    """Line with the time that so many operations take on this device."""
    return (
        f"{what} time on this machine, estimated: {_duration(operations / (EFFICIENCY * _rate(precision)))}"
    )


def plan_sampling(calls: Mapping[str, int], size: int | None, batch_size: int) -> str:
    """UNet calls of sampling, by model, and their time; each edit of a batch has three rows in a call: text,
    image and neither.
    """
    precision: Precision = "no" if devices.default_device() == "cpu" else "fp16"
    seconds = 0.0
    for name, number in calls.items():
        operations = batch_size * InstructPix2Pix.guided_rows * unet_operations(name, size or SIDE)
        seconds += number * _seconds(operations, precision)
    return (
        f"sampling time on this machine, estimated: {_duration(seconds)} for {sum(calls.values()):,} UNet "
        f"calls, each of {batch_size} edits"
    )


def unet_operations(name: str, size: int) -> int:
    """Operations of one row through a model's UNet, for images of so many pixels a side."""
    with torch.device("meta"):
        unet: Any = UNet2DConditionModel.from_config(_sub_config(UNet2DConditionModel, name, "unet"))
        latents = torch.empty(1, unet.config.in_channels, size // 8, size // 8)
        text = torch.empty(1, 77, unet.config.cross_attention_dim)
        added = {}
        if unet.config.addition_embed_type == "text_time":  # SDXL's; one time, and a text of the other width
            width = unet.config.projection_class_embeddings_input_dim - unet.config.addition_time_embed_dim
            added = {"text_embeds": torch.empty(1, width), "time_ids": torch.empty(1, 1)}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            unet(latents, torch.zeros(1), text, added_cond_kwargs=added)
    return counter.get_total_flops()


def memory_line(estimate: Callable[[int], dict[str, int]]) -> str:
    """Line with the GPU memory of each stage, or the reason why it cannot be estimated."""
    try:
        return table(estimate(processes().num_processes))
    # a user's scorer that does not support the `meta` device is no reason to refuse a recipe
    except Exception as error:
        return f"memory: not estimated ({type(error).__name__}: {str(error).splitlines()[0]})"


def load_blueprint(name: str, size: int) -> Blueprint:
    """Loads an editor without weights, from the configurations in its folder.

    Raises:
        ValueError: if there is no such pipeline, or it is a LoRA.
    """
    family = load_family(name)
    index = _pipeline_config(name)
    text_encoders = []
    with torch.device("meta"):
        denoiser, vae = (_without_weights(name, index, part) for part in (family.denoiser_name, "vae"))
        for part in sorted(index):
            if part.startswith("text_encoder") and index[part][0] is not None:
                config = pretrained.load(AutoConfig, resolve_model(name), subfolder=part)
                text_encoders.append(_class_of(index, part, transformers.PreTrainedModel)(config))
    return Blueprint.make(family, denoiser, vae, text_encoders, size)


def _without_weights(name: str, index: dict[str, Any], part: str) -> Any:
    """A part of a pipeline that is diffusers' own."""
    kind = _class_of(index, part, diffusers.ModelMixin)
    return kind.from_config(_sub_config(kind, name, part))


def _class_of(index: dict[str, Any], part: str, base: type) -> Any:
    """The class of a part, by the pipeline's index file.

    Raises:
        ValueError: if it is no model of that library.
    """
    library = transformers if issubclass(base, transformers.PreTrainedModel) else diffusers
    name = str(index.get(part, (None, None))[1])
    kind = getattr(library, name, None)
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise ValueError(
            f"{part}: expected a model of {library.__name__}; got {name[:80]}; use a stock pipeline"
        )
    return kind


def _pipeline_config(name: str) -> dict[str, Any]:
    try:
        return pretrained.load_index(resolve_model(name))
    except OSError as error:
        raise ValueError(
            f"editor {name!r} is not there ({str(error).splitlines()[0]}); give a folder, or a hub name "
            "online"
        ) from error


def load_family(name: str) -> EditFamily:
    """Family of a base editor, found without loading its weights.

    Raises:
        ValueError: if there is no such pipeline, it is a LoRA, or it cannot be an editor.
    """
    require_pipeline(name)
    return require_family(name, _pipeline_config(name))


def load_scheduler(name: str) -> Any:
    """Scheduler of a base editor, loaded without its weights.

    Raises:
        ValueError: if there is no such pipeline, or it is a LoRA.
    """
    require_pipeline(name)
    kind = getattr(diffusers, _pipeline_config(name)["scheduler"][1])
    return kind.from_config(_sub_config(kind, name, "scheduler"))


def _sub_config(kind: Any, name: str, subfolder: str) -> Any:
    try:
        return kind.load_config(resolve_model(name), subfolder=subfolder)
    except OSError as error:
        raise ValueError(f"editor {name!r} has no {subfolder} ({str(error).splitlines()[0]})") from error


def _seconds(operations: float, precision: Precision) -> float:
    """Seconds of a UNet's forward pass with so many operations."""
    least = LAUNCH if devices.default_device() == "cuda" else 0.0
    return max(operations / (EFFICIENCY * _rate(precision)), least)


@cache
def _rate(precision: Precision) -> float:
    """Operations per second of a matrix product on this device, in the type that training uses."""
    device = devices.default_device()
    dtype = autocast_type(devices.precision_here(precision)) or torch.float32
    n = 4096 if device == "cuda" else 768
    a = torch.randn(n, n, device=device, dtype=dtype)
    float((a @ a)[0, 0])
    began = time.perf_counter()
    for _ in range(5):
        out = a @ a
    float(out[0, 0])
    return 5 * 2 * n**3 / (time.perf_counter() - began)


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
