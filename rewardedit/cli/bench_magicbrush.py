"""`rewardedit bench magicbrush PATH --editors A B …`: models make the outputs of MagicBrush's own table.

Each session's first image is edited by its instructions one after another, and the true input of each later
turn by its own, as the released code does.
"""

import argparse
import filecmp
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit.cli.bench_editors import EDITS, editor_names, open_model, refuse_options, report_failed

NAME = "magicbrush"


def make_outputs(args: argparse.Namespace, path: str, out: Path) -> list[str]:
    """Makes the outputs of the editors that are models; those that are done stay.

    Returns:
        EDITOR=FOLDER for each editor, as --edits takes them.

    Raises:
        ValueError: if the sessions cannot be read, or an editor is neither a model nor a folder of outputs.
    """
    from rewardedit.cli.announce import announce_editor
    from rewardedit.evaluation.protocols.magicbrush import MagicBrushTable
    from rewardedit.processes import processes

    refuse_options(args)
    editors = editor_names(args.editors)
    folders = {}
    for editor, word in editors.items():
        outputs = MagicBrushTable(path, {editor: Path(word)}).outputs
        of_editor = [one for one in outputs if one.editor == editor]
        folders[editor] = Path(word)
        if any(Path(word, one.image).is_dir() for one in of_editor):
            continue
        folders[editor] = out / EDITS / editor
        announce_editor(word)
        if processes().is_main_process:
            edit_sessions(word, Path(path) / "images", of_editor, folders[editor], args.seed)
    processes().wait_for_everyone()
    return [f"{editor}={folder}" for editor, folder in folders.items()]


def edit_sessions(model: str, images: Path, outputs: Sequence[Any], folder: Path, seed: int) -> None:
    """Writes a model's outputs of all sessions as ID/ID_1.png, ID/ID_inde_2.png, ID/ID_iter_2.png.

    Raises:
        ValueError: if the model cannot be loaded, or nothing could be edited.
    """
    from rewardedit.editing import run_edits

    editor, config = open_model(model, seed)
    sessions: dict[str, list[Any]] = {}
    for one in outputs:
        sessions.setdefault(one.image, []).append(one)
    failed: dict[str, str] = {}
    number = 0
    for image, turns in sessions.items():
        try:
            jobs = jobs_of(images, turns)
        except ValueError as error:  # an image that is not there
            failed[image] = str(error)
            number += 1
            continue
        failed |= run_edits(editor, None, jobs, config, folder / image)
        number += len(jobs)
        copy_named(jobs[0], turns, folder)
    report_failed(model, failed, number)


def jobs_of(images: Path, turns: Sequence[Any]) -> list[Any]:
    """The edits of one session: all instructions one after another, then each later turn by itself."""
    from rewardedit.data.annotations import find_image
    from rewardedit.data.edit_jobs import EditJob

    first, *later = [one for one in turns if not one.turn.startswith("iter")]
    instructions = tuple(one.instruction for one in (first, *later))
    jobs = [EditJob(f"{first.image}_in_turn", find_image(images, first.source), instructions)]
    for one in later:
        jobs.append(EditJob(Path(one.name).stem, find_image(images, one.source), (one.instruction,)))
    return jobs


def copy_named(job: Any, turns: Sequence[Any], folder: Path) -> None:
    """Copies the first and the last edit of a session in turn to the names that the released code gives."""
    from rewardedit.files import replaced

    made = {"1": job.name(1), f"iter_{len(job.instructions)}": job.name(len(job.instructions))}
    for one in turns:
        edit = folder / one.image / f"{made.get(one.turn, '')}.png"
        path = folder / one.name
        if not edit.is_file() or (path.is_file() and filecmp.cmp(path, edit, shallow=False)):
            continue
        with replaced(path) as aside:
            shutil.copyfile(edit, aside)
