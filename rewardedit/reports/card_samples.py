"""Held-out edits that a model card shows: their files are kept by the comparison and copied to the result."""

import shutil
from pathlib import Path
from typing import Any

from rewardedit.files import remove, replaced, write_json
from rewardedit.reports.wall import Wall
from rewardedit.untrusted import CONTENT_ERRORS, file_inside, read_json_file

FILE = "samples.json"  # in a run's folder
FOLDER = "samples"  # in its result
SHOWN = 4
SUFFIXES = (".jpg", ".png")


def keep_samples(folder: Path, wall: Wall) -> None:
    """Records the first edits of a page in `folder`, in the order of the data, for the model card."""
    samples = []
    for edit in wall.edits[:SHOWN]:
        images = {one.label: one.file for one in edit.images}
        samples.append({"instruction": edit.title, "images": images})
    write_json(folder / FILE, samples)


def copy_samples(run: Path, result: Path) -> list[tuple[str, dict[str, str]]]:
    """Copies the run's samples into the result; returns each instruction with its images by label, as paths
    relative to the result. Without samples, or with damaged ones, there are none.
    """
    copied = []
    with replaced(result / FOLDER) as aside:
        aside.mkdir()
        for number, (instruction, files) in enumerate(_read(run), 1):
            images = {}
            for i, (label, file) in enumerate(files.items()):
                name = f"{number}-{i}{file.suffix}"
                shutil.copyfile(file, aside / name)
                images[label] = f"{FOLDER}/{name}"
            copied.append((instruction, images))
    if not copied:
        remove_samples(result)
    return copied


def remove_samples(result: Path) -> None:
    remove(result / FOLDER)


def _read(run: Path) -> list[tuple[str, dict[str, Path]]]:
    """Instructions with their images by label; none if there is no record, or a damaged one."""
    try:
        return [_sample(run, record) for record in read_json_file(run / FILE)]
    except CONTENT_ERRORS:
        return []


def _sample(run: Path, record: dict[str, Any]) -> tuple[str, dict[str, Path]]:
    files = {str(label): file_inside(run, file) for label, file in record["images"].items()}
    if any(file.suffix not in SUFFIXES for file in files.values()):
        raise ValueError(f"{run / FILE}: expected images; got other files")
    return str(record["instruction"]), files
