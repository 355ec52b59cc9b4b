import json
import re
import sys

import pytest
import torch

from rewardedit.cli import recipe_names
from rewardedit.scorers.load import BUILT_IN, find_scorer
from tests.readme import BENCHMARKS, README, ROOT, blocks, write_images

sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.mark.parametrize("block", blocks(README + BENCHMARKS, "python"))
def test_every_python_block_runs(block, tmp_path, monkeypatch, capsys):
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    if "RewardPrompt" in block:
        assert "The image quality is four out of five." in capsys.readouterr().out
    if "mask_guidance" in block:
        assert names["edited"].shape == names["source"].shape
        assert not torch.equal(names["edited"], names["first"])


def test_the_tables_are_those_of_the_results():
    from tables import TABLES, fill

    for page in (README, BENCHMARKS):
        assert fill(page) == page, "run python benchmarks/tables.py --write"
    assert set(re.findall(r"<!-- table: ([\w-]+) -->", README + BENCHMARKS)) == set(TABLES)


def test_every_recipe_and_scorer_is_named():
    assert set(re.findall(r"`([\w/-]+)`", README)) >= set(recipe_names())
    table = README.split("<!-- table: scorers -->")[1].split("<!-- end -->")[0]
    for name in BUILT_IN:
        low, high = find_scorer(name).range
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}`"))
        assert find_scorer(name).paper in row
        assert f"{low:g} to {high:g}".replace("-", "−").replace("inf", "∞") in row
        assert ("| yes |" in row) == find_scorer(name).differentiable


def test_every_file_of_the_tree_is_there():
    tree = README.split("## The tree")[1].split("Licence")[0]
    names = [name for line in re.findall(r"^    (\S.*)", tree, re.M) for name in re.split(r", |  +.*", line)]
    assert len(names) > 10
    for name in filter(None, names):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda p: p.stem
)
def test_results_say_where_they_come_from(path):
    result = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {"command", "date", "packages", "device"} <= set(result)
    assert (
        path.stem.startswith(("throughput", "refl-step", "same-weights", "code-metrics", "cuda-"))
        or '"n":' in path.read_text()
    )
