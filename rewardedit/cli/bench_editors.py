"""`rewardedit bench NAME [PATH] --editors A B …`: editors instead of scorers are compared."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from rewardedit.cli.comparison import SCORES, Comparison
from rewardedit.cli.score import chosen_scorers

EDITS = "edits"  # the folder of the edits that models make
NOT_WITH = ("from_scores", "edits", "compat", "exclude_overlap", "limit", "checkpoint")
RETRIEVAL = ("humanedit",)  # benchmarks whose rows show edits under others' instructions


def run(args: argparse.Namespace, name: str, path: str) -> None:
    """Makes or reads each editor's edits of a benchmark's requests, scores them and prints the tables.

    Raises:
        ValueError: if the benchmark has no images, or an editor is neither a model nor a folder of edits.
    """
    from rewardedit.evaluation.bench_report import Results, as_text, write_results
    from rewardedit.evaluation.editor_tables import tables
    from rewardedit.evaluation.editor_words import sentences
    from rewardedit.evaluation.protocols import find_benchmark
    from rewardedit.processes import processes

    refuse_options(args)
    if name in RETRIEVAL:
        raise ValueError(f"--editors: {name} asks which instruction an edit is of; choose another benchmark")
    kind = find_benchmark(name)
    out = Path(args.out or f"bench/{name}-editors")
    editors = editor_names(args.editors)
    specs = announced_scorers(args, editors)
    if processes().is_main_process:
        prepare(kind(path, {}), editors, out, args.seed)
    processes().wait_for_everyone()
    comparison = Comparison(*open_edits(editors, specs, out), args.size)
    records = comparison.score(out / SCORES)
    if not processes().is_main_process:
        return
    requests, figures = comparison.result(records)
    print("\n".join(sentences(figures)))
    made = tables(figures)
    for one in made:
        print("\n".join(["", *as_text(one)]))
    made_of = {"input": args.input, "editors": editors, "scorers": comparison.identity(out / SCORES)}
    write_results(Results(name, kind.about, made, made_of), out)
    comparison.write(records, requests, figures, out)
    print(f"tables: {out}", file=sys.stderr)


def refuse_options(args: argparse.Namespace) -> None:
    """Raises ValueError on an option that goes with scorers alone."""
    for option in NOT_WITH:
        if getattr(args, option):
            raise ValueError(f"--{option.replace('_', '-')}: does not go with --editors")


def announced_scorers(args: argparse.Namespace, editors: dict[str, str]) -> dict[str, Any]:
    """The scorers by their names, after what they and the editors will load is announced."""
    from rewardedit.cli.announce import announce_editor, announce_models
    from rewardedit.cli.small_models import world_of

    world = world_of(args.world)
    specs = chosen_scorers(args.scorer, world)
    for word in editors.values():
        if not is_folder_of_edits(word):
            announce_editor(word)
    announce_models(specs)
    return specs


def prepare(benchmark: Any, editors: dict[str, str], out: Path, seed: int) -> None:
    """Writes the benchmark's requests, and makes the edits of the editors that are models."""
    from rewardedit.evaluation.bench_requests import write_requests

    table = write_requests(benchmark, out)
    for editor, word in editors.items():
        if not is_folder_of_edits(word):
            make_edits(word, table, out / EDITS / editor, seed)


def editor_names(words: list[str]) -> dict[str, str]:
    """Each editor's model or folder by its name: that before an equals sign, else the last part of the path,
    or all of it with dashes if two are alike.

    Raises:
        ValueError: if a name is given twice.
    """
    from rewardedit.untrusted import file_name

    short = [Path(word).name for word in words]
    named: dict[str, str] = {}
    for word, last in zip(words, short, strict=True):
        name, _, place = word.rpartition("=")
        if not name:
            name = last if short.count(last) == 1 else word.strip("/").replace("/", "-")
        name = file_name(name)
        if name in named:
            raise ValueError(f"--editors: expected each editor once; got {name} twice")
        named[name] = place
    return named


def is_folder_of_edits(word: str) -> bool:
    """True for a folder that holds images; a pipeline's and a run's hold none."""
    from rewardedit.data.folders import list_images

    return Path(word).is_dir() and bool(list_images(Path(word)))


def make_edits(model: str, table: Path, folder: Path, seed: int) -> None:
    """Edits all requests by a model, with its own settings; those that are done stay.

    Raises:
        ValueError: if the model cannot be loaded, or no request could be edited.
    """
    from rewardedit.data.edit_jobs import read_jobs
    from rewardedit.editing import run_edits

    jobs = read_jobs(str(table), [])
    editor, config = open_model(model, seed)
    report_failed(model, run_edits(editor, None, jobs, config, folder), len(jobs))


def open_model(model: str, seed: int) -> tuple[Any, Any]:
    """An editor, and the settings of its edits: its own."""
    from rewardedit.diffusion.editors import load_editor
    from rewardedit.editing import EditRunConfig

    editor = load_editor(model)
    name = str(editor.pipe.dtype).removeprefix("torch.")
    return editor, EditRunConfig(model=model, settings=editor.settings, seed=seed, dtype=name)


def report_failed(model: str, failed: dict[str, str], number: int) -> None:
    """Prints how many edits failed, with the first reason.

    Raises:
        ValueError: if all did.
    """
    if not failed:
        return
    first, reason = next(iter(failed.items()))
    print(f"{model}: {len(failed)} of {number} not edited; {first}: {reason}", file=sys.stderr)
    if len(failed) == number:
        raise ValueError(f"{model}: nothing was edited; {first}: {reason}")


def open_edits(
    editors: dict[str, str], specs: dict[str, Any], out: Path
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The rows of all editors, the scorers, and what determines the rows."""
    from rewardedit.data.edit_runs import EditRun
    from rewardedit.data.edited_folders import EditedFiles, EditedFolders, read_instructions
    from rewardedit.data.editor_rows import EditorRows
    from rewardedit.evaluation.bench_requests import SOURCES, TABLE

    sources = out / SOURCES
    instructions = read_instructions(out / TABLE)
    rows: dict[str, Any] = {}
    inputs: dict[str, Any] = {}
    for editor, word in editors.items():
        folder = word if is_folder_of_edits(word) else str(out / EDITS / editor)
        inputs[editor] = {
            "editor": word,
            "input": {"path": folder},
            "requests": {"path": str(out / TABLE)},
            "sources": {"path": str(sources)},
        }
        if is_folder_of_edits(word):
            rows[editor] = EditedFolders([folder], str(sources), out / TABLE)
            continue
        files = []
        for file in EditRun(folder).files:
            request = instructions[Path(file.id).stem]
            files.append(dataclasses.replace(file, source=sources / file.id, row=request))
        rows[editor] = EditedFiles(files)
    return EditorRows(rows), specs, inputs
