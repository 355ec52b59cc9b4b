"""ImagenHub, text-guided editing (Ku et al. 2024), as VIEScore and ADIEE evaluate on it: rank correlation
with people within each editor's edits, averaged over editors by Fisher's z.

Ratings are files of the repository TIGER-AI-Lab/ImagenHub, Text-Guided_IE_rater1.tsv to 3: uid, and a column
for each editor with "[SC, PQ]", each 0, 0.5 or 1. An edit's rating is the mean over raters of √(SC · PQ).
Sources, instructions and targets are "ImagenHub/Text_Guided_Image_Editing" on the hub, split filtered; edits
are folders of images by their uid. Items are EDITOR/uid. Intervals are over the photographs: several turns of
one have uids of their own.

The paper names eight editors; the files hold nine, of which Imagic is rated 0 throughout, so that its
correlation is undefined.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image
from rewardedit.evaluation.protocols.files import BenchTable
from rewardedit.evaluation.protocols.imagenhub_ratings import HumanRatings, image_of, uid_of
from rewardedit.evaluation.protocols.pairs import shortfall
from rewardedit.evaluation.protocols.pointwise import Rated, Scored, by_group, cells_of
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
from rewardedit.evaluation.statistics import clustered_mean, rater_agreement
from rewardedit.images import load_pil

IMAGES = "ImagenHub/Text_Guided_Image_Editing"
FILES = "Text-Guided_IE_rater*.tsv"
SOURCE = "Chen et al. 2025 (ADIEE), Table 1: tanh of the mean ρ"
PUBLISHED = {
    "human-human": 0.4184,
    "CLIP-D": 0.2117,
    "CLIP-T": 0.1894,
    "CLIP-I": 0.1261,
    "DINO-I": 0.0441,
    "GPT-4o": 0.3821,
    "Gemini-Pro 1.5": 0.2728,
    "Qwen2.5-VL": 0.1859,
    "ADIEE": 0.3450,
}


class ImagenHubTable(BenchTable):
    """Sources of the edits."""

    pictures = ("source_img", "target_img")
    texts = ("source_global_caption", "target_global_caption")
    columns = ("img_id", "turn_index", "instruction", *texts, *pictures)


class ImagenHub(Benchmark):
    """Text-guided editing of ImagenHub; see the module."""

    about = About(
        title="ImagenHub, text-guided editing",
        paper="Ku et al. 2024, arXiv 2310.01596; protocol of VIEScore, arXiv 2312.14867",
        size="179 edits of 116 photographs by 9 editors, three raters",
        licence="ratings MIT, images CC BY 4.0",
        data="ratings: github.com/TIGER-AI-Lab/ImagenHub, eval/human_ratings (PATH)",
        download=f"sources: {IMAGES}; edited images: folders of your own (--edits)",
        compat=("viescore",),
    )

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        self.folder = Path(path)
        files = sorted(self.folder.rglob(FILES)) if path else []
        if not files:
            raise ValueError(f"imagenhub {path}: expected a folder with {FILES}; see {self.about.data}")
        self.edits = dict(edits or {})
        self.people = HumanRatings(files)
        self.items = self.people.items()
        editors = self.people.editors
        if unknown := set(self.edits) - set(editors):
            raise ValueError(f"--edits: expected editors {', '.join(editors)}; got {', '.join(unknown)}")

    def requests(self) -> Items:
        """The rated sources with their instructions, without edits."""
        table, number = self._sources()
        known = [uid for uid in dict.fromkeys(self.people.uids) if uid in number]
        return Items(known, known, partial(_request, table, number, known))

    def rows(self) -> Items:
        if not self.edits:
            raise ValueError(
                "imagenhub: the ratings come without the edited images; give --edits EDITOR=FOLDER, or "
                "--from-scores FILE"
            )
        table, number = self._sources()
        items = [item for item in self.items if item.group in self.edits]
        read = partial(_sample, table, number, self.edits, items)
        return Items([item.id for item in items], [item.source for item in items], read)

    def _sources(self) -> tuple[ImagenHubTable, dict[str, int]]:
        """The table of the sources, and the row of each uid."""
        local = any(self.folder.rglob("*.parquet"))
        table = ImagenHubTable(str(self.folder) if local else IMAGES, "filtered")
        number = {}
        for n, row in enumerate(table.texts_of_rows()):
            number[f"sample_{row['img_id']}_{row['turn_index']}.jpg"] = n
        return table, number

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        compat = "viescore" if options.compat == "viescore" else None
        ids = [item.id for item in self.items]
        lines = [self._people(options, compat)]
        notes = list(self.people.notes)
        for scorer in scores.values:
            lines.append(Line(scorer, by_group(Scored.of(self.items, scores, scorer), options, compat)))
            notes += shortfall(scores, scorer, ids)
        lines += self._baselines()
        for name, value in PUBLISHED.items():
            lines.append(published(name, SOURCE, average=value))
        columns = [Column("average"), *map(Column, self.people.editors)]
        how = "tanh of the mean ρ, as VIEScore's code" if compat else "by Fisher's z"
        notes.append(f"average over editors {how}; human-human: each rater against the mean of the others")
        title = "Spearman's ρ with people, within each editor's edits"
        return [Table(title, columns, lines, notes), self._means()]

    def _people(self, options: Options, compat: Any) -> Line:
        n = len(self.items)
        groups = [item.group for item in self.items]
        sources = [item.source for item in self.items]
        flat = self.people.values.reshape(n, -1)
        agreement = rater_agreement(
            flat, groups, sources, compat=compat, resamples=options.resamples, seed=options.seed
        )
        return Line("human-human", cells_of(agreement), "people")

    def _baselines(self) -> list[Line]:
        equal = Cell(reason="undefined: all scores of an editor are equal")
        zero = Cell(0.0)
        return [
            Line("always tie", {"average": equal}, "baseline"),
            Line("random", {"average": zero}, "baseline"),
        ]

    def _means(self) -> Table:
        """People's mean rating of each editor, the paper's O."""
        cells = {}
        for editor in self.people.editors:
            per_item = [item.rating for item in self.items if item.group == editor]
            photographs = list(map(image_of, self.people.uids))
            cells[editor] = Cell.of(clustered_mean(per_item, photographs))
        columns = [Column(editor, digits=3) for editor in self.people.editors]
        title = "People's mean overall rating, √(SC · PQ)"
        return Table(title, columns, [Line("three raters", cells, "people")])

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """All items, if MagicBrush's dev split was trained on: the sources are from it."""
        on_magicbrush = any(data.name == "magicbrush" and data.split != "train" for data in trained_on)
        return {item.id for item in self.items} if on_magicbrush else set()


def _sample(
    table: ImagenHubTable,
    number: Mapping[str, int],
    edits: Mapping[str, Path],
    items: Sequence[Rated],
    index: int,
) -> EditSample:
    item = items[index]
    uid = uid_of(item)
    if uid not in number:
        raise ValueError(f"{uid}: no row of the sources has this uid")
    row = table.at(number[uid])
    return EditSample(
        id=item.id,
        source=row["source_img"],
        instruction=row["instruction"],
        edited=load_pil(find_image(edits[item.group], uid)),
        target=row["target_img"],
        source_caption=row["source_global_caption"],
        target_caption=row["target_global_caption"],
    )


def _request(table: ImagenHubTable, number: Mapping[str, int], uids: Sequence[str], index: int) -> EditSample:
    row = table.at(number[uids[index]])
    return EditSample(id=uids[index], source=row["source_img"], instruction=row["instruction"])
