"""Signs of reward hacking in edited pictures: numbers that a scorer does not see and a person would."""

import torch
from jaxtyping import Float
from torch import Tensor

COPY = 0.005  # mean absolute difference below which an edit counts as a copy of its source
COLOURS = 4  # levels a channel of the colour histogram


def picture_health(
    source: Float[Tensor, "b 3 h w"], edited: Float[Tensor, "b 3 h w"], mask: Float[Tensor, "b 1 h w"] | None = None
) -> dict[str, Float[Tensor, " b"]]:
    """Per edit: `copied` (1 where the source came back), `saturation` (mean of max − min over channels, 0–1),
    `edges` (mean absolute step between neighbouring pixels, 0–1), `entropy` (of a 64-colour histogram, bits, 0–6) and,
    with a mask, `change_outside` (mean absolute difference where the mask is 0).
    """
    difference = (edited - source).abs().mean(1, keepdim=True)
    steps = (edited.diff(dim=-1).abs().flatten(1).mean(1) + edited.diff(dim=-2).abs().flatten(1).mean(1)) / 2
    out = {
        "copied": (difference.flatten(1).mean(1) < COPY).float(),
        "saturation": (edited.amax(1) - edited.amin(1)).flatten(1).mean(1),
        "edges": steps,
        "entropy": _entropy(edited),
    }
    if mask is not None:
        outside = 1 - mask
        out["change_outside"] = (difference * outside).flatten(1).sum(1) / outside.flatten(1).sum(1).clamp_min(1)
    return out


def _entropy(image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, " b"]:
    level = (image * COLOURS).long().clamp(0, COLOURS - 1)
    colour = ((level[:, 0] * COLOURS + level[:, 1]) * COLOURS + level[:, 2]).flatten(1)
    counts = torch.zeros(len(image), COLOURS**3, device=image.device)
    counts.scatter_add_(1, colour, torch.ones_like(colour, dtype=counts.dtype))
    share = counts / counts.sum(1, keepdim=True)
    return -(share * share.clamp_min(1e-12).log2()).sum(1)
