"""Online reinforcement learning of editors, shared by its trainers: settings, inputs and what follows a
training.

Each method has its own loop in its own file. See `rewardedit.training.groups` for advantages,
`rewardedit.training.group_rollouts` for the images, `rewardedit.training.old_policy` for adapters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.config import named, require_unset
from rewardedit.data import DataConfig, open_rows, require_size
from rewardedit.data.bad_rows import require_few, require_share, unreadable_rows
from rewardedit.data.worlds import Samples
from rewardedit.diffusion.editor_files import files_of_editor
from rewardedit.diffusion.rollout import RolloutConfig
from rewardedit.evaluation.compare import compare
from rewardedit.evaluation.evaluate_config import EvaluateConfig, require_judge
from rewardedit.evaluation.held_out import comparison_data, require_comparison
from rewardedit.files import write_json
from rewardedit.models import EDITOR
from rewardedit.reward_prompt import RewardPrompt
from rewardedit.scorer_spec import ScorerSpec, resolve_spec, spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scorers.base import WeightedSum
from rewardedit.scorers.load import families
from rewardedit.scorers.on_device import OnDevice
from rewardedit.training import estimate
from rewardedit.training.groups import Std
from rewardedit.training.interpolation import train_watched
from rewardedit.training.latents import cache_sources, make_cache
from rewardedit.training.monitor import (
    HackingMonitor,
    MonitorConfig,
    fixed_prompts,
    require_fields,
    training_data,
    watched,
)
from rewardedit.training.noise_masks import (
    NoiseMasks,
    load_noise_masks,
    require_masks,
    require_noise_mask,
)
from rewardedit.training.rollouts import RolloutPrompts
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base

OF_DATA = ("min_snr", "null_text_target", "conditioning_dropout")  # of train, for the data's own edits


@dataclass(frozen=True)
class OnlineConfig:
    """Rewards of online reinforcement learning, and how images are made for them.

    An update trains on `train.batch_size` images, in groups of one source and instruction each.
    """

    # scorers with their weights, such as {clip_d: {weight: 2}, ssim: {weight: 1}}; none needs a gradient
    scorer: ScorerSpec
    group_size: int = 16  # images of each source and instruction
    updates: int = 1  # updates on the images of one rollout
    num_inference_steps: int = 10  # denoising steps of a rollout
    guidance_scale: float | None = None  # text guidance scale, of rollouts and losses alike; None: none
    image_guidance_scale: float = 1.0  # image guidance scale
    std: Std = "batch"  # images over which a reward's standard deviation is taken: the batch or the group
    advantage_clip: float = 5.0  # largest advantage, in standard deviations; larger ones are clipped
    # least standard deviation of a reward within a group, in its units; below it says nothing about the group
    least_spread: float = 1e-4
    least_valid: float = 0.5  # share of a group's images that rewards must be able to score
    # region of exploration and credit: given (the rows' masks), change (where a group's images differ from
    # the source), or bpm (the objects named; {bpm: {regions: …}} with its models); null: the whole image
    noise_mask: ScorerSpec | None = None
    same_noise: bool = False  # rollouts of a group begin with the same noise; for samplers that add noise
    # images that are denoised, decoded or scored at a time; None: a process's share of an update. Where
    # memory runs out, half as many
    rollout_batch_size: int | None = None
    device: str | None = None  # device of the scorers, such as cuda:1; None: that of the training

    def __post_init__(self) -> None:
        object.__setattr__(self, "scorer", resolve_spec(self.scorer))
        if self.group_size < 2:
            raise ValueError(
                f"group_size: expected at least 2, as images are compared with one another; got "
                f"{self.group_size}"
            )
        if self.num_inference_steps < 1:
            raise ValueError(f"num_inference_steps: expected at least 1; got {self.num_inference_steps}")
        if not 0 < self.advantage_clip < math.inf:
            raise ValueError(f"advantage_clip: expected above 0 and finite; got {self.advantage_clip:g}")
        if not 0 <= self.least_spread < math.inf:
            raise ValueError(f"least_spread: expected at least 0; got {self.least_spread:g}")
        if not 0 <= self.least_valid <= 1:
            raise ValueError(f"least_valid: expected a share from 0 to 1; got {self.least_valid:g}")
        if self.guidance_scale is None and self.image_guidance_scale != 1.0:
            raise ValueError("image_guidance_scale: has no effect without guidance_scale; give that too")
        require_noise_mask(self.noise_mask)
        if isinstance(self.noise_mask, dict):
            object.__setattr__(self, "noise_mask", resolve_spec(self.noise_mask))
        if self.device is not None:
            devices.require_device(self.device)
        self.rollout()  # raises if its numbers do not fit each other

    def rollout(self) -> RolloutConfig:
        """Settings of a rollout, without gradient."""
        return RolloutConfig(
            self.num_inference_steps,
            grad_steps=0,
            guidance_scale=self.guidance_scale,
            image_guidance_scale=self.image_guidance_scale,
        )

    @property
    def sampled_guidance(self) -> tuple[float, float]:
        """Scales of text and image at which an ordinary sampling is guided as rollouts are; 1: not at all."""
        return self.guidance_scale or 1.0, self.image_guidance_scale

    def groups(self, train: TrainConfig, processes: int = 1) -> int:
        """Groups of an update; whole groups belong to one process.

        Raises:
            ValueError: if an update's images are no whole groups, or these do not divide among the processes.
        """
        groups, left = divmod(train.batch_size, self.group_size)
        if left or groups % processes:
            unit = self.group_size * processes
            among = f" for each of {processes} processes" if processes > 1 else ""
            raise ValueError(
                f"train.batch_size: expected whole groups of {self.group_size} images{among}; got "
                f"{train.batch_size}; take {-(-train.batch_size // unit) * unit}, or another "
                "reward.group_size"
            )
        return groups

    def at_once(self, train: TrainConfig, processes: int) -> int:
        """Images that are denoised, decoded or scored at a time."""
        share = train.batch_size // processes
        return share if self.rollout_batch_size is None else min(self.rollout_batch_size, share)


@dataclass(frozen=True)
class OnlineRecipe:
    """Settings of every recipe of online reinforcement learning."""

    name: str  # name of the run and of its folder in runs/
    data: DataConfig  # sources and instructions; their edits are not trained on
    reward: OnlineConfig  # the scores that train the editor, and how images are made for them
    base: str = EDITOR  # editor to start from: hub name, folder or run; a LoRA must be fused (docs/refl.md)
    # the optimizer, the loop and the LoRA
    train: TrainConfig = field(default_factory=lambda: TrainConfig(lora_rank=32))
    # evaluation on fixed prompts for reward hacking
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    # comparison of base and result on held-out rows; null: none
    evaluate: EvaluateConfig | None = None
    bad_rows: float = 0.01  # more than this share of rows that cannot be read stops the run

    def __post_init__(self) -> None:
        require_share(self.bad_rows)
        require_size(self.data)
        require_judge(self.evaluate, (self.reward.scorer, self.monitor.held_out))
        held_out = spec_name(self.monitor.held_out)
        for shared in families(self.reward.scorer) & families(self.monitor.held_out):
            raise ValueError(
                f"monitor.held_out: {held_out} is of the family {shared}, as is what trains; take another, "
                "such as ssim (pixel), clip_i (clip) or dino_i (dino); a scorer of your own says its family "
                "by @rewardedit.scorer(family=…) or in its class"
            )
        if self.monitor.stop and not self.train.validate_every:
            raise ValueError(
                "monitor.stop: has no effect without train.validate_every; give updates between two checks"
            )
        if self.train.lora_rank is None:
            raise ValueError(
                "train.lora_rank: expected a rank, as the reference is the editor with its LoRA off; got "
                "none; set it, such as 32"
            )
        if self.train.text_encoder_lr is not None:
            raise ValueError("train.text_encoder_lr: rollouts encode prompts once; leave it out")

    def require_groups(self) -> None:
        """For trainers on rollouts alone.

        Raises:
            ValueError: if an update's images are no whole groups, or a setting of training on the data's own
                edits is given.
        """
        self.reward.groups(self.train)
        unused = "on rollouts, which always have their source and their instruction; leave it out"
        require_unset(self.train, OF_DATA, unused, "train.")


@dataclass
class Watching:
    """Scorers of a training and the prompts on which the monitor watches it."""

    reward: Scorer  # the weighted sum of all rewards
    held_out: Scorer
    names: tuple[str, str]  # names of the two
    fixed: tuple[EditBatch, Samples | None]  # the monitor's prompts

    @property
    def scorers(self) -> dict[str, Scorer]:
        """The training reward first, then the held-out one."""
        return dict(zip(self.names, (self.reward, self.held_out), strict=True))

    @property
    def rewards(self) -> dict[str, Scorer]:
        """The rewards apart, by name."""
        return split_rewards(self.reward, self.names[0])

    @property
    def weights(self) -> list[float]:
        """Weights of `rewards`."""
        return list(self.reward.weights.values()) if isinstance(self.reward, WeightedSum) else [1.0]


@dataclass
class OnlineInputs:
    """Inputs that all variants of a recipe are trained on."""

    watching: Watching
    prompts: RolloutPrompts
    labels: RewardLabels
    usable: Int[Tensor, " n"]  # rows that can be read
    masks: NoiseMasks | None


def split_rewards(scorer: Scorer, name: str) -> dict[str, Scorer]:
    """The scorers of a weighted sum by name; any other scorer under its own name."""
    return dict(scorer.named()) if isinstance(scorer, WeightedSum) else {name: scorer}


def load_rewards(recipe: OnlineRecipe) -> dict[str, Scorer]:
    """Loads the reward that trains and the one that monitors, by their names."""
    specs = (recipe.reward.scorer, recipe.monitor.held_out)
    return {spec_name(spec): load_scorer(spec, device="cpu") for spec in specs}


def data_without_held_out(recipe: OnlineRecipe) -> DataConfig:
    """Returns the training data without the source images of watched prompts and of the comparison."""
    return training_data(comparison_data(recipe.evaluate, recipe.data), recipe.monitor)


def require_base(recipe: OnlineRecipe) -> None:
    """Checks the base before any stage runs.

    Raises:
        ValueError: if it is no editor that can be rolled out and trained as a LoRA, or guided as the rollouts
            are to be; if it has a learned reward embedding; or if the scorers' device is not there.
    """
    if recipe.reward.device is not None:
        with named("reward"):
            devices.require_device_there(recipe.reward.device)
    estimate.require_trainable(recipe.train, recipe.base, require_size(recipe.data))
    with named("reward"):
        estimate.require_guidance(
            recipe.base, recipe.reward.guidance_scale, recipe.reward.image_guidance_scale
        )
    prompt = RewardPrompt.load(files_of_editor(recipe.base))
    if prompt is not None and prompt.embedding:
        raise ValueError(
            f"base {recipe.base!r} has a learned reward embedding; rollouts support text prompts only"
        )


def load_watching(recipe: OnlineRecipe) -> Watching:
    """Loads the scorers, onto their devices, and the monitor's prompts.

    Args:
        recipe: with `data` as `data_without_held_out` returned it.

    Raises:
        ValueError: if a scorer needs what the rows, or a rollout of them, lack.
    """
    device = devices.default_device()
    names = (spec_name(recipe.reward.scorer), spec_name(recipe.monitor.held_out))
    reward, held_out = load_rewards(recipe).values()
    held_out = held_out.to(device)
    reward = reward.to(device) if recipe.reward.device is None else _moved(reward, recipe.reward.device)
    scorers = dict(zip(names, (reward, held_out), strict=True))

    require_comparison(recipe.evaluate, recipe.data, scorers)
    fixed = fixed_prompts(recipe.data, recipe.monitor)
    require_fields(fixed[0], scorers)
    return Watching(reward, held_out, names, fixed)


def prepare(recipe: OnlineRecipe, folder: Path) -> OnlineInputs:
    """Loads the scorers and makes the stages before a training: latents of sources, prompts and masks, each
    kept in the run's folder.

    Args:
        recipe: with `data` as `data_without_held_out` returned it.

    Raises:
        ValueError: if a scorer needs what the rows lack, or too many rows cannot be read.
    """
    rows = open_rows(recipe.data)
    require_masks(recipe.reward.noise_mask, rows)
    watching = load_watching(recipe)
    device = devices.default_device()
    editor = load_base(recipe.base, device, recipe.train.quantize)
    batch_size = recipe.train.encode_batch_size
    cache = make_cache(rows, recipe.data, editor, folder / "cache", batch_size=batch_size)
    require_few(folder, unreadable_rows(cache.unreadable), len(rows), recipe.bad_rows)

    # Rollouts ask a reward-conditioned base for its best.
    prompt = RewardPrompt.load(files_of_editor(recipe.base))
    best = len(prompt.words) - 1 if prompt else 0
    labels = RewardLabels(prompt, [best] * len(rows))
    sources = cache_sources(rows, recipe.data, folder / "sources")
    prompts = RolloutPrompts(cache, cache.texts(editor, labels), *sources, rounded=recipe.train.graphs)
    masks_on = recipe.reward.device or device
    masks = load_noise_masks(recipe.reward.noise_mask, rows, recipe.data, folder / "masks", masks_on)
    usable = torch.tensor([row for row in range(len(rows)) if row not in cache.unreadable])
    return OnlineInputs(watching, prompts, labels, usable, masks)


def _moved(scorer: Scorer, device: str) -> Scorer:
    """The scorer, or each of a weighted sum's, on a device of its own."""
    if not isinstance(scorer, WeightedSum):
        return OnDevice(scorer, device)
    return WeightedSum({name: OnDevice(member, device) for name, member in scorer.named()}, scorer.weights)


def train_variant(
    recipe: OnlineRecipe,
    watching: Watching,
    folder: Path,
    tune: Callable[[HackingMonitor], Path],
    guidance: tuple[float, float] | None = None,
) -> None:
    """Trains one variant, the monitor watching.

    Args:
        tune: trains, calling the monitor, and returns the folder of the result.
        guidance: scales of text and image at which the monitor samples, `OnlineConfig.sampled_guidance` of
            rollouts; None: the base's own.
    """
    watched = (folder, recipe.monitor, recipe.train, recipe.base)
    train_watched(watching.fixed, watching.scorers, *watched, tune, guidance)


def made_of(recipe: OnlineRecipe, *more: str) -> dict[str, Any]:
    """Settings that a variant's result depends on, with further ones of the trainer."""
    return {name: getattr(recipe, name) for name in ("base", "data", "reward", "train", "monitor", *more)}


def finish(recipe: OnlineRecipe, results: dict[str, Path], watching: Watching, folder: Path) -> Path:
    """Compares base and results on held-out rows, if the recipe says so; returns the first result."""
    if recipe.evaluate is not None:
        arguments = (watching.scorers, folder, recipe.data, recipe.train.quantize)
        metrics = compare(recipe.evaluate, recipe.base, results, *arguments)
        if metrics is not None:
            write_json(folder / "metrics.json", {**metrics, "monitor": watched(results)})
    return next(iter(results.values()))


def with_data(recipe: Any) -> Any:
    """The recipe with the data that is trained on; see `data_without_held_out`."""
    return replace(recipe, data=data_without_held_out(recipe))
