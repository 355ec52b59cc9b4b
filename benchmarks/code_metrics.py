"""Metrics of the code before and after its restructuring: python benchmarks/code_metrics.py --before FOLDER

FOLDER is a checkout of the earlier version. rewardedit/ and trainers/ are counted with Python's own parser,
unresolved imports with pyright under each version's settings.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from command_line import WRITE, CommandLine

ROOT = Path(__file__).parents[1]
COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
# Files and folders whose presence shows, in either version, that a stage is done.
DONE = re.compile(
    r"(whole|done)\.is_file|'done'\)\.is_file|_read_record\(result / MADE_OF\) ==|MADE_OF\)\.is_file"
    r"|paths\[i\]\.exists|results\[arm\]\.is_dir|'watch\.json'\)\.is_file"
)


RELATIVE = {"What", "Whether", "Of", "How", "Where", "Which", "Who", "Whose", "When"}
WORLD = re.compile(r'shapes-|"shapes"|offline world|[Oo]racle|Shapes[A-Z(]')


@cache
def parse(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text())


@cache
def source_of(function: ast.FunctionDef) -> str:
    """A function as text, without its comments."""
    return ast.unparse(function)


def modules(
    tree: Path, folders: tuple[str, ...] = ("rewardedit", "trainers")
) -> Iterator[tuple[str, ast.Module]]:
    """Path in the checkout and syntax tree of every module."""
    for folder in folders:
        for path in sorted((tree / folder).rglob("*.py")):
            if path.parent.name == "benchmarks":  # programs, no part of the package
                continue
            yield str(path.relative_to(tree)), parse(path)


@cache
def functions(module: ast.AST) -> list[ast.FunctionDef]:
    """Functions of a module, including nested ones."""
    return [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]


def length(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def per_hundred_statements(tree: Path) -> tuple[float, float]:
    """Comprehensions, and assignments of a tuple to a tuple, per 100 statements."""
    nodes = [node for _, module in modules(tree) for node in ast.walk(module)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in nodes)
    tuples = sum(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        for node in nodes
    )
    return round(100 * comprehensions / statements, 2), round(100 * tuples / statements, 2)


def nested_comprehensions(tree: Path) -> float:
    """Comprehensions inside another one, per 100 statements."""
    nodes = [node for _, module in modules(tree) for node in ast.walk(module)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    outer = [node for node in nodes if isinstance(node, COMPREHENSIONS)]
    nested = {inner for node in outer for inner in ast.walk(node) if inner is not node}
    return round(100 * sum(isinstance(node, COMPREHENSIONS) for node in nested) / statements, 2)


def relative_docstrings(tree: Path) -> float:
    """Percentage of docstrings that begin with a relative word, such as "What a layer attends to"."""
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
    nodes = [node for _, module in modules(tree) for node in ast.walk(module) if isinstance(node, kinds)]
    first = [doc.split()[0].strip(",.:") for doc in map(ast.get_docstring, nodes) if doc]
    return round(100 * sum(word in RELATIVE for word in first) / len(first), 1)


def complex_functions(tree: Path) -> int:
    """Functions with a cyclomatic complexity above 9 (ruff C901)."""
    options = ["--select", "C901", "--config", "lint.mccabe.max-complexity=9", "--output-format", "json"]
    command = [str(Path(sys.executable).with_name("ruff")), "check", *options, "rewardedit", "trainers"]
    return len(json.loads(subprocess.run(command, cwd=tree, capture_output=True, text=True).stdout))


def rooms(tree: Path) -> dict[str, int]:
    """Counts of loose modules, trainers and recipes, and what of the library names the offline world."""
    world_folders = ("rewardedit/shapes/", "rewardedit/data/shapes/")
    lines = [
        (path, line)
        for path, _ in modules(tree, ("rewardedit",))
        if not path.startswith(world_folders)
        for line in (tree / path).read_text().splitlines()
    ]
    importing = {path for path, line in lines if re.match(r"\s*from rewardedit\.(data\.)?shapes\b", line)}
    return {
        "modules at the top of rewardedit/": len(list((tree / "rewardedit").glob("*.py"))),
        "files in trainers/": len(list((tree / "trainers").glob("*.py"))),
        "recipes in recipes/": len(list((tree / "recipes").glob("*.yaml"))),
        "lines outside the offline world that name it": sum(bool(WORLD.search(line)) for _, line in lines),
        "modules outside the offline world that import it": len(importing),
    }


def private_imports(tree: Path) -> list[str]:
    """Imports of this package's names or modules that begin with an underscore, from other modules."""
    imports = []
    for path, module in modules(tree):
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rewardedit"):
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                imports += [f"{path}: {name}" for name in parts if re.match("_(?!_)", name)]
    return imports


@cache
def calls(function: ast.FunctionDef) -> list[tuple[str, ast.Call]]:
    """Calls in a function, with the called names."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [(getattr(node.func, "id", getattr(node.func, "attr", "")), node) for node in nodes]


def scoring(tree: Path) -> list[str]:
    """Functions that score rows of data: they call a scorer and take no gradient of it.

    Not counted: scorers themselves, best-of-N and the picture of one edit (they share inputs prepared once
    per source), and the measurement of a scorer's memory on `meta`.
    """
    others = (
        "rewardedit/scorers/",
        "rewardedit/selection.py",
        "rewardedit/reports/explain.py",
        "rewardedit/training/memory/stages.py",
    )
    gradient = (
        "rewardedit/diffusion/",
        "rewardedit/evaluation/robustness/pixel_steps.py",
        "rewardedit/integrations/unirl.py",
        "rewardedit/reports/heatmap.py",
        "rewardedit/training/reward.py",
        "rewardedit/training/rollouts.py",
        "trainers/_feedback.py",
    )
    places = []
    for path, module in modules(tree):
        for function in [] if path.startswith((*others, *gradient)) else functions(module):
            if any(name == "scorer" for name, _ in calls(function)):
                places.append(f"{path}: {function.name}")
    return places


def matching(tree: Path, code: re.Pattern[str], text: re.Pattern[str]) -> list[str]:
    """Modules with a function whose code matches, among those whose text does: that is found sooner."""
    paths = []
    for path, module in modules(tree):
        if text.search((tree / path).read_text()) is None:
            continue
        if any(code.search(source_of(function)) for function in functions(module)):
            paths.append(path)
    return paths


def predicted_x0(tree: Path) -> list[str]:
    """Modules that compute the predicted clean latents."""
    words = re.compile("pred_original_sample|alphas_cumprod")
    return matching(tree, words, words)


def source_channels(tree: Path) -> list[str]:
    """Functions that concatenate a source's latents to the noisy ones along the channels."""
    places = []
    for path, module in modules(tree):
        for function in functions(module):
            for name, call in calls(function):
                if name == "cat" and re.search(r"(source|image_latents)\], dim=1", ast.unparse(call)):
                    places.append(f"{path}: {function.name}")
    return places


def stages_done(tree: Path) -> list[str]:
    """Modules that check whether a stage is done."""
    return matching(tree, DONE, re.compile(r"is_file|exists|is_dir|MADE_OF"))


def unresolved_imports(tree: Path) -> int:
    """Imports that pyright does not find."""
    command = [str(Path(sys.executable).with_name("pyright")), "--outputjson"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    return sum(line.get("rule") == "reportMissingImports" for line in diagnostics)


def measure(tree: Path, pyright: bool = True) -> dict[str, Any]:
    """All figures of a checkout; without `pyright`, those that take a second."""
    trainers = list(modules(tree, ("trainers",)))
    longest = max(
        (
            (length(function), f"{path}: {function.name}")
            for path, module in trainers
            for function in functions(module)
        )
    )
    comprehensions, tuples = per_hundred_statements(tree)
    places = {
        "score rows": scoring(tree),
        "say that a stage is done": stages_done(tree),
        "compute predicted x0": predicted_x0(tree),
        "concatenate source channels": source_channels(tree),
    }
    return {
        "lines of trainers": sum(len((tree / path).read_text().splitlines()) for path, _ in trainers),
        "longest function of trainers": longest[0],
        "comprehensions per 100 statements": comprehensions,
        "tuple assignments per 100 statements": tuples,
        "nested comprehensions per 100 statements": nested_comprehensions(tree),
        "docstrings that begin with a relative word, %": relative_docstrings(tree),
        "functions of a complexity above 9": complex_functions(tree),
        **rooms(tree),
        "private cross-imports": len(private_imports(tree)),
        **({"unresolved imports": unresolved_imports(tree)} if pyright else {}),
        **{f"places that {what}": len(entries) for what, entries in places.items()},
        "places": {**places, "longest function of trainers": [longest[1]]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="figures of the code, before and after")
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier version")
    parser.add_argument("--name", default="code-metrics", help="of the result (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=WRITE)
    args = parser.parse_args()
    before = args.before.resolve()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=before, capture_output=True, text=True
    )
    figures = {"before": measure(before), "after": measure(ROOT)}
    line = CommandLine(Path(__file__), ["--before", commit.stdout.strip()], args.write)
    line.keep(args.name, figures)


if __name__ == "__main__":
    main()
