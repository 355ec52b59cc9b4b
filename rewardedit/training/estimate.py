"""Plans of recipes, computed before anything runs: rows, trained parameters, memory, time, missing
files.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch.utils.flop_counter import FlopCounterMode

from rewardedit import devices
from rewardedit.data import open_rows, require_size
from rewardedit.data.stream import planned_rows
from rewardedit.devices import Precision
from rewardedit.diffusion.families import Conditioning
from rewardedit.diffusion.families.flow import FlowEditor
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.evaluation.held_out import comparison_data, comparison_plan, comparison_rows
from rewardedit.models import awaits_download
from rewardedit.processes import processes
from rewardedit.scorers import load_scorer
from rewardedit.stages.lazy import Lazy
from rewardedit.training.memory.blueprint import (
    Blueprint,
    load_blueprint,
    load_family,
    pipeline_config,
    sub_config,
)
from rewardedit.training.memory.peak import parameters, table
from rewardedit.training.memory.savers import fit_training, memory_of_pairs
from rewardedit.training.memory.stages import reward_conditioned_memory, trained_unet
from rewardedit.training.reward import RewardConfig
from rewardedit.training.timing import EFFICIENCY, LAUNCH, duration, unet_seconds
from rewardedit.training.trainable import TrainConfig, require_lora, require_source_channels

SIDE = 512  # pixels a side of images that a recipe does not bring to one size
HOURS_OF = (
    f"computed from the denoiser's calls at {100 * EFFICIENCY:.0f} % of the peak speed and, on a GPU, "
    f"{1000 * LAUNCH:.0f} ms a forward pass at least; scorer, VAE, monitor and comparison come on top"
)


class PlanIncomplete(ValueError):
    """Something that a plan needs is missing; `lines` holds the parts that do not need it."""

    def __init__(self, lines: list[str], reason: str) -> None:
        super().__init__(reason)
        self.lines = lines


def plan_of(*parts: Callable[[], str | list[str]]) -> list[str]:
    """Collects the lines of all parts of a plan; memory is a GPU's, on whatever machine it is planned.

    Raises:
        PlanIncomplete: if a part raises a ValueError, with the lines of the others and the reason.
    """
    lines: list[str] = []
    reasons: list[Exception] = []
    for make in parts:
        try:
            with devices.planning_for_gpu():
                made = make()
        except ValueError as error:
            reasons.append(error)
            continue
        lines += [made] if isinstance(made, str) else made
    if reasons:
        reason = first_reason(reasons)
        raise PlanIncomplete(lines, str(reason)) from reason
    return [*lines, "all files and models are there"]


def first_reason(reasons: Sequence[Exception]) -> Exception:
    """The first that is the user's to mend; if there is none, the first that a download mends."""
    return next((error for error in reasons if not awaits_download(error)), reasons[0])


def plan(config: Any) -> list[str]:
    """Lines to print for a reward-conditioned recipe.

    Raises:
        PlanIncomplete: naming the first file, data set or model that is missing.
    """
    editors = config.candidates.editors if config.candidates else ()
    per_row = 1 if config.candidates is None else 1 + int(config.candidates.source) + len(editors)
    editor = Lazy(lambda: load_blueprint(config.base, require_size(config.data)))

    data = Lazy(lambda: comparison_data(config.evaluate, config.data))

    @Lazy
    def number() -> int | None:
        return planned_rows(data()) if config.candidates is None else len(open_rows(data()))

    def rows() -> list[str]:
        n = number()
        said = "streamed" if n is None else f"{n} × {per_row} candidates = {n * per_row}"
        return [
            f"rows: {said}; variants: {', '.join(config.variants)}",
            *comparison_plan(config.evaluate, comparison_rows(config.evaluate, data())),
        ]

    def candidates() -> list[str]:
        calls: Counter[str] = Counter()
        for name in editors:
            if "unet" in pipeline_config(name):
                batches = math.ceil((number() or 0) / config.candidates.batch_size)
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
        return memory_line(lambda processes: reward_conditioned_memory(fitted, base, scorer, processes))

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

    kinds = []
    for gradient, calls in ((True, with_gradient), (False, without)):
        kinds += [UnetCalls(number, size, gradient) for size, number in calls.items() if number]
    return kinds


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
    an_update = calls_seconds(
        editor, chain.from_iterable(trainings), lambda number: unet_seconds(number, train.mixed_precision)
    )
    first = ", ".join(map(str, trainings[0]))
    total = duration(train.max_steps * an_update)
    return [
        f"trained parameters: {trained / 1e6:.2f} M of {parameters(unet) / 1e6:.2f} M",
        f"UNet calls an update: {first}",
        f"training time on this machine: about {total} for {len(trainings)} × "
        f"{train.max_steps:,} updates, {HOURS_OF}",
    ]


def calls_seconds(
    editor: Blueprint, calls: Iterable[UnetCalls], forward_seconds: Callable[[float], float]
) -> float:
    """Seconds of UNet calls of an editor.

    Args:
        forward_seconds: seconds of a forward pass with so many operations.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        editor.predict(editor.unet, 1)
    of_a_row = counter.get_total_flops()
    return sum(call.passes * forward_seconds(of_a_row * call.rows) for call in calls)


def plan_sampling(calls: Mapping[str, int], size: int | None, batch_size: int) -> str:
    """UNet calls of sampling, by model, and their time; each edit of a batch has three rows in a call: text,
    image and neither.
    """
    precision: Precision = "no" if devices.default_device() == "cpu" else "fp16"
    seconds = 0.0
    for name, number in calls.items():
        operations = batch_size * InstructPix2Pix.guided_rows * unet_operations(name, size or SIDE)
        seconds += number * unet_seconds(operations, precision)
    return (
        f"sampling time on this machine, estimated: {duration(seconds)} for {sum(calls.values()):,} UNet "
        f"calls, each of {batch_size} edits"
    )


def unet_operations(name: str, size: int) -> int:
    """Operations of one row through a model's UNet, for images of so many pixels a side."""
    with torch.device("meta"):
        unet: Any = UNet2DConditionModel.from_config(sub_config(UNet2DConditionModel, name, "unet"))
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
