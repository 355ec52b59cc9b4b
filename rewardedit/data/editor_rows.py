"""Edits of the same requests by several editors, from folders, tables and edits by `rewardedit edit`."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Subset

from rewardedit.batch import EditSample
from rewardedit.data.edit_runs import EditRun
from rewardedit.data.edited_folders import EditedFiles, EditedFolders, names_of
from rewardedit.data.table import Table, table_in
from rewardedit.processes import notice

Edits = Table | EditedFiles


class EditorRows(Sequence):
    """All rows of one editor after those of another. Rows of one source image and instruction are one
    request; where an editor has several, the first ones belong together, the second ones, and so on.

    The details of a row also have `editor`, `name`, `source_id` and `request`, which is the same for all
    editors.

    Raises:
        ValueError: if no two editors have an edit of one request.
    """

    def __init__(self, editors: Mapping[str, Edits]) -> None:
        self.editors = dict(editors)
        self.rows: list[tuple[str, int]] = []  # editor, and number of the row there
        self.sources: list[str] = []
        self.requests: list[str] = []
        for editor, edits in self.editors.items():
            seen: Counter[tuple[str, str]] = Counter()
            for number, source in enumerate(_source_keys(edits)):
                request = (source, edits.instruction_of(number) or "")
                self.rows.append((editor, number))
                self.sources.append(source)
                self.requests.append(_digest([*request, seen[request]]))
                seen[request] += 1

        shared = Counter(self.requests)
        if len(self.editors) > 1 and max(shared.values()) == 1:
            raise ValueError(
                f"{', '.join(self.editors)}: expected edits of the same source images by the same "
                "instructions; no request has edits of two of them"
            )
        self.complete = sum(count == len(self.editors) for count in shared.values())  # requests
        self.total = len(shared)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        editor, number = self.rows[index]
        return self.editors[editor][number]

    def id_of(self, index: int) -> str:
        """The editor and the row's id there."""
        editor, number = self.rows[index]
        return f"{editor}/{self.editors[editor].id_of(number)}"

    def of(self, editor: str) -> Subset:
        """The rows of one editor."""
        numbers = [i for i, (name, _) in enumerate(self.rows) if name == editor]
        return Subset(self, numbers)  # type: ignore[arg-type]

    def source_ids(self) -> list[str]:
        """The source image of each row, by its content, or its name in edits by `rewardedit edit`."""
        return list(self.sources)

    def files_of(self, index: int) -> tuple[str, str] | None:
        """The files of source and edited image; None if they are not files of their own."""
        editor, number = self.rows[index]
        edits = self.editors[editor]
        details = edits.details(number)
        root = edits.root if isinstance(edits, Table) else Path()
        files = [root / details.get(name, "") for name in ("source", "edited")]
        return (str(files[0]), str(files[1])) if all(map(Path.is_file, files)) else None

    def details(self, index: int) -> dict[str, str]:
        """A row's own details, and what it is in the comparison."""
        editor, number = self.rows[index]
        edits = self.editors[editor]
        columns = {
            "editor": editor,
            "name": Path(edits.id_of(number)).stem,
            "source_id": self.sources[index][:16],
            "request": self.requests[index],
        }
        return edits.details(number) | columns


def open_editors(
    paths: Sequence[str],
    sources: str | None = None,
    instructions: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> EditorRows:
    """The edits of several editors, each named as its folder or table.

    Args:
        paths: tables, folders with one, folders of `rewardedit edit`, or, with `sources`, folders of images.
        sources: the folder of the source images of such folders, by the names of the edits.
        instructions: of such folders; see `EditedFolders`.
        columns: of tables; see `Table`.

    Raises:
        ValueError: if an input cannot be read, two have one name, or no two have edits of one request.
    """
    names = _editor_names(paths)
    editors: dict[str, Edits] = {}
    for path, name in zip(paths, names, strict=True):
        if sources is not None and Path(path).is_dir():
            assert instructions is not None
            editors[name] = EditedFolders([path], sources, instructions)
        elif Path(path).is_dir() and table_in(Path(path)) is None:
            editors[name] = EditRun(path)
        else:
            editors[name] = Table(path, columns)
    rows = EditorRows(editors)
    if rows.complete < rows.total:
        notice(f"{rows.complete} of {rows.total} requests have an edit by each of {len(editors)} editors")
    return rows


def _editor_names(paths: Sequence[str]) -> list[str]:
    """The name of each folder, and of each table without its ending; whole paths if two are alike.

    Raises:
        ValueError: if a path is given twice.
    """
    if len(set(map(Path, paths))) < len(paths):
        raise ValueError(f"expected each editor once; got {' '.join(paths)}")
    names = []
    for path, name in zip(paths, names_of(paths), strict=True):
        names.append(Path(name).stem if Path(path).is_file() else name)
    return names if len(set(names)) == len(names) else list(paths)


def _source_keys(edits: Edits) -> list[str]:
    return edits.source_ids() if isinstance(edits, Table) else edits.source_keys()


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
