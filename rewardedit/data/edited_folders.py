"""Folders of edited images and a folder of their sources, matched by the files' names."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.columns import OTHERS, name_columns
from rewardedit.data.folders import by_stem, list_images
from rewardedit.data.sources import as_details, storable
from rewardedit.data.table import read_records, require_texts
from rewardedit.images import load_pil
from rewardedit.processes import notice
from rewardedit.untrusted import IMAGE_SUFFIXES

CAPTIONS = ("source_caption", "target_caption")
SHOWN = 3  # names in a line


@dataclass(frozen=True)
class EditedFile:
    """An edited image, its source, and the request."""

    id: str
    folder: str
    source: Path
    edited: Path
    row: Mapping[str, Any]  # instruction, captions, and other columns


class EditedFiles(Sequence):
    """Edits whose images are files of their own."""

    def __init__(self, files: Sequence[EditedFile]) -> None:
        self.files = list(files)

    def __len__(self) -> int:
        return len(self.files)

    def id_of(self, index: int) -> str:
        return self.files[index].id

    def instruction_of(self, index: int) -> str:
        return self.files[index].row["instruction"]

    def source_ids(self) -> list[str]:
        """The path of each edit's source."""
        return [str(file.source) for file in self.files]

    def source_keys(self) -> list[str]:
        """The source of each edit, by the content of its file."""
        digests: dict[Path, str] = {}
        for file in self.files:
            if file.source not in digests:
                digests[file.source] = hashlib.sha256(file.source.read_bytes()).hexdigest()
        return [digests[file.source] for file in self.files]

    def details(self, index: int) -> dict[str, str]:
        """The folder, the files, the type of edit and the other columns of a row of instructions."""
        file = self.files[index]
        named = {"folder": file.folder, "source": str(file.source), "edited": str(file.edited)}
        kind = {} if file.row.get("edit_type") is None else {"edit_type": file.row["edit_type"]}
        return named | as_details(kind | file.row.get(OTHERS, {}))

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        file = self.files[index]
        captions = {name: file.row.get(name) for name in CAPTIONS}
        source = load_pil(file.source)
        edited = load_pil(file.edited)
        return EditSample(file.id, source, file.row["instruction"], edited, **captions)


class EditedFolders(EditedFiles):
    """Edits of one or more folders: the images A/cat.png and B/cat.jpg are edits of SOURCES/cat.webp. Their
    ids are the names of the edited files, after that of their folder if there are several.

    Files without a partner are reported in one line, and left out.

    Args:
        instructions: an instruction for all, or a table (see `read_instructions`) that names images.

    Raises:
        ValueError: if a folder is missing, holds two images of one name, or no image has a source and an
            instruction.
    """

    def __init__(self, folders: Sequence[str], sources: str, instructions: str | Path) -> None:
        files: list[EditedFile] = []
        before = _images_of(sources)
        requests = read_instructions(instructions) if isinstance(instructions, Path) else None
        for folder, name in zip(folders, names_of(folders), strict=True):
            after = _images_of(folder)
            paired = [stem for stem in after if stem in before and (requests is None or stem in requests)]
            _tell(folder, len(paired), before, after, requests)
            for stem in paired:
                row = {"instruction": instructions} if requests is None else requests[stem]
                file_name = after[stem].name if len(folders) == 1 else f"{name}/{after[stem].name}"
                files.append(EditedFile(storable(file_name), storable(name), before[stem], after[stem], row))

        if not files:
            raise ValueError(
                f"{folders[0]}: expected images named as those of {sources}"
                f"{'' if requests is None else f' and the rows of {instructions}'}; no name matches"
            )
        super().__init__(files)


def read_instructions(file: Path) -> dict[str, dict[str, Any]]:
    """Rows of a table by the stem of the image that a column `name` (or id, source, file_name) names; besides
    `instruction` they may have captions and other columns.

    Raises:
        ValueError: if it cannot be read, lacks a column, or names an image twice.
    """
    records = read_records(file)
    columns = {"id": "name"} if any("name" in record for record in records) else {}
    by_name: dict[str, dict[str, Any]] = {}
    rows = name_columns(file, records, columns, (("id", "source"), ("instruction",)))
    for number, row in enumerate(rows, 1):
        row["id"] = row.get("id", row.get("source"))
        texts = ("instruction", *CAPTIONS)
        require_texts(file, number, row, ("id", *texts), ("instruction",))
        if row["id"] is None:
            raise ValueError(f"{file}: row {number} names no image")
        stem = _stem(str(row["id"]))
        if stem in by_name:
            raise ValueError(f"{file}: row {number}: expected each image once; {stem} comes twice")
        by_name[stem] = row

    return by_name


def _stem(name: str) -> str:
    path = Path(name)
    is_image = path.suffix.lower() in chain.from_iterable(IMAGE_SUFFIXES.values())
    return path.stem if is_image else path.name


def _images_of(folder: str) -> dict[str, Path]:
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: expected a folder of images")
    return by_stem(list_images(Path(folder)))


def names_of(folders: Sequence[str]) -> list[str]:
    """The last part of each folder's path; the whole paths if two end alike."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(map(str, map(Path, folders)))


def _tell(
    folder: str,
    edits: int,
    before: Mapping[str, Path],
    after: Mapping[str, Path],
    rows: Mapping[str, Any] | None,
) -> None:
    without_source: list[str] = []
    without_instruction: list[str] = []
    for stem, file in after.items():
        if stem not in before:
            without_source.append(file.name)
        elif rows is not None and stem not in rows:
            without_instruction.append(stem)

    missing = {
        "no edit of": [stem for stem in before if stem not in after],
        "no source of": without_source,
        "no instruction for": without_instruction,
    }
    parts = [f"{words} {_listed(names)}" for words, names in missing.items() if names]
    if parts:
        notice(f"{folder}: {edits} edits; {'; '.join(parts)}")


def _listed(names: Iterable[str]) -> str:
    """The number of names, and the first of them."""
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)}: {', '.join(names[:SHOWN])}{more}"
