"""UltraEdit (Zhao et al. 2024): 4 million edits of real images, made by SDXL-Turbo with Prompt-to-Prompt.

Columns, as the data set cards list them: source_image, edited_image, mask_image, edit_prompt, source_caption,
target_caption, idx, edit_object, and six similarities. Three data sets have them, each with splits of its
own, and none with a split called train:

- "BleachNick/UltraEdit_500k": FreeForm, without masks;
- "BleachNick/UltraEdit_Region_Based_100k": RegionBase, with masks, white where the edit may be (the authors'
  code gives a white image where all of it may change);
- "BleachNick/UltraEdit": FreeForm_0, FreeForm_1 and so on, 2,000 rows each; mask_image is a column of nulls.
"""

from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows


class UltraEdit(HubRows):
    """Rows of one of the three data sets, with a mask if a row has one.

    Raises:
        ValueError: as `HubRows`, or if the split is one that none of them has.
    """

    instruction_column = "edit_prompt"
    pictures = ("source_image", "edited_image", "mask_image")
    optional_pictures = ("mask_image",)
    texts = ("source_caption", "target_caption")
    columns = ("idx", "edit_prompt", "source_caption", "target_caption", *pictures)

    def __init__(
        self, path: str, split: str = "FreeForm", streaming: bool = False, root: str | None = None
    ) -> None:
        if split in ("train", "val", "test") and not Path(path).exists():
            raise ValueError(
                f"split: UltraEdit has none called {split!r}; expected FreeForm (UltraEdit_500k), RegionBase "
                "(UltraEdit_Region_Based_100k) or FreeForm_0, FreeForm_1 and so on (UltraEdit)"
            )
        super().__init__(path, split, streaming, root)

    def row_id(self, row: dict[str, Any]) -> str:
        return str(row["idx"])

    def sample(self, row: dict[str, Any]) -> EditSample:
        return EditSample(
            id=self.row_id(row),
            source=row["source_image"],
            instruction=row["edit_prompt"],
            target=row["edited_image"],
            mask=row["mask_image"],
            source_caption=row["source_caption"],
            target_caption=row["target_caption"],
        )
