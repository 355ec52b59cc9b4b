"""AURORA-Bench, point-wise (Krojer et al. 2024): ratings of single edits, 0 to 2, over eight tasks, as ADIEE
evaluates on them.

The ratings are a JSON file in ADIEE's repository, assets/AURORA/human_ratings_updated_prompt.json (input,
gen, prompt, model, score, task). It names images in a folder `human_ratings`, which AURORA's authors give
out. PATH is the file or its folder; the images lie in that folder. Items are edited images by their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image, require_text
from rewardedit.evaluation.protocols.files import read_ratings
from rewardedit.evaluation.protocols.pairs import shortfall
from rewardedit.evaluation.protocols.pointwise import Rated, Scored, by_group, pooled
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
from rewardedit.images import load_pil

FILE = "human_ratings_updated_prompt.json"
TOP = 2.0  # highest rating
TASKS = {"magicbrush": "magicbrush", "emu_edit": "emu", "emu_edit_generations": "emu"}  # by data set
SOURCE = "Chen et al. 2025 (ADIEE), Table 1"
PUBLISHED = {
    "CLIP-D": 0.3080,
    "CLIP-T": 0.1847,
    "GPT-4o": 0.4038,
    "Gemini-Pro 1.5": 0.1052,
    "Qwen2.5-VL": 0.2351,
    "ADIEE": 0.4734,
}


@dataclass(frozen=True)
class AuroraEdit:
    """An edited image of the benchmark."""

    id: str
    image: str  # its name in the folder
    input: str
    instruction: str
    task: str
    model: str
    rating: float = float("nan")

    @property
    def rated(self) -> Rated:
        return Rated(self.id, self.rating, self.task, self.input)


def about(title: str, size: str, compat: tuple[str, ...] = ()) -> About:
    """The entry of one of AURORA-Bench's two parts."""
    return About(
        title=title,
        paper="Krojer et al. 2024, arXiv 2407.03471; files of Chen et al. 2025 (ADIEE)",
        size=size,
        licence="AURORA MIT, ADIEE's files CC BY-NC-SA 4.0",
        data="ratings: github.com/SamsungLabs/ADIEE, assets/AURORA (PATH)",
        download="images: from AURORA's authors, or --from-scores",
        compat=compat,
    )


class AuroraPointwise(Benchmark):
    """AURORA-Bench's ratings of single edits; see the module."""

    about = about("AURORA-Bench, point-wise", "2,000 edits of 400 sources by five editors")

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        file = find_file(path, edits, FILE)
        self.folder = file.parent
        self.edits, self.notes = read_all(read_ratings(file), _edit, file.name)
        self.model = {edit.id: edit.model for edit in self.edits}

    def rows(self) -> Items:
        return items_of(self.folder, self.edits)

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        rated = [edit.rated for edit in self.edits]
        lines = []
        notes = list(self.notes)
        for scorer in scores.values:
            scored = Scored.of(rated, scores, scorer)
            cells = {"all edits": pooled(scored, options), **by_group(scored, options)}
            by_editor = by_group(scored, options, get=lambda item: self.model[item.id])
            lines.append(Line(scorer, {**cells, "within editors": by_editor["average"]}))
            notes += shortfall(scores, scorer, [item.id for item in rated])
        equal = Cell(reason="undefined: all scores are equal")
        lines.append(Line("always tie", {"all edits": equal}, "baseline"))
        lines.append(Line("random", {"all edits": Cell(0.0), "average": Cell(0.0)}, "baseline"))
        lines += [published(name, SOURCE, 2000, **{"all edits": rho}) for name, rho in PUBLISHED.items()]
        tasks = dict.fromkeys(item.group for item in rated)
        columns = [Column("all edits"), Column("average"), Column("within editors"), *map(Column, tasks)]
        notes.append(
            "all edits: as published, over tasks of unlike difficulty; average (over tasks) and within "
            "editors: by Fisher's z"
        )
        return [Table("Spearman's ρ with people", columns, lines, notes)]

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """Items of the tasks whose data set was trained on."""
        return overlap_of(self.edits, trained_on)


def find_file(path: str, edits: Mapping[str, Path] | None, name: str) -> Path:
    """The file of ratings that PATH is or holds.

    Raises:
        ValueError: if there is none, or --edits is given.
    """
    if edits:
        raise ValueError("--edits: AURORA-Bench names the edited images itself; leave it out")
    file = Path(path)
    if path and file.is_dir():
        file = file / name
    if not path or not file.is_file():
        raise ValueError(f"aurora {path}: expected {name} of ADIEE's assets/AURORA, or its folder")
    return file


def items_of(folder: Path, edits: Sequence[AuroraEdit]) -> Items:
    """The edited images to be scored, each once."""
    ids = [edit.id for edit in edits]
    return Items(ids, [edit.input for edit in edits], partial(_sample, folder, edits))


def overlap_of(edits: Sequence[AuroraEdit], trained_on: Sequence[TrainingData]) -> set[str]:
    """Edits of the tasks whose data set was trained on; MagicBrush's are of its dev and test splits."""
    tasks = set()
    for data in trained_on:
        if data.name in TASKS and not (data.name == "magicbrush" and data.split == "train"):
            tasks.add(TASKS[data.name])
    return {edit.id for edit in edits if edit.task in tasks}


def _edit(number: int, record: Mapping[str, Any]) -> AuroraEdit:
    name = f"row {number + 1}"
    texts = [require_text(dict(record), key, name) for key in ("gen", "input", "prompt", "task", "model")]
    score = record.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= TOP:
        raise ValueError(f"score: expected 0 to {TOP:g}; got {score!r}")
    return AuroraEdit(texts[0], *texts, float(score))


def _sample(folder: Path, edits: Sequence[AuroraEdit], index: int) -> EditSample:
    edit = edits[index]
    return EditSample(
        id=edit.id,
        source=load_pil(find_image(folder, edit.input)),
        instruction=edit.instruction,
        edited=load_pil(find_image(folder, edit.image)),
        edit_type=edit.task,
    )
