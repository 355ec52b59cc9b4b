"""Candidates: each row's own target and source, and what trained editors make of it (ADIEE Sec. 3.1)."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from rewardedit.batch import EditSample
from rewardedit.data import Data, Rows, batches
from rewardedit.diffusion.editors import EditSettings, load_editor
from rewardedit.images import load_image, to_pil


@dataclass(frozen=True)
class Candidates:
    """Which outputs stand beside the data set's own targets, and how the editors are asked."""

    editors: tuple[str, ...] = ()  # hub names or folders
    source: bool = True  # the untouched source as a candidate: the commonest failure
    steps: int = 100
    text_guidance: float = 7.5
    image_guidance: float = 1.5
    batch: int = 8
    seed: int = 42
    half: bool = True  # fp16 on a GPU


class WithCandidates(Sequence):
    """Every row as often as it has candidates: target, source, one for each editor. Pictures are kept in `folder`.

    Editors run when this is made; pictures that an earlier run left are not made again.
    """

    def __init__(self, rows: Rows, data: Data, config: Candidates, folder: Path) -> None:
        self.rows, self.config, self.folder = rows, config, folder
        self.kinds = [
            "target",
            *(["source"] if config.source else []),
            *(f"editor-{k}" for k in range(len(config.editors))),
        ]
        for k, name in enumerate(config.editors):
            self._produce(name, data, folder / f"editor-{k}")

    def _produce(self, name: str, data: Data, folder: Path) -> None:
        if (folder / "done").is_file() and (folder / "done").read_text() == name:
            return
        shutil.rmtree(folder) if (folder / "editor").is_file() and (folder / "editor").read_text() != name else None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "editor").write_text(name)
        cuda = torch.cuda.is_available()
        dtype = torch.float16 if cuda and self.config.half else torch.float32
        editor = load_editor(name, device="cuda" if cuda else "cpu", dtype=dtype)
        settings = EditSettings(self.config.steps, self.config.text_guidance, self.config.image_guidance)
        total = -(-len(self.rows) // self.config.batch)
        parts = batches(self.rows, data, self.config.batch, fields=())
        for k, (_, batch) in enumerate(tqdm(parts, desc=name, total=total, unit="batch")):
            first = k * self.config.batch
            paths = [folder / f"{first + i:06d}.png" for i in range(len(batch))]
            if all(path.is_file() for path in paths):
                continue
            seeds = [self.config.seed + first + i for i in range(len(batch))]
            edited = editor(batch.source, batch.instruction, seeds, settings=settings)
            for path, picture in zip(paths, edited, strict=True):
                to_pil(picture).save(path.with_suffix(".partial"), "PNG")
                path.with_suffix(".partial").replace(path)
        (folder / "done").write_text(name)

    def __len__(self) -> int:
        return len(self.rows) * len(self.kinds)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        at, kind = divmod(index, len(self.kinds))
        sample, name = self.rows[at], self.kinds[kind]
        edited = {"target": sample.target, "source": sample.source}.get(name)
        if edited is None:
            edited = sample.edited if name == "target" else load_image(self.folder / name / f"{at:06d}.png")
        return replace(sample, id=f"{sample.id}/{name}", edited=edited)
