"""AURORA-Bench, pair-wise: which of two edits people prefer, or a tie.

The file is human_ratings_pairwise.json beside the point-wise one (see `aurora`): input, gens, prompt, models,
winner (one of the models, or tie), task. Items are edited images by their names in the file; for the second
prompt that an image is shown with, NAME#2, and so on. Pairs are called by their number from 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rewardedit.data.annotations import require_text
from rewardedit.evaluation import decisions
from rewardedit.evaluation.decisions import TIE, A, B, Ways
from rewardedit.evaluation.protocols.aurora import AuroraEdit, about, find_file, items_of, overlap_of
from rewardedit.evaluation.protocols.files import read_ratings
from rewardedit.evaluation.protocols.pairs import Pair, pair_table, repeated
from rewardedit.evaluation.protocols.protocol import (
    Benchmark,
    Items,
    ItemScores,
    Options,
    Table,
    TrainingData,
    published,
    read_all,
    require_compat,
)

FILE = "human_ratings_pairwise.json"
WAYS: dict[str, Ways] = {"3 answers": 3, "2 answers": 2}
SOURCE = "Chen et al. 2025 (ADIEE), Table 2"
PUBLISHED = {
    "random": 33.43,
    "CLIP-D": 31.63,
    "CLIP-T": 42.93,
    "GPT-4o": 50.81,
    "Gemini-Pro 1.5": 28.13,
    "Qwen2.5-VL": 30.69,
    "ADIEE": 55.56,
}


@dataclass(frozen=True)
class AuroraPair:
    """A pair of the benchmark and its two edits."""

    pair: Pair
    edits: tuple[AuroraEdit, AuroraEdit]

    @property
    def id(self) -> str:
        return self.pair.id


class AuroraPairwise(Benchmark):
    """AURORA-Bench's pairs; see the module."""

    about = about("AURORA-Bench, pair-wise", "1,600 pairs of 400 sources by five editors", ("adiee",))

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        file = find_file(path, edits, FILE)
        self.folder = file.parent
        pairs, self.notes = read_all(read_ratings(file), _pair, file.name)
        self.pairs: list[Pair] = []
        distinct: dict[str, AuroraEdit] = {}
        prompts: dict[str, list[str]] = {}  # of each image
        for one in pairs:
            left, right = (_numbered(edit, prompts) for edit in one.edits)
            distinct |= {left.id: left, right.id: right}
            self.pairs.append(replace(one.pair, left=left.id, right=right.id))
        self.edits = list(distinct.values())

    def rows(self) -> Items:
        return items_of(self.folder, self.edits)

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        rule = _adiee if options.compat == "adiee" else None
        keys = [tuple(sorted((pair.left, pair.right))) for pair in self.pairs]
        others = [published(name, SOURCE, 1600, **{"3 answers": v / 100}) for name, v in PUBLISHED.items()]
        notes = [*self.notes, *repeated(self.pairs, keys)]
        return [pair_table(self.pairs, scores, WAYS, options, rule, others, notes)]

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """Items of the tasks whose data set was trained on."""
        return overlap_of(self.edits, trained_on)


def _pair(number: int, record: Mapping[str, Any]) -> AuroraPair:
    name = f"row {number + 1}"
    source, prompt, task = (require_text(dict(record), key, name) for key in ("input", "prompt", "task"))
    gens = record.get("gens")
    models = record.get("models")
    for key, value in (("gens", gens), ("models", models)):
        if not isinstance(value, list) or len(value) != 2 or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{key}: expected two names; got {value!r}")
    assert isinstance(gens, list)
    assert isinstance(models, list)
    winner = record.get("winner")
    votes = {models[0]: A, models[1]: B, "tie": TIE}
    if winner not in votes:
        raise ValueError(f"winner: expected one of the models, or tie; got {winner!r}")
    edits = []
    for gen, model in zip(gens, models, strict=True):
        edits.append(AuroraEdit(gen, gen, source, prompt, task, model))
    return AuroraPair(Pair(str(number), gens[0], gens[1], votes[winner], source), (edits[0], edits[1]))


def _numbered(edit: AuroraEdit, prompts: dict[str, list[str]]) -> AuroraEdit:
    """The edit with an id of its own for each prompt that its image is shown with; adds to the prompts."""
    seen = prompts.setdefault(edit.image, [])
    if edit.instruction not in seen:
        seen.append(edit.instruction)
    number = seen.index(edit.instruction) + 1
    return edit if number == 1 else replace(edit, id=f"{edit.image}#{number}")


def _adiee(a: Any, b: Any) -> np.ndarray:
    return decisions.adiee(a, b, 3)
