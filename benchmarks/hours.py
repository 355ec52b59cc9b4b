"""Estimated hours of full-size recipes that train editors or vision-language models, written into their
headers: python benchmarks/hours.py [RECIPE …] --write

Needs neither a GPU nor weights: the operations of the denoiser's calls, or of a step, are counted on the
`meta` device, and divided by 35 % of the peak of the fastest card of the recipe's memory; a forward pass of a
denoiser counts as 30 ms at least. docs/performance.md explains what is assumed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import memory
from command_line import read_command_line
from editors import EDITORS

from rewardedit.cli import load_recipe, recipe_path
from rewardedit.data import require_size
from rewardedit.trainers import adiee_scorer, dpo, flow_grpo, nft, refl, reward_conditioned
from rewardedit.training.estimate import HOURS_OF, UnetCalls, calls_seconds, unet_calls
from rewardedit.training.memory.blueprint import Blueprint
from rewardedit.training.preference_plan import calls_of
from rewardedit.training.timing import EFFICIENCY, duration, gpu_seconds

# Name and operations a second of the fastest card by its GB, in fp16 and bf16 without sparsity (NVIDIA's data
# sheets of Ada and Hopper).
CARDS = {24: ("an RTX 4090", 165.2e12), 80: ("an H100", 989.4e12)}
HEAD = "# Time (benchmarks/hours.py): "
ROWS = 8807  # of MagicBrush's training split
# Rows that are passed over a number of times: the outputs that magicbrush-adiee-data expects; those whose two
# images ADIEE writes captions of (App. A).
VLM_ROWS = {"adiee-scorer": 65_000, "captioner": 600}
VLM_HOURS_OF = (
    f"computed from the language model's steps at {100 * EFFICIENCY:.0f} % of the peak speed; reading of "
    "images and checks come on top"
)


def card(recipe: str) -> tuple[str, float]:
    """Name and operations a second of the card that a recipe is for."""
    return CARDS[int(memory.card(recipe_path(recipe).read_text()))]


def seconds(recipe: str, sd15: Blueprint, words: Sequence[str] = ()) -> float:
    """Seconds of the denoiser's calls in a recipe's training, and in its candidates, on one card."""
    _, config = load_recipe(recipe, words)
    editor = EDITORS[recipe](require_size(config.data)) if recipe in EDITORS else sd15
    _, rate = card(recipe)
    calls = [replace(call, number=call.number * config.train.max_steps) for call in update(config, editor)]
    if isinstance(config, reward_conditioned.Config):
        calls.append(sampling(config, editor))
    return calls_seconds(editor, calls, lambda operations: gpu_seconds(operations, rate))


def update(config: Any, editor: Blueprint) -> list[UnetCalls]:
    """UNet calls of an update, on one process; the recipes train one variant each."""
    assert len(getattr(config, "variants", ("one",))) == 1
    if isinstance(config, reward_conditioned.Config):
        return unet_calls(config.train, None, 1)
    guided = editor.family.guided_rows
    if isinstance(config, refl.Config):
        return unet_calls(config.train, config.reward, 1, guided)
    if isinstance(config, dpo.Config):
        return calls_of(config, config.preference, editor)
    trainer = nft if isinstance(config, nft.Config) else flow_grpo
    return trainer.update_calls(config, config.train, 1, guided if config.reward.guidance_scale else 1)


def sampling(config: reward_conditioned.Config, editor: Blueprint) -> UnetCalls:
    """UNet calls of all candidates, whose editors are as large as the base."""
    candidates = config.candidates
    assert candidates is not None
    batches = -(-ROWS // candidates.batch_size) * len(candidates.editors)
    calls = batches * candidates.num_inference_steps
    return UnetCalls(calls, candidates.batch_size * editor.family.guided_rows, gradient=False)


def vlm_seconds(recipe: str, words: Sequence[str] = ()) -> float:
    """Seconds of all steps of a recipe that trains a vision-language model, on one card."""
    _, rate = card(recipe)
    whole = 0.0
    for config in memory.trainings(recipe, words):
        _, operations = memory.vlm_step(config)
        if isinstance(config, adiee_scorer.Config):
            rows, steps = config.train.shares()[0].stop, config.train.over(VLM_ROWS.get(recipe, 0)).max_steps
        else:
            rows, steps = config.train.micro_batch_size, config.train.updates(2 * VLM_ROWS.get(recipe, 0))
        whole += steps * config.train.batch_size / rows * operations / (EFFICIENCY * rate)
    return whole


def line(recipe: str, sd15: Blueprint) -> str:
    """Line for a recipe's header."""
    name, _ = card(recipe)
    if recipe not in memory.OF_VLMS:
        return f"{HEAD}about {duration(seconds(recipe, sd15))} on {name}, {HOURS_OF}"
    rows = f" for {VLM_ROWS[recipe]:,} rows" if recipe in VLM_ROWS else ""
    return f"{HEAD}about {duration(vlm_seconds(recipe))} on {name}{rows}, {VLM_HOURS_OF}"


if __name__ == "__main__":
    command_line = read_command_line(__doc__, "RECIPE")
    editor_of_sd15 = memory.make_editor()
    for given in command_line.words or (*memory.OF_EDITORS, *memory.OF_VLMS):
        text = line(given, editor_of_sd15)
        if command_line.write:
            memory.write(given, HEAD, text, below=memory.HEAD)
        print(f"{given}: {text.removeprefix(HEAD)}")
