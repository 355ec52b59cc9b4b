"""Interface of a benchmark: items that scorers rate, and the tables that follow from their scores alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from rewardedit.batch import EditSample
from rewardedit.data import Rows
from rewardedit.evaluation.statistics import Estimate
from rewardedit.scorer_spec import ScorerSpec
from rewardedit.untrusted import CONTENT_ERRORS, is_system_error

Kind = Literal["measured", "published", "baseline", "people"]


@dataclass(frozen=True)
class About:
    """A benchmark in the list of `rewardedit bench`."""

    title: str
    paper: str  # authors, year and arXiv number
    size: str  # such as "919 pairs of 180 sources"
    licence: str  # licence of the ratings and images
    data: str  # hub id or address of the files
    download: str  # size of the download, or where the edited images come from
    compat: tuple[str, ...] = ()  # published ways of computing that can be asked for
    heading: str = ""  # heading of the page; "": the title and "scores and people"


@dataclass(frozen=True)
class Options:
    """Settings of the tables."""

    compat: str | None = None  # one of `About.compat`; None: the right number
    seed: int = 0  # seed of resamples and folds
    resamples: int = 1000  # number of resamples of correlations


@dataclass(frozen=True)
class ItemScores:
    """Scores of a benchmark's items, from the scoring engine or from a file.

    An item whose images cannot be read, or that a file does not name, has no entry: it is left out of all
    figures. An item to which the scorer gave no score has the entry None: it is worse than any other in a
    decision between two edits, and left out of correlations.
    """

    values: Mapping[str, Mapping[str, float | None]]  # by scorer and item id
    # stored decisions between two edits, by scorer and the id of the pair
    decisions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reasons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # why an item has no score

    def array(self, scorer: str, ids: Sequence[str]) -> np.ndarray:
        """Scores (n,) of the items; NaN without one."""
        values = self.values[scorer]
        by_item = list(map(values.get, ids))
        return np.array([np.nan if value is None else value for value in by_item], dtype=float)

    def known(self, scorer: str, ids: Sequence[str]) -> np.ndarray:
        """True (n,) for the items that have an entry."""
        return np.array([name in self.values[scorer] for name in ids], dtype=bool)


@dataclass(frozen=True)
class Cell:
    """A figure of a table."""

    value: float | None = None  # None if it is undefined
    ci95: tuple[float, float] | None = None  # None if there is no interval
    n: int | None = None  # items or pairs behind it
    reason: str = ""  # why there is no value or interval, or what was left out

    @classmethod
    def of(cls, estimate: Estimate) -> "Cell":
        value = float(estimate.value) if np.isfinite(estimate.value) else None
        ends = estimate.ci95 if np.isfinite(estimate.ci95).all() else None
        return cls(value, ends, estimate.n, estimate.reason)


@dataclass(frozen=True)
class Line:
    """A row of a table: of a scorer or of people, measured here or published by others."""

    name: str
    cells: Mapping[str, Cell]  # by column; a column may lack
    kind: Kind = "measured"
    source: str = ""  # place of a published figure in its paper

    def __post_init__(self) -> None:
        assert self.kind != "published" or self.source


@dataclass(frozen=True)
class Column:
    """A column and the form of its figures."""

    name: str
    percent: bool = False  # shown times 100
    digits: int = 4


@dataclass(frozen=True)
class Table:
    """A table in a paper's layout."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Line]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class TrainingData:
    """A data set that a scorer was trained on."""

    name: str  # as `DataConfig.name`
    split: str
    path: str = ""


class Benchmark:
    """A benchmark whose files are open.

    Raises:
        ValueError: if nothing can be read, or a column is missing. Single rows that cannot be read are left
            out, and named in the notes of the tables.
    """

    about: ClassVar[About]
    baseline: ClassVar[str | None] = "l1"  # a scorer that is added to the user's
    scorers: ClassVar[Mapping[str, ScorerSpec]] = {}  # those of the benchmark's own table, by name
    limited: ClassVar[bool] = False  # takes `limit`, a number of edits

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        """
        Args:
            path: a hub id or a local copy; "": `about.data`.
            edits: folders of edited images by editor, for a benchmark whose files hold none.
        """
        raise NotImplementedError

    def rows(self) -> Rows:
        """The items to be scored; each has an id, the same that `tables` looks up.

        Raises:
            ValueError: if the files hold no images.
        """
        raise NotImplementedError

    def rows_for(self, scorer: str) -> Rows:
        """The items as one of `scorers` is to see them."""
        return self.rows()

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        """The benchmark's tables. They need the ratings and the scores, but no image.

        Raises:
            ValueError: if `options.compat` is not one of `about.compat`.
        """
        raise NotImplementedError

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """Ids of the items whose source images are in this training data."""
        return set()


class Items(Sequence):
    """The rows of a benchmark: ids, names of source images, and a function that reads one."""

    def __init__(self, ids: Sequence[str], sources: Sequence[str], read: Callable[[int], EditSample]) -> None:
        self.ids = ids
        self.sources = sources
        self.read = read

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.read(index)

    def id_of(self, index: int) -> str:
        return self.ids[index]

    def source_ids(self) -> list[str]:
        return list(self.sources)


def published(name: str, source: str, n: int | None = None, **values: float) -> Line:
    """A row of others' figures, by column."""
    cells = {column: Cell(value, n=n) for column, value in values.items()}
    return Line(name, cells, "published", source)


def require_compat(options: Options, about: About) -> None:
    """Raises ValueError on a `compat` that the benchmark does not have."""
    if options.compat is not None and options.compat not in about.compat:
        known = ", ".join(about.compat) or "none here"
        raise ValueError(f"--compat: expected one of {known}; got {options.compat!r}")


def read_all(
    records: Sequence[Any], read: Callable[[int, Any], Any], name: str
) -> tuple[list[Any], list[str]]:
    """The records of a file that can be read, and a note on each that cannot, or whose id came before.

    Args:
        read: makes an object with an `id` of a record and its number from 0.
        name: of the file, for the notes.

    Raises:
        ValueError: if none can be read.
    """
    by_id: dict[str, Any] = {}
    notes = []
    for number, record in enumerate(records):
        try:
            item = read(number, record)
            if item.id in by_id:
                raise ValueError(f"id {item.id} came before; the first is used")
            by_id[item.id] = item
        except CONTENT_ERRORS as error:
            if is_system_error(error):
                raise
            notes.append(f"{name}: row {number + 1} is left out: {error}")
    if not by_id:
        raise ValueError(notes[0] if notes else f"{name}: holds no rows")
    return list(by_id.values()), notes
