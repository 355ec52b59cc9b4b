"""The reward's part of a training step: a rollout that carries a gradient, its score, and the loss of that."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rewardedit.batch import EditBatch, Scores
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.rollout import Conditions, Rollout, Scored, decode, require_differentiable, rollout
from rewardedit.diffusion.training import noising
from rewardedit.relabel import RewardScale
from rewardedit.scorers import Scorer
from rewardedit.trainers import _run
from rewardedit.trainers._cache import LatentCache, TextCache
from rewardedit.trainers._watch import Watch

PRESETS: dict[str, dict[str, Any]] = {
    "adiee": {"steps": tuple(range(10, 101, 5)), "skip": (1, 1), "scored": "prev_sample", "loss": "hinge", "most": 10.0},
    "imagereward": {"steps": (40,), "skip": (0, 9), "scored": "pred_x0", "loss": "hinge", "most": 2.0},
    "draft": {"steps": (50,), "skip": (0, 0), "scored": "prev_sample", "loss": "linear", "most": 0.0},
}
PRESETS["adiee"] |= {"scale": "quantiles", "weight": 1e-3}
PRESETS["imagereward"] |= {"scale": "none", "weight": 1e-3}
PRESETS["draft"] |= {"scale": "none", "weight": 1.0}

ANCHOR_SEED = 1_000_003  # the anchor's noise is other than the rollouts'


@dataclass(frozen=True)
class Reward:
    """Which score trains the editor, and how. What is None is the preset's, which fills it in."""

    scorer: str = "vifi_clip"
    options: dict[str, Any] = field(default_factory=dict)  # for the scorer, e.g. its checkpoint
    preset: Literal["adiee", "imagereward", "draft"] = "adiee"
    weight: float | None = None  # λ
    loss: Literal["hinge", "linear"] | None = None  # relu(most − s), or −s
    most: float | None = None  # of the hinge, in units of the mapped score
    scale: Literal["quantiles", "range", "none"] | None = None  # the score to 0–10, as in relabelling
    pairs: float = 1.0  # weight of the diffusion loss on the data's own pairs beside it (ADIEE Eq. 8)
    anchor: float = 0.0  # weight of the distance from what the starting model predicts (LoRA only)
    steps: tuple[int, ...] | None = None  # of a rollout: one is drawn, alike on every process
    skip: tuple[int, int] | None = None  # how many of them are left out at the end: drawn between these two, one is taken
    grad_steps: int | None = 1  # None: all
    scored: Scored | None = None
    text_guidance: float | None = None
    image_guidance: float = 1.0
    checkpointing: tuple[Literal["vae", "scorer"], ...] = ()  # whose activations are computed again; UNet: train.checkpointing

    def __post_init__(self) -> None:
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        assert self.steps is not None
        assert self.skip is not None
        if not self.steps or not 0 <= self.skip[0] <= self.skip[1] or self.skip[0] >= min(self.steps):
            raise ValueError(f"steps, skip: expected at least one step to be taken; got {self.steps}, {self.skip}")
        for name in ("weight", "pairs", "anchor"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected at least 0; got {getattr(self, name)}")
        if self.weight and self.grad_steps == 0:
            raise ValueError("grad_steps: the reward has no gradient without at least one; take 1, or weight: 0")
        self.rollout(torch.Generator())  # its numbers fit each other

    def skips(self, steps: int) -> tuple[int, int]:
        """The least and the most that a rollout of so many steps leaves out."""
        assert self.skip is not None
        return self.skip[0], min(self.skip[1], steps - 1)

    @property
    def mean_steps(self) -> float:
        """How many steps a rollout takes on average."""
        assert self.steps is not None
        return sum(steps - sum(self.skips(steps)) / 2 for steps in self.steps) / len(self.steps)

    def rollout(self, generator: torch.Generator) -> Rollout:
        """The rollout of one training step."""
        assert self.steps is not None
        assert self.scored is not None
        steps = self.steps[int(torch.randint(len(self.steps), (), generator=generator))]
        least, most = self.skips(steps)
        skip = int(torch.randint(least, most + 1, (), generator=generator))
        grad_steps = None if self.grad_steps is None else min(self.grad_steps, steps - skip)
        guidance = {"text_guidance": self.text_guidance, "image_guidance": self.image_guidance}
        stop = steps - skip if skip else None
        return Rollout(steps, stop, grad_steps, self.scored, **guidance)


def reward_loss(
    score: Float[Tensor, " b"], valid: Tensor, kind: str = "hinge", most: float = 10.0, scale: RewardScale | None = None
) -> Float[Tensor, ""]:
    """Mean over the valid rows of relu(most − s) or −s, s being the score mapped to 0–10 where a scale is given."""
    kept = score[valid]
    mapped = kept if scale is None else scale(kept, clamp=False)
    each = F.relu(most - mapped) if kind == "hinge" else -mapped
    return each.sum() / max(len(each), 1)


@dataclass
class Asked:
    """What rollouts of a training set are asked for: its sources, and its instructions as the editor wants to be asked."""

    cache: LatentCache
    texts: TextCache
    pictures: np.ndarray  # (n, 3, s, s) uint8, the sources
    captions: dict[str, list[str]]  # source_caption, target_caption, where all rows have them

    def batch(self, rows: Int[Tensor, " b"], edited: Tensor) -> EditBatch:
        """The rows with their edits, for a scorer."""
        index = rows.tolist()
        source = torch.from_numpy(self.pictures[rows.numpy()]).to(edited.device).float() / 255
        captions = {name: [texts[i] for i in index] for name, texts in self.captions.items()}
        return EditBatch(source, [self.cache.instructions[i] for i in index], edited, **captions)


class RewardFeedback:
    """Rolls rows out, scores what comes of them and passes the gradient on: `finetune`'s `Feedback`."""

    def __init__(
        self,
        config: Reward,
        scorer: Scorer,
        scale: RewardScale | None,
        asked: Asked,
        seed: int,
        editor: Editor,
        watch: Watch,
    ) -> None:
        self.config, self.scorer, self.scale, self.asked, self.seed = config, scorer, scale, asked, seed
        self.pairs, self.pipe = config.pairs, editor.pipe
        if config.grad_steps != 0:
            require_differentiable(self.pipe.scheduler)
        nothing = torch.tensor([asked.texts.empty])
        self.nothing = torch.from_numpy(asked.texts.embeds[nothing.numpy()]).float()
        self.recent: dict[str, list[float]] = {}
        self.watching = watch
        if _run.processes().is_main_process:
            watch.step(editor, 0)

    def loss(self, unet: Any, rows: Int[Tensor, " b"], step: int, places: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        config, device = self.config, self.pipe.device
        total = torch.zeros((), device=device)
        if config.weight:
            latents = self.roll_out(unet, rows, step, places)
            edited = decode(self.pipe.vae, latents, "vae" in config.checkpointing)
            scores = self.score(rows, edited)
            self.recent.setdefault("reward", []).append(float(scores.mean().detach()))
            total = config.weight * reward_loss(scores.score, scores.valid, config.loss, config.most, self.scale)
        if config.anchor:
            distance = self.distance(unet, rows, step, places)
            self.recent.setdefault("distance", []).append(float(distance.detach()))
            total = total + config.anchor * distance
        return total

    def score(self, rows: Int[Tensor, " b"], edited: Float[Tensor, "b 3 h w"]) -> Scores:
        """The scores of these rows' edits."""

        def scores(pictures: Tensor) -> Scores:
            return self.scorer(self.asked.batch(rows, pictures))

        return checkpoint(scores, edited, use_reentrant=False) if "scorer" in self.config.checkpointing else scores(edited)

    def roll_out(self, unet: Any, rows: Int[Tensor, " b"], step: int, places: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Latents of a rollout of these rows; noise is drawn for each place of the batch by itself."""
        device, how = self.pipe.device, self.config.rollout(_run.step_generator(self.seed + 1, step))
        noise, generators = self.noise(places, step, self.seed + 2)
        given = Conditions(*(tensor.to(device) for tensor in self.conditions(rows)), self.nothing.to(device))
        return rollout(unet, self.pipe.scheduler, noise, given, how, generators)

    def noise(self, places: Int[Tensor, " b"], step: int, seed: int) -> tuple[Float[Tensor, "b c h w"], list[torch.Generator]]:
        """Noise of each place of the global batch by itself, and the generators that it came from."""
        generators = [_run.step_generator(seed + int(place), step) for place in places]
        noise = torch.stack([torch.randn(self.asked.cache.shape, generator=g) for g in generators])
        return noise.to(self.pipe.device), generators

    def conditions(self, rows: Int[Tensor, " b"]) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b c h w"]]:
        """Prompt embeddings and source latents."""
        embeds, _, _ = self.asked.texts.take(rows, torch.zeros(len(rows), dtype=torch.bool))
        return embeds, self.asked.cache.latents(rows)[1]

    def distance(self, unet: Any, rows: Int[Tensor, " b"], step: int, places: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        """Mean squared distance of what the editor and the starting model, its adapter off, predict of noisy rows."""
        device, scheduler = self.pipe.device, noising(self.pipe.scheduler)
        edited, source = (tensor.to(device) for tensor in self.asked.cache.latents(rows))
        embeds = self.conditions(rows)[0].to(device)
        noise, generators = self.noise(places, step, self.seed + ANCHOR_SEED)
        most = scheduler.config.num_train_timesteps
        times = torch.stack([torch.randint(most, (), generator=g) for g in generators]).to(device)
        sample = torch.cat([scheduler.add_noise(edited, noise, times), source], dim=1)
        bare = self.pipe.unet
        with torch.no_grad():
            bare.disable_adapters()
            wanted = bare(sample, times, embeds, return_dict=False)[0]
            bare.enable_adapters()
        return F.mse_loss(unet(sample, times, embeds, return_dict=False)[0].float(), wanted.float())

    def log(self) -> dict[str, float]:
        means = {name: sum(values) / len(values) for name, values in self.recent.items()}
        self.recent = {}
        return means

    def watch(self, editor: Editor, step: int) -> bool:
        stop = _run.processes().is_main_process and self.watching.step(editor, step)
        return bool(_run.any_process(stop))
