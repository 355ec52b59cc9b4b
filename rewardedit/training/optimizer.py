"""Muon for networks with convolutions, twice as fast as AdamW, by the clock, on the small editor; and a
learning rate that rises and falls.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rewardedit import devices

MOMENTUM = 0.95
QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of the Newton-Schulz iteration


class AdamW(torch.optim.AdamW):
    """AdamW whose fused step is skipped by the gradient scaler, as any other optimizer's, where gradients
    overflowed. Its kernel could skip by itself, but then neither the learning rate nor the averages would
    know of it.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__(groups, **options)
        self._step_supports_amp_scaling = False


class Muon(AdamW):
    """AdamW, but groups with `muon=True` step along their orthogonalised Nesterov momentum (Jordan et al.
    2024).

    torch's own Muon takes matrices only; here a convolution (out, in, h, w) counts as a matrix (out,
    in·h·w). Muon groups have neither weight decay nor betas.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__([{"muon": False, **group} for group in groups], **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in (g for g in self.param_groups if g["muon"]):
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:  # AdamW requires a "step" in every state that it loads
                    state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(p.grad)}
                momentum = state["momentum"].lerp_(p.grad, 1 - MOMENTUM)
                direction = orthogonalised(p.grad.lerp(momentum, MOMENTUM).flatten(1))
                tall = max(1.0, direction.shape[0] / direction.shape[1]) ** 0.5
                p.add_(direction.view_as(p), alpha=-group["lr"] * tall)
                p.grad = None  # so that AdamW skips it
        super().step()
        return loss


def parameter_groups(module: nn.Module, lr: float, muon_lr: float | None) -> list[dict[str, Any]]:
    """Groups of the trained parameters of `module`: one, or with `muon_lr` a second one for its matrices and
    convolutions, except the first and last layer (conv_in, conv_out)."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if muon_lr is None:
        return [{"params": list(named.values()), "lr": lr}]
    hidden = []
    others = []
    for name, p in named.items():
        is_hidden = p.ndim > 1 and not name.startswith(("conv_in", "conv_out"))
        (hidden if is_hidden else others).append(p)
    return [{"params": others, "lr": lr}, {"params": hidden, "lr": muon_lr, "muon": True}]


def orthogonalised(matrix: Tensor) -> Tensor:
    """Moves the matrix's singular values near 1 (0.7 to 1.2), by five Newton-Schulz steps, in bf16 where that
    saves time."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide.bfloat16() if devices.computes_in_bf16(wide.device.type) else wide
    x = x / (wide.norm() + 1e-7)
    a, b, c = QUINTIC
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide is matrix else x.T).to(matrix.dtype)


def learning_rate_share(step: int, warmup: int, last: int | None, floor: float = 0.0) -> float:
    """Share of the learning rate at a step, counted from 0: a linear warm-up over `warmup` steps, times a
    cosine from the first step to the floor at step `last` (None: times 1).
    """
    share = min(1.0, (step + 1) / max(warmup, 1))
    if last is None:
        return share
    return share * max(floor, 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / last)))
