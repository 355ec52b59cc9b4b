"""Pages of docs/: their blocks, commands, links, and places in the menu."""

import ast
import dataclasses
import importlib
import math
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import rewardedit
from rewardedit import cli
from rewardedit.cli.recipes import gpu_memory, header, recipe_names
from rewardedit.data import DataConfig
from tests.readme import (
    DOCS,
    PAGES,
    ROOT,
    SIZE,
    WORLD,
    blocks,
    smaller,
    undefined_names,
    write_images,
)

TEXTS = {page.name: page.read_text() for page in (*DOCS, WORLD / "README.md")}


def parameters(language: str) -> list:
    """The pages' blocks of a language, named by page and number."""
    return [
        pytest.param(block, id=f"{name}-{i}")
        for name, text in TEXTS.items()
        for i, block in enumerate(blocks(text, language))
    ]


@contextmanager
def server_for(block: str) -> Iterator[str]:
    """The block, with the address of a running server where it asks one."""
    address = "http://localhost:8008"
    if address not in block:
        yield block
        return
    from tests.serving.helpers import L1, server_of

    with server_of(L1) as running:
        yield block.replace(address, running)


@pytest.mark.usefixtures("published", "other_projects")
@pytest.mark.parametrize("block", parameters("python"))
def test_a_python_block_runs(block, tmp_path, monkeypatch, capsys):
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    with server_for(block) as block:
        exec(compile(block, "docs", "exec"), {})
    if "RewardPrompt" in block:
        assert "The image quality is four out of five." in capsys.readouterr().out


# In a block for a GPU: what makes it run here, on tiny models.
ON_A_CPU = {
    "timbrooks/instruct-pix2pix": "vinesmsuic/magicbrush-jul7",
    ').to("cuda")': ")",
    "float16": "float32",
    '"output_type": ': '"num_inference_steps": 2, "output_type": ',
    'load_scorer("bpm")': 'load_scorer("l1")',
    'load_scorer("vifi_clip", checkpoint="runs/humanedit-vifi-clip/scorer")': 'load_scorer("l1")',
}


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("page", ["choose.md", "guide.md"])
def test_blocks_edit_a_photograph_of_odd_sides(page, tmp_path, monkeypatch):
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    for block in blocks(TEXTS[page], "python gpu"):
        assert SIZE in block
        for text, shorter in ON_A_CPU.items():
            block = block.replace(text, shorter)
        names: dict = {}
        exec(compile(smaller(block), page, "exec"), names)
        edited = names["result"].best[None] if "result" in names else names.get("edited")
        edited = names["rounds"].edited if edited is None else edited
        assert edited.shape == (1, 3, 64, 70)


@pytest.mark.parametrize("block", parameters("python gpu"))
def test_the_names_of_a_block_for_a_gpu_are_defined(block):
    assert undefined_names(block) == []


def test_a_name_that_is_not_there_is_found():
    assert undefined_names("from rewardedit import EditBatch, nothing\n") == ["rewardedit.nothing"]
    assert undefined_names("import torch\nprint(torch.zeros(1), pipe)\n") == ["pipe"]
    assert (
        undefined_names("def f(x):\n    y = x\n    return y\n\n\nwith open('a') as file:\n    f(file)\n")
        == []
    )


def commands() -> list[str]:
    """All `rewardedit` commands of the pages."""
    text = "\n".join("\n".join(blocks(text, "bash")) for text in TEXTS.values())
    # a quoted argument may span several lines
    joined = re.sub(
        r"\"[^\"\n]*\"|'[^']*'", lambda found: " ".join(found[0].split()), text.replace("\\\n", " ")
    )
    lines = [line for line in joined.splitlines() if re.match(r"(rewardedit|accelerate launch) ", line)]
    return sorted(
        {" ".join(shlex.quote(word) for word in shlex.split(line, comments=True)) for line in lines}
    )


@pytest.mark.parametrize("command", commands())
def test_a_command_is_understood(command):
    """Options exist, and settings fit the recipe."""
    words = shlex.split(command)
    if words[0] == "accelerate":
        words = ["rewardedit", *words[words.index("rewardedit.cli") + 1 :]]
    words = [word for word in words[1:] if word not in ("SETTINGS",)]
    if words[-1] in ("--help", "-h"):
        return
    args = cli.parse(words)
    recipe = getattr(args, "recipe", None)
    if recipe is not None and not recipe.startswith("runs/"):
        cli.load_recipe(recipe, args.settings)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs make them."""
    heads = re.findall(r"^#+ (.*)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(file), f"{page}: {target}"


def test_every_page_is_short_and_has_a_place():
    assert len(DOCS) > 10
    menu = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    index = TEXTS["index.md"]
    for page in DOCS:
        assert page.read_text().count("\n") <= 120, page
        assert page.name in menu, page
        assert page.name == "index.md" or f"({page.name})" in index, page


def reference() -> dict[str, list[str]]:
    """Names that the reference lists, by module."""
    found = re.findall(r"^::: ([\w.]+)\n    options:\n      members: (\[.*\])", TEXTS["reference.md"], re.M)
    return {module: yaml.safe_load(names) for module, names in found}


def test_the_reference_has_every_public_name():
    listed = {name for names in reference().values() for name in names}
    assert set(rewardedit.__all__) <= listed
    for module, names in reference().items():
        for name in names:
            assert getattr(importlib.import_module(module), name).__doc__, name


def test_links_out_of_the_docs_are_made_for_the_site():
    source = ast.parse((ROOT / "docs" / "links.py").read_text())
    names: dict = {}
    exec(compile(source, "links.py", "exec"), names)
    page = "[the world](../rewardedit/shapes/README.md#bpm), [score](score.md)\n```python gpu\nx\n```"

    class Config:
        repo_url = ""

    assert names["on_page_markdown"](page, Config) == (
        'the world (`rewardedit/shapes/README.md`), [score](score.md)\n```python title="on a GPU"\nx\n```'
    )
    Config.repo_url = "https://host/owner/name/"
    address = "https://host/owner/name/blob/main/rewardedit/shapes/README.md#bpm"
    assert f"[the world]({address})" in names["on_page_markdown"](page, Config)


def test_tables_of_recipes_agree_with_their_headers():
    """Memory is rounded up; hours are those that benchmarks/hours.py wrote."""
    compared = set()
    for name, text in TEXTS.items():
        for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
            titles, _, *rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
            for recipe, *cells in rows:
                recipe = recipe.strip("`")
                if recipe not in recipe_names():
                    continue
                for title, cell in zip(titles[1:], cells, strict=True):
                    value = f"{cell} GiB" if title.startswith("memory, GiB") else cell
                    if said := re.fullmatch(r"(\d+) GiB", value):
                        assert int(said[1]) == math.ceil(gpu_memory(recipe)), f"{name}: {recipe}"
                        compared.add((recipe, "memory"))
                    if title == "hours, computed":
                        assert "(performance.md#hours-of-a-training)" in text, name
                        (hours,) = re.findall(r"about ([\d.]+) hours", "\n".join(header(recipe)))
                        assert cell == hours, f"{name}: {recipe}"
                        compared.add((recipe, "hours"))
    assert {("adiee-scorer", "memory"), ("klein-refl", "hours"), ("kontext-flow-grpo", "memory")} <= compared


def test_hours_of_the_scorers_are_those_of_their_headers():
    (said,) = re.findall(r"^Hours of the scorers.*", TEXTS["label.md"], re.M)
    told = re.findall(r"`([\w-]+)` (about [\d.]+ hours on an [\w ]+?)[,.]", said)
    assert len(told) == 2
    for recipe, hours in told:
        assert f": {hours}" in "\n".join(header(recipe)), recipe


def test_packages_are_installed_from_a_checkout():
    """Nothing was released."""
    for page in PAGES:
        assert not re.search(r"pip install\s+'?rewardedit|rewardedit\[", page.read_text()), page


def test_settings_of_data_sets_have_their_names_of_today():
    table = TEXTS["data.md"].split("| setting | |\n|---|---|\n")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()))
    assert len(named) > 5
    assert set(named) <= {field.name for field in dataclasses.fields(DataConfig)}
