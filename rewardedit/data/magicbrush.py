"""MagicBrush (Zhang et al. 2023): columns img_id, turn_index, source_img, mask_img, instruction,
target_img.
"""

import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows


class MagicBrush(HubRows):
    """Rows of MagicBrush, "osunlp/MagicBrush" on the hub."""

    pictures = ("source_img", "mask_img", "target_img")
    columns = ("img_id", "turn_index", "instruction", *pictures)

    def source_ids(self) -> list[str]:
        """The original image of each row; the sources of a session's later turns derive from it too."""
        return list(map(str, self.rows["img_id"]))

    def row_id(self, row: dict[str, Any]) -> str:
        return f"{row['img_id']}-{row['turn_index']}"

    def sample(self, row: dict[str, Any]) -> EditSample:
        return EditSample(
            id=self.row_id(row),
            source=row["source_img"],
            instruction=row["instruction"],
            target=row["target_img"],
            mask=row["mask_img"],
        )


def warn_of_benchmarks(data: Iterable[Any]) -> None:
    """Warns if ImagenHub's images, which are from MagicBrush's dev split, would be trained on.

    Args:
        data: data sets and sequences that a recipe names, with name, path and split.
    """
    for config in data:
        named = re.search(r"(?<![a-z])(?:dev|val|test)(?![a-z])", Path(config.path).name)
        if config.name == "magicbrush" and (config.split != "train" or named is not None):
            warnings.warn(
                f"MagicBrush's split {config.split!r} of {config.path}: ImagenHub and GenAI-Bench use its "
                "images; a scorer that is trained on them cannot be evaluated there",
                stacklevel=2,
            )
