"""Latents and prompt embeddings of a training set, computed once and kept on disk as memory-mapped arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit import devices
from rewardedit.data import DataConfig, Rows, require_size, row_shards
from rewardedit.data.reading import read_shard
from rewardedit.data.stream import StreamedRows, count_rows, shards_of
from rewardedit.diffusion.editors import Editor, write_prompts
from rewardedit.files import join_arrays, join_lists, write_json
from rewardedit.images import to_bytes
from rewardedit.stages.stage import stage
from rewardedit.synthesis.candidates import CandidatesConfig
from rewardedit.training.prompt_cache import (
    ENCODE_BATCH,
    TextCache,
    encode_distinct,
    encode_with_sources,
    loaded_once,
    name_of,
)
from rewardedit.training.trainable import RewardLabels
from rewardedit.untrusted import read_settings_file

EDITS = ("edited", "source")  # the images that a row of edits has
ENCODE_PIXELS = 2**21  # most pixels encoded at a time: 32 images of side 256, for which the VAE needs 5 GiB


@dataclass
class LatentCache:
    """Rows with their latents; `latents` scales those of edited images by the VAE's factor, sources stay
    unscaled modes.
    """

    rows: Rows | StreamedRows
    data: DataConfig
    ids: list[str]
    instructions: list[str]
    folder: Path
    scaling: float
    edited: np.ndarray  # (n, c, h, w) fp16, unscaled
    source: np.ndarray
    # reasons by row; latents of unreadable rows are zero, and no training uses them
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(c, h, w) of one row's latents."""
        return self.edited.shape[1:]

    def latents(self, rows: Int[Tensor, " b"]) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h w"]]:
        """Scaled latents of the edited images, unscaled ones of the sources."""
        index = rows.numpy()
        edited = torch.from_numpy(self.edited[index]).float()
        source = torch.from_numpy(self.source[index]).float()
        return edited * self.scaling, source

    def texts(self, editor: Editor, labels: RewardLabels) -> "TextCache":
        """Prompts of all rows with their labels. Each distinct text, or text and source where the text
        encoder sees it, is encoded once, and the result is kept on disk.
        """
        texts = write_prompts(editor.pipe, self.instructions, labels.label, labels.prompt)
        null = len(labels.prompt.words) if labels.prompt is not None else 0
        label = torch.tensor([null if value is None else value for value in labels.label])
        if editor.family.text_sees_source:
            arrays = encode_with_sources(editor, texts, self.rows, self.data, self.folder)
            row = torch.arange(len(texts))
            return TextCache(arrays, row, row + len(texts), label, null)
        distinct = sorted({"", *texts})
        place = {text: i for i, text in enumerate(distinct)}
        index = torch.tensor([place[text] for text in texts])
        empty = torch.full_like(index, place[""])
        return TextCache(encode_distinct(editor, distinct, self.folder), index, empty, label, null)


def encode_batch_size(size: int) -> int:
    """Default number of images with this side that are encoded at a time."""
    return max(1, min(ENCODE_BATCH, ENCODE_PIXELS // size**2))


def make_cache(
    rows: Rows | StreamedRows,
    data: DataConfig,
    editor: Editor,
    folder: Path,
    candidates: CandidatesConfig | None = None,
    batch_size: int | None = None,
) -> LatentCache:
    """Encodes all rows, or opens the cache in `folder` if an earlier run completed it for the same rows.

    Args:
        candidates: candidates that `rows` have besides the data set's own edits.
        batch_size: number of images encoded at a time; None: `encode_batch_size`.

    Raises:
        ValueError: if the folder holds latents of other rows, or by another editor.
    """
    arrays, texts = encode_rows(rows, data, editor, folder, {"candidates": candidates}, batch_size)
    scaling = editor.family.latent_scaling(editor.pipe.vae)
    return LatentCache(
        rows, data, texts["ids"], texts["instructions"], folder, scaling, *arrays, unreadable_of(texts)
    )


def encode_rows(
    rows: Rows | StreamedRows,
    data: DataConfig,
    editor: Editor,
    folder: Path,
    made_of: dict[str, Any],
    batch_size: int | None = None,
    images: tuple[str, ...] = EDITS,
) -> tuple[list[np.ndarray], dict[str, list[Any]]]:
    """Latents of these images of all rows, memory-mapped, with the rows' ids and instructions and the reasons
    why some are unreadable; an earlier run's in `folder` are taken.

    Args:
        made_of: all else that the result depends on.
        images: fields of a row.

    Raises:
        ValueError: if the folder holds latents of other rows, or by another editor.
    """
    size = batch_size or encode_batch_size(require_size(data))
    parts = shards_of(rows, size)
    made_of = {"base": name_of(editor), "data": data, "rows": count_rows(rows), "batch": size, **made_of}
    load = loaded_once(editor)

    def encoded(name: str, pixels: Tensor) -> np.ndarray:
        editor = load()
        encode = editor.family.encode_sources if name == "source" else editor.family.encode_images
        with devices.tf32(editor.pipe.device.type):
            return encode(editor.pipe, pixels).half().cpu().numpy()

    def encode(number: int, path: Path) -> None:
        path.mkdir()
        latents, records = _encode_rows(parts[number].fetch().rows, data, size, encoded, images)
        for name, values in latents.items():
            np.save(path / f"{name}.npy", values)
        write_json(path / "rows.json", records)

    def join(shards: list[Path]) -> None:
        _join(folder, images, shards)
        write_json(folder / "rows.json", join_lists([shard / "rows.json" for shard in shards]))

    stage(folder, made_of, encode, len(parts), finish=join)

    # Arrays stay on disk: a step reads only its own rows.
    return open_arrays(folder, images), read_settings_file(folder / "rows.json")


def unreadable_of(texts: dict[str, list[Any]]) -> dict[int, str]:
    """Reasons of unreadable rows by their numbers, of the texts of `encode_rows`."""
    return {row: reason for row, reason in enumerate(texts["unreadable"]) if reason is not None}


def _encode_rows(
    rows: Rows,
    data: DataConfig,
    size: int,
    encode: Callable[[str, Tensor], np.ndarray],
    images: tuple[str, ...],
) -> tuple[dict[str, np.ndarray], dict[str, list[Any]]]:
    """Latents of these images, (n, c, h, w) in fp16 and zero for unreadable rows; and the rows' ids,
    instructions and reasons why they cannot be read.
    """
    ids = [""] * len(rows)
    instructions = [""] * len(rows)
    reasons: list[str | None] = [None] * len(rows)
    latents: dict[str, np.ndarray] = {}
    optional = [name for name in images if name not in EDITS]

    for chunk in read_shard(rows, data, size, fields=optional):
        for row, reason in chunk.unreadable.items():
            reasons[row] = reason
        if chunk.pixels is None:
            continue
        batch = chunk.pixels.to(devices.default_device())
        for name in images:
            values = encode(name, getattr(batch, name))
            if name not in latents:
                latents[name] = np.zeros((len(rows), *values.shape[1:]), np.float16)
            latents[name][chunk.numbers] = values

        for i, row in enumerate(chunk.numbers):
            ids[row] = chunk.ids[i]
            instructions[row] = batch.instruction[i]
    if not latents:  # no row can be read
        black = torch.zeros(1, 3, require_size(data), require_size(data))
        for name in images:
            latents[name] = np.zeros((len(rows), *encode(name, black).shape[1:]), np.float16)
    return latents, {"ids": ids, "instructions": instructions, "unreadable": reasons}


def cache_sources(rows: Rows, data: DataConfig, folder: Path) -> tuple[np.ndarray, dict[str, list[str]]]:
    """Sources as memory-mapped bytes (n, 3, s, s), black for unreadable rows; and captions if any row has
    one, "" for rows without.
    """
    parts = row_shards(rows, ENCODE_BATCH)
    names = ("source_caption", "target_caption")

    def read(number: int, path: Path) -> None:
        path.mkdir()
        shard = parts[number]
        images = np.zeros((len(shard), 3, require_size(data), require_size(data)), np.uint8)
        captions: dict[str, list[str | None]] = {name: [None] * len(shard) for name in names}
        for chunk in read_shard(shard, data, ENCODE_BATCH, fields=names):
            for row in chunk.unreadable:  # no training uses these rows
                for texts in captions.values():
                    texts[row] = ""
            if chunk.pixels is None:
                continue
            images[chunk.numbers] = to_bytes(chunk.pixels.images["source"]).numpy()
            for name, texts in captions.items():
                column = getattr(chunk.pixels, name) or [None] * len(chunk.numbers)
                for row, text in zip(chunk.numbers, column, strict=True):
                    texts[row] = text
        np.save(path / "images.npy", images)
        write_json(path / "captions.json", captions)

    def join(shards: list[Path]) -> None:
        join_arrays([shard / "images.npy" for shard in shards], folder / "images.npy")
        captions = join_lists([shard / "captions.json" for shard in shards])
        write_json(folder / "captions.json", _without_missing(captions))

    stage(folder, {"data": data, "rows": len(rows)}, read, len(parts), finish=join)
    return np.load(folder / "images.npy", mmap_mode="r"), read_settings_file(folder / "captions.json")


def _without_missing(captions: dict[str, list[str | None]]) -> dict[str, list[str]]:
    """The captions that any row has, "" for rows without."""
    present = {}
    for name, texts in captions.items():
        if any(texts):
            present[name] = [text or "" for text in texts]
    return present


def _join(folder: Path, names: tuple[str, ...], shards: list[Path]) -> None:
    """Joins each of the shards' arrays into one file in `folder`."""
    for name in names:
        join_arrays([shard / f"{name}.npy" for shard in shards], folder / f"{name}.npy")


def open_arrays(folder: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """Arrays of `folder`, memory-mapped."""
    return [np.load(folder / f"{name}.npy", mmap_mode="r") for name in names]
