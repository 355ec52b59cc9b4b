"""Your own edits: a CSV, JSONL or Parquet file, or a folder that holds one, with a row for each edit."""

import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image

from rewardedit.batch import EditPair, EditSample, text_or_none
from rewardedit.data.annotations import OTHER_ROOT, is_text
from rewardedit.data.columns import OTHERS, PICTURES, TEXTS, name_columns
from rewardedit.data.sources import as_details
from rewardedit.data.text_tables import read_text_table
from rewardedit.files import to_json
from rewardedit.images import load_pil
from rewardedit.untrusted import CONTENT_ERRORS, file_inside, is_system_error, printable

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")
NAMES = tuple(map("".join, product(("rows", "metadata"), SUFFIXES)))
LOSER = "loser"
SCORE = "score"  # a column with a number for each edit; higher is better
REQUIRED = (("source",), ("instruction",), ("edited", "target"))  # a row has one column of each group


@dataclass(frozen=True)
class StoredImage:
    """An image whose bytes are in a Parquet table; they are read from disk when they are needed."""

    rows: Any = field(repr=False)  # a 🤗 Dataset of images only
    column: str
    index: int

    def read(self) -> bytes:
        return self.rows[self.index][self.column]["bytes"]


class Table(Sequence):
    """Rows with the columns source, instruction and target (or edited); optionally mask, captions,
    edit_type and id. Of two edits of a source, `winner` (or edited) holds the preferred one and `loser` the
    other; or each edit has a row and a `score`.

    Images are paths, relative to the file's folder or to `root`, in which they must lie; in a Parquet table
    they may also be the bytes of image files, plain or as 🤗 datasets stores images.
    A folder is read through its `rows.*` or `metadata.*`.

    A row that lacks an instruction or an image, or whose image is damaged, raises ValueError when it is
    read.

    Raises:
        ValueError: if the file or a column is missing, or all rows lack something; the first is named.
    """

    def __init__(self, path: str, columns: Mapping[str, str] | None = None, root: str | None = None) -> None:
        """
        Args:
            columns: fields above and the columns that hold them; see `name_columns`.
            root: the folder of the images; None: the file's.
        """
        file = Path(path)
        if file.is_dir():
            table = table_in(file)
            if table is None:
                raise ValueError(
                    f"{path}: expected one of {', '.join(NAMES)} in the folder; for a folder of edits, name "
                    "the folder of their sources: score FOLDER --sources FOLDER"
                )
            file = table

        self.file = file
        self.root = file.parent if root is None else Path(root)
        self.records = name_columns(file, read_records(file), columns, REQUIRED)

        self.faults: dict[int, str] = {}  # by row, counted from 0
        for index, record in enumerate(self.records):
            try:
                self._check(index + 1, record)
            except CONTENT_ERRORS as error:
                if is_system_error(error):
                    raise
                self.faults[index] = str(error)

        if len(self.faults) == len(self.records):
            raise ValueError(next(iter(self.faults.values())))

    def _check(self, number: int, record: dict[str, Any]) -> None:
        texts: dict[str, Any] = {name: record.get(name) for name in (*PICTURES, *TEXTS)}
        for name in PICTURES:
            if isinstance(record.get(name), StoredImage):
                del texts[name]
        required = [name for name in ("source", "instruction") if name in texts]
        require_texts(self.file, number, texts, texts, required)
        if not record.get("edited") and not record.get("target"):
            raise ValueError(f"{self.file}: row {number} has neither edited nor target")
        for name in PICTURES:
            if texts.get(name):
                self._path(number, name, texts[name])

    def _path(self, number: int, name: str, value: str) -> Path:
        """The file of an image that row `number`, counted from 1, names."""
        try:
            return file_inside(self.root, value)
        except FileNotFoundError:
            reason = f"{name} {printable(value)} is not there"
        except ValueError as error:
            reason = f"{name}: {error}; {OTHER_ROOT}"
        raise ValueError(f"{self.file}: row {number}: {reason}")

    def __len__(self) -> int:
        return len(self.records)

    def edit_types(self) -> list[str] | None:
        """The type of edit of each row; None if the table has no such column."""
        if not any("edit_type" in record for record in self.records):
            return None
        return [str(record.get("edit_type")) for record in self.records]

    def source_ids(self) -> list[str]:
        """The source image of each row, by the content of its file; a row without one gets a name of its
        own.
        """
        digests: dict[str, str] = {}
        ids = []
        for index, record in enumerate(self.records):
            source = record.get("source")
            if isinstance(source, StoredImage):
                ids.append(_digest(source.read()))
                continue
            if isinstance(source, str) and source not in digests:
                with suppress(*CONTENT_ERRORS):
                    digests[source] = _digest(self._path(index + 1, "source", source).read_bytes())
            ids.append(digests.get(str(source), f"row {index} without an image"))
        return ids

    def id_of(self, index: int) -> str:
        """A row's id, or its number from 0 if it has none; also for a row that cannot be read."""
        given = self.records[index].get("id")
        return str(index) if given in (None, "") else str(given)

    def instruction_of(self, index: int) -> str | None:
        """A row's instruction; None for one that has none."""
        instruction = self.records[index].get("instruction")
        return text_or_none(instruction) if isinstance(instruction, str) else None

    def instructions(self) -> list[str | None]:
        """The instruction of each row; None for one that has none."""
        return list(map(self.instruction_of, range(len(self))))

    def details(self, index: int) -> dict[str, str]:
        """A row's files, its type of edit and its other columns; a source that the table stores is identified
        by its content.
        """
        record = self.records[index]
        named = {name: record.get(name) for name in ("source", "edited", "target", "edit_type")}
        if isinstance(source := record.get("source"), StoredImage):
            named["source"] = f"sha256 {_digest(source.read())[:16]}"
        return as_details(named | record[OTHERS])

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index in self.faults:
            raise ValueError(self.faults[index])
        record = self.records[index]
        fields: dict[str, Any] = {"id": self.id_of(index)}
        for name in PICTURES:
            if name != LOSER and record.get(name):
                fields[name] = self._picture(index, name)
        for name in TEXTS:
            if record.get(name) not in (None, ""):
                fields[name] = str(record[name])
        return EditSample(**fields)

    def has_pairs(self) -> bool:
        """True if rows hold a rejected edit beside the preferred one."""
        return any(record.get(LOSER) for record in self.records)

    def pair_of(self, index: int) -> EditPair:
        """A row's two edits; the left one is preferred.

        Raises:
            ValueError: if an image is missing or damaged.
        """
        sample = self[index]
        if not self.records[index].get(LOSER):
            raise ValueError(f"{self.file}: row {index + 1} has no {LOSER}, the rejected edit")
        winner = sample if sample.edited is not None else replace(sample, edited=sample.target)
        loser = replace(winner, edited=self._picture(index, LOSER))
        return EditPair(sample.id, winner, loser, "left")

    def scores(self) -> list[float] | None:
        """The score of each row, NaN where it has none; None if the table has no such column.

        Raises:
            ValueError: if one is not a number.
        """
        values = [record[OTHERS].get(SCORE) for record in self.records]
        if all(value is None for value in values):
            return None
        scores = []
        for number, value in enumerate(values, 1):
            try:
                scores.append(math.nan if value in (None, "") else float(value))
            except (TypeError, ValueError):
                raise ValueError(
                    f"{self.file}: row {number}: {SCORE}: expected a number; got {printable(str(value))}"
                ) from None
        return scores

    def _picture(self, index: int, name: str) -> Image.Image:
        value = self.records[index][name]
        kind = "mask" if name == "mask" else "image"
        try:
            if isinstance(value, StoredImage):
                return load_pil(io.BytesIO(value.read()), kind)
            return load_pil(file_inside(self.root, value), kind)
        except FileNotFoundError:
            raise ValueError(f"{self.file}: row {index + 1}: {name} {printable(value)} is gone") from None
        except ValueError as error:
            raise ValueError(f"{self.file}: row {index + 1}: {name}: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def table_in(folder: Path) -> Path | None:
    """The table that a folder holds; None if it holds none."""
    return next(filter(Path.is_file, map(folder.joinpath, NAMES)), None)


def read_records(file: Path) -> list[dict[str, Any]]:
    """The rows of a CSV, TSV, JSONL or Parquet file; a column `source_file_name`, as 🤗 ImageFolder calls it,
    becomes `source`.

    Text is UTF-8, or Unicode that begins with a byte-order mark; CSV may also be Windows-1252, with a notice.
    Its cells are separated by commas, semicolons, tabs or bars; they are kept as text ("007"), and may
    contain quoted line breaks; cells missing at the end of a row are None. Empty lines are skipped. Images
    in a Parquet file become `StoredImage`s.

    Raises:
        ValueError: if it is missing, empty, of another kind, or a row cannot be read.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{file}: expected a table that ends in {', '.join(SUFFIXES)}")
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    records = _read_parquet(file) if file.suffix.lower() == ".parquet" else read_text_table(file)
    if not records:
        raise ValueError(f"{file}: holds no rows")
    return list(map(_renamed, records))


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose columns are named as 🤗 datasets names those of image folders."""
    return {name.removesuffix("_file_name"): value for name, value in record.items()}


def _read_parquet(file: Path) -> list[dict[str, Any]]:
    import datasets
    import pyarrow.compute as pc

    try:
        rows = datasets.Dataset.from_parquet(str(file))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{file}: is not Parquet that can be read ({error.__cause__ or error})") from error

    records: list[dict[str, Any]] = [{} for _ in range(len(rows))]
    for name in rows.column_names:
        column = rows.data.column(name)
        if not _may_be_pictures(column.type):
            values = column.to_pylist()
        else:
            # The bytes stay on disk: only which cells have some, and the paths of the others, are read here.
            images = rows.select_columns([name]).cast_column(name, datasets.Image(decode=False))
            column = images.data.column(name)
            paths = pc.struct_field(column, "path").to_pylist()
            is_stored = pc.is_valid(pc.struct_field(column, "bytes")).to_pylist()
            values = []
            for i, path in enumerate(paths):
                values.append(StoredImage(images, name, i) if is_stored[i] else path)
        for record, value in zip(records, values, strict=True):
            record[name] = value

    return records


def _may_be_pictures(kind: Any) -> bool:
    """True if a column of this Arrow type can hold images: bytes, or a struct of bytes and path."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 or kind.get_field_index("path") >= 0
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def require_texts(
    file: Path, number: int, record: dict[str, Any], texts: Iterable[str], required: Iterable[str]
) -> None:
    """Raises ValueError if one of `required` is missing or blank in a row,
    or one of `texts` is there but not text.

    An id may be a number.
    """
    for name in texts:
        value = record.get(name)
        if value is not None and not isinstance(value, str) and not (name == "id" and isinstance(value, int)):
            raise ValueError(
                f"{file}: row {number}: {name}: expected text; got {json.dumps(value, default=str)}"
            )
        if isinstance(value, str) and not is_text(value):
            raise ValueError(f"{file}: row {number}: {name}: expected text; got {value!r}")
    for name in required:
        if text_or_none(record.get(name)) is None:
            raise ValueError(f"{file}: row {number} has no {name}")


def write_records(file: Path, records: list[dict[str, Any]]) -> None:
    """Writes a JSONL file that `Table` reads."""
    lines = map(to_json, records)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
