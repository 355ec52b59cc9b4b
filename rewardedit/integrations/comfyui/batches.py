"""Scores and heat maps of ComfyUI's images (b, h, w, 3) and masks (b, h, w), in [0, 1].

ComfyUI runs nodes in torch's inference mode, whose tensors no gradient can pass: it is left here, so that a
scorer that is loaded for a score can also draw a heat map.
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.config import parse_value
from rewardedit.images import resize
from rewardedit.integrations.edit_reward import EditReward, rewards_of
from rewardedit.reports.heatmap import draw_heat, heat_map

Images = Float[Tensor, "b h w 3"]
Masks = Float[Tensor, "b h w"]


@lru_cache(maxsize=4)
def reward(scorer: str) -> EditReward:
    """The reward of a scorer by its name, or by a mapping as in a recipe; it stays loaded between runs."""
    return EditReward(parse_value(scorer) if scorer.lstrip().startswith("{") else scorer)


def sources_of(source: Float[Tensor, "_ _ _ 3"] | None, count: int) -> Float[Tensor, "b 3 h w"]:
    """The source of each of `count` edits.

    Raises:
        ValueError: if there is neither one for all nor one for each.
    """
    if source is None or len(source) not in (1, count):
        got = "none" if source is None else str(len(source))
        raise ValueError(f"source: expected one image, or one for each of {count} edits; got {got}")
    return source.clone().movedim(-1, 1).expand(count, -1, -1, -1)


def score(
    source: Float[Tensor, "_ _ _ 3"] | None,
    edited: Images,
    instruction: str,
    scorer: str,
    mask: Float[Tensor, "_ _ _"] | None = None,
) -> list[float]:
    """The score of each edit.

    Raises:
        ValueError: if a source is missing, or an edit has no score.
    """
    count = len(edited)
    with torch.inference_mode(False):
        rows = None if mask is None else [{"mask": one[None]} for one in mask.clone().expand(count, -1, -1)]
        sources = list(sources_of(source, count))
        edits = list(edited.clone().movedim(-1, 1))
        return rewards_of(reward(scorer)(sources, edits, [instruction] * count, rows))


def heat(
    source: Float[Tensor, "_ _ _ 3"] | None, edited: Images, instruction: str, scorer: str
) -> Float[Tensor, "b _ _ 3"]:
    """The edits in gray, green where a change raised the score and red where it lowered it, in the sources'
    size.

    Raises:
        ValueError: if a source is missing, or the scorer has no gradient or needs a mask or captions.
    """
    with torch.inference_mode(False):
        sources = sources_of(source, len(edited))
        resized = resize(edited.clone().movedim(-1, 1), (sources.shape[2], sources.shape[3]))
        model = reward(scorer)
        batch = EditBatch(sources, [instruction] * len(edited), resized).to(model.device)
        return draw_heat(batch.edited, heat_map(model.scorer, batch)).movedim(1, -1).cpu()
