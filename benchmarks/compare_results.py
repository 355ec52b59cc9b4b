"""Compares the recorded results with an earlier commit: python benchmarks/compare_results.py OLD

Matches results/*.json of OLD and HEAD by file name, wherever the folders are, and prints every number that
changed, vanished, moved to another key of its file (one that was renamed, say) or appeared. Notes, commands
and versions are not compared. The exit status is 1 if a number changed or vanished.
"""

import argparse
import json
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
UNCOMPARED = {"notes", "command", "commit", "date", "device", "models", "packages", "python"}


def git(tree: Path, *words: str) -> str:
    """Output of a git command."""
    return subprocess.run(["git", "-C", tree, *words], check=True, capture_output=True, text=True).stdout


def results(tree: Path, commit: str) -> dict[str, dict[str, float]]:
    """Numbers of all recorded results of a commit, by file name and key."""
    paths = map(PurePosixPath, git(tree, "ls-tree", "-r", "--name-only", "-z", commit).split("\0"))
    recorded = [path for path in paths if path.match("results/*.json")]
    return {path.name: numbers(json.loads(git(tree, "show", f"{commit}:{path}"))) for path in recorded}


def numbers(value: Any, key: str = "") -> dict[str, float]:
    """Numbers of a recorded result, by dotted key."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {key: value}
    if not isinstance(value, dict | list):
        return {}
    by_key: dict[str, float] = {}
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if name not in UNCOMPARED:
            by_key |= numbers(item, f"{key}.{name}" if key else str(name))
    return by_key


def compare(old: dict[str, float], new: dict[str, float]) -> list[str]:
    """Lines for the numbers that differ."""
    lines: list[str] = []
    appeared = {key: number for key, number in new.items() if key not in old}
    for key, number in old.items():
        if key in new:
            if str(new[key]) != str(number):  # NaN equals NaN
                lines.append(f"changed {key}: {number} → {new[key]}")
            continue
        other = next((name for name, value in appeared.items() if str(value) == str(number)), None)
        if other is None:
            lines.append(f"vanished {key}: {number}")
        else:
            lines.append(f"moved {key}: {number}, now {other}")
            del appeared[other]
    return lines + [f"appeared {key}: {number}" for key, number in appeared.items()]


def report(tree: Path, old: str) -> list[str]:
    """Lines to print for all results of a repository: one for each file, and for each number that differs."""
    before = results(tree, old)
    after = results(tree, "HEAD")
    lines: list[str] = []
    for name in sorted(before | after):
        if name not in before:
            lines.append(f"{name}: new")
            continue
        differences = compare(before[name], after.get(name, {}))
        lines.append(f"{name}: {len(before[name])} numbers, {len(differences)} differ")
        lines += [f"  {line}" for line in differences]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", help="the earlier commit")
    lines = report(ROOT, parser.parse_args().old)
    print(*lines, sep="\n")
    raise SystemExit(any(line.startswith(("  changed", "  vanished")) for line in lines))
