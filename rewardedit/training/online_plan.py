"""Plans of recipes of online RL, before anything runs: rows, UNet calls, time, memory."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from rewardedit.data import open_rows, require_size
from rewardedit.evaluation.held_out import comparison_plan, require_comparison
from rewardedit.processes import processes
from rewardedit.scorers import Scorer
from rewardedit.stages.lazy import Lazy
from rewardedit.training import estimate
from rewardedit.training.estimate import UnetCalls
from rewardedit.training.memory.blueprint import Blueprint, load_blueprint
from rewardedit.training.memory.savers import fit_to_this_gpu, fit_training
from rewardedit.training.memory.stages import online_memory
from rewardedit.training.monitor import fixed_prompts, require_fields
from rewardedit.training.noise_masks import load_locator, require_masks
from rewardedit.training.online import (
    OnlineConfig,
    OnlineRecipe,
    data_without_held_out,
    load_rewards,
    require_base,
)
from rewardedit.training.trainable import TrainConfig

CallsOf = Callable[[TrainConfig, int, int], list[UnetCalls]]  # of settings, processes and guided rows


def plan_online(recipe: OnlineRecipe, variants: Sequence[str], calls_of: CallsOf) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is not there.

    Args:
        calls_of: UNet calls of an update, the same of each variant, on one process.
    """
    data = data_without_held_out(recipe)
    editor, scorers = models_of_plan(recipe)
    locator = Lazy(lambda: load_locator(recipe.reward.noise_mask))
    count = processes().num_processes

    def rows() -> list[str]:
        n = len(open_rows(data))
        require_masks(recipe.reward.noise_mask, open_rows(data))
        locator()
        require_fields(fixed_prompts(data, recipe.monitor)[0], scorers())
        compared = require_comparison(recipe.evaluate, data, scorers())
        groups = recipe.reward.groups(recipe.train, count)
        made = (
            f"rows: {n}; an update: {groups} groups of {recipe.reward.group_size} images; variants: "
            f"{', '.join(variants)}"
        )
        return [made, *comparison_plan(recipe.evaluate, compared)]

    fitted = Lazy(lambda: fit_training(recipe.train, memory_of_online(recipe, editor, scorers, locator)))

    def training() -> list[str]:
        require_base(recipe)
        settings, lines = fitted()
        guided = editor().family.guided_rows if recipe.reward.guidance_scale else 1
        calls = calls_of(settings, count, guided)
        return [*lines, *estimate.plan_updates(editor(), settings, [calls] * len(variants))]

    def needed() -> str:
        settings = replace(recipe, train=fitted()[0])
        base = editor()
        judges = scorers()
        finder = locator()
        return estimate.memory_line(
            lambda number: online_memory(settings, base, judges, number, locator=finder)
        )

    return estimate.plan_of(rows, training, needed)


def models_of_plan(recipe: OnlineRecipe) -> tuple[Lazy[Blueprint], Lazy[dict[str, Scorer]]]:
    """The editor without weights and the scorers, from which memory is estimated."""
    editor = Lazy(lambda: load_blueprint(recipe.base, require_size(recipe.data)))
    return editor, Lazy(lambda: load_rewards(recipe))


def memory_of_online(
    recipe: OnlineRecipe,
    editor: Callable[[], Blueprint],
    scorers: Callable[[], dict[str, Scorer]],
    locator: Callable[[], Scorer | None],
) -> Callable[[TrainConfig], int]:
    """Estimate of the bytes that the dearest stage needs, for `fit_training`."""

    def needed(train: TrainConfig) -> int:
        count = processes().num_processes
        fitted = replace(recipe, train=train)
        stages = online_memory(fitted, editor(), scorers(), count, locator=locator())
        return max(stages.values())

    return needed


def fitted_train(recipe: OnlineRecipe) -> TrainConfig:
    """The recipe's training settings, with what `train.memory: auto` takes; the base is checked.

    Raises:
        ValueError: if the base cannot be trained so, or groups do not divide among the processes.
    """
    recipe.reward.groups(recipe.train, processes().num_processes)
    locator = Lazy(lambda: load_locator(recipe.reward.noise_mask))
    fitted = fit_to_this_gpu(recipe.train, memory_of_online(recipe, *models_of_plan(recipe), locator))
    require_base(replace(recipe, train=fitted))
    return fitted


def rollout_calls(config: OnlineConfig, train: TrainConfig, processes: int, guided: int) -> UnetCalls:
    """UNet calls of the rollouts for an update, on one process."""
    at_once = config.at_once(train, processes)
    images = train.batch_size // processes * config.updates
    calls = math.ceil(images / at_once) * config.num_inference_steps / config.updates
    return UnetCalls(calls, at_once * guided, gradient=False)
