"""Emu Edit's own results on its test set (Sheynin et al. 2024): edits to be judged, not known to be right.

Columns, as the data set card has them: instruction, image, task, split, idx, hash, input_caption,
output_caption, edited_image, model. Two traps. The splits have each other's sizes in the two data sets:
validation has 3,589 rows here and 2,022 in "facebook/emu_edit_test_set", test the reverse; so join the two by
idx and hash, never by split. In some rows both captions are the same, and CLIP-D is undefined there.
"""

from dataclasses import replace
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.emu_edit import EmuEdit


class EmuEditGenerations(EmuEdit):
    """Rows of "facebook/emu_edit_test_set_generations" on the hub; splits validation and test."""

    pictures = ("image", "edited_image")
    columns = ("idx", "task", "instruction", "input_caption", "output_caption", *pictures)

    def sample(self, row: dict[str, Any]) -> EditSample:
        return replace(super().sample(row), edited=row["edited_image"])
