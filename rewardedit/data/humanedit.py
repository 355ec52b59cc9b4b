"""HumanEdit (Bai et al. 2024): 5,751 edits by people, with the type of each and captions by a language model."""

from collections.abc import Sequence
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import load_rows

PICTURES = ("INPUT_IMG", "MASK_IMG", "OUTPUT_IMG")
CAPTIONS = ("INPUT_CAPTION_BY_LLAMA", "OUTPUT_CAPTION_BY_LLAMA")
COLUMNS = ("IMAGE_ID", "EDITING_TYPE", "EDITING_INSTRUCTION", *CAPTIONS, *PICTURES)


class HumanEdit(Sequence):
    """Rows of HumanEdit from the hub ("BryanW/HumanEdit"), local parquet files, or an image folder (see `load_rows`).

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
            id=str(row["IMAGE_ID"]),
            source=row["INPUT_IMG"],
            instruction=row["EDITING_INSTRUCTION"],
            target=row["OUTPUT_IMG"],
            mask=row["MASK_IMG"],
            source_caption=row["INPUT_CAPTION_BY_LLAMA"],
            target_caption=row["OUTPUT_CAPTION_BY_LLAMA"],
            kind=row["EDITING_TYPE"],
        )
