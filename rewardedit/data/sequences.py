"""Data sets of edit sequences: successive instructions, each applied to the result of the one before."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from rewardedit.batch import ImageLike
from rewardedit.data.annotations import find_image, folder_of_images, read_lines, read_object
from rewardedit.data.magicbrush import MagicBrush
from rewardedit.data.worlds import WORLDS, WorldConfig, world
from rewardedit.images import load_image

FEWEST_TURNS = 2
WITHIN = ("", "images", "images/data")  # where SEED-Data-Edit's images lie in its folder


@dataclass(frozen=True)
class EditSequence:
    """n successive edits."""

    id: str
    images: tuple[ImageLike, ...]  # n + 1: the first image, and the result of each turn
    instructions: tuple[str, ...]  # n
    captions: tuple[str, ...] | None = None  # n + 1, of the images
    source_id: str = ""  # the same for all sequences that begin with one image; "": the id

    def __post_init__(self) -> None:
        turns = len(self.instructions)
        if turns < 1 or len(self.images) != turns + 1:
            raise ValueError(
                f"sequence {self.id}: expected one image more than instructions; got {len(self.images)} and "
                f"{turns}"
            )
        if self.captions is not None and len(self.captions) != turns + 1:
            raise ValueError(
                f"sequence {self.id}: expected {turns + 1} captions, one an image; got {len(self.captions)}"
            )


@runtime_checkable
class Sequences(Protocol):
    """Edit sequences by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> EditSequence: ...

    def turns(self, index: int, /) -> int:
        """Number of turns of a sequence; no image is read."""
        ...


@dataclass(frozen=True)
class SequencesConfig:
    """Edit sequences of a data set."""

    name: Literal["shapes", "magicbrush", "seed_data_edit"]  # name of the data set
    # location of the data set; magicbrush: hub id, Parquet file or image folder; seed_data_edit: the folder
    # of its Part 3
    path: str = ""
    # folder that must contain the images that annotations or rows name; None: the data set's own folder
    root: str | None = None
    split: str = "train"  # split: train, val or test, if the data set has it
    limit: int | None = None  # number of sequences, from `offset` on; None: all (a world's: 1,000)
    offset: int = 0  # index of the first sequence, from 0
    shapes: WorldConfig | None = None  # settings of the generated world `shapes`, for its rows alone

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.path.expanduser(self.path))
        object.__setattr__(self, "root", folder_of_images(self.root, self.name))
        if self.name not in WORLDS and self.shapes is not None:
            raise ValueError(f"shapes: has no effect on sequences of {self.name}; leave it out")
        if self.name not in WORLDS and not self.path:
            raise ValueError(f"path: sequences of {self.name} need one: a hub id, a folder or a file")
        if self.name == "seed_data_edit" and self.split != "train":
            raise ValueError(f"split: SEED-Data-Edit Part 3 has only train; got {self.split!r}")
        if self.offset < 0 or (self.limit is not None and self.limit < 1):
            raise ValueError(
                f"limit, offset: expected at least 1 and at least 0; got {self.limit}, {self.offset}"
            )


def open_sequences(config: SequencesConfig) -> Sequences:
    """The sequences that a recipe names; images are read when a sequence is.

    Raises:
        ValueError: if files or columns are missing, or `offset` lies beyond the last sequence.
    """
    if config.name in WORLDS:
        return world(config.name).open_sequences(config)
    sequences: Sequences
    if config.name == "magicbrush":
        sequences = MagicBrushSequences(config)
    else:
        sequences = SeedDataEdit(config.path, config.root)
    if config.offset >= len(sequences):
        raise ValueError(
            f"offset: expected a sequence below {len(sequences)}, as many as {config.path} holds; got "
            f"{config.offset}"
        )
    last = len(sequences) if config.limit is None else min(len(sequences), config.offset + config.limit)
    return _Part(sequences, range(config.offset, last))


class _Part(Sequence):
    """Some of the sequences of a data set, in order."""

    def __init__(self, sequences: Sequences, indices: range) -> None:
        self.sequences = sequences
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> EditSequence:  # type: ignore[override]
        return self.sequences[self.indices[index]]

    def turns(self, index: int) -> int:
        return self.sequences.turns(self.indices[index])


class MagicBrushSequences(Sequence):
    """MagicBrush's sessions of two turns and more: each turn's source is the target of the turn before."""

    def __init__(self, config: SequencesConfig) -> None:
        self.rows = MagicBrush(config.path, config.split, root=config.root)
        self.images = self.rows.source_ids()
        turns = list(map(int, self.rows.rows["turn_index"]))
        self.sessions = sessions(self.images, turns)
        if not self.sessions:
            raise ValueError(f"{config.path}: no image has {FEWEST_TURNS} turns in a row")

    def __len__(self) -> int:
        return len(self.sessions)

    def turns(self, index: int) -> int:
        return len(self.sessions[index])

    def __getitem__(self, index: int) -> EditSequence:  # type: ignore[override]
        samples = [self.rows[row] for row in self.sessions[index]]
        images = (samples[0].source, *(sample.target for sample in samples))
        instructions = tuple(sample.instruction for sample in samples)
        return EditSequence(
            samples[0].id, images, instructions, source_id=self.images[self.sessions[index][0]]
        )


def sessions(images: Sequence[str], turns: Sequence[int]) -> list[list[int]]:
    """Rows that are turns of one image, in order; after a missing turn another session begins.

    Args:
        images: the image that each row's session begins with.
        turns: which turn each row is.
    """
    by_image: dict[str, list[int]] = {}
    for row, image in enumerate(images):
        by_image.setdefault(image, []).append(row)
    sequences = []
    for rows in by_image.values():
        rows = sorted(rows, key=lambda row: turns[row])
        session = rows[:1]
        for before, row in pairwise(rows):
            if turns[row] != turns[before] + 1:
                sequences.append(session)
                session = []
            session.append(row)
        sequences.append(session)
    return [session for session in sequences if len(session) >= FEWEST_TURNS]


class SeedDataEdit(Sequence):
    """SEED-Data-Edit Part 3 (Ge et al. 2024): annotations/*.jsonl, a sequence a line, with source_image,
    instruction_1, edit_image_1, instruction_2 …; images are named relative to the folder or its images/.

    A line that lacks something is refused when it is read.

    Raises:
        ValueError: if there are no annotations.
    """

    def __init__(self, path: str, root: str | None = None) -> None:
        self.folder = Path(path if root is None else root)
        self.lines = read_lines(Path(path), "SEED-Data-Edit Part 3")

    def __len__(self) -> int:
        return len(self.lines)

    def turns(self, index: int) -> int:
        """Number of instructions in the sequence's line."""
        return len(re.findall(r'"instruction_\d+"\s*:', self.lines[index][1]))

    def __getitem__(self, index: int) -> EditSequence:  # type: ignore[override]
        name, line = self.lines[index]
        record = read_object(line, f"sequence {name}")
        if not record.get("source_image"):
            raise ValueError(f"sequence {name} has no source_image")

        images = [str(record["source_image"])]
        instructions: list[str] = []
        while f"instruction_{len(images)}" in record:
            turn = len(images)
            instruction = record[f"instruction_{turn}"]
            image = record.get(f"edit_image_{turn}")
            if not isinstance(instruction, str) or not instruction.strip() or not image:
                raise ValueError(f"sequence {name}: turn {turn} lacks its instruction, or edit_image_{turn}")
            images.append(str(image))
            instructions.append(instruction)

        opened = tuple(load_image(find_image(self.folder, image, WITHIN)) for image in images)
        return EditSequence(name, opened, tuple(instructions), source_id=images[0])
