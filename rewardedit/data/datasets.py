"""Data sets as sequences of `EditSample`, as a recipe's `data:` names them."""

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import ConcatDataset, Subset

from rewardedit.batch import EditSample
from rewardedit.config import require_unset
from rewardedit.data.adapters import ADAPTERS
from rewardedit.data.annotations import folder_of_images
from rewardedit.data.sources import (
    Rows,
    first_rows,
    hold_out,
    other_source_ids,
    share_of_sources,
    source_ids,
)
from rewardedit.data.table import Table
from rewardedit.data.worlds import WORLDS, WorldConfig, world

SHARD_BATCHES = 16  # batches per shard of a stage
FEW_ROWS = 256
MOST_WORKERS = 4


@dataclass(frozen=True)
class DataConfig:
    """Rows of a data set, and how their images are brought to one size."""

    # name of the data set; labelled: the output of adiee_data
    name: Literal[
        "shapes",
        "magicbrush",
        "humanedit",
        "editreward",
        "emu_edit",
        "emu_edit_generations",
        "instruct_pix2pix",
        "seed_data_edit",
        "ultraedit",
        "aurora",
        "dice_d",
        "webdataset",
        "labelled",
        "table",
    ]
    # location of the data set; table: folder, CSV, JSONL or Parquet; seed_data_edit, dice_d: its folder;
    # others: hub id, Parquet file or folder, image folder (webdataset: .tar files)
    path: str = ""
    # folder that must contain the image files that rows name; None: the folder of the table or data set
    root: str | None = None
    split: str = "train"  # split, as the data set calls it; a world's: train, val or test
    limit: int | None = None  # number of rows, from `offset` on; None: all (a world's: 10,000)
    offset: int = 0  # index of the first row, from 0
    # image side in pixels, required for training; None: score at each source's own size (a world has its own)
    size: int | None = None
    resize: Literal["crop", "stretch", "pad"] = "crop"  # way to make images square
    # use only this share of the source images, drawn by `seed`, with all rows made of them
    fraction: float = 1.0
    # only rows of these types of edit, if the data set names them, or by these rules (labelled); empty: all
    edit_types: tuple[str, ...] = ()
    seed: int = 0  # random seed of the choice of source images
    # number of source images to leave out, with all rows made of them (see `held_out_rows`)
    holdout_sources: int = 0
    # read file by file as rows are used, without downloading all first; for scoring, relabelling and
    # reward-conditioned training with a data set on the hub
    stream: bool = False
    # table only: the columns that hold source, edited, loser, target, mask, instruction and so on, e.g.
    # {source: photo}; common names are recognised without it
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    shapes: WorldConfig | None = None  # settings of the generated world `shapes`, for its rows alone

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.path.expanduser(self.path))
        object.__setattr__(self, "root", folder_of_images(self.root, self.name))
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction: expected above 0 and at most 1; got {self.fraction}")

        if self.name in WORLDS:
            known = world(self.name)
            of_world = self.shapes or WorldConfig()
            object.__setattr__(self, "size", self.size or known.size)
            mix = of_world.quality_mix or dict(known.quality_mix)
            object.__setattr__(self, "shapes", dataclasses.replace(of_world, quality_mix=mix))
            unused = ("path", "fraction", "holdout_sources", "seed")
            require_unset(
                self,
                unused,
                f"on rows of the world {self.name}, which has splits and {self.name}.seed; leave it out, or "
                "name another data set, e.g. name: table",
            )
        elif self.shapes is not None:
            raise ValueError(
                f"shapes: has no effect on {self.name} rows; leave it out, or give the group anew: "
                f"data={{name: {self.name}, path: …}}"
            )

        if self.columns and self.name != "table":
            raise ValueError(
                f"columns: {self.name} rows have columns of their own; take name=table or leave it out"
            )
        if self.fraction < 1 and self.stream:
            raise ValueError("fraction: needs a data set whose source images are known beforehand; set limit")
        if self.name not in WORLDS and not self.path:
            raise ValueError(f"path: {self.name} rows need one: a hub id, a folder or a file")

        least = {"limit": 1, "offset": 0, "size": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name}: expected at least {bound}; got {value}")

    def workers(self, rows: int) -> int:
        """Number of processes that read ahead: none for a world, which is not read from files."""
        return 0 if self.name in WORLDS else reading_workers(rows)


def reading_workers(rows: int) -> int:
    """Number of processes that read this many rows ahead: none for few rows."""
    return 0 if rows < FEW_ROWS else min(MOST_WORKERS, (os.cpu_count() or 1) - 1)


def open_rows(data: DataConfig) -> Rows:
    """The rows that a recipe names, without those of held-out sources; images are read when a row is.

    Raises:
        ValueError: if files, columns or the split are missing, `offset` lies beyond the last row, there are
            too few sources to hold some out, or the rows are to be streamed.
    """
    if data.stream:
        raise ValueError(
            "stream: this needs all rows at hand; leave stream out (score, relabel and reward-conditioned "
            "recipes without candidates take it)"
        )
    rows = _open_all(data)
    if not data.holdout_sources:
        return rows
    sources = source_ids(rows)
    kept, held_out = hold_out(sources, data.holdout_sources, data.seed)
    if data.name == "labelled":  # a row may show a second image, in the place of an edit
        gone = {sources[i] for i in held_out}
        others = other_source_ids(rows)
        kept = [i for i in kept if others[i] not in gone]
    return Subset(rows, kept)


def held_out_rows(data: DataConfig, most: int | None = None) -> Rows:
    """The first row of each source image that `data.holdout_sources` excludes from `open_rows`, at most
    `most`.

    Raises:
        ValueError: as `open_rows`.
    """
    rows = _open_all(data)
    return Subset(rows, hold_out(source_ids(rows), data.holdout_sources, data.seed)[1][:most])


def shared_sources(data: Iterable[DataConfig], held_out: DataConfig) -> int:
    """Number of source images that held-out rows share with other rows; 0 for a world's samples, which have
    splits of their own.
    """

    def of(config: DataConfig) -> set[str]:
        return set() if config.name in WORLDS else set(source_ids(open_rows(config)))

    return len(of(held_out) & set().union(*map(of, data)))


def warn_of_shared_sources(data: Iterable[DataConfig], held_out: DataConfig) -> None:
    """Warns if results on held-out rows would be too good."""
    if shared := shared_sources(data, held_out):
        warnings.warn(
            f"held_out: {shared} of its source images are trained on, so that its figures are too good; "
            "take another split",
            stacklevel=2,
        )


def distinct_rows(data: DataConfig, n: int) -> Rows:
    """The first row of each of at most n source images, drawn by `data.seed`.

    Raises:
        ValueError: as `open_rows`.
    """
    rows = _open_all(data)
    first = first_rows(source_ids(rows))
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(data.seed)).tolist()
    return Subset(rows, sorted(list(first.values())[i] for i in order[:n]))


def _open_all(data: DataConfig) -> Any:
    if data.name in WORLDS:
        return world(data.name).open_rows(data)
    if data.name == "table":
        rows: Any = Table(data.path, data.columns, data.root)
    else:
        rows = ADAPTERS[data.name](data.path, data.split, root=data.root)
    if data.edit_types:
        rows = Subset(rows, _of_types(rows, data))
    return selected_rows(rows, data)


def selected_rows(rows: Any, data: DataConfig) -> Any:
    """The rows of a data set that `offset`, `limit` and `fraction` choose.

    Raises:
        ValueError: if `offset` lies beyond the last row.
    """
    if data.offset >= len(rows):
        raise ValueError(
            f"data.offset: expected a row below {len(rows)}, as many as {data.path} holds; got {data.offset}"
        )
    last = len(rows) if data.limit is None else min(len(rows), data.offset + data.limit)
    if data.offset != 0 or last != len(rows):
        rows = Subset(rows, range(data.offset, last))
    if data.fraction < 1:
        rows = Subset(rows, share_of_sources(source_ids(rows), data.fraction, data.seed))
    return rows


def _of_types(rows: Any, data: DataConfig) -> list[int]:
    """Indices of the rows of the requested types of edit.

    Raises:
        ValueError: if the data set names no types, or has no row of these.
    """
    types = rows.edit_types() if hasattr(rows, "edit_types") else None
    if types is None:
        raise ValueError(f"edit_types: {data.name} rows do not say their type; leave them out")
    indices = [row for row, name in enumerate(types) if name in data.edit_types]
    if not indices:
        raise ValueError(
            f"edit_types: {data.path} has no row of {', '.join(data.edit_types)}; it has "
            f"{', '.join(sorted(set(types)))}"
        )
    return indices


def leading_rows(rows: Rows, n: int) -> Rows:
    """The first n rows; all of them if there are fewer."""
    return Subset(rows, range(min(n, len(rows))))


def row_shards(rows: Rows, batch: int) -> list[Rows]:
    """The rows of each shard, in sizes that give the same batches as without shards."""
    size = SHARD_BATCHES * batch
    return [Subset(rows, range(first, min(first + size, len(rows)))) for first in range(0, len(rows), size)]


class PrefixedRows(Sequence):
    """Rows whose ids are prefixed with a name, as two data sets may use the same ids."""

    def __init__(self, rows: Rows, name: str) -> None:
        self.rows = rows
        self.name = name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        sample = self.rows[index]
        return dataclasses.replace(sample, id=f"{self.name}/{sample.id}")


def open_named(data: Mapping[str, DataConfig]) -> Rows:
    """The rows of data sets under names of the user's choice, one after another; if there are several, ids
    begin with these names.

    Raises:
        ValueError: as `open_rows`.
    """
    opened = {name: open_rows(config) for name, config in data.items()}
    if len(opened) == 1:
        return next(iter(opened.values()))
    named: Any = [PrefixedRows(rows, name) for name, rows in opened.items()]
    return ConcatDataset(named)  # type: ignore[return-value]


def images_of(data: Mapping[str, DataConfig]) -> DataConfig:
    """The config by which the images of several data sets are brought to one size: that of the first."""
    return next(iter(data.values()))


def require_size(data: DataConfig) -> int:
    """Returns the side in pixels that all images are brought to; raises ValueError if it is not given."""
    if data.size is None:
        raise ValueError("data.size: all images are to be brought to one size; give pixels a side: size=256")
    return data.size


def require_alike(data: Mapping[str, DataConfig], example: str) -> None:
    """Raises ValueError, with an example, if there is no data set, or if one has another size or way of
    resizing.
    """
    if not data:
        raise ValueError(f"data: expected rows by a name of one's own, such as {example}")
    first = images_of(data)
    for name, other in data.items():
        if (require_size(other), other.resize) != (first.size, first.resize):
            raise ValueError(
                f"data.{name}: expected size {first.size} and resize {first.resize}, as the first has; "
                f"got {other.size} and {other.resize}"
            )
