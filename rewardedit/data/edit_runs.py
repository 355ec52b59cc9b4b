"""Edits that `rewardedit edit` made: the images of a folder with the record of each."""

from pathlib import Path
from typing import Any

from rewardedit.data.edited_folders import EditedFile, EditedFiles
from rewardedit.data.sources import storable
from rewardedit.processes import notice
from rewardedit.untrusted import CONTENT_ERRORS, file_inside, is_system_error, read_json_file


class EditRun(EditedFiles):
    """The edits in a folder of `rewardedit edit`; of edits in several turns the first one.

    Records that cannot be read, or whose images are missing, are reported in one line, and left out.

    Raises:
        ValueError: if the folder holds no record of an edit.
    """

    def __init__(self, folder: str) -> None:
        files: list[EditedFile] = []
        left_out: list[str] = []
        for path in sorted(Path(folder).glob("*.json")):
            try:
                files.append(_first_turn(Path(folder), path))
            except CONTENT_ERRORS as error:
                if is_system_error(error):
                    raise
                left_out.append(path.name)
        if not files:
            raise ValueError(
                f"{folder}: expected a table, or edits by rewardedit edit; for a folder of edited images "
                "give the folder of their sources: --sources FOLDER"
            )
        if left_out:
            notice(f"{folder}: {len(left_out)} records without an edit left out, such as {left_out[0]}")
        super().__init__(files)

    def source_keys(self) -> list[str]:
        """The source of each edit, by its name: each editor saves a copy of its own, in the size it needs."""
        return [Path(file.id).stem for file in self.files]


def _first_turn(folder: Path, path: Path) -> EditedFile:
    """The first edit of a record.

    Raises:
        ValueError: if it is no record of an edit.
        FileNotFoundError: if an image is missing.
    """
    record: Any = read_json_file(path)
    turns = record.get("turns") if isinstance(record, dict) else None
    turn = turns[0] if isinstance(turns, list) and turns else None
    names = ("instruction", "source", "image")
    if not isinstance(turn, dict) or not all(isinstance(turn.get(name), str) for name in names):
        raise ValueError(f"{path}: expected the record of an edit")
    source = file_inside(folder, turn["source"])
    edited = file_inside(folder, turn["image"])
    name = storable(folder.resolve().name)
    return EditedFile(
        f"{storable(path.stem)}.png", name, source, edited, {"instruction": turn["instruction"]}
    )
