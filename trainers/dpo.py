"""Direct preference optimisation: the editor learns to prefer the better of two edits of a source.

Method: Diffusion-DPO (Wallace et al. 2023, Eq. 14). Both edits of a pair get the same noise at the same time
step; the loss −log σ(−β/2 · [(e_w − e_w,ref) − (e_l − e_l,ref)]) lowers the preferred edit's error of
prediction against the rejected one's, each compared with a reference. Source and instruction are the
condition of both.

Pairs of data: a data set's or a table's own, or the best and the worst of several scored edits of a source;
the reference is the base, which is the editor with its LoRA off. Pairs of rollouts (online): the best and the
worst of each group of edits that the current editor makes of a source; the reference becomes the current
editor every `preference.reference_every` updates.

Deviations from the paper's code: a LoRA is trained; optionally the errors are weighed by a region, and the
preferred edits' diffusion loss is added; with guidance, the online form compares guided predictions, while
the diffusion loss is that of predictions without it.

Command: rewardedit train instruct-pix2pix-dpo
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from rewardedit.config import require_unset
from rewardedit.data import DataConfig, open_rows, require_size
from rewardedit.evaluation.evaluate_config import require_variants
from rewardedit.evaluation.held_out import comparison_plan, require_comparison
from rewardedit.processes import print_on_main, processes
from rewardedit.scorers import Scorer
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import variants
from rewardedit.synthesis.candidates import CandidatesConfig
from rewardedit.training import estimate, online, preference_plan, run
from rewardedit.training.finetune import Finetuning
from rewardedit.training.group_rollouts import GroupRollouts
from rewardedit.training.memory.blueprint import Blueprint, load_blueprint
from rewardedit.training.memory.savers import fit_to_this_gpu, fit_training, memory_of_feedback
from rewardedit.training.monitor import Monitor, fixed_prompts, require_fields
from rewardedit.training.noise_masks import load_locator, require_masks
from rewardedit.training.old_policy import OldPolicy, reference
from rewardedit.training.online import OnlineConfig, OnlineInputs, OnlineRecipe
from rewardedit.training.pair_cache import GivenPairs, prepare_pairs
from rewardedit.training.preferences import (
    PairBatch,
    PreferenceConfig,
    RolloutPairs,
    preference_loss,
    record_pairs,
)

Variant = Literal["dpo", "winners_only"]
# what a variant changes of the recipe's loss
CHANGES: dict[str, dict[str, Any]] = {"winners_only": {"weight": 0.0, "diffusion_weight": 1.0}}
OF_ROLLOUTS = (
    "group_size",
    "updates",
    "num_inference_steps",
    "guidance_scale",
    "image_guidance_scale",
    "std",
)
OF_ROLLOUTS += ("advantage_clip", "least_spread", "least_valid", "same_noise", "rollout_batch_size")


@dataclass(frozen=True)
class Config(OnlineRecipe):
    """One direct preference optimisation, or a comparison with fine-tuning on the preferred edits."""

    data: DataConfig  # pairs or several edits of each source; for rollouts, sources and instructions
    # scores that rank the edits of rollouts, or of data without pairs and scores; the monitor watches them
    reward: OnlineConfig
    # edits to compare: the data's own, or those that the current editor makes (online)
    pairs: Literal["data", "rollouts"] = "data"
    # editors whose edits are ranked beside the data's own; None: the data's own alone
    candidates: CandidatesConfig | None = None
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)  # the loss
    # the first is the result; winners_only is fine-tuned on the preferred edits
    variants: tuple[Variant, ...] = ("dpo",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_variants(self.variants)
        if self.train.null_text_target != "edited" or self.train.min_snr is not None:
            raise ValueError(
                "train.null_text_target, train.min_snr: have no effect on pairs of edits; leave them out"
            )
        if self.reward.noise_mask is None:
            require_unset(self.preference, ("unmasked",), "without reward.noise_mask; give that too")
        if self.pairs == "data":
            require_unset(self.reward, OF_ROLLOUTS, "on pairs of data; leave it out, or take pairs=rollouts")
            require_unset(self.train, ("graphs",), "without rollouts; leave it out", "train.")
            options = ("times", "reference_every")
            require_unset(self.preference, options, "on pairs of data; leave it out, or take pairs=rollouts")
            return
        unused = "on pairs of rollouts; leave it out"
        require_unset(self, ("candidates",), unused)
        require_unset(self.preference, ("min_gap",), f"{unused}; reward.least_spread is alike")
        require_unset(self.reward, ("updates", "same_noise"), unused)
        self.reward.groups(self.train)  # raises if they are not whole
        if self.train.conditioning_dropout:  # none is what rollouts have: a recipe for both forms may say so
            require_unset(self.train, ("conditioning_dropout",), unused, "train.")


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is not there."""
    recipe = online.with_data(config)
    editor, scorers = models_of_plan(config)

    def rows() -> list[str]:
        require_masks(config.reward.noise_mask, open_rows(recipe.data))
        load_locator(config.reward.noise_mask)
        require_fields(fixed_prompts(recipe.data, config.monitor)[0], scorers())
        compared = require_comparison(config.evaluate, recipe.data, scorers())
        lines = [preference_plan.pairs_line(recipe), f"variants: {', '.join(config.variants)}"]
        return [*lines, *comparison_plan(config.evaluate, compared)]

    stages = preference_plan.memory_of_recipe(recipe)
    needs = memory_of_feedback(config, editor, scorers, stages)
    fitted = Lazy(lambda: fit_training(config.train, needs))

    def training() -> list[str]:
        online.require_base(config)
        settings, lines = fitted()
        with_fitted = replace(config, train=settings)
        calls = []
        for variant in config.variants:
            calls.append(preference_plan.calls_of(with_fitted, loss_of(with_fitted, variant), editor()))
        return [*lines, *estimate.plan_updates(editor(), settings, calls)]

    def needed() -> str:
        base, judges, settings = editor(), scorers(), replace(config, train=fitted()[0])
        return estimate.memory_line(lambda count: stages(settings, base, judges, count))

    return estimate.plan_of(rows, training, needed)


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Makes the inputs of all variants, trains one variant at a time and compares them.

    Returns:
        The folder of the first variant's result, lora/.
    """
    needs = memory_of_feedback(
        config, *models_of_plan(config), preference_plan.memory_of_recipe(online.with_data(config))
    )
    fitted = fit_to_this_gpu(config.train, needs)
    online.require_base(replace(config, train=fitted))
    recipe = online.with_data(config)
    run.start(folder, config, resume)
    inputs = prepare_pairs(recipe, folder) if config.pairs == "data" else online.prepare(recipe, folder)

    def train_one(variant: str, settings: Path) -> None:
        print_on_main(f"variant {variant}: {config.train.max_steps} steps")
        of_variant = replace(recipe, train=fitted, preference=loss_of(config, variant))

        def tune(monitor: Monitor) -> Path:
            if isinstance(inputs, OnlineInputs):
                return tune_on_rollouts(of_variant, inputs, monitor, settings, resume)
            return tune_on_data(of_variant, inputs, monitor, settings, resume)

        guidance = config.reward.sampled_guidance if config.pairs == "rollouts" else None
        online.train_variant(of_variant, inputs.watching, settings, tune, guidance)

    made_of = online.made_of(recipe, "pairs", "candidates", "preference")
    results = variants(config.variants, folder, config.train.result, made_of, train_one)
    return online.finish(recipe, results, inputs.watching, folder)


def models_of_plan(config: Config) -> tuple[Lazy[Blueprint], Lazy[dict[str, Scorer]]]:
    """The editor without weights and the scorers, from which memory is estimated."""
    editor = Lazy(lambda: load_blueprint(config.base, require_size(config.data)))
    return editor, Lazy(lambda: online.load_rewards(config))


def loss_of(config: Config, variant: str) -> PreferenceConfig:
    """The recipe's loss with what the variant changes of it."""
    return replace(config.preference, **CHANGES.get(variant, {}))


def tune_on_data(config: Config, inputs: GivenPairs, monitor: Monitor, folder: Path, resume: bool) -> Path:
    """Trains a LoRA on given pairs; returns the folder of the result.

    Raises:
        TrainingStopped: where the loss is not a number.
    """
    cache = inputs.cache
    tuning = Finetuning(config.train, config.base, cache, inputs.labels, folder, resume)
    base = partial(reference, tuning.modules.unet)
    tuning.check(monitor, 0)  # the base, which later checks are compared with

    loop = tuning.loop
    for step in loop.steps():
        for micro in tuning.micro_batches(step):
            region = cache.region_weights(micro.rows, config.preference.unmasked)
            pairs = PairBatch.of_data(tuning, micro, cache.rejected_latents(micro.rows), region)
            with loop.accumulate():
                with loop.autocast():
                    loss = pair_loss(config.preference, tuning, pairs, base)
                loop.backward(loss, micro.ids)
        loop.update()
        if is_stopped(tuning, monitor):
            break
    return tuning.save()


def tune_on_rollouts(
    config: Config, inputs: OnlineInputs, monitor: Monitor, folder: Path, resume: bool
) -> Path:
    """Trains a LoRA on the best and the worst of groups that it makes itself; returns the folder of the
    result.

    Raises:
        TrainingStopped: where the loss is not a number.
    """
    settings, loss_settings = config.reward, config.preference
    count = processes().num_processes
    groups = settings.groups(config.train, count)
    size, _ = preference_plan.pairs_of_pass(config, count)
    # One pair of each group is trained on, several times.
    on_pairs = replace(config.train, batch_size=groups, micro_batch_size=size)
    guidance = (settings.guidance_scale, settings.image_guidance_scale)
    cache, times = inputs.prompts.cache, loss_settings.times
    tuning = Finetuning(on_pairs, config.base, cache, inputs.labels, folder, resume, times)
    rollouts = GroupRollouts(settings, config.train, inputs, tuning.editor.pipe)
    every = loss_settings.reference_every
    old = OldPolicy(tuning.modules.unet) if every else None
    fixed = partial(reference, tuning.modules.unet) if old is None else old.active
    tuning.check(monitor, 0)  # the base, which later checks are compared with

    loop = tuning.loop
    for step in loop.steps():
        if old is not None and every and step % every == 0:
            old.follow(0.0)  # the reference becomes the current editor
        with tuning.rollouts():
            rollout = rollouts.make(step, loop)
        chosen = RolloutPairs.choose(rollout, settings.group_size, groups, loss_settings.unmasked)
        for chunk in chosen.split(size):
            ids = [cache.ids[row] for row in chunk.best.rows.tolist()]
            for number in range(times):
                pairs = PairBatch.of_rollout(tuning, inputs.prompts, chunk, step, number, guidance)
                with loop.accumulate():
                    with loop.autocast():
                        loss = pair_loss(loss_settings, tuning, pairs, fixed)
                    loop.backward(loss, ids)
        loop.update()
        if is_stopped(tuning, monitor):
            break
    return tuning.save()


def pair_loss(
    config: PreferenceConfig,
    tuning: Finetuning,
    pairs: PairBatch,
    fixed: Callable[[], AbstractContextManager[None]],
) -> Float[Tensor, ""]:
    """The loss of pairs; records how the editor has moved from the reference.

    Args:
        fixed: context within which the denoiser computes as the reference.
    """
    family, scheduler = tuning.editor.family, tuning.scheduler
    if not config.weight:
        return config.diffusion_weight * pairs.mean(pairs.winner_errors(family, tuning.unet, scheduler))
    # Winners and losers at once, with the same noise at the same time step, by the reference and the editor.
    with fixed():
        before = pairs.predict(family, tuning.modules.unet, scheduler)
    now = pairs.predict(family, tuning.unet, scheduler)
    expected = pairs.errors(family, scheduler, before)
    errors = pairs.errors(family, scheduler, now)
    margin = errors.margin(expected, config.beta_of(scheduler))
    record_pairs(tuning.loop, pairs, margin, errors, expected, ((now - before) ** 2).flatten(1).mean(1))
    loss = config.weight * preference_loss(margin)
    if config.diffusion_weight:
        unguided = pairs.guidance[0] is None
        winners = errors.unmasked if unguided else pairs.winner_errors(family, tuning.unet, scheduler)
        loss = loss + config.diffusion_weight * winners
    return pairs.mean(loss)


def is_stopped(tuning: Finetuning, monitor: Monitor) -> bool:
    """Saves previews and lets the monitor look where it is time; True where it stops the training."""
    loop = tuning.loop
    if not (tuning.is_validation_step() or loop.is_last()):
        return False
    with loop.ema_weights():
        if tuning.is_validation_step():
            tuning.save_previews()
        return tuning.check(monitor, loop.step + 1)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    print_on_main(
        f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited"
    )
