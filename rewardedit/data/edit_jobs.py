"""The jobs of `rewardedit edit`: images and the instructions that are applied to each,
read from a folder or a table.
"""

import mimetypes
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardedit.batch import text_or_none
from rewardedit.data.columns import name_columns
from rewardedit.data.folders import list_images
from rewardedit.data.table import NAMES, SUFFIXES, read_records, require_texts, table_in
from rewardedit.reports.edit_gallery import CANDIDATES
from rewardedit.untrusted import file_name, open_image

TEXTS = ("id", "source", "instruction")  # of a table's row
REQUIRED = (("source",), ("instruction",))  # columns


@dataclass(frozen=True)
class EditJob:
    """One image and the instructions that are applied to it, one after another."""

    id: str
    path: Path
    instructions: tuple[str, ...]

    def name(self, turn: int) -> str:
        """The name of a turn's files, without their ending; turn 0 is the source."""
        return self.stem if turn == len(self.instructions) == 1 else f"{self.stem}-{turn}"

    @property
    def stem(self) -> str:
        """The beginning of all names of its files."""
        return file_name(self.id)

    @property
    def files(self) -> list[str]:
        """All files that the job may write: its record, its images and their masks."""
        files = [f"{self.stem}.json"]
        for turn in range(len(self.instructions) + 1):
            name = self.name(turn)
            files += [f"{name}.png", f"{name}-mask.png", f"{name}{CANDIDATES}"]
        return files


def read_jobs(path: str, instructions: list[str], columns: Mapping[str, str] | None = None) -> list[EditJob]:
    """The jobs of an image, a folder of images, or a table (CSV, JSONL, Parquet, or a folder with one) with
    its own instructions.

    A table has the columns source (a path relative to it) and instruction (except in CSV also a list), and
    may have id.

    Args:
        columns: a table's fields and the columns that hold them; see `name_columns`.

    Raises:
        ValueError: if there is nothing to edit, none of the files is an image, an instruction is missing or
            given twice, or two jobs would write the same file.
    """
    at = Path(path)
    table = table_in(at) if at.is_dir() else at
    if table is not None and table.suffix.lower() in SUFFIXES:
        if instructions:
            raise ValueError(
                f"{path}: the table has its own instructions; leave out those on the command line"
            )
        records = name_columns(table, read_records(table), columns, REQUIRED)
        jobs = [_job(table, number, record) for number, record in enumerate(records, 1)]
    else:
        if not instructions or None in map(text_or_none, instructions):
            raise ValueError(
                'say what to change: rewardedit edit INPUT "make the man\'s pants white" --out DIR'
            )
        if not at.exists():
            raise ValueError(f"{path}: no such file")
        files = list_images(at) if at.is_dir() else [at]
        if not files:
            raise ValueError(f"{path}: holds no images that can be read, and no table ({', '.join(NAMES)})")
        stems = Counter(f.stem for f in files)
        jobs = [EditJob(f.stem if stems[f.stem] == 1 else f.name, f, tuple(instructions)) for f in files]

    owner: dict[str, str] = {}
    for job in jobs:
        for name in job.files:
            if name in owner:
                raise ValueError(
                    f"{path}: {owner[name]!r} and {job.id!r} would both write {name}; rename one, or give "
                    "other ids"
                )
            owner[name] = job.id
    _require_an_image(jobs)
    return jobs


def _require_an_image(jobs: list[EditJob]) -> None:
    """Raises ValueError, with the first file's reason, if no file of the jobs is an image."""
    errors = []
    for job in jobs:
        try:
            open_image(job.path).close()
            return
        except ValueError as error:
            errors.append(error)
    if errors:
        kind = mimetypes.guess_type(jobs[0].path.name)[0] or ""
        raise ValueError(f"{errors[0]}{'; videos are not edited' if kind.startswith('video/') else ''}")


def _job(table: Path, number: int, record: dict[str, Any]) -> EditJob:
    value = record.get("instruction")
    instructions = value if isinstance(value, list) and value else [value]
    for instruction in instructions:
        require_texts(table, number, {**record, "instruction": instruction}, TEXTS, ("source", "instruction"))
    name = (
        str(record["id"])
        if record.get("id") not in (None, "")
        else f"{number:04d}-{Path(record['source']).stem}"
    )
    return EditJob(name, table.parent / record["source"], tuple(instructions))
