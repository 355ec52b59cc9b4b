"""The comparison of all scorers: edits, scores, attacks and times into a folder, and the tables of them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.evaluation.bench import read_item_scores, score_items
from rewardedit.evaluation.protocols.protocol import Cell, Column, ItemScores, Line, Table
from rewardedit.evaluation.robustness import tables as robustness
from rewardedit.evaluation.robustness.measure import score_attacks
from rewardedit.evaluation.robustness.rows import JudgedEdits, require_both, spread
from rewardedit.evaluation.scorer_use import ScorerUse, use_scorers
from rewardedit.evaluation.statistics import clustered_mean
from rewardedit.files import AnyPath, write_json
from rewardedit.scoring import score_batch
from rewardedit.shapes.bench.edits import SPLIT, Key, World, edit_keys, make_edits, rate_edits
from rewardedit.shapes.bench.figures import (
    ACROSS,
    RETRIEVED,
    SEEDS,
    TRUTH,
    WITHIN,
    Edits,
    chance,
    editor_means,
    measure_scorer,
    measure_values,
)
from rewardedit.shapes.bench.rows import WORDINGS, BenchRows, Item, all_items
from rewardedit.shapes.bench.settings import COPY, ShapesBench, short_name
from rewardedit.shapes.oracle import ShapesOracle
from rewardedit.shapes.vocabulary import SIZE, WORLD_VERSION
from rewardedit.stages.stage import stage
from rewardedit.untrusted import file_name, read_json_file

MILLISECONDS = "ms an edit"
# shares of failed edits that pass: a column of a table of attacks, by its title here
PASSING = {
    "pass before 2/255": (robustness.BEFORE, "steps 2/255"),
    "pass after 2/255": (robustness.PASSING, "steps 2/255"),
    "pass before 8/255": (robustness.BEFORE, "steps 8/255"),
    "pass after 8/255": (robustness.PASSING, "steps 8/255"),
}


def compare_scorers(out: AnyPath, bench: ShapesBench) -> tuple[list[Table], dict[str, Any]]:
    """All tables, and what each scorer's scores are made of; an interrupted call is gone on with, and a call
    after a complete one scores nothing.

    Raises:
        ValueError: if the folder was made with other settings, or there are too few good or failed edits.
    """
    world = World(bench.n)
    images = make_edits(out, bench, world)
    made_of = {"world": WORLD_VERSION, "split": SPLIT, "n": bench.n, "edits": _made_of_edits(out)}
    keys = edit_keys(bench)
    edits = Edits(keys, world.sources, rate_edits(out, bench, world, images, made_of))
    uses = use_scorers({short_name(spec): spec for spec in bench.scorers})

    items = all_items(keys, bench.n, bench.candidates)
    rows = BenchRows(items, world, images)
    shards = {}
    for name, use in uses.items():
        made_of_scores = {
            **made_of,
            "candidates": bench.candidates,
            "editors": bench.editors,
            "use": use.made_of,
        }
        shards[name] = score_items(out, name, made_of_scores, rows, use.by_name, SIZE)
    scores = read_item_scores(shards)

    judged = judged_edits(bench, edits, world, images)
    attacked = score_attacks(out / "robustness", judged, uses, bench.attack, made_of, SIZE)
    attacks = robustness.make_tables(attacked, judged, bench.attack)
    times = time_scorers(out, uses, rows, bench.timed, made_of) if bench.timed else {}

    tables = []
    for wordings in WORDINGS:
        lines = _lines(scores, list(uses), wordings, edits, bench)
        if wordings == "usual":
            lines = _with_attacks_and_times(lines, attacks, times)
        tables.append(_main_table(lines, wordings, bench))
    return [*tables, editor_table(edits), *attacks], {name: use.made_of for name, use in uses.items()}


def _made_of_edits(out: AnyPath) -> Any:
    """Everything that the edits depend on, as their stage recorded it."""
    return read_json_file(out / "edits" / "made_of.json")


def judged_edits(bench: ShapesBench, edits: Edits, world: World, images: Mapping[Key, Tensor]) -> JudgedEdits:
    """Good and failed edits by all editors but the one that copies, of as many sources as there can be, and
    for each source another editor's first.
    """
    keys = [key for key in edits.first if key[0] != COPY]
    places = []
    for turn in range(len(keys)):
        places += [(keys[(row + turn) % len(keys)], row) for row in range(bench.n)]
    rows = BenchRows([Item(key, row, row, "usual") for key, row in places], world, images)
    ratings = np.array([edits.ratings[key][row] for key, row in places])

    def rate(numbers: Sequence[int], attacked: Tensor) -> np.ndarray:
        scores = []
        for number, image in zip(numbers, attacked, strict=True):
            row = places[number][1]
            scores.append(ShapesOracle().rate(world.usual[row : row + 1], image[None]).score)
        return torch.cat(scores).numpy()

    sources = [edits.sources[row] for _, row in places]
    good = spread(np.flatnonzero(ratings >= bench.good_from).tolist(), sources, bench.judged)
    failed = spread(np.flatnonzero(ratings <= bench.failed_up_to).tolist(), sources, bench.judged)
    return require_both(JudgedEdits(rows, good, failed, sources, rate), "raise n")


def time_scorers(
    out: AnyPath, uses: Mapping[str, ScorerUse], rows: BenchRows, n: int, made_of: Any
) -> dict[str, float]:
    """Milliseconds that each scorer takes for one of n edits in a batch, the better of two runs; each a stage
    of its own, which another scorer leaves as it is.
    """
    samples = [rows[i] for i in range(min(n, len(rows)))]
    source = torch.stack([sample.source for sample in samples])
    edited = torch.stack([sample.edited for sample in samples])
    texts = [sample.instruction for sample in samples]

    def make(use: ScorerUse, number: int, path: Path) -> None:
        loaded = use.by_name()
        batch = EditBatch(source, texts, edited).to(devices.default_device())
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            score_batch(batch, loaded)
            seconds.append(time.perf_counter() - start)
        write_json(path, 1000 * min(seconds) / len(samples))

    times = {}
    for name, use in uses.items():
        settings = {"edits": made_of, "timed": n, "use": use.made_of}
        (path,) = stage(out / "times" / file_name(name), settings, partial(make, use), 1, "times-{:05d}.json")
        times[name] = read_json_file(path)
    return times


def _lines(
    scores: ItemScores, names: Sequence[str], wordings: str, edits: Edits, bench: ShapesBench
) -> list[Line]:
    lines = [Line(name, measure_scorer(scores, name, wordings, edits, bench)) for name in names]
    lines.append(Line("which editor made it", measure_values(editor_means(edits), edits, bench), "baseline"))
    lines.append(Line("a random score", chance(bench), "baseline"))
    return lines


def _with_attacks_and_times(
    lines: Sequence[Line], attacks: Sequence[Table], times: Mapping[str, float]
) -> list[Line]:
    """The lines with the shares of failed edits that pass, and the times."""
    by_table = {}
    for table in attacks:
        by_table[table.title] = {line.name: line.cells for line in table.rows}
    extended = []
    for line in lines:
        cells = dict(line.cells)
        for title, (of, column) in PASSING.items():
            attacked = by_table[of].get(line.name, {})
            if column in attacked:
                cells[title] = attacked[column]
        if line.name in times:
            cells[MILLISECONDS] = Cell(times[line.name])
        extended.append(replace(line, cells=cells))
    return extended


def _main_table(lines: Sequence[Line], wordings: str, bench: ShapesBench) -> Table:
    columns = [Column(WITHIN, digits=2)]
    columns += [Column(name, True, 1) for name in (SEEDS, RETRIEVED, TRUTH)]
    columns.append(Column(ACROSS, digits=2))
    columns += [Column(name, True, 1) for name in ("not scored", *PASSING)]
    columns.append(Column(MILLISECONDS, digits=1))
    used = set().union(*(line.cells for line in lines))
    notes = (
        f"{bench.n} source images; scorers see source, instruction and edited image alone. An edit without a "
        "score counts as worse than any other.",
        f"{WITHIN}: Spearman's ρ with the exact rating within each editor, averaged by Fisher's z. {SEEDS}: "
        f"pairs of edits of one source by one editor whose ratings differ by at least {bench.least:g}. "
        f"{RETRIEVED}: the ground truth scores highest with its own instruction of {bench.candidates}. "
        f"{TRUTH}: the ground truth scores above the source with noise and above an image of its caption.",
        "Pass before and after: share of the same failed edits that reach the threshold of good ones, before "
        "and after gradient steps within so many of 255 levels.",
        f'{ACROSS} says which editors a scorer prefers: compare it with the row "which editor made it", a '
        "rule that sees no image.",
    )
    title = f"Scorers of the offline world, {wordings} wordings of the instructions"
    return Table(title, [column for column in columns if column.name in used], lines, notes)


def editor_table(edits: Edits) -> Table:
    """Mean exact rating of each editor's edits."""
    rows = []
    for key in edits.first:
        rows.append(Line(key[0], {"rating": Cell.of(clustered_mean(edits.ratings[key], edits.sources))}))
    return Table("Editors", [Column("rating", digits=2)], rows, ("Mean exact rating, 0 to 10.",))
