"""MagicBrush (Zhang et al. 2023): columns img_id, turn_index, source_img, mask_img, instruction, target_img."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample

COLUMNS = ("img_id", "turn_index", "source_img", "mask_img", "instruction", "target_img")


class MagicBrush(Sequence):
    """Rows of MagicBrush from the hub ("osunlp/MagicBrush"), local parquet files, or an image folder.

    An image folder holds `metadata.jsonl` (or .csv) beside its pictures, with the columns above; the three picture columns
    are file names, written as `source_img_file_name` and so on, as 🤗 datasets' ImageFolder reads them, or plain.

    Raises:
        ValueError: where nothing can be read, or a column is missing.
    """

    def __init__(self, path: str, split: str = "train") -> None:
        self.rows = _load(path, split)
        missing = set(COLUMNS) - set(self.rows.column_names)
        if missing:
            raise ValueError(f"{path}: no MagicBrush, it lacks {', '.join(sorted(missing))}; it has {self.rows.column_names}")

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


def _load(path: str, split: str) -> Any:
    import datasets

    local = Path(path)
    try:
        if local.is_file() or (local.is_dir() and any(local.rglob("*.parquet"))):
            files = [str(local)] if local.is_file() else sorted(str(f) for f in local.rglob(f"*{split}*.parquet"))
            if not files:
                raise ValueError(f"{path}: no parquet file of split {split!r}; expected a name such as {split}-00000.parquet")
            return datasets.load_dataset("parquet", data_files={split: files}, split=split)
        if local.is_dir():
            return _image_folder(local)
        return datasets.load_dataset(path, split=split)
    except (OSError, datasets.exceptions.DatasetsError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"data {path!r}: neither a local file or folder nor a hub data set in reach ({why})") from error


def _image_folder(folder: Path) -> Any:
    import datasets

    from rewardedit.data.table import read_records

    found = [f for f in (folder / "metadata.jsonl", folder / "metadata.csv") if f.is_file()]
    if not found:
        raise ValueError(f"{folder}: an image folder needs metadata.jsonl or metadata.csv with {', '.join(COLUMNS)}")
    records = [{key.removesuffix("_file_name"): value for key, value in r.items()} for r in read_records(found[0])]
    missing = set(COLUMNS) - set(records[0])
    if missing:
        raise ValueError(f"{found[0]}: lacks {', '.join(sorted(missing))}; it has {', '.join(records[0])}")
    rows = datasets.Dataset.from_list(
        [{k: str(folder / r[k]) if k.endswith("_img") else r[k] for k in COLUMNS} for r in records]
    )
    for column in ("source_img", "mask_img", "target_img"):
        rows = rows.cast_column(column, datasets.Image())
    return rows
