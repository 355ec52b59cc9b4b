"""Retrieval on HumanEdit, the protocol of the ViFi-CLIP poster (Donabauer et al. 2025): each edit is scored
with its own instruction and with all others', and ranked.

The rows are `rewardedit.data.humanedit`'s, "BryanW/HumanEdit" on the hub. The poster held out 1,128 of 5,751
rows and does not say which; here they are the first of those whose instruction is new, of distinct source
images. Items are EDIT|INSTRUCTION, both by their rows' ids: n edits are n² items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product, starmap
from pathlib import Path

import numpy as np

from rewardedit.batch import EditSample
from rewardedit.data.humanedit import HumanEdit
from rewardedit.evaluation.protocols.pairs import shortfall
from rewardedit.evaluation.protocols.protocol import (
    About,
    Benchmark,
    Cell,
    Column,
    Items,
    ItemScores,
    Line,
    Options,
    Table,
    TrainingData,
    published,
    require_compat,
)
from rewardedit.evaluation.retrieval import RECALLS
from rewardedit.evaluation.statistics import clustered_mean
from rewardedit.evaluation.statistics.bootstrap import drawn_counts, percentile_interval

N = 1128
SOURCE = "Donabauer et al. 2025 (poster), of 1,128 rows"
PUBLISHED = {
    "mean rank": 161.22,
    "median rank": 29.60,
    "recall@1": 0.0919,
    "recall@5": 0.2413,
    "recall@10": 0.3342,
    "recall@50": 0.5949,
}


class HumanEditRetrieval(Benchmark):
    """Retrieval of an edit's instruction; see the module."""

    about = About(
        title="HumanEdit, retrieval of the instruction",
        paper="Donabauer et al. 2025; data of Bai et al. 2024, arXiv 2412.04280",
        size="1,128 edits × 1,128 instructions",
        licence="as the card of the data set says",
        data="BryanW/HumanEdit",
        download="a Parquet table with its images",
    )
    limited = True

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None, limit: int = N) -> None:
        if edits:
            raise ValueError("--edits: retrieval is of the people's own edits; leave it out")
        self.table = HumanEdit(path or self.about.data)
        texts = self.table.rows.select_columns(["IMAGE_ID", "EDITING_INSTRUCTION"])
        self.numbers: list[int] = []
        self.instructions: dict[str, str] = {}
        skipped = 0
        for number, row in enumerate(texts):
            name, text = str(row["IMAGE_ID"]), row["EDITING_INSTRUCTION"]
            usable = isinstance(text, str) and text.strip() and name not in self.instructions
            if not usable or text in self.instructions.values():
                skipped += 1
            elif len(self.numbers) < limit:
                self.numbers.append(number)
                self.instructions[name] = text
        if len(self.numbers) < 2:
            raise ValueError(f"humanedit {path}: expected at least two edits; got {len(self.numbers)}")
        self.ids = list(starmap("{}|{}".format, product(self.instructions, repeat=2)))
        self.notes = []
        if skipped:
            self.notes.append(
                f"{skipped} rows left out: without an instruction, or with one that came before"
            )

    def rows(self) -> Items:
        names = list(self.instructions)
        sources = np.repeat(names, len(names)).tolist()
        texts = list(self.instructions.values())
        return Items(self.ids, sources, EditReader(self.table, self.numbers, self.ids, texts))

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        names = list(self.instructions)
        lines = []
        notes = [
            *self.notes,
            "an equal score counts as better than an edit's own instruction, no score as worse",
        ]
        ids = self.ids
        for scorer in scores.values:
            values = scores.array(scorer, ids).reshape(len(names), -1)
            known = scores.known(scorer, ids).reshape(len(names), -1)
            lines.append(Line(scorer, rank_cells(ranks_of(values, known), len(names), options)))
            notes += shortfall(scores, scorer, ids)
        lines += _baselines(len(names))
        lines.append(published("ViFi-CLIP", SOURCE, N, **PUBLISHED))
        columns = [Column("mean rank", digits=2), Column("median rank", digits=2)]
        columns += [Column(f"recall@{k}", percent=True, digits=2) for k in RECALLS]
        return [Table(f"Rank of an edit's own instruction among {len(names)}", columns, lines, notes)]

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """All items, if HumanEdit was trained on: the poster's held-out rows are not known."""
        if not any(data.name == "humanedit" for data in trained_on):
            return set()
        return set(self.ids)


class EditReader:
    """Reads the item of a number; items of one edit follow each other, and its images are decoded once."""

    def __init__(
        self, table: HumanEdit, numbers: Sequence[int], ids: Sequence[str], texts: Sequence[str]
    ) -> None:
        self.table = table
        self.numbers = numbers
        self.ids = ids
        self.texts = texts
        self.last: tuple[int, EditSample] | None = None

    def __call__(self, index: int) -> EditSample:
        edit, text = divmod(index, len(self.texts))
        if self.last is None or self.last[0] != edit:
            self.last = (edit, self.table[self.numbers[edit]])
        # captions tell what its own instruction is
        return replace(
            self.last[1],
            id=self.ids[index],
            instruction=self.texts[text],
            source_caption=None,
            target_caption=None,
        )


def ranks_of(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Rank of each edit's own instruction, from 1, (n,); NaN for an edit without entries of all.

    Args:
        values: (n, n) scores, NaN without one; rows are edits.
        known: (n, n) True where there is an entry.
    """
    worst = np.nan_to_num(values, nan=-np.inf)
    diagonal = worst.diagonal()[:, None]
    ranks = (worst >= diagonal).sum(1).astype(float)
    return np.where(known.all(1), ranks, np.nan)


def rank_cells(ranks: np.ndarray, n: int, options: Options) -> dict[str, Cell]:
    """Mean, median and recalls of ranks (edits,), with intervals over edits."""
    ranks = ranks[~np.isnan(ranks)]
    if len(ranks) < 2:
        reason = f"undefined: {len(ranks)} edits have entries for all {n} instructions"
        return {name: Cell(n=len(ranks), reason=reason) for name in PUBLISHED}
    cells = {"mean rank": Cell.of(clustered_mean(ranks, seed=options.seed))}
    drawn = []
    for counts in drawn_counts(len(ranks), options.resamples, options.seed):
        drawn.append(np.median(np.repeat(ranks, counts.astype(int))))
    interval = percentile_interval(np.array(drawn), len(ranks))
    cells["median rank"] = Cell(float(np.median(ranks)), interval, len(ranks))
    for k in RECALLS:
        cells[f"recall@{k}"] = Cell.of(clustered_mean(ranks <= k, seed=options.seed))
    return cells


def _baselines(n: int) -> list[Line]:
    middle = {"mean rank": Cell((n + 1) / 2), "median rank": Cell((n + 1) / 2)}
    last = {"mean rank": Cell(float(n)), "median rank": Cell(float(n))}
    for k in RECALLS:
        middle[f"recall@{k}"] = Cell(min(1.0, k / n))
        last[f"recall@{k}"] = Cell(float(k >= n))
    return [Line("random", middle, "baseline"), Line("always tie", last, "baseline")]
