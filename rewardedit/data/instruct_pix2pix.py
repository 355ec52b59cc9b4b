"""InstructPix2Pix's CLIP-filtered training data (Brooks et al. 2023): 313,010 edits that Prompt-to-Prompt
generated, with captions of both images.

Columns, as the data set card has them: original_prompt, original_image, edit_prompt, edited_prompt,
edited_image. The instruction is edit_prompt; the other prompts are captions. The only split is train, and
rows have no id. The card states no licence.
"""

from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows


class InstructPix2Pix(HubRows):
    """Rows of "timbrooks/instructpix2pix-clip-filtered" on the hub."""

    instruction_column = "edit_prompt"
    pictures = ("original_image", "edited_image")
    texts = ("original_prompt", "edited_prompt")
    columns = ("original_prompt", "edit_prompt", "edited_prompt", *pictures)

    def source_ids(self) -> list[str]:
        """The caption that each source image was generated from: edits of one pair of captions show the same
        scene, and none of the 63 GB of images has to be read.
        """
        return list(map(str, self.rows["original_prompt"]))

    def sample(self, row: dict[str, Any]) -> EditSample:
        return EditSample(
            id=self.row_id(row),
            source=row["original_image"],
            instruction=row["edit_prompt"],
            target=row["edited_image"],
            source_caption=row["original_prompt"],
            target_caption=row["edited_prompt"],
        )
