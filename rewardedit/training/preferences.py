"""Direct preference optimisation of editors (Diffusion-DPO, Wallace et al. 2023): settings, loss, and latents
of pairs, computed once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit.batch import EditPair
from rewardedit.data import DataConfig
from rewardedit.data.pairs import Pairs
from rewardedit.data.preferences import PairRows
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.families import Conditioning, EditFamily
from rewardedit.training.finetune import Finetuning, MicroBatch
from rewardedit.training.latents import LatentCache, encode_rows, unreadable_of
from rewardedit.training.loop import TrainLoop

NOISE_BETA = 2000.0  # of predictions of noise, in Diffusion-DPO's code for Stable Diffusion 1.5
VELOCITY_BETA = 100.0  # of velocities, in the code of Flow-GRPO; no source has one for predictions of x_0


@dataclass(frozen=True)
class PreferenceConfig:
    """Loss on pairs of a preferred and a rejected edit."""

    # β, how steeply the loss falls with the margin, and how near the result stays to the reference; null:
    # 2000 for editors that predict noise, 100 for others
    beta: float | None = None
    weight: float = 1.0  # weight of the preference loss
    diffusion_weight: float = 0.0  # weight of the diffusion loss on the preferred edits
    # share of the errors' weight that lies evenly on the whole image where noise_mask gives the rest to a
    # region; 1: all of it
    unmasked: float = 0.1
    # least difference of the best and the worst score of a source's edits that makes a pair, in the score's
    # units
    min_gap: float = 0.0

    def __post_init__(self) -> None:
        if self.beta is not None and not 0 < self.beta < float("inf"):
            raise ValueError(f"beta: expected above 0 and finite; got {self.beta:g}")
        for name in ("weight", "diffusion_weight", "min_gap"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: expected at least 0 and finite; got {getattr(self, name):g}")
        if not 0 <= self.unmasked <= 1:
            raise ValueError(f"unmasked: expected a share from 0 to 1; got {self.unmasked:g}")
        if not self.weight and not self.diffusion_weight:
            raise ValueError(
                "weight, diffusion_weight: expected one above 0, or nothing is trained; got 0, 0"
            )

    def beta_of(self, scheduler: Any) -> float:
        """β for an editor with this training scheduler."""
        if self.beta is not None:
            return self.beta
        return NOISE_BETA if scheduler.config.get("prediction_type") == "epsilon" else VELOCITY_BETA


@dataclass
class PairBatch:
    """b pairs to compare: the preferred edits, and below them the rejected ones in the same order. Both edits
    of a pair have the same noise, time step and conditioning.
    """

    x_0: Float[Tensor, "b2 c h w"]  # scaled latents of 2 b edits
    noise: Float[Tensor, "b2 c h w"]
    times: Int[Tensor, " b2"]
    cond: Conditioning
    weight: Float[Tensor, "b2 1 h w"] | None = None  # of the errors, 1 on average over an image; None: 1

    @classmethod
    def make(
        cls,
        tuning: Finetuning,
        micro: MicroBatch,
        rejected: Float[Tensor, "b c h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> "PairBatch":
        """A micro-batch of preferred edits beside their rejected ones, on the device that trains."""
        device = tuning.accelerator.device
        inputs = micro.inputs.to(device)
        return cls(
            torch.cat([inputs.edited, rejected.to(device)]),
            torch.cat([micro.noise.to(device)] * 2),
            torch.cat([micro.times.to(device)] * 2),
            tuning.conditioning(inputs).repeat(2),
            None if weight is None else torch.cat([weight.to(device)] * 2),
        )

    def predict(self, family: EditFamily, denoiser: Any, scheduler: Any) -> Float[Tensor, "b2 c h w"]:
        """The denoiser's predictions, in fp32."""
        x_t, times = family.noised(scheduler, self.x_0, self.noise, self.times)
        return family.predict(denoiser, x_t, times, self.cond).float()

    def errors(
        self, family: EditFamily, scheduler: Any, predicted: Float[Tensor, "b2 c h w"]
    ) -> "PairErrors":
        """Mean squared errors of predictions over an image's pixels."""
        target = family.target(scheduler, self.x_0, self.noise, self.times)
        error = F.mse_loss(predicted, target.float(), reduction="none")
        unmasked = error.flatten(1).mean(1)
        errors = unmasked if self.weight is None else (error * self.weight).flatten(1).mean(1)
        return PairErrors(*errors.chunk(2), unmasked=unmasked.chunk(2)[0])


@dataclass(frozen=True)
class PairErrors:
    """Errors of predictions for both edits of b pairs."""

    winner: Float[Tensor, " b"]
    loser: Float[Tensor, " b"]
    unmasked: Float[Tensor, " b"]  # of the winner, without weights: its diffusion loss

    def margin(self, reference: "PairErrors", beta: float) -> Float[Tensor, " b"]:
        """Implicit reward of the preferred edit over the rejected one: −β/2 · [(e_w − e_w,ref) − (e_l −
        e_l,ref)], 0 for the reference itself (Diffusion-DPO Eq. 14).
        """
        return -beta / 2 * ((self.winner - reference.winner) - (self.loser - reference.loser))


@contextmanager
def reference(denoiser: Any) -> Iterator[None]:
    """Within the block the bare denoiser computes as the starting model, its adapter off, and without
    gradient.
    """
    denoiser.disable_adapters()
    try:
        with torch.no_grad():
            yield
    finally:
        denoiser.enable_adapters()


def preference_loss(margin: Float[Tensor, " b"]) -> Float[Tensor, ""]:
    """Mean of −log σ(margin): log 2 where the editor is its reference."""
    return -F.logsigmoid(margin).mean()


def record_pairs(
    loop: TrainLoop,
    margin: Float[Tensor, " b"],
    errors: PairErrors,
    expected: PairErrors,
    after: Float[Tensor, "b2 c h w"],
    before: Float[Tensor, "b2 c h w"],
) -> None:
    """Records means over b pairs for the log.

    `accuracy` is the share of pairs whose preferred edit the editor prefers (a margin above 0); `distance`
    the mean squared distance of its predictions to the reference's; `winner_gain` and `loser_gain` are how
    much lower than the reference's its errors are. Where both fall, it unlearns both edits.
    """
    b = len(margin)
    loop.record("margin", margin.mean(), b)
    loop.record("accuracy", (margin > 0).float().mean(), b)
    loop.record("distance", F.mse_loss(after, before), b)
    loop.record("winner_gain", (expected.winner - errors.winner).mean(), b)
    loop.record("loser_gain", (expected.loser - errors.loser).mean(), b)


def region_weights(mask: Float[Tensor, "b 1 h w"], unmasked: float) -> Float[Tensor, "b 1 h w"]:
    """Weights of errors, 1 on average over an image: `unmasked` everywhere, and the rest inside the mask. An
    empty mask gives 1 everywhere, as one of the whole image does.
    """
    share = mask.flatten(1).mean(1)[:, None, None, None]
    inside = torch.where(share > 0, mask / share.clamp_min(1e-8), 1.0)
    return unmasked + (1 - unmasked) * inside


@dataclass
class PairCache(LatentCache):
    """Pairs with their latents: `edited` holds those of the preferred edits."""

    rejected: np.ndarray = field(kw_only=True)  # (n, c, h, w) fp16, unscaled

    def rejected_latents(self, rows: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Scaled latents of the rejected edits."""
        return torch.from_numpy(self.rejected[rows.numpy()]).float() * self.scaling


def make_pair_cache(
    pairs: Pairs | Sequence[EditPair],
    data: DataConfig,
    editor: Editor,
    folder: Path,
    made_of: dict[str, Any],
    batch_size: int | None = None,
) -> PairCache:
    """Encodes source, preferred and rejected edit of all pairs, or opens the cache in `folder`. Pairs of
    equal edits, or of two sources, are unreadable.

    Args:
        data: how images are brought to one size.
        made_of: all that says which pairs these are, beside `data`.

    Raises:
        ValueError: if the folder holds latents of other pairs, or by another editor.
    """
    rows: Any = PairRows(pairs)
    names = ("edited", "source", "target")
    arrays, texts = encode_rows(rows, data, editor, folder, made_of, batch_size, names)
    edited, source, rejected = arrays
    scaling = editor.family.latent_scaling(editor.pipe.vae)
    ids, instructions = texts["ids"], texts["instructions"]
    unreadable = unreadable_of(texts)
    return PairCache(
        rows, data, ids, instructions, folder, scaling, edited, source, unreadable, rejected=rejected
    )
