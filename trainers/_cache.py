"""Latents and prompt embeddings of a training set, computed once and kept on disk as memory-mapped arrays."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm

from rewardedit.data import Data, Rows, batches
from rewardedit.diffusion.editors import Editor, encode_images, encode_prompts, tokenize
from rewardedit.trainers import _run
from rewardedit.trainers._models import Labels

ENCODE_BATCH = 64


@dataclass
class LatentCache:
    """Rows with their latents: `edited` scaled by the VAE's factor, `source` as the mode, unscaled."""

    rows: Rows
    data: Data
    ids: list[str]
    instructions: list[str]
    folder: Path
    scaling: float
    edited: np.ndarray  # (n, c, h, w) fp16, unscaled
    source: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """(c, h, w) of one row's latents."""
        return self.edited.shape[1:]

    def latents(self, rows: Int[Tensor, " b"]) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h w"]]:
        """Scaled latents of the edited pictures, unscaled ones of the sources."""
        index = rows.numpy()
        edited, source = (torch.from_numpy(array[index]).float() for array in (self.edited, self.source))
        return edited * self.scaling, source

    def texts(self, editor: Editor, labels: Labels, name: str = "prompts") -> "TextCache":
        """Prompts of all rows under their labels, in a file of that name; each distinct text is encoded once."""
        texts = [""] + [
            self.instructions[i] if labels.prompt is None or label is None else labels.prompt.write(self.instructions[i], label)
            for i, label in enumerate(labels.label)
        ]
        distinct, index = np.unique(np.array(texts), return_inverse=True)
        path = self.folder / f"{name}.npy"
        with _run.processes().main_process_first():
            if _run.processes().is_main_process:
                _encode(editor, distinct.tolist(), path)
            array = np.load(path, mmap_mode="r")
        null = len(labels.prompt.words) if labels.prompt is not None else 0
        label = torch.tensor([null if value is None else value for value in labels.label])
        tokens = tokenize(editor.pipe, distinct.tolist()).input_ids
        return TextCache(array, tokens, torch.from_numpy(index[1:]), int(index[0]), label, null)


@dataclass
class TextCache:
    """Prompts by row, as embeddings of the text encoder at the start and as its tokens."""

    embeds: np.ndarray  # (distinct texts, n, d) fp16
    tokens: Int[Tensor, "texts n"]
    index: Int[Tensor, " rows"]  # which text a row has
    empty: int  # the index of the empty text
    label: Int[Tensor, " rows"]
    null: int  # the label of a dropped prompt

    def take(
        self, rows: Int[Tensor, " b"], dropped: Bool[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b n d"], Int[Tensor, "b n"], Int[Tensor, " b"]]:
        """Embeddings, tokens and labels of rows, those of the empty text and the null label where dropped."""
        index = torch.where(dropped, self.empty, self.index[rows])
        label = torch.where(dropped, self.null, self.label[rows])
        return torch.from_numpy(self.embeds[index.numpy()]).float(), self.tokens[index], label


def _encode(editor: Editor, texts: list[str], path: Path) -> None:
    """Writes the texts' embeddings as an array (texts, n, d) of fp16."""
    first = encode_prompts(editor.pipe, texts[:1])
    array = np.lib.format.open_memmap(path, "w+", np.float16, (len(texts), *first.shape[1:]))
    for at in tqdm(range(0, len(texts), ENCODE_BATCH), desc="encoding prompts", unit="batch", leave=False):
        embeds = encode_prompts(editor.pipe, texts[at : at + ENCODE_BATCH])
        array[at : at + len(embeds)] = embeds.half().cpu().numpy()
    array.flush()


def make_cache(rows: Rows, data: Data, editor: Editor, folder: Path) -> LatentCache:
    """Encodes all rows, or opens the cache in `folder` where an earlier run left a whole one of the same rows."""
    with _run.processes().main_process_first():
        return _make_cache(rows, data, editor, folder)


def _make_cache(rows: Rows, data: Data, editor: Editor, folder: Path) -> LatentCache:
    vae: Any = editor.pipe.vae
    whole, made_of = folder / "rows.json", f"{data} encoded by {editor.pipe.config.get('_name_or_path')}"
    if not whole.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ids, instructions, arrays, done = [], [], {}, 0
        chunks = tqdm(
            batches(rows, data, ENCODE_BATCH, fields=()),
            desc="encoding latents",
            total=-(-len(rows) // ENCODE_BATCH),
            unit="batch",
            leave=False,
        )
        for names, batch in chunks:
            for name, picture in (("edited", batch.edited), ("source", batch.source)):
                latents = encode_images(editor.pipe, picture).half().cpu().numpy()
                if name not in arrays:
                    shape = (len(rows), *latents.shape[1:])
                    arrays[name] = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float16, shape)
                arrays[name][done : done + len(latents)] = latents
            ids, instructions, done = ids + names, instructions + batch.instruction, done + len(names)
        for array in arrays.values():
            array.flush()
        whole.write_text(json.dumps({"of": made_of, "ids": ids, "instructions": instructions}))
    names = json.loads(whole.read_text())
    if names["of"] != made_of or len(names["ids"]) != len(rows):
        raise ValueError(f"{folder}: holds latents of other rows or another base than the recipe's; remove the folder")
    arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("edited", "source")]
    return LatentCache(rows, data, names["ids"], names["instructions"], folder, float(vae.config.scaling_factor), *arrays)
