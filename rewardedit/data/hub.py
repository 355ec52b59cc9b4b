"""Rows of a data set on the hub, in local parquet files, or in an image folder:
what MagicBrush and HumanEdit share.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from rewardedit.batch import EditSample


class HubRows(Sequence):
    """Rows from the hub, local parquet files, or an image folder (see `load_rows`);
    a data set says what its columns mean.

    Raises:
        ValueError: where nothing can be read, or a column is missing.
    """

    columns: tuple[str, ...]
    pictures: tuple[str, ...]  # of the columns
    type_column: str | None = None  # where a row's type of edit stands

    def __init__(self, path: str, split: str = "train") -> None:
        self.rows = load_rows(path, split, self.columns, self.pictures)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = self.rows[index]
        return self.sample({**row, **{name: stored_image(row[name]) for name in self.pictures}})

    def source_ids(self) -> list[str]:
        """The source image of each row, by the content of its file; images are not decoded."""
        column = self.pictures[0]
        files = self.rows.select_columns([column])
        contents = (row[column]["bytes"] or Path(row[column]["path"]).read_bytes() for row in files)
        return [hashlib.sha256(content).hexdigest() for content in contents]

    def other_source_ids(self) -> list[str | None]:
        """A second source image of each row, where it shows one."""
        return [None] * len(self)

    def sample(self, row: dict[str, Any]) -> EditSample:
        raise NotImplementedError


def load_rows(path: str, split: str, columns: tuple[str, ...], images: tuple[str, ...]) -> Any:
    """The rows as a 🤗 `Dataset` that has at least `columns`;
    those in `images` come as files that are not decoded.

    An image folder holds `metadata.jsonl` (or .csv) beside its images, with the columns; the image columns
    are file names, written as `source_img_file_name` and so on, as 🤗 datasets' ImageFolder reads them,
    or plain.

    Raises:
        ValueError: where nothing can be read, or a column is missing.
    """
    import datasets

    local = Path(path)
    try:
        if local.is_file() or (local.is_dir() and any(local.rglob("*.parquet"))):
            files = (
                [str(local)] if local.is_file() else sorted(str(f) for f in local.rglob(f"*{split}*.parquet"))
            )
            if not files:
                raise ValueError(
                    f"{path}: no parquet file of split {split!r}; expected a name such as "
                    f"{split}-00000.parquet"
                )
            rows = datasets.load_dataset("parquet", data_files={split: files}, split=split)
        elif local.is_dir():
            rows = _image_folder(local, columns, images)
        else:
            rows = datasets.load_dataset(path, split=split)
    except (OSError, datasets.exceptions.DatasetsError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"data {path!r}: neither a local file or folder nor a hub data set in reach ({why})"
        ) from error
    missing = set(columns) - set(rows.column_names)
    if missing:
        raise ValueError(
            f"{path}: lacks the columns {', '.join(sorted(missing))}; it has {', '.join(rows.column_names)}"
        )
    for column in images:
        rows = rows.cast_column(column, datasets.Image(decode=False))
    return rows


def stored_image(file: dict[str, Any]) -> Image.Image:
    """An image file of a 🤗 `Dataset`, opened; its pixels are decoded when they are needed.

    Raises:
        ValueError: where it is no image.
    """
    try:
        return Image.open(io.BytesIO(file["bytes"]) if file["bytes"] is not None else file["path"])
    except OSError as error:
        raise ValueError(f"{file['path'] or 'an image'}: not an image that can be read ({error})") from error


def _image_folder(folder: Path, columns: tuple[str, ...], images: tuple[str, ...]) -> Any:
    import datasets

    from rewardedit.data.table import read_records

    found = [f for f in (folder / "metadata.jsonl", folder / "metadata.csv") if f.is_file()]
    if not found:
        raise ValueError(
            f"{folder}: an image folder needs metadata.jsonl or metadata.csv with {', '.join(columns)}"
        )
    records = read_records(found[0])
    missing = set(columns) - set(records[0])
    if missing:
        raise ValueError(f"{found[0]}: lacks {', '.join(sorted(missing))}; it has {', '.join(records[0])}")
    return datasets.Dataset.from_list(
        [{k: str(folder / r[k]) if k in images else r[k] for k in columns} for r in records]
    )
