"""Estimates of the GPU memory that each stage of a recipe needs, before any of it runs: from sizes of
models and from runs on `meta`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers import DDPMScheduler
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.devices import is_training_device
from rewardedit.models.half_weights import bytes_saved, half_weights
from rewardedit.scorers import Scorer
from rewardedit.training.latents import encode_batch_size
from rewardedit.training.memory.blueprint import Blueprint
from rewardedit.training.memory.peak import FULL, HALF, OVERHEAD, Bytes, parameters, peak_memory, weights
from rewardedit.training.reward import RewardConfig, with_half_weights
from rewardedit.training.trainable import (
    TrainConfig,
    add_lora,
    autocast_type,
    cast_frozen,
    require_lora,
    require_source_channels,
)

SCORE_BATCH = 64  # edits scored at a time to rank them, the default of relabelling
# stages while a training takes steps, with frozen parts as `train.frozen_in_bf16` has them
STEPS = {"rollouts", "step", "update", "previews", "watching"}
# bytes of optimizer state per trained parameter, at most
MOMENTS = {"adamw": 8, "adamw8bit": 2, "muon": 8}


@dataclass(frozen=True)
class Training:
    """Bytes that fine-tuning needs, between steps and within one."""

    resident: int  # weights, gradients, the optimizer's state and moving averages
    text_encoders: int  # additional while texts are encoded: those that are offloaded
    step: int  # additional, at most, in a forward and backward pass
    update: int  # additional in the optimizer's step
    casts: int  # additional while the model in training samples: autocast's copy of its weights
    loaded: int  # before the first step, with all text encoders: weights and moving averages

    @property
    def encoding(self) -> int:
        """Bytes between steps while texts are encoded."""
        return self.resident + self.text_encoders


def finetuning_memory(
    editor: Blueprint,
    train: TrainConfig,
    processes: int = 1,
    reward: RewardConfig | None = None,
    scorer: Scorer | None = None,
) -> Training:
    """Memory of fine-tuning, on the pairs alone or with a reward."""
    micro_batch, _ = train.micro_batches(processes)
    unet = trained_unet(editor, train)
    half = autocast_type(train.mixed_precision)
    trained = [p for p in unet.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)
    learned = sum(p.numel() for p in trained)
    frozen = sum(p.numel() * p.element_size() for p in unet.parameters() if not p.requires_grad)
    if train.quantize is not None:
        frozen -= editor.saved_of_denoiser(FULL if half is None else half.itemsize) - editor.restored
    encoders = editor.text_bytes(train.quantize)
    if train.text_encoder_lr:
        learned += sum(map(parameters, editor.text_encoders))
        encoders = 0
    frozen += parameters(editor.vae) * editor.number + encoders
    unhalved = frozen  # until the first step
    if train.frozen_in_bf16:
        frozen -= bytes_saved([editor.vae, *editor.text_encoders])
        encoders -= bytes_saved(editor.text_encoders)
    offloaded = encoders if train.offload_text_encoder else 0
    frozen -= offloaded
    # Weights and gradients; the optimizer; moving averages; DistributedDataParallel's buckets.
    each = 2 * FULL + MOMENTS[train.optimizer] + FULL * bool(train.ema) + FULL * (processes > 1)

    call = peak_memory(lambda: _pairs(editor, unet, micro_batch), half)
    parts = [call]
    if reward is not None and reward.weight:
        assert scorer is not None
        with_gradient = (
            max(reward.num_inference_steps or ()) if reward.grad_steps is None else reward.grad_steps
        )
        parts += [call] * with_gradient * (editor.family.guided_rows if reward.guidance_scale else 1)
        cast = [editor.vae, *with_half_weights(scorer)] if train.frozen_in_bf16 else []
        with half_weights(cast):
            parts += [
                _decoding(editor, reward, micro_batch, half),
                _scoring(editor, scorer, reward, micro_batch, half),
            ]
    if reward is not None and reward.reference_weight:
        parts.append(call)
    step = sum(phase.kept for phase in parts) + max(phase.peak - phase.kept for phase in parts)
    casts = HALF * parameters(unet) if half is not None and not train.lora_rank else 0
    before = each - FULL - MOMENTS[train.optimizer]  # neither gradients nor the optimizer's state yet
    loaded = unhalved + before * learned
    return Training(frozen + each * learned, offloaded, step, FULL * learned, casts, loaded)


def training_memory(editor: Blueprint, train: TrainConfig, processes: int = 1) -> int:
    """Most bytes that fine-tuning on the pairs alone needs at a time."""
    needed = finetuning_memory(editor, train, processes)
    return max(_with_overhead(_fine_tuning(editor, train, needed)).values())


def trained_unet(editor: Blueprint, train: TrainConfig) -> Any:
    """The UNet, prepared for fine-tuning, on `meta`.

    Raises:
        ValueError: for a LoRA on a base without channels for the source image, or a full fine-tuning of a
            base of which only a LoRA is trained.
    """
    require_source_channels(editor.takes_source, train)
    require_lora(editor.family, train)
    with torch.device("meta"):
        unet: Any = type(editor.unet).from_config(editor.unet.config)
        if train.lora_rank:
            cast_frozen(unet.requires_grad_(False), autocast_type(train.mixed_precision))
            add_lora(editor.family, unet, train)
    if train.gradient_checkpointing:
        unet.enable_gradient_checkpointing()
    return unet.train()


def _pairs(editor: Blueprint, unet: Any, batch: int) -> Tensor:
    edited = editor.latents(batch)
    noise = editor.latents(batch)
    scheduler = editor.family.training_scheduler(DDPMScheduler())
    return editor.family.loss(unet, scheduler, edited, noise, editor.times(batch), editor.conditioning(batch))


def _rollouts(editor: Blueprint, train: TrainConfig, reward: RewardConfig, processes: int) -> int:
    """Bytes of a step without gradient, of all rows that take it together."""
    size, micro_batches = train.micro_batches(processes)
    rows = size * reward.micro_batches_at_once(size, micro_batches)
    guided = editor.family.guided_rows if reward.guidance_scale else 1
    with torch.no_grad():
        called = peak_memory(
            lambda: editor.predict(editor.unet, guided * rows), autocast_type(train.mixed_precision)
        )
    return called.peak


def _decoding(editor: Blueprint, reward: RewardConfig, batch: int, half: torch.dtype | None) -> Bytes:
    editor.family.checkpoint_decoder(editor.vae, "vae" in reward.gradient_checkpointing)
    return peak_memory(lambda: editor.family.decode(editor.vae, editor.latents(batch).requires_grad_()), half)


def _scoring(
    editor: Blueprint, scorer: Scorer, reward: RewardConfig, batch: int, half: torch.dtype | None
) -> Bytes:
    edited = editor.images(batch).requires_grad_()
    score = scorer.checkpointed if "scorer" in reward.gradient_checkpointing else scorer
    return peak_memory(lambda: score(dummy_batch(editor, edited)).score, half)


def dummy_batch(editor: Blueprint, edited: Tensor) -> EditBatch:
    """A batch of edits with every input that a scorer may need."""
    b = len(edited)
    texts = ["a word"] * len(edited)
    mask = torch.empty(b, 1, editor.size, editor.size, device="meta")
    return EditBatch(editor.images(b), texts, edited, editor.images(b), mask, texts, texts)


def scoring(editor: Blueprint, scorer: Scorer) -> int:
    """Bytes needed to score an edit, without gradient."""
    with torch.no_grad():
        return peak_memory(lambda: scorer(dummy_batch(editor, editor.images(1))).score).peak


def reward_conditioned_memory(
    config: Any, editor: Blueprint, scorer: Scorer, processes: int = 1
) -> dict[str, int]:
    """Most bytes that each stage of a reward-conditioned recipe needs,
    with candidates from editors of the same architecture.
    """
    scorer.to("meta")
    needed = finetuning_memory(editor, config.train, processes)
    train = config.train
    stages = _candidates(editor, config.candidates)
    stages["scores"] = weights(scorer) + config.relabel.batch_size * scoring(editor, scorer)
    stages["latents"] = (
        editor.bytes(quantize=train.quantize)
        + (train.encode_batch_size or encode_batch_size(editor.size)) * editor.encoded
    )
    return _with_overhead(stages | _fine_tuning(editor, train, needed))


def _candidates(editor: Blueprint, candidates: Any) -> dict[str, int]:
    """Bytes of editing by other editors of the same architecture; {} without any."""
    if candidates is None or not candidates.editors:
        return {}
    number = getattr(torch, candidates.dtype or "float16").itemsize  # the default on a GPU
    return {"candidates": editor.bytes(number) + candidates.batch_size * editor.sampled * number // FULL}


def refl_memory(
    config: Any, editor: Blueprint, scorers: dict[str, Scorer], processes: int = 1
) -> dict[str, int]:
    """Most bytes that each stage of a ReFL recipe needs; both scorers stay in memory throughout."""
    train = config.train
    reward = config.reward
    first, *_ = [scorer.to("meta") for scorer in scorers.values()]
    resident = sum(map(weights, scorers.values()))
    needed = finetuning_memory(editor, train, processes, reward, first)
    halved = bytes_saved(with_half_weights(first)) if train.frozen_in_bf16 else 0
    looked = config.monitor.batch_size * max(
        editor.sampled, *(scoring(editor, scorer) for scorer in scorers.values())
    )
    rolled = _rollouts(editor, train, reward, processes) if reward.weight else 0
    stages = {}
    if reward.scale != "none" or reward.loss == "hinge":
        stages["scores"] = weights(first) + reward.score_batch_size * scoring(editor, first)
    stages["latents"] = (
        editor.bytes(quantize=train.quantize)
        + (train.encode_batch_size or encode_batch_size(editor.size)) * editor.encoded
    )
    if reward.weight:
        stages["rollouts"] = needed.resident + needed.casts + rolled
    stages |= _fine_tuning(editor, train, needed)
    stages["watching"] = needed.encoding + needed.casts + looked
    stages["sweep"] = editor.bytes(HALF, train.quantize) + looked * HALF // FULL
    for name in STEPS & stages.keys():
        stages[name] -= halved
        if train.graphs and name != "rollouts":  # recordings keep their memory
            stages[name] += rolled
    return _with_overhead({name: resident + size for name, size in stages.items()})


def online_memory(
    config: Any,
    editor: Blueprint,
    scorers: dict[str, Scorer],
    processes: int = 1,
    rows: int | None = None,
    locator: Scorer | None = None,
) -> dict[str, int]:
    """Most bytes that each stage of a recipe of online RL needs, on the device that trains.

    Args:
        config: an `OnlineRecipe`.
        scorers: the training reward first, then the held-out one, which alone is there if `reward.device`
            names another device.
        rows: of a pass with gradient; None: those of a micro-batch.
        locator: of edit regions, on the device of the reward; its weights alone are counted, as it looks at
            one image at a time.
    """
    train = config.train
    reward = config.reward
    first, held_out = [scorer.to("meta") for scorer in scorers.values()]
    here = is_training_device(reward.device, processes)
    resident = weights(held_out)
    if here:
        resident += weights(first) + (0 if locator is None else weights(locator))
    half = autocast_type(train.mixed_precision)
    guided = editor.family.guided_rows if reward.guidance_scale else 1
    at_once = reward.at_once(train, processes)
    passed = train if rows is None else replace(train, batch_size=rows * processes, micro_batch_size=rows)
    needed = finetuning_memory(editor, passed, processes)
    learned = sum(p.numel() for p in trained_unet(editor, train).parameters() if p.requires_grad)
    # The old policy's adapter; one call with gradient, with all rows of its guidance.
    needed = replace(needed, resident=needed.resident + FULL * learned, step=guided * needed.step)
    looked = config.monitor.batch_size * max(
        editor.sampled, *(scoring(editor, scorer) for scorer in (first, held_out))
    )

    with torch.no_grad():
        called = peak_memory(lambda: editor.predict(editor.unet, guided * at_once), half).peak
        decoded = peak_memory(lambda: editor.family.decode(editor.vae, editor.latents(at_once)), half).peak
    stages = {
        "latents": editor.bytes(quantize=train.quantize)
        + (train.encode_batch_size or encode_batch_size(editor.size)) * editor.encoded,
        "rollouts": needed.resident + max(called, decoded),
    }
    if here:
        stages["scores"] = needed.resident + at_once * scoring(editor, first)
    stages |= _fine_tuning(editor, train, needed)
    stages["watching"] = needed.encoding + looked
    stages["sweep"] = editor.bytes(HALF, train.quantize) + looked * HALF // FULL
    for name in STEPS & stages.keys() - {"rollouts"}:
        stages[name] += called if train.graphs else 0  # recordings keep their memory
    return _with_overhead({name: resident + size for name, size in stages.items()})


def preference_memory(
    config: Any,
    editor: Blueprint,
    scorers: dict[str, Scorer],
    processes: int,
    rows: int,
    ranked: bool,
    locator: Scorer | None = None,
) -> dict[str, int]:
    """Most bytes that each stage of a training on pairs of data needs, on the device that trains.

    Args:
        config: an `OnlineRecipe`.
        scorers: as for `online_memory`.
        rows: edits of a forward pass.
        ranked: the data's edits and candidates are scored, as it has no pairs or scores.
        locator: as for `online_memory`; it is there until regions are found, before the training.
    """
    train = config.train
    both = replace(train, batch_size=rows * processes, micro_batch_size=rows)
    first, held_out = [scorer.to("meta") for scorer in scorers.values()]
    here = is_training_device(config.reward.device, processes)
    resident = weights(held_out) + (weights(first) if here else 0)
    needed = finetuning_memory(editor, both, processes)
    looked = config.monitor.batch_size * max(
        editor.sampled, *(scoring(editor, scorer) for scorer in (first, held_out))
    )
    stages = _candidates(editor, config.candidates)
    if ranked and here:
        stages["scores"] = SCORE_BATCH * scoring(editor, first)
    stages |= {
        "latents": editor.bytes(quantize=train.quantize)
        + (weights(locator) if here and locator is not None else 0)
        + (train.encode_batch_size or encode_batch_size(editor.size)) * editor.encoded,
        **_fine_tuning(editor, both, needed),
        "watching": needed.encoding + needed.casts + looked,
        "sweep": editor.bytes(HALF, train.quantize) + looked * HALF // FULL,
    }
    return _with_overhead({name: resident + size for name, size in stages.items()})


def _fine_tuning(editor: Blueprint, train: TrainConfig, needed: Training) -> dict[str, int]:
    stages = {
        # The whole editor is loaded, and then prepared and its prompts encoded, before anything is offloaded.
        "prompts": max(editor.bytes(quantize=train.quantize), needed.loaded),
        "step": needed.resident + needed.step,
        "update": needed.resident + needed.update,
    }
    if train.validate_every:
        stages["previews"] = needed.encoding + needed.casts + editor.sampled
    return stages


def _with_overhead(stages: dict[str, int]) -> dict[str, int]:
    return {name: size + OVERHEAD for name, size in stages.items()}
