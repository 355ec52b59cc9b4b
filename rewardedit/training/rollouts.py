"""Rollouts of a training: inputs, noise and scheduler; edits that carry a gradient, and their scores."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit.batch import EditBatch, Scores
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.diffusion.families import Conditioning, EditFamily, family_of
from rewardedit.diffusion.rollout import RolloutState, steps_with_gradient, steps_without_gradient
from rewardedit.processes import print_on_main
from rewardedit.scorers import Scorer
from rewardedit.training.finetune import MicroBatch
from rewardedit.training.latents import LatentCache
from rewardedit.training.loop import step_generator
from rewardedit.training.prompt_cache import TextCache
from rewardedit.training.reward import RewardConfig

TEXT_MULTIPLE = 64  # tokens, where calls are recorded
REFERENCE_SEED = 1_000_003  # so that the reference distance's noise differs from the rollouts'


def rollout_scheduler(config: RewardConfig, family: EditFamily, scheduler: Any) -> Any:
    """Scheduler of the rollouts, tested on rollouts of 2 × 2 latents.

    Raises:
        ValueError: if no gradient passes through it, its state cannot be divided into micro-batches, or it
            does not provide the output to be scored.
    """
    if config.scheduler == "ddpm" and family.lora_only:
        raise ValueError(
            f"reward.scheduler: expected editor for {type(family).__name__}, which predicts velocities; got "
            "ddpm; leave it out"
        )
    if config.scheduler == "ddpm":
        # Latents have no bounds for clipping, even if the editor's file does not say so.
        scheduler = DDPMScheduler.from_config(scheduler.config, clip_sample=False)
    if not config.weight:
        return scheduler
    weight = torch.ones((), requires_grad=True)
    probe: Any = copy.copy(family)
    probe.predict = lambda _, sample, *options: sample * weight

    assert config.num_inference_steps is not None
    generators = [torch.Generator().manual_seed(row) for row in range(2)]
    rolled = config.rollout(generators[0])
    noise = torch.ones(2, 1, 2, 2)
    cond = Conditioning(torch.zeros(2, 1, 1), torch.zeros(2, 1, 2, 2), torch.zeros(1, 1, 1))
    try:
        state = steps_without_gradient(probe, abs, scheduler, noise, cond, rolled, generators)
        steps_with_gradient(probe, abs, state.take(slice(0, 1)))
    except ValueError as error:
        raise ValueError(f"reward.scheduler: {error}; or take reward.scheduler=ddpm") from error
    return scheduler


@dataclass
class RolloutPrompts:
    """Inputs of rollouts on a training set: its sources,
    and its instructions as prompts of the editor.
    """

    cache: LatentCache
    texts: TextCache
    images: np.ndarray  # (n, 3, s, s) uint8, the sources
    captions: dict[str, list[str]]  # source_caption, target_caption, if any row has one
    # padded embeddings have a multiple of TEXT_MULTIPLE tokens, so that recorded calls have few shapes
    rounded: bool = False

    def batch(self, rows: Int[Tensor, " b"], edited: Float[Tensor, "b 3 h w"]) -> EditBatch:
        """Batch of the rows with their edits, for a scorer."""
        index = rows.tolist()
        source = torch.from_numpy(self.images[rows.numpy()]).to(edited.device).float() / 255

        def take(texts: Sequence[str]) -> list[str]:
            return [texts[i] for i in index]

        captions = {name: take(texts) for name, texts in self.captions.items()}
        return EditBatch(source, take(self.cache.instructions), edited, **captions)

    def conditioning(self, rows: Int[Tensor, " b"], device: torch.device) -> Conditioning:
        """Embeddings of the prompts and of the empty text, and latents of the sources."""
        texts, _ = self.texts.take(rows, torch.zeros(len(rows), dtype=torch.bool))
        texts.pop("tokens", None)
        values = {**texts, **self.texts.null_texts(rows), "source": self.cache.latents(rows)[1]}
        for name in ("embeds", "null_embeds"):
            if self.rounded and name.replace("embeds", "lengths") in values:  # what is behind them is masked
                missing = -values[name].shape[1] % TEXT_MULTIPLE
                values[name] = F.pad(values[name], (0, 0, 0, missing))
        return Conditioning(**{name: value.to(device) for name, value in values.items()})


def slot_noise(
    shape: tuple[int, int, int], batch_positions: Int[Tensor, " b"], step: int, seed: int
) -> tuple[Float[Tensor, "b c h w"], list[torch.Generator]]:
    """Independent noise for each slot of the whole update's batch, and the generators that made it.

    A row therefore has the same noise however the batch is divided over processes and micro-batches.
    """
    generators = [step_generator(seed + int(slot), step) for slot in batch_positions]
    return torch.stack([torch.randn(shape, generator=g) for g in generators]), generators


class RewardRollouts:
    """Edits of training rows that carry a gradient to the editor's weights, and their scores."""

    def __init__(
        self, config: RewardConfig, scorer: Scorer, prompts: RolloutPrompts, seed: int, pipe: Any
    ) -> None:
        """
        Args:
            seed: seed of the rollouts' lengths and noise.
            pipe: the editor's pipeline; gradient checkpointing of its VAE is enabled if configured.
        """
        self.config = config
        self.scorer = scorer
        self.prompts = prompts
        self.seed = seed
        self.pipe = pipe
        # micro-batches that take the steps without gradient together; None: not known yet
        self.at_once: BatchSize | None = None
        self.family = family_of(pipe)
        self.scheduler = rollout_scheduler(config, self.family, pipe.scheduler)
        if "vae" in config.gradient_checkpointing:
            self.family.checkpoint_decoder(pipe.vae, True)

    def start(self, micro_batches: Sequence[MicroBatch], step: int) -> list[RolloutState]:
        """The rollouts of each of an update's micro-batches, up to their first step with gradient.

        The weights are the same for all micro-batches of an update, so all rows take these steps together,
        through the bare denoiser: nothing is exchanged between processes.
        """
        if not self.config.weight:
            return []
        config = self.config.rollout(step_generator(self.seed + 1, step))
        denoiser = self.family.denoiser(self.pipe)
        size = len(micro_batches[0].rows)

        def start_together(together: Sequence[MicroBatch]) -> list[RolloutState]:
            rows = torch.cat([micro.rows for micro in together])
            positions = torch.cat([micro.batch_positions for micro in together])
            noise, generators = slot_noise(self.prompts.cache.shape, positions, step, self.seed + 2)
            noise = noise.to(self.pipe.device)
            cond = self.prompts.conditioning(rows, self.pipe.device)
            state = steps_without_gradient(
                self.family, denoiser, self.scheduler, noise, cond, config, generators
            )
            return [state.take(slice(at, at + size)) for at in range(0, len(rows), size)]

        if self.at_once is None:
            self.at_once = BatchSize(self.config.micro_batches_at_once(size, len(micro_batches)))
        wanted = self.at_once.rows
        started = list(chain.from_iterable(in_batches(micro_batches, self.at_once, start_together)))
        if self.at_once.rows < wanted:
            left = self.at_once.rows * size
            print_on_main(f"reward.rollout_batch_size: memory ran out; {left} from now on")
        return started

    def edit(self, unet: Any, state: RolloutState) -> Float[Tensor, "b 3 h w"]:
        """Decoded edits of a micro-batch, after its steps with gradient."""
        return self.family.decode(self.pipe.vae, steps_with_gradient(self.family, unet, state))

    def score(self, micro: MicroBatch, edited: Float[Tensor, "b 3 h w"]) -> Scores:
        """Scores of these rows' edits, with gradient."""
        batch = self.prompts.batch(micro.rows, edited)
        if "scorer" in self.config.gradient_checkpointing:
            return self.scorer.checkpointed(batch)
        return self.scorer(batch)

    def reference_distance(self, unet: Any, micro: MicroBatch, step: int) -> Float[Tensor, ""]:
        """Mean squared distance between the predictions of the editor and of the starting model (the adapter
        disabled) for noised rows.
        """
        device = self.pipe.device
        scheduler = self.family.training_scheduler(self.pipe.scheduler)
        edited = self.prompts.cache.latents(micro.rows)[0].to(device)
        cond = self.prompts.conditioning(micro.rows, device)
        noise, generators = slot_noise(
            self.prompts.cache.shape, micro.batch_positions, step, self.seed + REFERENCE_SEED
        )
        most = scheduler.config.num_train_timesteps
        times = torch.stack([torch.randint(most, (), generator=g) for g in generators]).to(device)
        x_t, times = self.family.noised(scheduler, edited, noise.to(device), times)

        bare = self.family.denoiser(self.pipe)
        bare.disable_adapters()
        try:
            with torch.no_grad():
                target = self.family.predict(bare, x_t, times, cond)
        finally:
            bare.enable_adapters()
        return F.mse_loss(self.family.predict(unet, x_t, times, cond).float(), target.float())
