"""Reward function of verl-omni (verl 0.9): `path: pkg://rewardedit.integrations.verl, name: compute_score`.

The trainer passes no source image on; it is read again by the name in the row, and letterboxed as the rows
were made: scaled to fit a square, centred on white.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps
from torch import Tensor

from rewardedit.images import load_pil
from rewardedit.integrations.edit_reward import EditReward, rewards_of
from rewardedit.scoring import TEXT_CUT
from rewardedit.untrusted import file_inside, read_json

LEFT_OUT = ("score", TEXT_CUT, "confidence")  # the reward's own name, and parts that some rows lack


def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: str,
    extra_info: Mapping[str, Any],
    root: str,
    scorer: str | Mapping[str, Any] = "vlm_judge",
    image_size: int = 512,
    **_: Any,
) -> dict[str, float]:
    """Scores one edit: {"score": …} and, of the package's scorers and their sums, the parts that every row
    has, which are logged: verl takes the names of all rows from the first one.

    Args:
        solution_image: the edit, (3, side, side), bytes or in [0, 1].
        ground_truth: the instruction.
        extra_info: the row's; `image` is the source's name.
        root: folder of the sources.
        image_size: pixels a side to which the rows' sources were letterboxed.

    Raises:
        ValueError: if the row names no source, the edit is not square, or it has no score.
    """
    name = (extra_info or {}).get("image")
    if not name:
        raise ValueError(
            "extra_info: expected image, the name of the source; got none; have the rows hold it"
        )
    if solution_image.ndim != 3 or solution_image.shape[1] != solution_image.shape[2]:
        raise ValueError(f"solution_image: expected (3, side, side); got {tuple(solution_image.shape)}")
    source = letterbox(load_pil(file_inside(Path(root), str(name))), image_size)
    reward = _reward(json.dumps(scorer, default=dict))
    scores = reward([source], [solution_image], [ground_truth], [extra_info])
    (score,) = rewards_of(scores)
    parts = scores.parts if type(reward.scorer).__module__.startswith("rewardedit.") else {}
    return {"score": score} | {name: float(parts[name][0]) for name in parts if name not in LEFT_OUT}


def letterbox(image: Image.Image, side: int) -> Image.Image:
    """The image as it lies in its file, scaled to fit a white square of `side` pixels, in its centre."""
    scaled = ImageOps.contain(image.convert("RGB"), (side, side), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (side, side), "white")
    canvas.paste(scaled, ((side - scaled.width) // 2, (side - scaled.height) // 2))
    return canvas


@lru_cache(maxsize=8)
def _reward(spec: str) -> EditReward:
    """The reward of a scorer, loaded once in a process."""
    return EditReward(read_json(spec))
