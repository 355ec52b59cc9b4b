"""Edits in WebDataset's layout: .tar files in which what belongs to a row has one name and several endings.

A row KEY is KEY.source.png, KEY.target.png (the data set's own edit) or KEY.edited.png (an editor's), perhaps
KEY.mask.png, and KEY.json with "instruction" and, where there are any, "source_caption", "target_caption" and
"edit_type". Images may be of any format. A split's name stands in the names of its files: train-00000.tar.
"""

from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows, content_id, images_folder, load_rows

PICTURES = ("source", "edited", "target", "mask")
TEXTS = ("source_caption", "target_caption", "edit_type")


class WebDatasetEdits(HubRows):
    """Rows of .tar files: a file, a folder of them, or a data set on the hub.

    Raises:
        ValueError: as `HubRows`.
    """

    pictures = PICTURES
    optional_pictures = ("edited", "target", "mask")
    texts = TEXTS

    def __init__(
        self, path: str, split: str = "train", streaming: bool = False, root: str | None = None
    ) -> None:
        self.folder = images_folder(path) if root is None else Path(root)
        self.rows = load_rows(path, split, ("json",), (), streaming=streaming, features=_features())
        first = next(iter(self.rows), None)
        if first is None:
            raise ValueError(f"{path}: holds no row of split {split!r}")
        wanting = [name for name in ("source", "json") if _file(first, name) is None]
        if wanting:
            raise ValueError(
                f"{path}: expected KEY.json and KEY.source.png, or of another image format; row "
                f"{first['__key__']} lacks its {' and '.join(wanting)}"
            )

    def opened(self, row: dict[str, Any], number: int | str) -> dict[str, Any]:
        said = row["json"] if isinstance(row["json"], dict) else {}
        words = {name: said.get(name) for name in ("instruction", *TEXTS)}
        files = {name: _file(row, name) for name in self.pictures}
        return super().opened({"__key__": row["__key__"], **files, **words}, number)

    def source_ids(self) -> list[str]:
        columns = [name for name in self.rows.column_names if name.startswith("source.")]
        files = self.rows.select_columns(columns)
        return [content_id(_file(row, "source"), number, self.folder) for number, row in enumerate(files)]

    def row_id(self, row: dict[str, Any]) -> str:
        return row["__key__"]

    def sample(self, row: dict[str, Any]) -> EditSample:
        parts = {name: row[name] for name in (*self.pictures, *TEXTS)}
        return EditSample(id=self.row_id(row), instruction=row["instruction"], **parts)


def _formats() -> list[str]:
    """The endings of names of images, in small and in large letters."""
    from datasets.packaged_modules.webdataset.webdataset import WebDataset

    return [*WebDataset.IMAGE_EXTENSIONS, *(end.upper() for end in WebDataset.IMAGE_EXTENSIONS)]


def _features() -> Any:
    """The columns that there may be, said beforehand: else those of the first five rows are taken for all."""
    import datasets

    files = {f"{name}.{end}": datasets.Image(decode=False) for name in PICTURES for end in _formats()}
    return datasets.Features({"__key__": datasets.Value("string"), **files, "json": datasets.Json()})


def _file(row: dict[str, Any], name: str) -> Any:
    """A member of a row, of whichever format; None where it has none."""
    if row.get(name) is not None:
        return row[name]
    return next((row[f"{name}.{end}"] for end in _formats() if row.get(f"{name}.{end}") is not None), None)
