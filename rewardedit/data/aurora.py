"""AURORA (Krojer et al. 2024): edits of actions and of reasoning, from videos and simulation.

Columns, as the data set card has them: input, output, instruction, source, which names a row's part of the
data set; the only split is train, with 169,180 rows without ids. The hub's copy lacks the part
Something-Something-Edit, which the authors may not publish. The JSON files of their repository are not read
here: they call the instruction "instruction" in training data and "prompt" in validation data (their issue
7). How the column source spells its parts was not verified; its values are taken as they are.
"""

from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows


class Aurora(HubRows):
    """Rows of "McGill-NLP/AURORA" on the hub; their type of edit is their part of the data set."""

    type_column = "source"
    pictures = ("input", "output")
    texts = ("source",)
    columns = ("instruction", "source", *pictures)

    def sample(self, row: dict[str, Any]) -> EditSample:
        return EditSample(
            id=self.row_id(row),
            source=row["input"],
            instruction=row["instruction"],
            target=row["output"],
            edit_type=row["source"],
        )
