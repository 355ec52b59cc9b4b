import json
import re
import sys

import pytest

from rewardedit.cli import recipe_names, recipe_path
from rewardedit.cli.downloads import in_short
from rewardedit.cli.recipes import header
from rewardedit.models import CLIP, DETECTOR, SEGMENTER
from rewardedit.scorers.load import BUILT_IN, COMBINED, OWN_MODELS, find_scorer
from rewardedit.training.estimate import HOURS_OF
from tests.readme import BENCHMARKS, README, RESULTS, ROOT, WORLD, blocks, sections, smaller, write_images

IN_TASKS = blocks(sections("Score", "Choose: best of N"), "python")
sys.path[:0] = [str(BENCHMARKS), str(WORLD / "benchmarks")]


# tests/test_readme_tasks.py runs the others
@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("block", [b for b in blocks(README, "python") if b not in IN_TASKS])
def test_every_python_block_runs(block, tmp_path, monkeypatch):
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(compile(smaller(block), "README.md", "exec"), {})


def test_the_tables_are_those_of_the_results():
    from tables import PAGES, TABLES, fill

    for page in PAGES:
        assert fill(page.read_text()) == page.read_text(), f"{page}: run python benchmarks/tables.py --write"
    named = {name for page in PAGES for name in re.findall(r"<!-- table: ([\w-]+) -->", page.read_text())}
    assert named == set(TABLES)


def test_every_recipe_is_named_on_its_page():
    recipes = WORLD / "recipes"
    of_the_world = {name for name in recipe_names() if recipes in recipe_path(name).resolve().parents}
    assert of_the_world
    others = {*recipe_names()} - of_the_world
    for page, names in ((README, others), ((WORLD / "README.md").read_text(), of_the_world)):
        assert names - set(re.findall(r"`([\w/-]+)`", page)) == set()


def test_every_scorer_is_named_with_its_range():
    page = (ROOT / "docs" / "score.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in (*BUILT_IN, *OWN_MODELS, *COMBINED):
        assert f"`{name}`" in README or f"{name}:" in README
        (row,) = [row for row in rows if f"`{name}`" in row.split("|")[1]]
        low, high = find_scorer(name).range
        said = row.split("|")[3].strip()
        assert said in ("", f"{low:g} to {high:g}".replace("-", "−")), name


@pytest.mark.parametrize(
    "path", sorted(p for folder in RESULTS for p in folder.glob("*.json")), ids=lambda p: p.stem
)
def test_results_say_where_they_come_from(path):
    result = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {"command", "date", "packages", "device"} <= set(result)
    assert (
        path.stem.startswith(("throughput", "refl-step", "same-weights", "code-metrics", "cuda-"))
        or '"n":' in path.read_text()
    )


def test_hours_of_own_pairs_are_those_of_the_recipe():
    (train,) = blocks(sections("Train"), "bash")
    about = r"about ([\d.]+) hours on an RTX 4090, "
    (said,) = re.findall(rf"{about}computed from the denoiser's calls alone\n", train)
    (computed,) = re.findall(about + HOURS_OF, "\n".join(header("magicbrush-refl-24gb")))
    assert int(said) == int(float(computed))


def test_the_first_download_s_size_is_known():
    (block,) = blocks(sections("Score"), "bash")
    assert f"downloads {in_short([CLIP, DETECTOR, SEGMENTER])}, printed" in block
