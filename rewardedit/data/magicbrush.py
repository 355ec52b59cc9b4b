"""MagicBrush (Zhang et al. 2023): columns img_id, turn_index, source_img, mask_img, instruction,
target_img.
"""

from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows


class MagicBrush(HubRows):
    """Rows of MagicBrush, "osunlp/MagicBrush" on the hub."""

    pictures = ("source_img", "mask_img", "target_img")
    columns = ("img_id", "turn_index", "instruction", *pictures)

    def source_ids(self) -> list[str]:
        """The image of each row: what later turns of a session start from comes from it too."""
        return [str(image) for image in self.rows["img_id"]]

    def sample(self, row: dict[str, Any]) -> EditSample:
        return EditSample(
            id=f"{row['img_id']}-{row['turn_index']}",
            source=row["source_img"],
            instruction=row["instruction"],
            target=row["target_img"],
            mask=row["mask_img"],
        )
