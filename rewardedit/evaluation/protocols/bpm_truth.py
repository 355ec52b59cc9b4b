"""BPM's ground-truth test (Li et al. 2025, Table 4): the kind of image that a scorer favours, of the well
edited one, one that keeps too much, and one that changes too much.

The authors' file was not published. PATH is a JSON list or table of id, instruction, source, ground_truth,
excessively_preserved and excessively_modified, the last four paths of images beside it. Items are ID/KIND.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image, require_text
from rewardedit.evaluation.preferences import favours
from rewardedit.evaluation.protocols.files import read_ratings
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
    published,
    read_all,
    require_compat,
)
from rewardedit.evaluation.protocols.shares import share_cells
from rewardedit.images import load_pil

KINDS = ("excessively_preserved", "excessively_modified", "ground_truth")
SOURCE = "Li et al. 2025 (BPM), Table 4"
PUBLISHED = {
    "L2": (0.83, 0.0, 0.17),
    "LPIPS": (1.0, 0.0, 0.0),
    "CLIP-I": (0.87, 0.0, 0.13),
    "DINOscore": (0.98, 0.0, 0.02),
    "CLIPScore": (0.04, 0.83, 0.13),
    "CLIPScore + CLIP-I": (0.42, 0.14, 0.44),
    "GPT-4o": (0.08, 0.14, 0.78),
    "BPM": (0.12, 0.01, 0.87),
}


@dataclass(frozen=True)
class Triplet:
    """Three images of one source and instruction."""

    id: str
    source: str
    instruction: str
    images: Mapping[str, str]  # by kind

    def item(self, kind: str) -> str:
        return f"{self.id}/{kind}"


class BpmTruth(Benchmark):
    """BPM's ground-truth test; see the module."""

    about = About(
        title="BPM, ground-truth test",
        paper="Li et al. 2025, ICML",
        size="three images a row",
        licence="of your own images",
        data="a file of your own (PATH); the authors' was not published",
        download="none",
    )

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        if edits:
            raise ValueError("--edits: bpm_truth's file names the images itself; leave it out")
        file = Path(path)
        if not path or not file.is_file():
            raise ValueError(
                f"bpm_truth {path}: expected a file of id, instruction, source, {', '.join(KINDS)}"
            )
        self.folder = file.parent
        self.triplets: list[Triplet]
        self.triplets, self.notes = read_all(read_ratings(file), _triplet, file.name)
        self.ids: list[str] = []
        for one in self.triplets:
            self.ids += map(one.item, KINDS)

    def rows(self) -> Items:
        sources = np.repeat([one.source for one in self.triplets], len(KINDS)).tolist()
        return Items(self.ids, sources, partial(_sample, self.folder, self.triplets))

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        ids = self.ids
        lines = []
        notes = [*self.notes, "a row in which several images have the highest score counts in equal parts"]
        for scorer in scores.values:
            known = scores.known(scorer, ids).reshape(-1, 3).all(1)
            values = scores.array(scorer, ids).reshape(-1, 3)[known]
            sources = [one.source for one, whole in zip(self.triplets, known, strict=True) if whole]
            cells: dict[str, Cell] = dict.fromkeys(KINDS, Cell(n=0, reason="no row has all three images"))
            if len(values):
                shares = favours(dict(zip(KINDS, values.T, strict=True)))
                cells = share_cells(KINDS, np.stack(list(shares.values()), axis=1), sources, options)
                del cells["average"]
            lines.append(Line(scorer, cells))
            notes += shortfall(scores, scorer, ids)
        third = dict.fromkeys(KINDS, Cell(1 / 3))
        lines += [Line("random", third, "baseline"), Line("always tie", third, "baseline")]
        for name, values in PUBLISHED.items():
            lines.append(published(name, SOURCE, **dict(zip(KINDS, values, strict=True))))
        columns = [Column(kind, digits=2) for kind in KINDS]
        return [Table("Ground-truth test: the kind of image with the highest score", columns, lines, notes)]


def _triplet(number: int, record: Mapping[str, Any]) -> Triplet:
    name = str(record.get("id", number))
    texts = {key: require_text(dict(record), key, f"id {name}") for key in ("source", "instruction", *KINDS)}
    return Triplet(name, texts["source"], texts["instruction"], {kind: texts[kind] for kind in KINDS})


def _sample(folder: Path, triplets: Sequence[Triplet], index: int) -> EditSample:
    one = triplets[index // 3]
    kind = KINDS[index % 3]
    return EditSample(
        id=one.item(kind),
        source=load_pil(find_image(folder, one.source)),
        instruction=one.instruction,
        edited=load_pil(find_image(folder, one.images[kind])),
    )
