"""MagicBrush (Zhang et al. 2023): columns img_id, turn_index, source_img, mask_img, instruction, target_img."""

from collections.abc import Sequence
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import load_rows

PICTURES = ("source_img", "mask_img", "target_img")
COLUMNS = ("img_id", "turn_index", "instruction", *PICTURES)


class MagicBrush(Sequence):
    """Rows of MagicBrush from the hub ("osunlp/MagicBrush"), local parquet files, or an image folder (see `load_rows`).

    Raises:
        ValueError: where nothing can be read, or a column is missing.
    """

    def __init__(self, path: str, split: str = "train") -> None:
        self.rows = load_rows(path, split, COLUMNS, PICTURES)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        row: dict[str, Any] = self.rows[index]
        return EditSample(
            id=f"{row['img_id']}-{row['turn_index']}",
            source=row["source_img"],
            instruction=row["instruction"],
            target=row["target_img"],
            mask=row["mask_img"],
        )
