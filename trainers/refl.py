"""Reward feedback learning: the score's gradient trains the editor.

Method: ADIEE Sec. 3.4, Eq. 8 (after ImageReward): denoise without gradient, take the last steps with it,
decode, score, and minimise λ · relu(10 − s) beside the diffusion loss on the data's own pairs. DRaFT-K takes
the last K steps. Labels of a reward-conditioned base stay in the pairs' prompts; rollouts ask for its best.

Deviations from the papers' code: steps are drawn alike on every process; noise is keyed by a row's place in
the global batch; all rows of an update take the steps without gradient at once, those with it by
micro-batches; the pairs' loss has InstructPix2Pix's conditioning dropout; a score whose range is not 0–10 is
mapped to it (`reward.scale`).

Command: rewardedit train magicbrush-refl
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.data import DataConfig, Rows, open_rows, require_size
from rewardedit.data.bad_rows import require_few, require_share, unreadable_rows
from rewardedit.data.worlds import Samples
from rewardedit.diffusion.editor_files import files_of_editor
from rewardedit.evaluation.compare import compare
from rewardedit.evaluation.evaluate_config import EvaluateConfig, require_judge, require_variants
from rewardedit.evaluation.held_out import comparison_data, comparison_plan, require_comparison
from rewardedit.files import write_json
from rewardedit.models import EDITOR
from rewardedit.processes import print_on_main
from rewardedit.relabel import RelabelConfig, relabel
from rewardedit.reward_prompt import RewardPrompt, RewardScale
from rewardedit.scorer_spec import all_terms, spec_name
from rewardedit.scorers import Scorer
from rewardedit.scorers.base import no_gradient
from rewardedit.scorers.load import families, find_scorer
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import variants
from rewardedit.training import estimate, run
from rewardedit.training.finetune import Finetuning
from rewardedit.training.interpolation import train_watched
from rewardedit.training.latents import LatentCache, cache_sources, make_cache
from rewardedit.training.memory.blueprint import Blueprint, load_blueprint, load_family, load_scheduler
from rewardedit.training.memory.savers import fit_to_this_gpu, fit_training, memory_of_feedback
from rewardedit.training.memory.stages import refl_memory
from rewardedit.training.monitor import (
    Monitor,
    MonitorConfig,
    fixed_prompts,
    require_fields,
    training_data,
    watched,
)
from rewardedit.training.reward import RewardConfig, load_rewards, reward_in_bf16, reward_loss
from rewardedit.training.reward_scale import fit_reward_scale
from rewardedit.training.rollouts import RewardRollouts, RolloutPrompts, rollout_scheduler
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base

Variant = Literal["refl", "predicted_x0", "pairs_only", "reward_only", "draft_1", "draft_2", "draft_4"]
WHOLE = {"scored": "prev_sample", "stop_before_end": (0, 0)}  # DRaFT scores what a whole rollout ends with
CHANGES: dict[str, dict[str, Any]] = {
    # ImageReward's form: the clean latents that are predicted at one of the last ten steps
    "predicted_x0": {"scored": "pred_x0", "stop_before_end": (0, 9), "grad_steps": 1},
    "pairs_only": {"weight": 0.0},
    "reward_only": {"diffusion_weight": 0.0},
    **{f"draft_{k}": {**WHOLE, "grad_steps": k} for k in (1, 2, 4)},
}  # what a variant changes of the recipe's reward


@dataclass(frozen=True)
class Config:
    """One reward feedback learning, or a comparison with its parts."""

    name: str  # name of the run and of its folder in runs/
    data: DataConfig  # the rows that are trained on
    reward: RewardConfig  # the score that trains the editor, and how
    base: str = EDITOR  # editor to start from: hub name, folder or run; a LoRA must be fused (docs/refl.md)
    train: TrainConfig = field(default_factory=TrainConfig)  # the optimizer, the loop and what is trained
    # evaluation on fixed prompts for reward hacking
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    # for a reward-conditioned base: the scorer whose labels it knows, for the pairs
    labels: RelabelConfig | None = None
    # the first is the result; the others are what it is compared with
    variants: tuple[Variant, ...] = ("refl",)
    # comparison of base and result on held-out rows; null: none
    evaluate: EvaluateConfig | None = None
    bad_rows: float = 0.01  # more than this share of rows that cannot be read stops the run

    def __post_init__(self) -> None:
        require_share(self.bad_rows)
        require_size(self.data)
        require_variants(self.variants)
        require_judge(self.evaluate, (self.reward.scorer, self.monitor.held_out))

        for name, _ in all_terms(self.reward.scorer):
            if not find_scorer(name).differentiable:
                raise ValueError(f"reward.scorer: {no_gradient(find_scorer(name), name)}")

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
        if self.reward.reference_weight and self.train.lora_rank is None:
            raise ValueError(
                "reward.reference_weight: the starting model is the one with its adapter off; give "
                "train.lora_rank"
            )

        labels = self.labels
        if labels is not None and labels != RelabelConfig(scorer=labels.scorer, batch_size=labels.batch_size):
            raise ValueError("labels: give scorer and batch_size alone; words, bins and scale are the base's")
        if self.train.text_encoder_lr is not None:
            raise ValueError("train.text_encoder_lr: rollouts encode prompts once; leave it out")


@dataclass
class SharedInputs:
    """Inputs that all variants are trained on."""

    scorers: dict[str, Scorer]  # the training reward first, then the held-out one
    scale: RewardScale | None
    cache: LatentCache
    labels: RewardLabels
    rollouts: RolloutPrompts


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is not there."""
    data = data_without_held_out(config)
    editor, scorers = models_of_plan(config)

    def rows() -> list[str]:
        made = f"rows: {len(open_rows(data))}; variants: {', '.join(config.variants)}"
        require_fields(fixed_prompts(data, config.monitor)[0], scorers())
        compared = require_comparison(config.evaluate, data, scorers())
        return [made, *comparison_plan(config.evaluate, compared)]

    fitted = Lazy(lambda: fit_training(config.train, memory_of_feedback(config, editor, scorers)))

    def training() -> list[str]:
        require_rollouts(config)
        rewards = [variant_reward(config, variant) for variant in config.variants]
        settings, lines = fitted()
        return [*lines, *estimate.plan_training(editor(), settings, rewards)]

    def needed() -> str:
        base, judges, settings = editor(), scorers(), replace(config, train=fitted()[0])
        return estimate.memory_line(lambda processes: refl_memory(settings, base, judges, processes))

    return estimate.plan_of(rows, training, needed)


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Scores the data (for the mapping to 0–10), caches it, trains one variant at a time and evaluates them.

    Returns:
        The folder of the first variant's result: pipeline/ or lora/.
    """
    fitted = fit_to_this_gpu(config.train, memory_of_feedback(config, *models_of_plan(config)))
    estimate.require_trainable(fitted, config.base, require_size(config.data))
    require_rollouts(config)
    data = data_without_held_out(config)
    run.start(folder, config, resume)

    scorers = load_rewards(config.reward.scorer, config.monitor.held_out)
    scorers = {name: scorer.to(devices.default_device()) for name, scorer in scorers.items()}
    # Source images of watched prompts and of the comparison are not trained on.
    config = replace(config, data=data)
    require_comparison(config.evaluate, config.data, scorers)
    prompts = fixed_prompts(config.data, config.monitor)
    require_fields(prompts[0], scorers)

    # Stages, each kept in the run's folder: scores → labels → latents and sources.
    rows = open_rows(config.data)
    judge = scorers[spec_name(config.reward.scorer)]
    scale = fit_reward_scale(config.reward, rows, config.data, folder / "relabelled", judge)
    editor = load_base(config.base, devices.default_device(), fitted.quantize)
    labels = _labels(config, rows, folder)
    cache = make_cache(rows, config.data, editor, folder / "cache", batch_size=config.train.encode_batch_size)
    require_few(folder, unreadable_rows(cache.unreadable), len(rows), config.bad_rows)
    # Rollouts ask a reward-conditioned base for its best.
    best = [len(labels.prompt.words) - 1 if labels.prompt else 0] * len(rows)
    sources = cache_sources(rows, config.data, folder / "sources")
    texts = cache.texts(editor, RewardLabels(labels.prompt, best))
    rollouts = RolloutPrompts(cache, texts, *sources, rounded=fitted.graphs)
    del editor
    shared = SharedInputs(scorers, scale, cache, labels, rollouts)

    def train_one(variant: str, settings: Path) -> None:
        print_on_main(f"variant {variant}: {config.train.max_steps} steps")
        train_variant(replace(config, train=fitted), variant, shared, prompts, settings, resume)

    keys = ("base", "data", "reward", "train", "monitor", "labels")
    made_of = {name: getattr(config, name) for name in keys}
    results = variants(config.variants, folder, config.train.result, made_of, train_one)

    if config.evaluate is not None:
        base = config.base
        metrics = compare(config.evaluate, base, results, scorers, folder, config.data, fitted.quantize)
        if metrics is not None:
            write_json(folder / "metrics.json", {**metrics, "monitor": watched(results)})
    return results[config.variants[0]]


def models_of_plan(config: Config) -> tuple[Lazy[Blueprint], Lazy[dict[str, Scorer]]]:
    """The editor without weights and the scorers, from which memory is estimated."""
    editor = Lazy(lambda: load_blueprint(config.base, require_size(config.data)))
    return editor, Lazy(lambda: load_rewards(config.reward.scorer, config.monitor.held_out))


def data_without_held_out(config: Config) -> DataConfig:
    """Returns the training data without the source images of watched prompts and of the comparison."""
    return training_data(comparison_data(config.evaluate, config.data), config.monitor)


def require_rollouts(config: Config) -> None:
    """Raises ValueError where a variant's rollouts cannot pass the reward's gradient on, or `labels` do not
    fit the base: one that is reward-conditioned needs them, with labels that are words.
    """
    prompt = RewardPrompt.load(files_of_editor(config.base))
    if prompt is None and config.labels is not None:
        raise ValueError(f"labels: base {config.base!r} is not reward-conditioned; leave them out")
    if prompt is not None and prompt.embedding:
        raise ValueError(
            f"base {config.base!r} has a learned reward embedding; rollouts support text prompts only"
        )
    if prompt is not None and config.labels is None:
        raise ValueError(
            f"base {config.base!r} is reward-conditioned; name the scorer that its labels came from, e.g. "
            "labels.scorer=clip_d"
        )
    family = load_family(config.base)
    scheduler = load_scheduler(config.base)
    for variant in config.variants:
        rollout_scheduler(variant_reward(config, variant), family, scheduler)


def variant_reward(config: Config, variant: str) -> RewardConfig:
    """The recipe's reward with what the variant changes of it."""
    return replace(config.reward, **CHANGES.get(variant, {}))


def _labels(config: Config, rows: Rows, folder: Path) -> RewardLabels:
    """Labels in the prompts of the pairs: none, or those that a reward-conditioned base knows."""
    prompt = RewardPrompt.load(files_of_editor(config.base))
    if prompt is None or config.labels is None:
        return RewardLabels(None, [0] * len(rows))
    relabelled = relabel(config.labels, rows, config.data, folder / "labels" / "relabelled")
    values = prompt.scale(torch.tensor(relabelled.score, dtype=torch.float64)).tolist()
    known = [
        None if label is None else prompt.label(v) for v, label in zip(values, relabelled.label, strict=True)
    ]
    return RewardLabels(prompt, known)


def train_variant(
    config: Config,
    variant: str,
    shared: SharedInputs,
    prompts: tuple[EditBatch, Samples | None],
    folder: Path,
    resume: bool,
) -> None:
    """Trains one variant, the monitor watching, and says in monitor.json and monitor.html what it saw."""
    reward = variant_reward(config, variant)

    def tune(monitor: Monitor) -> Path:
        with reward_in_bf16(shared.scorers[spec_name(reward.scorer)], config.train.has_half_weights):
            return finetune(config.train, config.base, reward, shared, monitor, folder, resume)

    train_watched(prompts, shared.scorers, folder, config.monitor, config.train, config.base, tune)


def finetune(
    config: TrainConfig,
    base: str,
    reward: RewardConfig,
    shared: SharedInputs,
    monitor: Monitor,
    folder: Path,
    resume: bool = False,
) -> Path:
    """Fine-tunes `base` on the score's gradient and on the data's own pairs.

    Returns:
        The folder of the result: `pipeline/`, which stock diffusers loads, or `lora/`.

    Raises:
        TrainingStopped: where the loss is not a number.
    """
    tuning = Finetuning(config, base, shared.cache, shared.labels, folder, resume)
    rollouts = RewardRollouts(
        reward, shared.scorers[spec_name(reward.scorer)], shared.rollouts, config.seed, tuning.editor.pipe
    )
    tuning.check(monitor, 0)  # the base, which later checks are compared with

    loop = tuning.loop
    for step in loop.steps():
        micro_batches = tuning.micro_batches(step)
        with loop.autocast(), tuning.rollouts():
            # Denoise all rows of the update without gradient.
            started = rollouts.start(micro_batches, step)
        for i, micro in enumerate(micro_batches):
            with loop.accumulate():
                with loop.autocast():
                    # The data's own pairs keep the editor what it is (ADIEE Eq. 8, first term).
                    diffusion = reward.diffusion_weight * tuning.diffusion_loss(micro)
                    feedback = torch.zeros((), device=loop.accelerator.device)
                    if reward.weight:
                        # Take the last steps with gradient; decode and score.
                        edited = rollouts.edit(tuning.unet, started[i])
                        scores = rollouts.score(micro, edited)
                        loop.record("reward", scores.mean(), scores.valid.sum())
                        # λ · relu(10 − s), the second term of Eq. 8.
                        shortfall = reward_loss(
                            scores.score, scores.valid, reward.loss, reward.hinge, shared.scale
                        )
                        feedback = reward.weight * shortfall
                    if reward.reference_weight:
                        distance = rollouts.reference_distance(tuning.unet, micro, step)
                        loop.record("distance", distance, len(micro.rows))
                        feedback = feedback + reward.reference_weight * distance
                loop.backward(diffusion + feedback, micro.ids)
        loop.update()

        if tuning.is_validation_step() or loop.is_last():
            with loop.ema_weights():
                if tuning.is_validation_step():
                    tuning.save_previews()
                if tuning.check(monitor, step + 1):
                    break
    return tuning.save()


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    print_on_main(
        f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited"
    )
