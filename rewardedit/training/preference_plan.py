"""Plans of direct preference optimisation, before anything runs: pairs, UNet calls, memory."""

import math
from collections.abc import Callable
from typing import Any

from rewardedit.data import open_rows
from rewardedit.data.preferences import has_preferences, preferences, refuse_candidates
from rewardedit.processes import processes
from rewardedit.scorer_spec import spec_name
from rewardedit.scorers import Scorer
from rewardedit.stages.lazy import Lazy
from rewardedit.training.estimate import UnetCalls
from rewardedit.training.memory.blueprint import Blueprint
from rewardedit.training.memory.stages import online_memory, preference_memory
from rewardedit.training.noise_masks import load_locator
from rewardedit.training.online_plan import rollout_calls
from rewardedit.training.preferences import PreferenceConfig


def pairs_line(config: Any) -> str:
    """Line of the plan with the number of pairs, or of groups."""
    rows = open_rows(config.data)
    if config.pairs == "data":
        if config.candidates is not None:
            refuse_candidates(rows)
        elif has_preferences(rows):
            return str(preferences(rows, min_gap=config.preference.min_gap))
        scorer = spec_name(config.reward.scorer)
        return f"rows: {len(rows)}; pairs: the best and the worst edit of each source by {scorer}"
    groups = config.reward.groups(config.train, processes().num_processes)
    size = config.reward.group_size
    return f"rows: {len(rows)}; an update: the best and the worst of {size} images in {groups} groups"


def pairs_of_pass(config: Any, processes: int) -> tuple[int, int]:
    """Pairs of a forward pass, and forward passes of an update, on one process."""
    if config.pairs == "data":
        return config.train.micro_batches(processes)
    groups = config.reward.groups(config.train, processes) // processes
    most = min(config.train.micro_batch_size or groups, groups)
    size = max(n for n in range(1, most + 1) if groups % n == 0)
    return size, groups // size * config.preference.times


def calls_of(config: Any, loss: PreferenceConfig, editor: Blueprint) -> list[UnetCalls]:
    """UNet calls of an update on one process: of both edits by the editor and by the reference, or of the
    preferred edits alone; and of rollouts.
    """
    count = processes().num_processes
    pairs, passes = pairs_of_pass(config, count)
    guided = editor.family.guided_rows if config.reward.guidance_scale else 1
    calls = []
    if loss.weight:
        calls += [UnetCalls(passes, 2 * pairs * guided, gradient) for gradient in (True, False)]
    if loss.diffusion_weight and (guided > 1 or not loss.weight):
        calls.append(UnetCalls(passes, pairs, gradient=True))
    if config.pairs == "rollouts":
        calls.append(rollout_calls(config.reward, config.train, count, guided))
    return calls


def memory_of_stages(
    config: Any,
    editor: Blueprint,
    scorers: dict[str, Scorer],
    processes: int = 1,
    ranked: bool = False,
    locator: Scorer | None = None,
) -> dict[str, int]:
    """Most bytes that each stage of a recipe needs. A pass holds both edits of its pairs; the reference's
    call keeps nothing.

    Args:
        ranked: see `is_ranked`.
        locator: as for `online_memory`.
    """
    pairs, _ = pairs_of_pass(config, processes)
    rows = 2 * pairs
    if config.pairs == "data":
        return preference_memory(config, editor, scorers, processes, rows, ranked, locator)
    if config.reward.guidance_scale and config.preference.diffusion_weight:
        rows += math.ceil(pairs / editor.family.guided_rows)  # the winners' once more, without guidance
    return online_memory(config, editor, scorers, processes, rows, locator)


def memory_of_recipe(config: Any) -> Callable[..., dict[str, int]]:
    """`memory_of_stages` of this recipe, which opens its data once to know if its edits are ranked."""
    ranked = Lazy(lambda: is_ranked(config))
    locator = Lazy(lambda: load_locator(config.reward.noise_mask))
    return lambda *given: memory_of_stages(*given, ranked=ranked(), locator=locator())


def is_ranked(config: Any) -> bool:
    """True if `reward.scorer` ranks edits of the data and candidates."""
    if config.pairs != "data":
        return False
    return config.candidates is not None or not has_preferences(open_rows(config.data))
