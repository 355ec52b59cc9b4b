"""Content of others is read through `rewardedit.untrusted` alone.

Calls that could read it elsewhere stand in the table here, with why they may.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = set(ROOT.glob("rewardedit/shapes/benchmarks/*.py"))  # no part of the package
SOURCES = sorted({*ROOT.glob("rewardedit/**/*.py"), *ROOT.glob("trainers/*.py")} - PROGRAMS)
MODULES = {"pickle", "dill", "joblib", "marshal", "shelve", "tarfile", "zipfile"}
FUNCTIONS = {"Image.open", "json.load", "json.loads", "np.load", "torch.load", "shutil.rmtree"}
METHODS = {"open", "read_bytes", "read_text"}
LAST_NAMES = {name.rpartition(".")[2] for name in FUNCTIONS}

HERE = "the one place"
OWN = "files that this run, or an earlier one, wrote in its folder"
PACKAGE = "files of this package"
USER = "a file that the user named"
INSIDE = "files that `file_inside` or `is_file` has looked at, or a table that the user named"

ALLOWED: dict[str, dict[str, str]] = {
    "Image.open": {
        "untrusted": HERE,
        "shapes/render": PACKAGE,
        "training/trackers": "previews that the run wrote",
    },
    "json.loads": {
        "untrusted": HERE,
        "data/labelled": "what was left out of a shard, as its own writer says it",
        "data/text_tables": "lines of a table, of which NaN counts as empty; all errors are a ValueError",
        "editing": OWN,
        "files/__init__": OWN,
        "reports/model_card": OWN,
        "language/model_hash": "a tokenizer's rules, as the tokenizer itself writes them",
        "language/vocabulary": "a tokenizer's rules, as the tokenizer itself writes them",
        "stages/stage": OWN,
        "training/checkpoints": OWN,
        "training/phases": OWN,
        "training/run": OWN,
        "shapes/trainers/detector": "a tokenizer's rules, as the tokenizer itself writes them",
    },
    "np.load": {
        "evaluation/compare": OWN,
        "files/__init__": OWN,
        "training/latents": OWN,
        "training/noise_masks": OWN,
        "training/prompt_cache": OWN,
        "trainers/vifi_clip": OWN,
    },
    "torch.load": {
        "scorers/lpips": "weights whose SHA-256 is known, with weights_only",
        "training/checkpoints": "a run's own state, with weights_only",
    },
    "shutil.rmtree": {"files/__init__": "folders that prove to be a run's or a stage's"},
    "pickle": {
        "untrusted": "the name of its error",
        "training/checkpoints": "the name of its error",
    },
    "tarfile": {"untrusted": "the name of its error", "data/tar_rows": "headers alone; nothing is unpacked"},
    "open": {
        "stages/leases": OWN,
        "data/hub": INSIDE,
        "shapes/table": OWN,
        "data/tar_rows": "the .tar files that the user named, or those of a data set on the hub",
        "language/endpoint": "an address, whose answer `read_body` bounds",
        "evaluation/compare": OWN,
        "files/__init__": OWN,
        "data/digests": USER,
        "scoring": OWN,
        "synthesis/outputs": OWN,
        "training/run_folder": OWN,
    },
    "read_bytes": {
        "untrusted": HERE,
        "app/photo": "a file in the folder of uploads, of at most `max_body_mb`",
        "models/__init__": PACKAGE,
        "stages/leases": OWN,
        "data/edited_folders": INSIDE,
        "data/table": INSIDE,
        "data/text_tables": INSIDE,
        "editing": USER,
        "evaluation/bench_requests": OWN,
        "stages/executors": OWN,
        "instructions/llm": "a run's cache of answers",
        "scorers/base": "code of a scorer of one's own, for its fingerprint",
        "scorers/own": "code of a scorer of one's own, for its fingerprint",
    },
    "read_text": {
        "cli/recipes": PACKAGE,
        "cli/spelling": PACKAGE,
        "cli/train": PACKAGE,
        "config": USER,
        "data/annotations": INSIDE,
        "data/dice_d": INSIDE,
        "files/__init__": OWN,
        "reports/model_card": OWN,
        "reports/published": OWN,
        "reports/report": PACKAGE,
        "training/environment": "what the system says of its processor",
        "training/phases": OWN,
        "training/run": OWN,
        "training/run_folder": OWN,
    },
}


def used(path: Path) -> set[str]:
    """Names, of those above, that a module uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= MODULES & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= MODULES & {str(node.module).split(".")[0]}
        elif isinstance(node, ast.Call):
            method = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if method in METHODS:
                found.add(method if (name := ast.unparse(node.func)) not in FUNCTIONS else name)
            elif method in LAST_NAMES and (name := ast.unparse(node.func)) in FUNCTIONS:
                found.add(name)
    return found


def test_what_others_made_is_read_in_one_place():
    names = {
        path: str(path.relative_to(ROOT)).removeprefix("rewardedit/").removesuffix(".py") for path in SOURCES
    }
    strange = [
        f"{name}: {call}"
        for path, name in names.items()
        for call in sorted(used(path))
        if name not in ALLOWED.get(call, {})
    ]
    assert not strange, f"read by rewardedit.untrusted, or say above why not: {strange}"


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("import pickle", "pickle"),
        ("from zipfile import ZipFile", "zipfile"),
        ("image = Image.open(name)", "Image.open"),
        ("text = (folder / name).read_text()", "read_text"),
        ("with open(name) as file: pass", "open"),
        ("shutil.rmtree(folder)", "shutil.rmtree"),
    ],
)
def test_each_kind_of_call_is_seen(line, call, tmp_path):
    (tmp_path / "a.py").write_text(line)
    assert used(tmp_path / "a.py") == {call}
    assert "a" not in ALLOWED.get(call, {})
