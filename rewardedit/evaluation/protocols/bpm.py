"""BPM's human alignment test (Li et al. 2025, Tables 1 and 2): for every two of four editors, the share of
rows in which a scorer prefers the edit that people prefer.

PATH is local_metadata.json or global_metadata.json of the authors' data, or their folder (then the local
one), beside the images that it names: a list of index, instruction, source_image_path, and edited_image1 to 4
with image_path, user_overall_quality (1 to 5) and, where BPM was computed, preservation, edit_quality,
position and size. Items are INDEX-1 to INDEX-4.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image
from rewardedit.evaluation.decisions import bpm_overall
from rewardedit.evaluation.preferences import agreement
from rewardedit.evaluation.protocols.bpm_entries import PARTS, Entry, read_entry
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
    TrainingData,
    published,
    read_all,
    require_compat,
)
from rewardedit.evaluation.protocols.shares import share_cells
from rewardedit.images import load_pil

EDITORS = {"local": ("mgie", "ft_ip2p", "ip2p", "dalle2"), "global": ("pie", "hq_edit", "ft_ip2p", "ip2p")}
PAIRS = ((0, 1), (0, 2), (1, 2), (3, 2), (3, 1), (3, 0))  # in the order of the paper's tables
SOURCE = "Li et al. 2025 (BPM), Table {}"
PUBLISHED = {  # the six pairs and their average
    "local": {
        "L2": (0.651, 0.614, 0.724, 0.762, 0.659, 0.801, 0.702),
        "LPIPS": (0.687, 0.602, 0.665, 0.731, 0.626, 0.791, 0.683),
        "CLIP-I": (0.578, 0.574, 0.571, 0.705, 0.643, 0.796, 0.644),
        "CLIPScore": (0.530, 0.477, 0.494, 0.394, 0.429, 0.387, 0.452),
        "GPT-4o": (0.681, 0.676, 0.712, 0.860, 0.780, 0.817, 0.754),
        "BPM": (0.663, 0.659, 0.818, 0.943, 0.802, 0.911, 0.799),
    },
    "global": {
        "L2": (0.897, 0.889, 0.333, 0.400, 0.520, 0.925, 0.661),
        "LPIPS": (1.000, 0.917, 0.375, 0.467, 0.480, 0.900, 0.690),
        "CLIP-I": (0.966, 0.861, 0.417, 0.600, 0.520, 0.850, 0.702),
        "CLIPScore": (0.897, 0.833, 0.917, 0.667, 0.760, 0.825, 0.817),
        "GPT-4o": (0.759, 0.722, 0.583, 0.733, 0.760, 0.825, 0.730),
        "BPM": (0.897, 0.889, 0.750, 0.750, 0.840, 0.850, 0.829),
    },
}
TABLES = {"local": 1, "global": 2}


class BpmAlignment(Benchmark):
    """BPM's human alignment test; see the module."""

    about = About(
        title="BPM, human alignment test",
        paper="Li et al. 2025, ICML",
        size="960 edits by four editors, local and global",
        licence="Apache 2.0",
        data="github.com/joyli-x/BPM names the download (PATH)",
        download="a folder of the authors' with images and ratings",
        compat=("bpm",),
    )

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        if edits:
            raise ValueError("--edits: bpm's file names the edited images itself; leave it out")
        file = Path(path)
        file = file / "local_metadata.json" if path and file.is_dir() else file
        if not path or not file.is_file():
            raise ValueError(
                f"bpm {path}: expected local_metadata.json or global_metadata.json, or its folder"
            )
        self.kind = "global" if "global" in file.name else "local"
        self.folder = file.parent
        self.entries: list[Entry]
        self.entries, self.notes = read_all(read_ratings(file), read_entry, file.name)
        self.editors = EDITORS[self.kind]
        self.ratings = np.array([entry.ratings for entry in self.entries])  # (n, 4)
        self.ids: list[str] = []
        for entry in self.entries:
            self.ids += map(entry.item, range(4))

    def rows(self) -> Items:
        sources = np.repeat([entry.source for entry in self.entries], 4).tolist()
        return Items(self.ids, sources, partial(_sample, self.folder, self.entries))

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        rounded = options.compat == "bpm"
        names = [f"{self.editors[a]} vs {self.editors[b]}" for a, b in PAIRS]
        ids = self.ids
        lines = []
        notes = list(self.notes)
        for scorer in scores.values:
            known = scores.known(scorer, ids).reshape(-1, 4)
            values = scores.array(scorer, ids).reshape(-1, 4)
            lines.append(Line(scorer, self._cells(names, values, known, options, rounded)))
            notes += shortfall(scores, scorer, ids)
        stored, note = self._stored()
        if stored is not None:
            cells = self._cells(names, stored, np.isfinite(stored), options, rounded)
            lines.append(Line("BPM's parts", cells, "published", "parts stored in the benchmark's file"))
        for name, value in (("random", 0.5), ("always tie", 0.0)):
            lines.append(Line(name, dict.fromkeys((*names, "average"), Cell(value)), "baseline"))
        for name, values in PUBLISHED[self.kind].items():
            cells = dict(zip((*names, "average"), values, strict=True))
            lines.append(published(name, SOURCE.format(TABLES[self.kind]), **cells))
        notes.append("pairs that people rate equal are dropped; a scorer's ties are wrong" + note)
        columns = [Column(name, digits=3) for name in (*names, "average")]
        return [Table(f"Human alignment test, {self.kind} edits", columns, lines, notes)]

    def _cells(
        self, names: Sequence[str], values: np.ndarray, known: np.ndarray, options: Options, rounded: bool
    ) -> dict[str, Cell]:
        """Shares of all pairs and their mean, with intervals over source images.

        Args:
            values: (n, 4) scores.
            known: (n, 4) True for images that have an entry.
        """
        right = []
        for a, b in PAIRS:
            usable = known[:, a] & known[:, b] & np.isfinite(self.ratings[:, [a, b]]).all(1)
            answers = np.full(len(values), np.nan)
            ratings = self.ratings[usable]
            answers[usable] = agreement(values[usable, a], values[usable, b], ratings[:, a], ratings[:, b])
            right.append(answers)
        sources = [entry.source for entry in self.entries]
        return share_cells(names, np.array(right).T, sources, options, rounded)

    def _stored(self) -> tuple[np.ndarray | None, str]:
        """BPM's overall scores (n, 4) of the parts in the file, None without; and a note."""
        if not all(entry.parts for entry in self.entries):
            return None, ""
        parts = []
        for sub_score in PARTS:
            parts.append(np.ravel([entry.parts[sub_score] for entry in self.entries]))
        alpha = 1.0 if self.kind == "global" else 0.7
        note = (
            "; BPM's parts are brought to 0 and 1 by the ends of this file, so that its scores depend on it"
        )
        try:
            return bpm_overall(*parts, alpha=alpha).reshape(-1, 4), note
        except ValueError:
            return None, "; BPM's parts are left out: one has equal values alone, and no ends to normalise by"

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """All local edits, whose sources are MagicBrush's, if its dev or test split was trained on."""
        on_magicbrush = any(data.name == "magicbrush" and data.split != "train" for data in trained_on)
        if not on_magicbrush or self.kind == "global":
            return set()
        return set(self.ids)


def _sample(folder: Path, entries: Sequence[Entry], index: int) -> EditSample:
    entry = entries[index // 4]
    return EditSample(
        id=entry.item(index % 4),
        source=load_pil(find_image(folder, entry.source)),
        instruction=entry.instruction,
        edited=load_pil(find_image(folder, entry.images[index % 4])),
    )
