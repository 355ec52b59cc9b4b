"""Emu Edit's test set (Sheynin et al. 2024): columns idx, image, task, instruction, input_caption,
output_caption. It has no targets: it poses edits without correct results.
"""

from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows


class EmuEdit(HubRows):
    """Rows of Emu Edit's test set, "facebook/emu_edit_test_set" on the hub."""

    type_column = "task"
    pictures = ("image",)
    texts = ("task", "input_caption", "output_caption")
    columns = ("idx", "task", "instruction", "input_caption", "output_caption", *pictures)

    def row_id(self, row: dict[str, Any]) -> str:
        return str(row["idx"])

    def sample(self, row: dict[str, Any]) -> EditSample:
        return EditSample(
            id=self.row_id(row),
            source=row["image"],
            instruction=row["instruction"],
            source_caption=row["input_caption"],
            target_caption=row["output_caption"],
            edit_type=row["task"],
        )
