"""The rules of the house as tests."""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rewardedit.cli.settings import own_comments

ROOT = Path(__file__).parents[1]
PROGRAMS = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("rewardedit/shapes/benchmarks/*.py")]
SOURCES = sorted({*ROOT.glob("rewardedit/**/*.py"), *ROOT.glob("trainers/*.py")} - {*PROGRAMS})


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Lets go of a million nodes, which every later collection of garbage would look through."""
    yield
    nodes_of.cache_clear()


def imported(path: Path) -> set[str]:
    nodes = nodes_of(path)
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return (
        names
        | {str(node.module) for node in froms}
        | {f"{n.module}.{a.name}" for n in froms for a in n.names}
    )


def test_layers_hold():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_only_the_command_line_knows_the_trainers():
    others = [path for path in SOURCES if path.parent.name not in ("trainers", "cli")]
    for path in others:
        knows = {name for name in imported(path) if name.startswith("rewardedit.trainers")}
        assert not knows, f"{path} imports {knows}"


def test_files_are_small_and_safe():
    for path in (*SOURCES, *PROGRAMS):
        text = path.read_text()
        most = 350 if path.parent.name == "trainers" else 400
        assert text.count("\n") <= most, f"{path}: two files in one?"
        assert "from __future__ import annotations" not in text, f"{path}: jaxtyping reads the annotations"
        assert ast.get_docstring(nodes_of(path)[0]), f"{path}: every module says what it is"


# the one module that loads models of others' libraries
OF_ITS_OWN = ROOT / "rewardedit" / "models" / "pretrained.py"


def classes_of_ours() -> set[str]:
    """Names of our own classes with a `from_pretrained`."""
    return {
        node.name
        for path in SOURCES
        if "def from_pretrained" in path.read_text()
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == "from_pretrained" for part in node.body)
    }


def test_one_module_loads_models_and_never_runs_their_code():
    ours = classes_of_ours()
    for path in [*SOURCES, *PROGRAMS]:
        text = path.read_text()
        assert path == OF_ITS_OWN or "trust_remote_code" not in text, path
        if not any(
            word in text for word in ("from_pretrained", "trust_remote_code", ".load(", "truncation=")
        ):
            continue
        for node in nodes_of(path):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert isinstance(node.value, ast.Constant), place
                assert node.value.value is False, place
            if path != OF_ITS_OWN and isinstance(node, ast.Attribute) and node.attr == "from_pretrained":
                name = ast.unparse(node.value)
                own = name in ours or name.startswith("Labelled")
                assert own, f"{place}: load it by rewardedit.models.pretrained"
            if isinstance(node, ast.keyword) and node.arg == "truncation":
                assert path.stem == "texts", f"{place}: cut it by rewardedit.language.texts, which says so"
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "pickle.load"):
                options = {option.arg: ast.unparse(option.value) for option in node.keywords}
                assert options.get("weights_only") == "True", f"{place}: a pickle may run code"


def test_a_wheel_holds_the_package_and_nothing_else(tmp_path):
    from setuptools.config.pyprojecttoml import read_configuration

    tool = read_configuration(ROOT / "pyproject.toml")["tool"]["setuptools"]
    found = {"rewardedit"} | {
        ".".join(p.parent.relative_to(ROOT).parts) for p in ROOT.glob("rewardedit/**/__init__.py")
    }
    assert set(tool["packages"]) == found | {"rewardedit.trainers", "rewardedit.recipes"}
    assert all(name.split(".")[0] == "rewardedit" for name in tool["packages"])
    for pattern in tool["package-data"]["rewardedit"]:
        data = [path.relative_to(ROOT) for path in ROOT.glob(f"rewardedit/{pattern}")]
        assert data, pattern
        assert not [path for path in data if "benchmarks" in path.parts]


def test_ruff_is_content():
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "."], ["format", "--check", "."]):
        done = subprocess.run([ruff, *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow  # import-linter forbids the same of each file
def test_scoring_and_training_load_no_module_of_the_offline_world():
    script = """
import sys
import rewardedit.scoring
import rewardedit.trainers.refl
import rewardedit.training.monitor
loaded = [name for name in sys.modules if name.startswith("rewardedit.shapes")]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_few_lines_name_the_offline_world():
    """Outside its own folder, at most ten lines name the offline world: names by which it is asked for."""
    words = re.compile(r'shapes-|"shapes"|offline world|[Oo]racle|Shapes[A-Z(]')
    others = [p for p in ROOT.glob("rewardedit/**/*.py") if not {"shapes", "trainers"} & {*p.parts}]
    lines = [f"{path}: {line}" for path in others for line in path.read_text().splitlines()]
    assert len(lines) > 20_000
    naming = [line for line in lines if words.search(line.partition(": ")[2])]
    assert len(naming) <= 10, "\n".join(naming)


def test_no_trainer_imports_the_offline_world_or_a_door():
    """The import contracts see no trainer, which lies outside the package in a checkout."""
    doors = tuple(f"rewardedit.{name}" for name in ("shapes", "cli", "app", "serving"))
    trainers = sorted(ROOT.glob("trainers/*.py"))
    assert len(trainers) > 5
    for path in trainers:
        knows = {name for name in imported(path) if name.startswith(doors)}
        assert not knows, f"{path} imports {knows}"


def test_recipes_and_trainers_of_the_world_lie_in_its_folder():
    files = [path for kind in ("recipes/*.yaml", "trainers/*.py") for path in ROOT.glob(kind)]
    assert len(files) > 20
    for path in files:
        if path.name != "quickstart.yaml":
            assert not re.search("[Ss]hapes", path.read_text()), f"{path} belongs in rewardedit/shapes"


def test_docstrings_begin_with_a_verb_or_a_noun():
    """ "Returns …", "Boxes of …", and no relative clause ("What a layer attends to")."""
    relative = {"What", "Whether", "Of", "How", "Where", "Which", "Who", "Whose", "When"}
    files = [path for folder in ("rewardedit", "trainers") for path in (ROOT / folder).rglob("*.py")]
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
    nodes = [node for path in files for node in nodes_of(path) if isinstance(node, kinds)]
    lines = [doc for doc in map(ast.get_docstring, nodes) if doc]
    assert len(lines) > 1500
    assert [line.splitlines()[0] for line in lines if line.split()[0].strip(",.:") in relative] == []


def test_docstrings_name_one_argument_a_line():
    """The reference's build takes no two."""
    several = re.compile(r"^ +\w+(, \w+)+: ", re.MULTILINE)
    raised = re.compile(r" +\w*Error\b")
    files = [path for folder in ("rewardedit", "trainers") for path in (ROOT / folder).rglob("*.py")]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for path in files for node in nodes_of(path) if isinstance(node, kinds)]
    docs = [doc.partition("Args:\n")[2] for doc in map(ast.get_docstring, nodes) if doc]
    lines = [match[0] for doc in docs for match in several.finditer(doc)]
    assert len([doc for doc in docs if doc]) > 300
    assert [line for line in lines if not raised.match(line)] == []


def test_comments_of_fields_read_alone():
    """`--help` prints them: "seed of the method", and neither "of the method" nor "how rows get labels"."""
    relative = re.compile(r"(of|e\.g\.|what|whether|how|where|which|who|whose|when)(?!\w)", re.IGNORECASE)
    comments = []
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and "dataclass" in map(_called, node.decorator_list):
                source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                comments += [(path.name, *item) for item in own_comments(source).items()]
    assert len(comments) > 800
    assert [comment for comment in comments if relative.match(comment[2])] == []


def test_help_of_options_reads_alone():
    relative = re.compile(r"f?['\"](of|e\.g\.|as for|whether|where|which|who|whose)(?!\w)", re.IGNORECASE)
    options = []
    for path in ROOT.glob("rewardedit/cli/*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                words = {option.arg: ast.unparse(option.value) for option in node.keywords}
                options.append((path.name, ast.unparse(node.args[0]), words))
    assert len(options) > 80
    without = [name for _, name, words in options if not {"help", "action"} & words.keys()]
    assert not without, f"options without a text: {without}"
    assert [option for option in options if relative.match(option[2].get("help", ""))] == []


def _called(decorator: ast.expr) -> str:
    """The name of a decorator, called or not."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(function).rpartition(".")[2]


def test_weights_are_few_and_safe():
    assets = [p for p in ROOT.glob("rewardedit/shapes/assets/**/*") if p.is_file()]
    weights = [p for p in assets if p.suffix == ".safetensors"]
    for names, most in ((("clip", "editor"), 14), (("vifi_clip",), 4), (("vlm",), 6)):
        own = [
            p for p in weights if p.relative_to(ROOT / "rewardedit" / "shapes" / "assets").parts[0] in names
        ]
        assert 0 < sum(p.stat().st_size for p in own) < most * 2**20, names
    assert not [p for p in assets if p.suffix in (".bin", ".pt", ".pkl", ".ckpt")]
