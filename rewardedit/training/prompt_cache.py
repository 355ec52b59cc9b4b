"""Embeddings of a training set's prompts, computed once and kept on disk as memory-mapped arrays."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rewardedit import devices
from rewardedit.data import DataConfig, Rows, row_shards
from rewardedit.data.datasets import SHARD_BATCHES
from rewardedit.data.reading import read_shard
from rewardedit.data.stream import StreamedRows
from rewardedit.diffusion.editors import Editor
from rewardedit.files import join_arrays
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.training.trainable import load_base

ENCODE_BATCH = 64  # texts encoded at a time, and most images
EMPTY_BESIDE_SOURCE = " "  # the empty prompt of families whose text encoder sees the source
Values = dict[str, np.ndarray]  # by the names of `EditFamily.encode_texts`


@dataclass
class TextCache:
    """Prompts by row, as embeddings of the untrained text encoder and as its tokens."""

    # by the names of `EditFamily.encode_texts`, of each distinct text: embeds (n, d) fp16 or fp32, and others
    arrays: Values
    index: Int[Tensor, " rows"]  # index of each row's text
    empty: Int[Tensor, " rows"]  # the index of its empty text
    label: Int[Tensor, " rows"]
    null: int  # the label of a dropped prompt

    def take(
        self, rows: Int[Tensor, " b"], dropped: Bool[Tensor, " b"]
    ) -> tuple[dict[str, Tensor], Int[Tensor, " b"]]:
        """Values by name and labels of rows; of the empty text and the null label where dropped."""
        label = torch.where(dropped, self.null, self.label[rows])
        return self._at(torch.where(dropped, self.empty[rows], self.index[rows])), label

    def null_texts(self, rows: Int[Tensor, " b"]) -> dict[str, Tensor]:
        """Values of the empty text by their names in `Conditioning`: one row where all have the same one."""
        empty = self.empty[rows].unique() if len(self.empty.unique()) == 1 else self.empty[rows]
        values = self._at(empty)
        return {f"null_{name}": value for name, value in values.items() if name != "tokens"}

    def _at(self, index: Int[Tensor, " b"]) -> dict[str, Tensor]:
        values = {}
        for name, array in self.arrays.items():
            taken = torch.from_numpy(array[index.numpy()])
            values[name] = taken.float() if taken.is_floating_point() else taken.long()
        if "lengths" in values:  # padding that no row of these needs
            values["embeds"] = values["embeds"][:, : int(values["lengths"].max())]
        return values


def encode_distinct(editor: Editor, texts: list[str], folder: Path) -> Values:
    """Values of distinct texts, kept in a folder below `folder`."""
    digest = _digest(texts)
    out = folder / f"prompts-{digest[:16]}"
    size = SHARD_BATCHES * ENCODE_BATCH
    load = loaded_once(editor)

    def encode(number: int, path: Path) -> None:
        path.mkdir()
        local = texts[number * size : (number + 1) * size]
        loaded = load()
        batches = []
        for first in range(0, len(local), ENCODE_BATCH):
            batch = local[first : first + ENCODE_BATCH]
            with devices.tf32(loaded.pipe.device.type):
                batches.append(_small(loaded.family.encode_texts(loaded.pipe, batch)))
        for name in batches[0]:
            np.save(path / f"{name}.npy", np.concatenate([values[name] for values in batches]))

    def join(shards: list[Path]) -> None:
        for name in sorted(path.stem for path in shards[0].glob("*.npy")):
            join_arrays([shard / f"{name}.npy" for shard in shards], out / f"{name}.npy")

    made_of = {**encoder_of(editor), "texts": digest}
    stage(out, made_of, encode, -(-len(texts) // size), finish=join)
    return _opened(out)


def encode_with_sources(
    editor: Editor, texts: list[str], rows: Rows | StreamedRows, data: DataConfig, folder: Path
) -> Values:
    """Values of each row's text, then for the empty text, both with the row's source; zero
    for rows that cannot be read.

    Raises:
        ValueError: for rows that are streamed.
    """
    if isinstance(rows, StreamedRows):
        raise ValueError(
            f"data: expected stored rows for {type(editor.family).__name__}, whose text encoder sees the "
            "source; got streamed ones; download the data set"
        )
    digest = _digest(texts)
    out = folder / f"prompts-{digest[:16]}"
    parts = row_shards(rows, ENCODE_BATCH)
    load = loaded_once(editor)

    def encode(number: int, path: Path) -> None:
        path.mkdir()
        first = sum(map(len, parts[:number]))
        local = texts[first : first + len(parts[number])]
        _save_padded(_encode_rows(load(), parts[number], local, data), path)

    def join(shards: list[Path]) -> None:
        """All shards' texts, then all shards' empty texts."""
        texts: list[Values | None] = []
        empty: list[Values | None] = []
        for shard in shards:
            rows_of_shard = _rows_of(_opened(shard))
            texts += rows_of_shard[: len(rows_of_shard) // 2]
            empty += rows_of_shard[len(rows_of_shard) // 2 :]
        _save_padded([*texts, *empty], out)

    stage(out, {**encoder_of(editor), "texts": digest, "data": data}, encode, len(parts), finish=join)
    return _opened(out)


def _encode_rows(editor: Editor, rows: Rows, texts: list[str], data: DataConfig) -> list[Values | None]:
    """Values of the texts with their sources, then of the empty text with them; None for unreadable rows."""
    values: list[Values | None] = [None] * (2 * len(rows))
    for chunk in read_shard(rows, data, ENCODE_BATCH, fields=()):
        if chunk.batch is None:
            continue
        for i, row in enumerate(chunk.numbers):
            source = chunk.batch.source[i : i + 1]
            for at, text in ((row, texts[row]), (len(rows) + row, EMPTY_BESIDE_SOURCE)):
                values[at] = _small(editor.family.encode_texts(editor.pipe, [text], source))
    return values


def _rows_of(arrays: Values) -> list[Values | None]:
    rows: list[Values | None] = []
    for i in range(len(arrays["lengths"])):
        rows.append({name: values[i : i + 1] for name, values in arrays.items()})
    return rows


def loaded_once(editor: Editor) -> Lazy[Editor]:
    """The editor, for a stage; a worker in another process loads it again, onto its own device."""
    name, bits = name_of(editor), editor.quantize
    return Lazy(lambda: load_base(name, devices.default_device(), bits), editor)


def name_of(editor: Editor) -> str:
    """Hub name or folder that an editor was loaded from."""
    return str(editor.pipe.config.get("_name_or_path"))


def encoder_of(editor: Editor) -> dict[str, Any]:
    """Settings that an editor's embeddings of texts depend on."""
    bits = {} if editor.quantize is None else {"quantize": editor.quantize}
    return {"base": name_of(editor), **bits}


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _opened(folder: Path) -> Values:
    """All arrays of `folder`, memory-mapped."""
    return {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}


def _small(values: dict[str, Tensor]) -> Values:
    """Values in the types in which they are kept: fp16, or fp32 where that overflows, and int32.

    Hidden states before a language model's last norm may be larger than fp16 can hold.
    """
    kept = {}
    for name, value in values.items():
        if value.is_floating_point():
            half = value.half()
            small = half if half.isfinite().all() else value.float()
        else:
            small = value.int()
        kept[name] = small.cpu().numpy()
    return kept


def _save_padded(rows: list[Values | None], folder: Path) -> None:
    """Writes embeddings of rows (1, n, d), padded with zeros to the longest, and their lengths; rows without
    any are zero, of length 1.
    """
    shapes = [row["embeds"].shape[1:] for row in rows if row is not None] or [(1, 1)]
    shape = (len(rows), max(n for n, _ in shapes), shapes[0][1])
    dtype = np.result_type(np.float16, *(row["embeds"].dtype for row in rows if row is not None))
    embeds: Any = np.lib.format.open_memmap(folder / "embeds.npy", "w+", dtype, shape)
    lengths = np.ones(len(rows), np.int32)
    for i, row in enumerate(rows):
        if row is not None:
            embeds[i, : row["embeds"].shape[1]] = row["embeds"][0]
            lengths[i] = row["lengths"][0]
    embeds.flush()
    np.save(folder / "lengths.npy", lengths)
