"""What strangers may give: data sets, tables, recipes and command lines, made up by Hypothesis. All are read,
or refused in a line; there is never a traceback.

500 cases in the suite, the same each time; 10,000 others in the slow one.
"""

import contextlib
import csv
import io
import json
import string
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from rewardedit.cli import load_recipe, main, recipe_names, recipe_path
from rewardedit.data import DataConfig, open_rows, read_batches
from rewardedit.data.adapters import ADAPTERS
from rewardedit.data.table import PICTURES, TEXTS, Table
from rewardedit.scorers.load import BUILT_IN

FEW = 125  # of each of the four
MANY = 2500
both = pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def check(cases: int, strategy: st.SearchStrategy, property_of: Callable[[Any, Path], None]) -> None:
    """Tries a property with so many cases, each in an empty folder of its own, which is the current one."""

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=cases == FEW,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Any) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            property_of(case, Path(folder))

    run()


def png(width: int, height: int, mode: str) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height)).save(out, "PNG")
    return out.getvalue()


def changed(image: bytes, at: int, byte: int) -> bytes:
    at %= len(image)
    return image[:at] + bytes([byte]) + image[at + 1 :]


SIDES = st.integers(1, 40)
IMAGES = st.builds(png, SIDES, SIDES, st.sampled_from(["RGB", "L", "RGBA", "P", "1", "I;16"]))
PLACES = st.integers(0, 2000)
DAMAGED = st.one_of(
    st.builds(lambda image, at: image[: at % len(image)], IMAGES, PLACES),
    st.builds(changed, IMAGES, PLACES, st.integers(0, 255)),
    st.binary(max_size=40),
)
BYTES = st.one_of(IMAGES, DAMAGED)
WORDS = st.text(max_size=30)
PATHS = st.sampled_from(
    ["a.png", "a.png", "../a.png", "/etc/passwd", "gone.png", ".", "", "a.png/b", "x" * 300]
)


def read_all(rows: Any) -> None:
    """Reads all rows; those that cannot be are told."""
    found = list(read_batches(rows, 16, "crop", 4))
    assert sum(len(part.numbers) + len(part.unreadable) for part in found) == len(rows)
    assert all(reason.strip() for part in found for reason in part.unreadable.values())


ANYTHING = st.one_of(WORDS, PATHS, st.none(), st.integers(), st.floats(), st.booleans(), st.lists(WORDS))
RECORDS = st.one_of(
    st.lists(st.dictionaries(st.sampled_from([*PICTURES, *TEXTS, "metadata"]), ANYTHING), max_size=5),
    st.lists(
        st.fixed_dictionaries(
            {"source": PATHS, "target": PATHS, "instruction": WORDS}, optional={"mask": PATHS, "id": WORDS}
        ),
        min_size=1,
        max_size=5,
    ),
)


@both
def test_tables(cases):
    def read(case: Any, folder: Path) -> None:
        kind, records, raw, image = case
        (folder / "a.png").write_bytes(image)
        file = folder / f"rows.{kind}"
        if raw is not None:
            file.write_bytes(raw)
        elif kind == "jsonl":
            file.write_text("".join(json.dumps(record) + "\n" for record in records))
        elif kind == "csv":
            with file.open("w", newline="", encoding="utf-8", errors="surrogatepass") as out:
                writer = csv.DictWriter(out, list({name: 0 for record in records for name in record}))
                writer.writeheader()
                writer.writerows(records)
        else:
            texts = [{name: None if v is None else str(v) for name, v in r.items()} for r in records]
            pq.write_table(pa.Table.from_pylist(texts), file)
        with contextlib.suppress(ValueError):
            read_all(Table(str(file)))

    raw = st.one_of(st.none(), st.none(), st.binary(max_size=100), st.text(max_size=100).map(str.encode))
    kinds = st.sampled_from(["jsonl", "csv", "parquet"])
    check(cases, st.tuples(kinds, RECORDS, raw, BYTES), read)


def columns_of(adapter: Any) -> list[str]:
    return list(getattr(adapter, "columns", ("id", "image", "instruction")))


@st.composite
def data_sets(draw: Any) -> tuple[str, list[str], list[dict[str, Any]]]:
    """An adapter's name, its columns of images, and rows that a Parquet file can hold."""
    name = draw(st.sampled_from(sorted(ADAPTERS)))
    adapter = ADAPTERS[name]
    pictures = [column for column in getattr(adapter, "pictures", ()) if draw(st.integers(0, 9))]
    kinds = {
        column: draw(st.sampled_from([WORDS, WORDS, WORDS, st.integers(-9, 9), st.booleans()]))
        for column in columns_of(adapter)
        if draw(st.integers(0, 30))  # now and then one is missing
    }
    image = st.one_of(
        st.none(),
        st.builds(lambda content: {"bytes": content, "path": None}, BYTES),
        st.builds(lambda path: {"bytes": None, "path": path}, PATHS),
    )
    row = st.fixed_dictionaries(
        {
            column: image
            if column in pictures
            else st.one_of(st.none(), kind)
            if draw(st.booleans())
            else kind
            for column, kind in kinds.items()
        }
    )
    return name, pictures, draw(st.lists(row, min_size=1, max_size=3))


@both
def test_data_sets(cases, monkeypatch):
    import datasets

    def read(case: Any, folder: Path) -> None:
        name, pictures, rows = case
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        datasets.disable_progress_bars()
        stored = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table(
            {
                column: pa.array([row[column] for row in rows], stored if column in pictures else None)
                for column in rows[0]
            }
        )
        (folder / "data").mkdir()
        pq.write_table(table, folder / "data" / "train-00000-of-00001.parquet")
        with contextlib.suppress(ValueError):
            read_all(open_rows(DataConfig(name, str(folder / "data"), size=16)))

    check(cases, data_sets(), read)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS, st.sampled_from(["l1", "1e-3"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=5,
)
NAMES = [
    "data",
    "train",
    "relabel",
    "reward",
    "evaluate",
    "variants",
    "watch",
    "lr",
    "rows",
    "scorer",
    "base",
]
KEYS = st.lists(st.sampled_from([*NAMES, "max_steps", "backdrops", "shares", "x"]), min_size=1, max_size=3)
SETTINGS = st.builds(
    lambda keys, value: f"{'.'.join(keys)}={value}",
    KEYS,
    st.one_of(WORDS, VALUES.map(lambda value: yaml.safe_dump(value, default_flow_style=True).strip())),
)


@both
def test_recipes(cases):
    def load(case: Any, folder: Path) -> None:
        name, key, value, raw, words = case
        values = yaml.safe_load(recipe_path(name).read_text())
        if key:
            values[key] = value
        (folder / "own.yaml").write_bytes(yaml.safe_dump(values).encode() if raw is None else raw)
        with contextlib.suppress(ValueError):
            load_recipe("own.yaml", words)
        with contextlib.suppress(ValueError):
            load_recipe(name, words)

    raw = st.one_of(st.none(), st.none(), st.binary(max_size=60), st.text(max_size=60).map(str.encode))
    names = st.sampled_from(recipe_names())
    keys = st.one_of(st.none(), st.sampled_from(NAMES), WORDS)
    check(cases, st.tuples(names, keys, VALUES, raw, st.lists(SETTINGS, max_size=3)), load)


JUNK = st.one_of(
    st.text(string.printable, max_size=12), PATHS, st.sampled_from(["name=shapes", "rows=2", "rows=x", "a=b"])
)
SCORERS = st.one_of(st.sampled_from(["l1", "ssim", "l1:0.5,ssim:0.5", "{l1: {region: inside}}"]), JUNK)
OPTIONS = st.one_of(
    st.builds(lambda scorer: ["--scorer", scorer], SCORERS),
    st.builds(lambda option, value: [option, value], st.sampled_from(["--out", "--size", "--mask"]), JUNK),
    st.builds(lambda value: ["--checkpoint", value], JUNK),
    st.sampled_from([["--json"], ["--engine", "processes"], ["--shard", "1/2"], ["--explain", "x.png"]]),
)


@both
def test_command_lines(cases, capsys):
    """`score` and `relabel` with all kinds of options, and `train` as far as its plan."""

    def run(case: Any, folder: Path) -> None:
        command, words, options, image = case
        (folder / "a.png").write_bytes(image)
        argv = [command, *words, *(word for option in options for word in option)]
        if command == "score" and "name=shapes" in words:
            argv.append("rows=2")  # of 10,000
        if command == "train":
            argv = ["train", *(words or ["quickstart"]), "--dry-run"]
        if command == "relabel":
            argv += ["data.rows=2", "relabel.scorer=l1", "relabel.scale=range", "--out", "out"]
        try:
            code = main(argv)
        except SystemExit as stopped:  # argparse's own refusal
            code = stopped.code
        said = capsys.readouterr()
        assert code in (0, 2), said.err  # 1 would be an error that nobody had thought of
        assert "Traceback" not in said.err
        if code == 2:
            assert said.err.strip()

    commands = st.sampled_from(["score", "score", "score", "relabel", "train", "recipes", ""])
    pairs = st.tuples(PATHS, PATHS, WORDS).map(list)
    words = st.one_of(st.lists(JUNK, max_size=4), pairs)
    check(cases, st.tuples(commands, words, st.lists(OPTIONS, max_size=3), BYTES), run)


def test_the_scorers_that_are_made_up_exist():
    assert {"l1", "ssim"} <= set(BUILT_IN)
