"""Edits in WebDataset's layout: .tar files in which the members of a row have one name and different endings.

A row KEY is KEY.source.png, KEY.target.png (the data set's own edit) or KEY.edited.png (an editor's), perhaps
KEY.mask.png, and KEY.json with "instruction" and, if there are any, "source_caption", "target_caption" and
"edit_type". Images may be of any format. File names contain the name of the split: train-00000.tar.
"""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows, content_id, data_files, images_folder
from rewardedit.data.tar_rows import FAULT, KEY, StreamedTarRows, TarRows
from rewardedit.untrusted import IMAGE_SUFFIXES, MAX_BODY_BYTES, read_json

PICTURES = ("source", "edited", "target", "mask")
TEXTS = ("source_caption", "target_caption", "edit_type")
ENDINGS = tuple(chain.from_iterable(IMAGE_SUFFIXES.values()))
FIRST_ROWS = 100  # at least one of them must be complete, or these are other files


class WebDatasetEdits(HubRows):
    """Rows of .tar files: a file, a folder of them, or a data set on the hub. Members of other names are not
    read; a row that is damaged or lacks something is refused when it is read.

    Raises:
        ValueError: if there are no such files, or none of the first rows has all that an edit needs.
    """

    pictures = PICTURES
    optional_pictures = ("edited", "target", "mask")
    texts = TEXTS

    def __init__(
        self, path: str, split: str = "train", streaming: bool = False, root: str | None = None
    ) -> None:
        self.folder = images_folder(path) if root is None else Path(root)
        files = tar_files(path, split, streaming)
        self.rows: Any = (
            StreamedTarRows(files, is_used, open_stream) if streaming else TarRows(files, is_used)
        )

        first: dict[str, Any] | None = None
        for row in islice(iter(self.rows), FIRST_ROWS):
            first = first or row
            if FAULT not in row and _file(row, "source") is not None and "json" in row:
                return

        if first is None:
            raise ValueError(f"{path}: holds no row of split {split}")
        if FAULT in first:
            raise ValueError(first[FAULT])

        wanting = [name for name in ("source", "json") if _file(first, name) is None]
        raise ValueError(
            f"{path}: expected KEY.json and KEY.source.png, or of another image format; row "
            f"{first[KEY]} lacks its {' and '.join(wanting)}"
        )

    def opened(self, row: dict[str, Any], number: int | str) -> dict[str, Any]:
        words = _words(row)
        files = {name: _file(row, name) for name in self.pictures}
        return super().opened({KEY: row[KEY], **files, **words}, number)

    def source_ids(self) -> list[str]:
        ids = []
        for number in range(len(self.rows)):
            row = self.rows.only(number, lambda name: name.startswith("source."))
            ids.append(content_id(_file(row, "source"), number, self.folder))
        return ids

    def instructions(self) -> list[str | None]:
        return list(map(self._instruction, range(len(self.rows))))

    def _instruction(self, number: int) -> str | None:
        try:
            text = _words(self.rows.only(number, lambda name: name == "json"))["instruction"]
        except ValueError:
            return None
        return text if isinstance(text, str) else None

    def id_of(self, index: int) -> str:
        return self.rows.rows[index][1][KEY]

    def row_id(self, row: dict[str, Any]) -> str:
        return row[KEY]

    def sample(self, row: dict[str, Any]) -> EditSample:
        parts = {name: row[name] for name in (*self.pictures, *TEXTS)}
        return EditSample(id=self.row_id(row), instruction=row["instruction"], **parts)


def is_used(endings: str) -> bool:
    """True for members that an edit is made of, by what follows the first dot of their names."""
    name, _, ending = endings.partition(".")
    return endings == "json" or (name in PICTURES and f".{ending.lower()}" in ENDINGS)


def _words(row: dict[str, Any]) -> dict[str, Any]:
    """The texts of a row's KEY.json.

    Raises:
        ValueError: if it has none that can be read.
    """
    if FAULT in row:
        raise ValueError(row[FAULT])
    if "json" not in row:
        raise ValueError("json: expected KEY.json with the instruction; the row has none")
    if len(row["json"]) > MAX_BODY_BYTES:
        raise ValueError(f"json: expected at most {MAX_BODY_BYTES // 2**20} MiB")
    try:
        words = read_json(row["json"])
    except ValueError as error:
        raise ValueError(f"json: not JSON that can be read ({error})") from error
    if not isinstance(words, dict):
        raise ValueError("json: expected an object with the instruction; got another value")
    return {name: words.get(name) for name in ("instruction", *TEXTS)}


def _file(row: dict[str, Any], name: str) -> Any:
    """A member of a row, of any format, as 🤗 datasets stores image files; None if it has none."""
    content = row.get(name) or next((row[member] for member in row if member.startswith(f"{name}.")), None)
    return None if content is None else {"bytes": content, "path": None}


def tar_files(path: str, split: str, streaming: bool) -> Sequence[str]:
    """The .tar files of a split: local, or those of a hub data set, which are downloaded unless streamed.

    Raises:
        ValueError: if there are none.
    """
    local = Path(path)
    if local.exists():
        return data_files(local, "webdataset", split)

    import datasets

    try:
        names_by_split = datasets.load_dataset_builder(path).config.data_files or {}
        files = [str(name) for name in names_by_split.get(split, []) if str(name).endswith(".tar")]
        if files and not streaming:
            files = datasets.DownloadManager().download(files)
    except (OSError, datasets.exceptions.DatasetsError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"data {path!r}: not a local file or folder, and not a reachable data set of the hub ({why})"
        ) from error

    if not files:
        raise ValueError(f"{path}: expected .tar files of split {split}; it has none")
    return files


def open_stream(name: str) -> Any:
    """Opens a file, here or on the hub, that is read on demand."""
    from datasets.download.streaming_download_manager import xopen

    return xopen(name, "rb")
