"""Rollouts of online RL: the images of whole groups, their scores and their advantages.

Every random number is keyed by an image's place in the rollout, so that neither the number of processes nor
the batch that fits into memory nor a resume changes an image, up to rounding.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate.utils import gather_object
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rewardedit.batch import Scores
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.rollout import rollout
from rewardedit.processes import print_on_main, processes, sum_of_processes
from rewardedit.scoring import TEXT_CUT, score_batch
from rewardedit.training.groups import Advantages, group_advantages
from rewardedit.training.loop import TrainLoop, batch_rows, step_generator
from rewardedit.training.online import OnlineConfig, OnlineInputs
from rewardedit.training.trainable import TrainConfig

SEED = 2_000_029  # so that rollouts' noise differs from that of losses


@dataclass(frozen=True)
class Sampled:
    """The latents of b images, and what else their sampler keeps of each."""

    latents: Float[Tensor, "b c h w"]  # clean
    kept: dict[str, Tensor] = field(default_factory=dict)  # (b, …) each, such as log-probabilities

    def zeroed(self, rows: Bool[Tensor, " b"]) -> "Sampled":
        """The same with zeros in some rows."""
        if not rows.any():
            return self

        def zero(values: Tensor) -> Tensor:
            return values.masked_fill(rows.reshape(-1, *[1] * (values.ndim - 1)), 0)

        return Sampled(zero(self.latents), {name: zero(value) for name, value in self.kept.items()})


@runtime_checkable
class Sampler(Protocol):
    """Denoises; called without gradient, under the rollout's adapter."""

    def __call__(
        self,
        noise: Float[Tensor, "b c h w"],
        cond: Conditioning,
        generators: Sequence[torch.Generator],
        mask: Float[Tensor, "b 1 h w"] | None,
    ) -> Sampled:
        """
        Args:
            noise: of unit variance.
            generators: of each image, for noise that steps add.
            mask: the group's region, at the latents' size, if it is known before its images are made.
        """
        ...


@dataclass(frozen=True)
class Rollout:
    """The n images that this process made in a rollout, whole groups one after another, on the CPU."""

    rows: Int[Tensor, " n"]  # in the cache
    slots: Int[Tensor, " n"]  # places in the whole rollout, over all processes
    latents: Float[Tensor, "n c h w"]  # clean, in fp32
    advantage: Float[Tensor, " n"]  # clipped; 0 where an image is left out
    # weight of its loss: 0 where it is left out; 1 on average over an update's images
    weight: Float[Tensor, " n"]
    rewards: Float[Tensor, "n r"]  # value of each reward; NaN where it has none
    mask: Float[Tensor, "n 1 h w"] | None  # 1 inside the region of credit
    kept: dict[str, Tensor]  # tensors that the sampler keeps

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: slice | Int[Tensor, " b"]) -> "Rollout":
        """Some of the images."""
        values = {}
        for name, value in vars(self).items():
            if isinstance(value, dict):
                values[name] = {key: kept[index] for key, kept in value.items()}
            else:
                values[name] = None if value is None else value[index]
        return replace(self, **values)


class GroupRollouts:
    """Makes the rollouts of a training."""

    def __init__(
        self,
        config: OnlineConfig,
        train: TrainConfig,
        inputs: OnlineInputs,
        pipe: Any,
        sampler: Sampler | None = None,
        mask_first: bool = False,
        together: int = 1,
    ) -> None:
        """
        Args:
            pipe: the editor's pipeline, with the adapters.
            sampler: None: the stock pipeline's sampler (`ode`).
            mask_first: find each group's region before its images are made, from one edit by `ode`.
            together: images that stay in one batch where fewer are denoised at a time, as memory ran out.
        """
        self.config = config
        self.train = train
        self.inputs = inputs
        self.masks = None if config.noise_mask is None else inputs.masks
        self.pipe = pipe
        self.family = family_of(pipe)
        self.sampler: Sampler = sampler or self.ode
        self.mask_first = mask_first
        self.processes = processes().num_processes
        self.groups = config.groups(train, self.processes) * config.updates
        at_once = config.at_once(train, self.processes)
        self.sizes = {name: BatchSize(at_once) for name in ("denoise", "decode", "score")}
        self.sizes["denoise"].unit = together
        self.largest = at_once

    def ode(
        self,
        noise: Float[Tensor, "b c h w"],
        cond: Conditioning,
        generators: Sequence[torch.Generator],
        mask: Float[Tensor, "b 1 h w"] | None,
    ) -> Sampled:
        """The stock pipeline's sampler, to the bit."""
        denoiser = self.family.denoiser(self.pipe)
        return Sampled(
            rollout(
                self.family, denoiser, self.pipe.scheduler, noise, cond, self.config.rollout(), generators
            )
        )

    @torch.no_grad()
    def make(self, number: int, loop: TrainLoop) -> Rollout:
        """Makes rollout `number`, counted from 0, and records its figures, unless a run that is resumed among
        its updates has them in its log. All processes call it together.

        Each process makes its share of the groups of each update, in the order of the updates.
        """
        k = self.config.group_size
        drawn = self.inputs.usable[batch_rows(len(self.inputs.usable), self.groups, number, self.train.seed)]
        assigned = torch.arange(self.groups)[processes().process_index :: self.processes]
        rows = drawn[assigned]
        slots = (assigned[:, None] * k + torch.arange(k)).flatten()
        images = rows.repeat_interleave(k)

        first_masks = self._masks_before(rows, assigned * k, number) if self.mask_first else None
        masks = None if first_masks is None else first_masks.repeat_interleave(k, 0)
        with loop.autocast():
            sampled = self._sample(images, slots, number, masks)
            edited = self._decode(sampled.latents)
        scores = self._score(images, edited)
        rewards = torch.stack([own_scores.score.double() for own_scores in scores.values()], 1)
        # An image that is not finite is left out; its zeros stay zeros where NaN times a weight of 0 is NaN.
        finite = edited.flatten(1).isfinite().all(1) & sampled.latents.flatten(1).isfinite().all(1)
        broken = ~finite
        rewards[broken] = torch.nan
        sampled = sampled.zeroed(broken)
        if self.masks is not None and masks is None:
            batch = self.inputs.prompts.batch(images, edited)
            regions = self.masks.of_groups(rows, batch, self.inputs.prompts.cache.shape)
            masks = regions.repeat_interleave(k, 0)

        advantages = self._advantages(rewards, assigned)
        clip = self.config.advantage_clip
        if not loop.is_logged(number * self.config.updates):
            self._record(advantages, scores, len(images), masks, loop)
        self._report_memory()
        weights = advantages.row_weights(self.config.updates)[assigned].flatten()
        value = advantages.value[assigned].flatten().float().clamp(-clip, clip)
        return Rollout(images, slots, sampled.latents, value, weights, rewards, masks, sampled.kept)

    def _sample(
        self,
        rows: Int[Tensor, " n"],
        slots: Int[Tensor, " n"],
        number: int,
        masks: Float[Tensor, "n 1 h w"] | None,
        sampler: Sampler | None = None,
    ) -> Sampled:
        """Images of rows, each from the noise of its slot, on the CPU."""
        device = self.pipe.device
        prompts = self.inputs.prompts
        shared = self.config.group_size if self.config.same_noise else 1

        def denoise(span: range) -> Sampled:
            which = slice(span.start, span.stop)
            noise, generators = rollout_noise(
                prompts.cache.shape, slots[which], number, self.train.seed, shared
            )
            cond = prompts.conditioning(rows[which], device)
            mask = None if masks is None else masks[which].to(device)
            return (sampler or self.sampler)(noise.to(device), cond, generators, mask)

        parts = list(in_batches(range(len(rows)), self.sizes["denoise"], denoise))
        kept: dict[str, list[Tensor]] = defaultdict(list)
        for sampled in parts:
            for name, value in sampled.kept.items():
                kept[name].append(value.cpu())
        latents = torch.cat([sampled.latents.float().cpu() for sampled in parts])
        return Sampled(latents, {name: torch.cat(values) for name, values in kept.items()})

    def _decode(self, latents: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 3 h2 w2"]:
        """Images in [0, 1], on the CPU."""

        def decode(chunk: Tensor) -> Tensor:
            return self.family.decode(self.pipe.vae, chunk.to(self.pipe.device)).float().clamp(0, 1).cpu()

        return torch.cat(list(in_batches(latents, self.sizes["decode"], decode)))

    def _score(self, rows: Int[Tensor, " n"], edited: Float[Tensor, "n 3 h w"]) -> dict[str, Scores]:
        """Scores by each reward, in the scorers' own types."""

        def score(span: range) -> dict[str, Scores]:
            which = slice(span.start, span.stop)
            batch = self.inputs.prompts.batch(rows[which], edited[which])
            return score_batch(batch, self.inputs.watching.rewards)

        parts = list(in_batches(range(len(rows)), self.sizes["score"], score))
        joined = {}
        for name in parts[0]:
            joined[name] = join_scores([scores[name] for scores in parts])
        return joined

    def _masks_before(
        self, rows: Int[Tensor, " g"], slots: Int[Tensor, " g"], number: int
    ) -> Float[Tensor, "g 1 h w"] | None:
        """The groups' regions, from the edit of each group's first noise by `ode`."""
        masks = self.masks
        if masks is None:
            return None
        edited = self.inputs.prompts.batch(rows, self._sources(rows))
        if masks.given is None:
            sampled = self._sample(rows, slots, number, None, self.ode)
            edited = self.inputs.prompts.batch(rows, self._decode(sampled.latents))
        return masks.of_groups(rows, edited, self.inputs.prompts.cache.shape)

    def _sources(self, rows: Int[Tensor, " g"]) -> Float[Tensor, "g 3 h w"]:
        return torch.from_numpy(self.inputs.prompts.images[rows.numpy()]).float() / 255

    def _advantages(self, rewards: Float[Tensor, "n r"], groups: Int[Tensor, " g"]) -> Advantages:
        """Advantages of all processes' groups, from the rewards of this process's groups `groups`."""
        grouped = torch.zeros(rewards.shape[1], self.groups, self.config.group_size, dtype=torch.float64)
        grouped[:, groups] = rewards.T.unflatten(1, (len(groups), -1))
        config = self.config
        return group_advantages(
            sum_of_processes(grouped),
            torch.tensor(self.inputs.watching.weights, dtype=torch.float64),
            config.std,
            config.least_spread,
            config.least_valid,
        )

    def _record(
        self,
        advantages: Advantages,
        scores: dict[str, Scores],
        n: int,
        masks: Tensor | None,
        loop: TrainLoop,
    ) -> None:
        """Records means of rewards and their parts, spreads, and shares of images and groups left out."""
        sums: dict[str, tuple[float, int]] = {}
        total = sum(
            w * scored.score for w, scored in zip(self.inputs.watching.weights, scores.values(), strict=True)
        )
        assert isinstance(total, Tensor)
        sums["reward"] = _known_sum(total)

        for name, scored in scores.items():
            values = {f"reward.{name}": scored.score}
            shown = {sub_score: value for sub_score, value in scored.parts.items() if sub_score != TEXT_CUT}
            parts = {f"reward.{name}.{sub_score}": value for sub_score, value in shown.items()}
            for key, value in {**values, **parts}.items():
                sums[key] = _known_sum(value)
        if masks is not None:
            sums["mask"] = (float(masks.double().mean()) * n, n)

        for key, (value, count) in _sum_of_processes(sums).items():
            mean = value / count if count else 0.0
            # Every process records the same mean; without any row there is none to record.
            loop.record(key, torch.tensor(mean, dtype=torch.float64), count)

        for name, spread in zip(scores, advantages.spread, strict=True):
            informed = spread[~advantages.few]
            loop.record(f"spread.{name}", informed.sum() / max(len(informed), 1), len(informed))
        for key, value in (
            ("groups_without_spread", advantages.flat),
            ("groups_with_few_scores", advantages.few),
            ("images_without_score", ~advantages.valid),
        ):
            loop.record(key, value.double().mean(), value.numel())

    def _report_memory(self) -> None:
        """Says once that fewer images are made at a time, as memory ran out."""
        least = min(size.rows for size in self.sizes.values())
        if least < self.largest:
            self.largest = least
            print_on_main(f"reward.rollout_batch_size: memory ran out; {least} from now on where needed")
            size = self.sizes["denoise"]
            if size.rows < size.unit:
                fits = max(n for n in range(1, size.rows + 1) if size.unit % n == 0)
                print_on_main(
                    f"train.micro_batch_size: steps are taken {size.rows} images at a time and replayed "
                    f"{size.unit} at a time, so that ratios begin near 1; set it to {fits}"
                )


def rollout_noise(
    shape: tuple[int, int, int], slots: Int[Tensor, " b"], number: int, seed: int, shared: int = 1
) -> tuple[Float[Tensor, "b c h w"], list[torch.Generator]]:
    """Noise from which the images in these slots of a rollout begin, and generators for further noise.

    Args:
        shared: number of consecutive slots that begin with the same noise.
    """
    generators = [step_generator(seed + SEED + int(slot), number) for slot in slots]
    noise = [torch.randn(shape, generator=generator) for generator in generators]
    if shared > 1:
        noise = []
        for slot in slots.tolist():
            first = step_generator(seed + SEED + slot // shared * shared, number)
            noise.append(torch.randn(shape, generator=first))
    return torch.stack(noise), generators


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Scores of several batches as one; a part that some lack is NaN there."""
    names = dict.fromkeys(chain.from_iterable(batch.parts for batch in parts))
    joined = {}
    for name in names:
        values = []
        for batch in parts:
            values.append(batch.parts.get(name, torch.full_like(batch.score, torch.nan)))
        joined[name] = torch.cat(values)
    reasons: list[str | None] = []
    for batch in parts:
        reasons += batch.reason
    return Scores(
        torch.cat([batch.score for batch in parts]),
        joined,
        torch.cat([batch.valid for batch in parts]),
        reasons,
    )


def _known_sum(values: Float[Tensor, " n"]) -> tuple[float, int]:
    """Sum and number of the finite values."""
    known = values[values.isfinite()]
    return float(known.double().sum()), len(known)


def _sum_of_processes(sums: dict[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
    """Sums and numbers by name, over all processes; names in one order on all of them."""
    gathered = gather_object([sums]) if processes().num_processes > 1 else [sums]
    total: dict[str, tuple[float, int]] = {}
    for process_sums in gathered:
        for name, (value, count) in process_sums.items():
            before, rows = total.get(name, (0.0, 0))
            total[name] = (before + value, rows + count)
    return dict(sorted(total.items()))
