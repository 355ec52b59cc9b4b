"""Edits in WebDataset's layout: .tar files in which what belongs to a row has one name and several endings.

A row KEY is KEY.source.png, KEY.target.png (the data set's own edit) or KEY.edited.png (an editor's), perhaps
KEY.mask.png, and KEY.json with "instruction" and, where there are any, "source_caption", "target_caption" and
"edit_type". Images may be of any format. A split's name stands in the names of its files: train-00000.tar.
"""

from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows, load_rows, stored

TEXTS = ("source_caption", "target_caption", "edit_type")


class WebDatasetEdits(HubRows):
    """Rows of .tar files: a file, a folder of them, or a data set on the hub.

    Raises:
        ValueError: as `HubRows`.
    """

    pictures = ("source", "edited", "target", "mask")
    optional_pictures = ("edited", "target", "mask")
    texts = TEXTS

    def __init__(self, path: str, split: str = "train", streaming: bool = False) -> None:
        rows = load_rows(path, split, ("json",), (), streaming=streaming)
        names = rows.column_names or list(next(iter(rows)))
        endings = {name: name.split(".")[0] for name in names if name.split(".")[0] in self.pictures}
        if "source" not in endings.values():
            found = ", ".join(f"KEY.{name}" for name in names if not name.startswith("__"))
            raise ValueError(f"{path}: lacks KEY.source.png, or another image format; it has {found}")
        if len(set(endings.values())) < len(endings):
            raise ValueError(f"{path}: expected one format an image; got {', '.join(sorted(endings))}")
        rows = stored(rows, path, list(endings))  # first, or renaming would decode what is streamed
        for name, picture in endings.items():
            rows = rows.rename_column(name, picture)
        self.rows = rows

    def opened(self, row: dict[str, Any], number: int | str) -> dict[str, Any]:
        said = row["json"] if isinstance(row["json"], dict) else {}
        words = {name: said.get(name) for name in ("instruction", *TEXTS)}
        return super().opened({**row, **words}, number)

    def sample(self, row: dict[str, Any]) -> EditSample:
        parts = {name: row[name] for name in (*self.pictures, *TEXTS)}
        return EditSample(id=row["__key__"], instruction=row["instruction"], **parts)
