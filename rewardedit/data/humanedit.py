"""HumanEdit (Bai et al. 2024): 5,751 edits by people,
with the type of each and captions by a language model.
"""

from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows


class HumanEdit(HubRows):
    """Rows of HumanEdit, "BryanW/HumanEdit" on the hub."""

    type_column = "EDITING_TYPE"
    instruction_column = "EDITING_INSTRUCTION"
    pictures = ("INPUT_IMG", "MASK_IMG", "OUTPUT_IMG")
    texts = ("EDITING_TYPE", "INPUT_CAPTION_BY_LLAMA", "OUTPUT_CAPTION_BY_LLAMA")
    columns = (
        *(
            "IMAGE_ID",
            "EDITING_TYPE",
            "EDITING_INSTRUCTION",
            "INPUT_CAPTION_BY_LLAMA",
            "OUTPUT_CAPTION_BY_LLAMA",
        ),
        *pictures,
    )

    def row_id(self, row: dict[str, Any]) -> str:
        return str(row["IMAGE_ID"])

    def sample(self, row: dict[str, Any]) -> EditSample:
        return EditSample(
            id=self.row_id(row),
            source=row["INPUT_IMG"],
            instruction=row["EDITING_INSTRUCTION"],
            target=row["OUTPUT_IMG"],
            mask=row["MASK_IMG"],
            source_caption=row["INPUT_CAPTION_BY_LLAMA"],
            target_caption=row["OUTPUT_CAPTION_BY_LLAMA"],
            edit_type=row["EDITING_TYPE"],
        )
