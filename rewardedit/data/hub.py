"""Rows of a data set on the hub, in local Parquet or Arrow files, or in an image folder:
the common part of such data sets' adapters.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from rewardedit.batch import EditPair, EditSample
from rewardedit.models import refusal
from rewardedit.untrusted import CONTENT_ERRORS, file_inside, is_system_error, open_image

ROW_NUMBER = "row_number"  # key next to a row's columns: its index in the data set, for rows without ids

ENDINGS = {"parquet": "parquet", "arrow": "arrow", "webdataset": "tar"}  # of a table's files, by their kind


class HubTable(Sequence):
    """A table from the hub, local files, or an image folder (see `load_rows`);
    subclasses define what its columns mean.

    Raises:
        ValueError: if nothing can be read, or a column is missing.
    """

    config: str | None = None  # name of the hub's table among several of one data set
    columns: tuple[str, ...]
    pictures: tuple[str, ...]  # columns of images, or of lists of images
    optional_pictures: tuple[str, ...] = ()  # pictures that a row, or the whole table, may lack
    texts: tuple[str, ...] = ()  # columns of texts that a row may lack, such as captions
    instruction_column: str = "instruction"

    def __init__(
        self, path: str, split: str = "train", streaming: bool = False, root: str | None = None
    ) -> None:
        """
        Args:
            streaming: rows can only be iterated over, and are fetched as they come.
            root: the folder of image files that rows name; None: the data set's own (see `images_folder`).
        """
        self.folder = images_folder(path) if root is None else Path(root)
        self.rows = load_rows(
            path, split, self.columns, self.pictures, self.optional_pictures, streaming, self.config
        )

    def __len__(self) -> int:
        return len(self.rows)

    def source_ids(self) -> list[str]:
        """The source image of each row, by the content of its file; images are not decoded."""
        column = self.pictures[0]
        files = self.rows.select_columns([column])
        return [content_id(row[column], number, self.folder) for number, row in enumerate(files)]

    def at(self, index: int) -> dict[str, Any]:
        """One row as `opened` gives it."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.opened(self.rows[index], index)

    def opened(self, row: dict[str, Any], number: int | str) -> dict[str, Any]:
        """The row's columns, its images opened, and `ROW_NUMBER`.

        Raises:
            ValueError: if the row lacks an instruction or an image, or if a text is not text or an image not
                an image.
        """
        instruction = row[self.instruction_column]
        if not isinstance(instruction, str) or not instruction.strip():
            raise ValueError(f"{self.instruction_column}: the instruction is missing or empty")
        for name in self.texts:
            if not isinstance(row.get(name), str | None):
                raise ValueError(f"{name}: expected text; got {row[name]!r}")
        images = {name: _opened_images(name, row.get(name), self.folder) for name in self.pictures}
        for name, image in images.items():
            if image is None and name not in self.optional_pictures:
                raise ValueError(f"{name}: the image is missing")
        return {**row, **images, ROW_NUMBER: number}


class HubRows(HubTable):
    """Edits as the rows of a table."""

    type_column: str | None = None  # column with a row's type of edit

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        return self.sample(self.at(index))

    def stream(self, first: int, types: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows of a streamed table in order, unopened, from number `first` among those of these types of edit
        on: each row's number in the whole table, and its columns.
        """
        if not types:
            yield from enumerate(read_on(self.rows.skip(first)), first)
            return
        passed = 0
        for number, row in enumerate(read_on(self.rows)):
            if row[self.type_column] in types:
                passed += 1
                if passed > first:
                    yield number, row

    def edit_types(self) -> list[str] | None:
        """The type of edit of each row; None if the data set names none."""
        return None if self.type_column is None else list(map(str, self.rows[self.type_column]))

    def instructions(self) -> list[str | None]:
        """The instruction of each row; None for one that has none. No image is opened."""
        texts = self.rows[self.instruction_column]
        return [text if isinstance(text, str) else None for text in texts]

    def other_source_ids(self) -> list[str | None]:
        """The second source image of each row, if it shows one."""
        return [None] * len(self)

    def id_of(self, index: int) -> str:
        """A row's id, also if the row cannot be read."""
        return self.row_id({**self.rows[index], ROW_NUMBER: index})

    def row_id(self, row: dict[str, Any]) -> str:
        """The id of a row, by its columns and `ROW_NUMBER`; its images need not be opened."""
        return str(row[ROW_NUMBER])

    def sample(self, row: dict[str, Any]) -> EditSample:
        """A row as `opened` gives it, as an edit."""
        raise NotImplementedError


def read_on(rows: Any) -> Iterator[dict[str, Any]]:
    """The rows of a streamed table.

    Raises:
        ValueError: if a file turns out to be damaged while it is read.
    """
    import pyarrow as pa

    try:
        yield from rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own have none
            raise
        raise ValueError(f"a file of the streamed table cannot be read to its end ({error})") from error


class HubPairs(HubTable):
    """Pairs of edits as the rows of a table."""

    def __getitem__(self, index: int) -> EditPair:  # type: ignore[override]
        return self.pair(self.at(index))

    def ties(self) -> list[int]:
        """Numbers of the pairs of which neither edit is preferred."""
        return []

    def pair(self, row: dict[str, Any]) -> EditPair:
        """A row as `opened` gives it, as a pair."""
        raise NotImplementedError


def make_pair(
    name: str,
    source: Image.Image,
    instruction: str,
    edits: Sequence[Image.Image],
    preferred: Literal["left", "right", "tie"],
    aspect: str | None = None,
    edit_type: str | None = None,
) -> EditPair:
    """The pair of two edited images, left and right."""
    first, second = edits
    left = EditSample(f"{name}-left", source, instruction, edited=first, edit_type=edit_type)
    right = EditSample(f"{name}-right", source, instruction, edited=second, edit_type=edit_type)
    return EditPair(name, left, right, preferred, aspect)


def load_rows(
    path: str,
    split: str,
    columns: tuple[str, ...],
    images: tuple[str, ...],
    optional: tuple[str, ...] = (),
    streaming: bool = False,
    config: str | None = None,
) -> Any:
    """Loads the rows as a 🤗 `Dataset` with at least `columns`, except the `optional` ones;
    those in `images` come as undecoded files.

    Local files are Parquet or WebDataset's .tar, with the split's name in theirs, or Arrow, as `save_to_disk`
    writes them: of one split, or of several in folders of their names. An image folder holds `metadata.jsonl`
    (or .csv) next to its images, with the columns; the image columns contain file names and are called
    `source_img_file_name` and so on, as 🤗 datasets' ImageFolder reads them, or by their plain names.

    Args:
        streaming: return an `IterableDataset`; nothing is copied into the cache, and nothing is downloaded
            from the hub before it is read.
        config: name of the hub's table, for a data set of several.

    Raises:
        ValueError: if nothing can be read, or a column is missing.
    """
    import datasets
    import pyarrow as pa

    local = Path(path)
    kind = _kind(local)
    try:
        if kind == "images":
            rows = _image_folder(local, columns, optional)
            rows = rows.to_iterable_dataset() if streaming else rows
        elif kind == "hub":
            rows = datasets.load_dataset(path, config, split=split, streaming=streaming)
        else:
            files = {split: data_files(local, kind, split)}
            rows = datasets.load_dataset(kind, data_files=files, split=split, streaming=streaming)
    except (OSError, datasets.exceptions.DatasetsError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        other = f"{path!r}: not a local file or folder, and not a reachable data set of the hub ({why})"
        raise ValueError(f"data {refusal(path, error) or other}") from error
    except ValueError:  # has its own message
        raise
    except (*CONTENT_ERRORS, pa.ArrowException) as error:
        raise ValueError(f"{path}: not a data set that can be read ({error})") from error

    rows = _undecoded_columns(rows, images)
    names = rows.column_names or list(next(iter(rows)))
    missing = set(columns) - set(names) - set(optional)
    if missing:
        raise ValueError(f"{path}: lacks the columns {', '.join(sorted(missing))}; it has {', '.join(names)}")
    return stored(rows, path, [column for column in images if column in names])


def stored(rows: Any, path: str, images: Sequence[str]) -> Any:
    """The rows with the image files in these columns as they are stored, undecoded.

    Raises:
        ValueError: if a column holds no images.
    """
    import pyarrow as pa

    for column in images:
        try:
            rows = rows.cast_column(column, _undecoded((rows.features or {}).get(column)))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(f"{path}: column {column} holds no images ({error})") from error
    return rows


def _undecoded_columns(rows: Any, images: Sequence[str]) -> Any:
    """The rows without columns that 🤗 datasets would decode by itself (images of any format, sound or
    video), except those in `images`, which are not decoded either.
    """
    import datasets
    from datasets.features.features import require_decoding

    if isinstance(rows, datasets.IterableDataset) and rows.features:
        rows = rows.decode(False)  # removing a column would decode it first
    features = rows.features or {}
    decoded = [name for name, feature in features.items() if require_decoding(feature) and name not in images]
    return rows.remove_columns(decoded) if decoded else rows


def _kind(local: Path) -> str:
    """Kind of a path: "parquet", "arrow" or "webdataset" (.tar) files, a folder of "images", or else a name
    on the "hub".
    """
    if local.is_file():
        return {".arrow": "arrow", ".tar": "webdataset"}.get(local.suffix, "parquet")
    if not local.is_dir():
        return "hub"
    for kind, ending in ENDINGS.items():
        if any(local.rglob(f"*.{ending}")):
            return kind
    return "images"


def data_files(local: Path, kind: str, split: str) -> list[str]:
    """The files of a split, sorted by name: FreeForm_1's are not FreeForm_10's.

    Raises:
        ValueError: if a folder has no file of this split.
    """
    if local.is_file():
        return [str(local)]
    if kind == "arrow" and (local / "dataset_dict.json").is_file():  # `save_to_disk` of several splits
        local = local / split
        if not local.is_dir():
            others = sorted(path.name for path in local.parent.iterdir() if path.is_dir())
            raise ValueError(f"{local.parent}: no split {split!r}; it has {', '.join(others)}")

    files = sorted(filter(Path.is_file, local.rglob(f"*.{ENDINGS[kind]}")))
    if kind == "arrow":
        return [str(file) for file in files if not file.name.startswith("cache-")]  # of `map` and `filter`

    matching = [str(file) for file in files if re.search(re.escape(split) + r"(?!\d)", file.name)]
    if not matching:
        raise ValueError(
            f"{local}: no {kind} file of split {split!r}; expected a name such as "
            f"{split}-00000.{ENDINGS[kind]}"
        )
    return matching


def _undecoded(feature: Any) -> Any:
    """The feature of a column of images, or of lists of images, whose files are not decoded."""
    import datasets

    image = datasets.Image(decode=False)
    return datasets.List(image, length=feature.length) if isinstance(feature, datasets.List) else image


def images_folder(path: str) -> Path:
    """The folder that must contain the image files that rows of a data set name: a local data set's own
    folder, or a hub data set's part of the hub's cache.
    """
    from huggingface_hub import constants

    local = Path(path)
    if local.exists():
        return local if local.is_dir() else local.parent
    return Path(constants.HF_HUB_CACHE) / f"datasets--{path.replace('/', '--')}"


def _opened_images(name: str, files: Any, folder: Path) -> Any:
    """Opens an image of a row, or a list of them; None if there is none.

    Raises:
        ValueError: if one is not an image, or is missing from a list.
    """
    if isinstance(files, list):
        images = [_opened_images(name, file, folder) for file in files]
        if None in images:
            raise ValueError(f"{name}: an image is missing")
        return images
    if files is None or not (files["bytes"] or files["path"]):
        return None
    try:
        return stored_image(files, folder)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def stored_image(file: dict[str, Any], folder: Path) -> Image.Image:
    """An image file of a 🤗 `Dataset`, opened; its pixels are decoded when they are needed.

    Args:
        folder: a file that is named rather than stored must lie in it.

    Raises:
        ValueError: if it is no image, or lies elsewhere.
    """
    if file["bytes"] is not None:
        return open_image(io.BytesIO(file["bytes"]))
    try:
        return open_image(file_inside(folder, file["path"]))
    except FileNotFoundError:
        raise ValueError(f"{file['path']}: no such file in {folder}") from None


def content_id(file: dict[str, Any] | None, number: int, folder: Path) -> str:
    """Hash of the content of an image file; for a row without an image, a name of its own."""
    try:
        if file and file["bytes"]:
            return hashlib.sha256(file["bytes"]).hexdigest()
        if file and file["path"]:
            with file_inside(folder, file["path"]).open("rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest()
    except CONTENT_ERRORS as error:  # the path leads nowhere, or elsewhere
        if is_system_error(error):
            raise
    return f"row {number} without an image"


def _image_folder(folder: Path, columns: tuple[str, ...], optional: tuple[str, ...]) -> Any:
    import datasets

    from rewardedit.data.table import read_records

    tables = list(filter(Path.is_file, (folder / "metadata.jsonl", folder / "metadata.csv")))
    if not tables:
        raise ValueError(
            f"{folder}: an image folder needs metadata.jsonl or metadata.csv with {', '.join(columns)}"
        )

    records = read_records(tables[0])
    missing = set(columns) - set(records[0]) - set(optional)
    if missing:
        raise ValueError(f"{tables[0]}: lacks {', '.join(sorted(missing))}; it has {', '.join(records[0])}")

    rows = []
    for record in records:
        rows.append({column: record.get(column) for column in columns})
    return datasets.Dataset.from_list(rows)
