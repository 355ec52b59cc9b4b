"""All checks of a CUDA machine in one command: make cuda PYTHON=python3 OUT=folder PARTS=tests,quickstart

Needs no virtual environment, installed rewardedit, git or network: parts run in a copy of the checkout that
Python imports from. Each part is a separate process with a share of nine minutes, after which it and its
children are killed; after a failure the next part runs. The parts that would be missed most come first, and
what a part leaves of its share goes to those after it. Each has compile caches of its own, empty at its
start. Writes cuda-DEVICE.json and cuda-DEVICE.html to OUT, again after every part. Without git,
REWARDEDIT_COMMIT names the commit in them.

On a machine without CUDA: python benchmarks/cuda.py --tiny,
runs the same parts with narrow models on the CPU.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOTAL = 540.0  # seconds of the whole program
TAIL = 6000  # last characters of a part's output that are kept
FOLDERS = re.compile(r"(?<![\w.:/…])/(?:[\w.@+~-]+/)+")  # of an absolute path, and not of an address


@dataclass(frozen=True)
class Part:
    """One process: its command, and its share of the time,
    relative to the other chosen parts.
    """

    name: str
    weight: float
    command: tuple[str, ...]  # arguments of Python
    tiny: tuple[str, ...]  # arguments in place of these on a CPU
    needs: str = ""  # a module without which it is skipped


def _work(name: str, weight: float) -> Part:
    command = ("-m", "cuda_parts", name)
    return Part(name, weight, command, (*command, "--tiny"))


# pyproject's own options need a type checker, which a GPU machine may lack. Each test is named as it
# ends, for a part that is cut off, and those that train come last.
PYTEST = (
    "-m",
    "pytest",
    "tests/diffusion/test_attention.py",  # by name: other tests import packages that a GPU machine may lack
    "tests/test_gpu_levers.py",
    "tests/test_gpu.py",
    "-o",
    "addopts=--strict-markers",
    "-p",
    "no:cacheprovider",
    "-m",
    "gpu and not slow",
    "-v",
    "--durations=0",
)

# In the order of what a cut would cost; if all parts are chosen, the weights are their seconds.
PARTS = (
    _work("refl", 130),
    Part("tests", 75, PYTEST, (*PYTEST, "--collect-only", "-q"), needs="pytest"),
    _work("graphs", 100),
    _work("prefix", 45),
    _work("trainers", 70),
    _work("benchmarks", 35),
    _work("attention", 25),
    _work("quickstart", 60),
)


def choose(names: str) -> list[Part]:
    """Parts named in a comma-separated list, in their fixed order; all parts for an empty list.

    Raises:
        ValueError: for an unknown name.
    """
    known = {part.name: part for part in PARTS}
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"parts: expected some of {', '.join(known)}; got {', '.join(unknown)}")
    return [part for part in PARTS if part.name in wanted]


def shares(parts: Sequence[Part], total: float = TOTAL) -> dict[str, float]:
    """Seconds of each part if all take theirs; their sum is `total`."""
    weight = sum(part.weight for part in parts)
    return {part.name: total * part.weight / weight for part in parts}


def lay_out(tree: Path, root: Path = ROOT) -> None:
    """Copies a checkout to `tree` so that Python imports rewardedit from there, uninstalled,
    with its version.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("tests", "benchmarks"):
        shutil.copytree(root / name, tree / name, ignore=ignore)
    # rewardedit comes first, then the packages that are mapped into it from other folders.
    for package, folder in sorted(project["tool"]["setuptools"]["package-dir"].items()):
        shutil.copytree(root / folder, tree / package.replace(".", "/"), ignore=ignore, dirs_exist_ok=True)
    for path in root.iterdir():
        if path.is_file() and path.suffix in (".toml", ".md", ".txt"):
            shutil.copy(path, tree)
    name = project["project"]["name"]
    version = project["project"]["version"]
    info = tree / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def environment_of(tree: Path, name: str = "") -> dict[str, str]:
    """Environment variables of a part: the copy comes first on Python's import path, downloads are
    disabled, and what the part compiles is kept in a folder of its own.
    """
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(tree), str(tree / "benchmarks"), *([inherited] if inherited else [])]
    settings = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # what one part has read, the next need not compile again
        "TMPDIR": str(tree),  # what a part that is cut off leaves is removed with the copy
    }
    cache = tree / "caches" / name
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
    return {**os.environ, **settings, **caches, "PYTHONPATH": os.pathsep.join(paths)}


def run_part(part: Part, seconds: float, tree: Path, tiny: bool = False) -> dict[str, Any]:
    """Runs one part in the copy for at most `seconds`; returns its command, seconds, status,
    tail of its output and figures.

    The status is "ok", "failed", "cut off" or "skipped".
    """
    command = part.tiny if tiny else part.command
    record: dict[str, Any] = {"command": " ".join(["python", *command]), "share": seconds, "seconds": 0.0}
    if part.needs and importlib.util.find_spec(part.needs) is None:
        return {**record, "status": "skipped", "tail": f"{part.needs} is not installed", "figures": {}}
    # A file and not a pipe: a child that outlives its parent would hold a pipe open.
    output = tree / f"{part.name}.log"
    figures = tree / f"{part.name}.figures.json"
    environment = {**environment_of(tree, part.name), "FIGURES": str(figures)}
    began = time.monotonic()
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = "ok" if process.wait(timeout=seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "cut off"
        finally:
            _kill_group(process)
    record["seconds"] = round(time.monotonic() - began, 1)
    measured = json.loads(without_folders(figures.read_text(), tree)) if figures.is_file() else {}
    text = without_folders(output.read_text(errors="replace"), tree)
    return {**record, "status": status, "tail": text[-TAIL:], "figures": {**measured, **_rate(text)}}


def without_folders(text: str, tree: Path) -> str:
    """A text with paths from the copy on, and only the last part of others: results are kept, and say nothing
    of the machine's folders.
    """
    return FOLDERS.sub("…/", text.replace(f"{tree}/", ""))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a part and all its remaining children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _rate(output: str) -> dict[str, float]:
    """Last rate shown by a progress bar, for a part that was cut off."""
    rates = re.findall(r"([\d.]+) images/s", output)
    return {"images_per_second": float(rates[-1])} if rates else {}


def run_parts(
    parts: Sequence[Part],
    tree: Path,
    save: Callable[[dict[str, dict[str, Any]]], object],
    total: float = TOTAL,
    tiny: bool = False,
) -> dict[str, dict[str, Any]]:
    """Runs the parts one after another, even after failures, and saves all results after every part.
    Each has its share of the seconds that the parts before it have left.
    """
    results: dict[str, dict[str, Any]] = {}
    for number, part in enumerate(parts):
        name = part.name
        seconds = shares(parts[number:], total)[name]
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        results[name] = run_part(part, seconds, tree, tiny)
        total -= min(results[name]["seconds"], seconds)
        print(f"{name}: {results[name]['status']} after {results[name]['seconds']:g} s", flush=True)
        save(results)
    return results


def failures(results: dict[str, dict[str, Any]]) -> list[str]:
    """Names of the parts that failed or were cut off."""
    return [
        f"{name} ({result['status']})"
        for name, result in results.items()
        if result["status"] in ("failed", "cut off")
    ]


def write(out: Path, environment: dict[str, Any], results: dict[str, dict[str, Any]]) -> Path:
    """Writes cuda-DEVICE.json and its HTML page; returns the path of the former."""
    from rewardedit.files import write_json
    from rewardedit.reports.report import Report

    device = re.sub(r"[^a-z0-9]+", "-", environment["device"].split(",")[0].lower()).strip("-")
    path = out / f"cuda-{device}.json"
    record = {"command": "make cuda", **environment, "failed": failures(results), "parts": results}
    write_json(path, record)

    report = Report(f"make cuda on {environment['device']}")
    report.output(json.dumps(environment, indent=2))
    report.table(
        "Seconds",
        {f"{n}: {r['status']}": {"took": r["seconds"], "share": r["share"]} for n, r in results.items()},
    )
    for failed in record["failed"]:
        report.flag(failed)
    for name, result in results.items():
        rows = {key: value for key, value in result["figures"].items() if _is_row(value)}
        report.table(name, rows)
        others = {key: value for key, value in result["figures"].items() if key not in rows}
        report.output(
            (json.dumps(others, indent=2) + "\n" if others else "")
            + f"$ {result['command']}\n{result['tail']}"
        )
    report.save(path.with_suffix(".html"))
    return path


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(v, int | float) for v in value.values())


def main(words: Sequence[str] | None = None) -> int:
    """Runs the requested parts. Exit codes: 0 all succeeded, 1 some failed or were cut off,
    2 the request cannot be carried out.
    """
    began = time.monotonic()
    parser = argparse.ArgumentParser(description="Runs on a CUDA machine what no CPU can show.")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"), help="folder of the results")
    parser.add_argument(
        "--parts", default="", help=f"some of {','.join(part.name for part in PARTS)} (default: all)"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="narrow models on the CPU: whether the parts run at all"
    )
    args = parser.parse_args(words)
    try:
        parts = choose(args.parts)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rewardedit-cuda-") as folder:
        tree = Path(folder)
        lay_out(tree)
        sys.path.insert(0, str(tree))
        from rewardedit import devices
        from rewardedit.training.environment import COMMIT, commit, environment

        if devices.default_device() != "cuda" and not args.tiny:
            print(
                "there is no CUDA device here; --tiny runs the parts at tiny size on the CPU", file=sys.stderr
            )
            return 2
        made_from, source = commit(ROOT)
        if made_from is not None:
            os.environ[COMMIT] = made_from  # for the parts, whose copy has no git
        print(f"commit: {made_from} (from {source})" if made_from else f"commit: unknown; set {COMMIT}")
        made_on = {**environment(), "commit": made_from, "commit_from": source}
        left = TOTAL - (time.monotonic() - began)
        results = run_parts(parts, tree, lambda records: write(out, made_on, records), left, args.tiny)
        print(f"results: {write(out, made_on, results)}")
    failed = failures(results)
    print(f"failed: {', '.join(failed)}" if failed else "all parts are well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
