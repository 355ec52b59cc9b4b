"""GenAI-Bench, image edition (Jiang et al. 2024): pairs of edits, with one vote each of left, right, both
good, both bad.

"TIGER-Lab/GenAI-Bench" on the hub, config image_edition, split test_v1, has the columns source_prompt,
target_prompt, instruct_prompt, source_image, left_model, left_output_image, right_model, right_output_image,
vote_type. A CSV or JSON file of votes without images (idx, source_prompt, target_prompt, instruct_prompt,
human_vote, vote_JUDGE …) does for scores from a file: `vote_JUDGE` holds a judge's answer.

Items are ROW-left and ROW-right, ROW being idx, or the row's number from 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.evaluation import decisions
from rewardedit.evaluation.decisions import VOTES, Ways, accuracy, as_ways, read_answer
from rewardedit.evaluation.protocols.files import BenchTable, is_ratings, read_ratings, require_columns
from rewardedit.evaluation.protocols.pairs import Pair, item_ids, pair_table, repeated
from rewardedit.evaluation.protocols.protocol import (
    About,
    Benchmark,
    Cell,
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

WAYS: dict[str, Ways] = {"4 answers": 4, "3 answers": 3, "2 answers": 2}
SOURCE = "Chen et al. 2025 (ADIEE), Table 2"
PUBLISHED = {
    "random": 25.90,
    "CLIP-D": 43.09,
    "CLIP-T": 39.39,
    "CLIP-I": 38.96,
    "DINO-I": 36.78,
    "GPT-4o": 53.54,
    "Gemini-Pro 1.5": 55.93,
    "Qwen2.5-VL": 32.10,
    "ADIEE": 59.96,
}


class GenAIBenchTable(BenchTable):
    """Rows of the hub's table."""

    config = "image_edition"
    pictures = ("source_image", "left_output_image", "right_output_image")
    texts = ("source_prompt", "target_prompt")
    instruction_column = "instruct_prompt"
    columns = (*texts, "instruct_prompt", "left_model", "right_model", "vote_type", *pictures)


@dataclass(frozen=True)
class Comparison:
    """A row of the benchmark."""

    pair: Pair
    number: int  # in the table
    models: tuple[str, ...]  # names of the two editors, where the file has them
    answers: Mapping[str, str] = field(default_factory=dict)  # judges' stored answers, as decisions

    @property
    def id(self) -> str:
        return self.pair.id


class GenAIBench(Benchmark):
    """The image-editing part of GenAI-Bench; see the module."""

    about = About(
        title="GenAI-Bench, image edition",
        paper="Jiang et al. 2024, arXiv 2406.04485",
        size="919 pairs of 180 sources",
        licence="CC BY 4.0",
        data="TIGER-Lab/GenAI-Bench",
        download="a Parquet table with its images",
        compat=("adiee",),
    )

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        if edits:
            raise ValueError("--edits: the files of genai_bench hold the edited images; leave it out")
        path = path or self.about.data
        self.table: GenAIBenchTable | None = None
        if is_ratings(path):
            records = read_ratings(Path(path))
            require_columns(path, records[0], ("source_prompt", "instruct_prompt", "human_vote"))
        else:
            self.table = GenAIBenchTable(path, "test_v1")
            records = self.table.texts_of_rows()
        comparisons, self.notes = read_all(records, _comparison, path)
        self.comparisons: list[Comparison] = comparisons
        self.pairs = [one.pair for one in comparisons]

    def rows(self) -> Items:
        if self.table is None:
            raise ValueError(
                f"these votes come without images; leave PATH out for {self.about.data}, or give scores by "
                "--from-scores FILE"
            )
        ids = []
        sources = []
        for pair in self.pairs:
            ids += [pair.left, pair.right]
            sources += [pair.source] * 2
        return Items(ids, sources, partial(_sample, self.table, self.comparisons))

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        rule = decisions.adiee if options.compat == "adiee" else None
        others = self._judges(options)
        for name, value in PUBLISHED.items():
            others.append(published(name, SOURCE, 919, **{"4 answers": value / 100}))
        notes = list(self.notes)
        keys = [(one.pair.source, *sorted(one.models)) for one in self.comparisons if one.models]
        if len(keys) == len(self.pairs):
            notes += repeated(self.pairs, keys)
        return [pair_table(self.pairs, scores, WAYS, options, rule, others, notes)]

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """All items, if MagicBrush's dev or test split was trained on: the sources are ImagenHub's."""
        on_magicbrush = any(data.name == "magicbrush" and data.split != "train" for data in trained_on)
        return set(item_ids(self.pairs)) if on_magicbrush else set()

    def _judges(self, options: Options) -> list[Line]:
        """Accuracies of the judges whose answers the file stores."""
        names: dict[str, None] = {}
        for one in self.comparisons:
            names |= dict.fromkeys(one.answers)
        lines = []
        for judge in names:
            kept = [one for one in self.comparisons if judge in one.answers]
            answers = [one.answers[judge] for one in kept]
            votes = [one.pair.vote for one in kept]
            sources = [one.pair.source for one in kept]
            cells = {}
            for column, ways in WAYS.items():
                estimate = accuracy(answers, as_ways(votes, ways), ways, sources, options.seed)
                cells[column] = Cell.of(estimate)
            lines.append(Line(judge, cells, "published", "answers stored in the benchmark's file"))
        return lines


def _comparison(number: int, record: Mapping[str, Any]) -> Comparison:
    """A row of either layout.

    Raises:
        ValueError: if its vote is none of `VOTES`, or a text is missing.
    """
    column = "human_vote" if "human_vote" in record else "vote_type"
    if record[column] not in VOTES:
        raise ValueError(f"{column}: expected one of {', '.join(VOTES)}; got {record[column]!r}")
    for name in ("source_prompt", "instruct_prompt"):
        if not isinstance(record[name], str) or not record[name].strip():
            raise ValueError(f"{name}: expected text; got {record[name]!r}")
    name = str(record.get("idx", number))
    answers = {}
    for key, value in record.items():
        if key.startswith("vote_") and key != "vote_type":
            answers[key.removeprefix("vote_")] = read_answer(value)
    pair = Pair(name, f"{name}-left", f"{name}-right", VOTES[record[column]], record["source_prompt"])
    models = [str(record[key]) for key in ("left_model", "right_model") if key in record]
    return Comparison(pair, number, tuple(models), answers)


def _sample(table: GenAIBenchTable, comparisons: Sequence[Comparison], index: int) -> EditSample:
    """The item of a number: left and right edits in turn."""
    comparison = comparisons[index // 2]
    row = table.at(comparison.number)
    side = ("left", "right")[index % 2]
    return EditSample(
        id=f"{comparison.id}-{side}",
        source=row["source_image"],
        instruction=row["instruct_prompt"],
        edited=row[f"{side}_output_image"],
        source_caption=row["source_prompt"],
        target_caption=row["target_prompt"],
    )
