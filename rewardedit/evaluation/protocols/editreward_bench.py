"""EditReward-Bench (Wu et al. 2025): groups of two, three or four edits of one source; a group is right if
all its pairs are.

"TIGER-Lab/EditReward-Bench" on the hub holds a row for each pair: id, of which the part before the first "_"
names the group; instruction, source_image, candidate_1, candidate_2, and ranking, such as "C>A" or "A=B",
where candidate_1 is the first of the two in the alphabet. A CSV or JSON file of id and ranking does for
scores from a file. Items are GROUP-A to GROUP-D, each edit once.

The authors' issues 13 and 14 report pairs that occur twice with unlike rankings: their groups are left out.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rewardedit.batch import EditSample
from rewardedit.evaluation.decisions import TIE, decide_out_of_fold, fit_margins, strict, three_way
from rewardedit.evaluation.protocols.editreward_groups import (
    SIZES,
    Row,
    grouped,
    pairs_of,
    places_of,
    read_row,
)
from rewardedit.evaluation.protocols.files import BenchTable, is_ratings, read_ratings, require_columns
from rewardedit.evaluation.protocols.pairs import FOLDS, PairScores, item_ids, shortfall
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
    published,
    read_all,
    require_compat,
)
from rewardedit.evaluation.statistics import clustered_mean

SOURCE = "Wu et al. 2025 (EditReward), README"
PUBLISHED = {
    "random": 13.84,
    "GPT-4o": 28.31,
    "GPT-5": 37.81,
    "Gemini 2.5 Flash": 38.02,
    "Qwen2.5-VL-7B": 29.75,
    "EditReward, Qwen2.5-VL-7B": 36.78,
    "EditReward, MiMo-VL-7B": 38.42,
}


class EditRewardTable(BenchTable):
    """Rows of the hub's table."""

    pictures = ("source_image", "candidate_1", "candidate_2")
    columns = ("id", "instruction", "ranking", *pictures)


class EditRewardBench(Benchmark):
    """EditReward-Bench; see the module."""

    about = About(
        title="EditReward-Bench",
        paper="Wu et al. 2025, arXiv 2509.26346",
        size="186 groups of 2, 150 of 3 and 148 of 4 edits: 1,524 pairs",
        licence="Apache 2.0",
        data="TIGER-Lab/EditReward-Bench",
        download="2.9 GB with its images",
        compat=("editreward",),
    )

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        if edits:
            raise ValueError("--edits: the files of editreward_bench hold the edited images; leave it out")
        path = path or self.about.data
        self.table: EditRewardTable | None = None
        if is_ratings(path):
            records = read_ratings(Path(path))
            require_columns(path, records[0], ("id", "ranking"))
        else:
            self.table = EditRewardTable(path)
            records = self.table.texts_of_rows()
        rows: list[Row]
        rows, self.notes = read_all(records, read_row, path)
        self.groups, left_out = grouped(rows)
        self.notes += left_out
        self.pairs = list(itertools.chain.from_iterable(self.groups.values()))
        self.places = places_of(rows)

    def rows(self) -> Items:
        if self.table is None:
            raise ValueError(
                "editreward_bench: these rankings come without images; leave PATH out for "
                f"{self.about.data}, or give --from-scores FILE"
            )
        ids = item_ids(self.pairs)
        sources = [name.rpartition("-")[0] for name in ids]
        return Items(ids, sources, partial(_sample, self.table, self.places, ids))

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        lines = []
        notes = list(self.notes)
        for scorer in scores.values:
            lines.append(Line(scorer, self._cells(PairScores.of(self.pairs, scores, scorer), options)))
            notes += shortfall(scores, scorer, item_ids(self.pairs))
        lines += self._baselines()
        for name, value in PUBLISHED.items():
            lines.append(published(name, SOURCE, **{"all groups": value / 100}))
        how = "the evaluated votes themselves" if options.compat else "other groups' votes, in 5 folds"
        notes.append(
            f"pairs of two edits may be ties: their margin is fitted on {how}; elsewhere scores decide"
        )
        names = ("pairs", *(f"K = {k}" for k in SIZES), "all groups")
        columns = [Column(name, percent=True, digits=2) for name in names]
        return [Table("Accuracy: groups of which all pairs are decided as by people", columns, lines, notes)]

    def _cells(self, pair_scores: PairScores, options: Options) -> dict[str, Cell]:
        decided = self._decisions(pair_scores, options)
        right = {}
        for pair, decision in zip(pair_scores.pairs, decided, strict=True):
            right[pair.id] = float(decision == pair.vote)
        sources = [pair.source for pair in pair_scores.pairs]
        cells = {"pairs": Cell.of(clustered_mean(list(right.values()), sources, options.seed))}
        whole = {}
        for name, pairs in self.groups.items():
            if all(pair.id in right for pair in pairs):
                whole[name] = float(all(right[pair.id] for pair in pairs))
        for k in SIZES:
            of_size = [value for name, value in whole.items() if len(self.groups[name]) == pairs_of(k)]
            cells[f"K = {k}"] = Cell.of(clustered_mean(of_size, seed=options.seed))
        cells["all groups"] = Cell.of(clustered_mean(list(whole.values()), seed=options.seed))
        return cells

    def _decisions(self, pair_scores: PairScores, options: Options) -> np.ndarray:
        """Decisions of all pairs; those of groups of two may be ties."""
        decided = strict(pair_scores.a, pair_scores.b)
        twos = np.array([len(self.groups[pair.source]) == 1 for pair in pair_scores.pairs], dtype=bool)
        a, b = pair_scores.a[twos], pair_scores.b[twos]
        votes = np.array(pair_scores.votes)[twos]
        if options.compat and len(votes):
            decided[twos] = three_way(a, b, fit_margins(a, b, votes, 3).tie)
        elif len(votes) >= FOLDS:
            sources = [pair.source for pair, two in zip(pair_scores.pairs, twos, strict=True) if two]
            decided[twos] = decide_out_of_fold(a, b, votes, sources, 3, FOLDS, options.seed)[0]
        return decided

    def _baselines(self) -> list[Line]:
        """Expected accuracies of a rule that draws an order of each group, and of one that always ties."""
        sizes = {name: len(item_ids(pairs)) for name, pairs in self.groups.items()}
        drawn = []
        tied = []
        for name, pairs in self.groups.items():
            ties = all(pair.vote == TIE for pair in pairs)
            some = any(pair.vote == TIE for pair in pairs)
            drawn.append(0.0 if some else 1 / np.prod(range(1, sizes[name] + 1)))
            tied.append(float(ties))
        lines = []
        for title, values in (("random order", drawn), ("always tie", tied)):
            cells = {"all groups": Cell(float(np.mean(values)), n=len(values))}
            for k in SIZES:
                of_size = [value for name, value in zip(sizes, values, strict=True) if sizes[name] == k]
                if of_size:
                    cells[f"K = {k}"] = Cell(float(np.mean(of_size)), n=len(of_size))
            lines.append(Line(title, cells, "baseline"))
        return lines


def _sample(
    table: EditRewardTable, places: Mapping[str, tuple[int, str]], ids: Sequence[str], index: int
) -> EditSample:
    number, column = places[ids[index]]
    row = table.at(number)
    return EditSample(ids[index], row["source_image"], row["instruction"], row[column])
