"""Candidates: each row's own target and source, and what trained editors make of it (ADIEE Sec. 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rewardedit import devices
from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, Rows, batches, row_shards
from rewardedit.diffusion.editors import EditConfig, Editor, load_editor
from rewardedit.images import load_image, to_pil
from rewardedit.stages import Share, stage


@dataclass(frozen=True)
class CandidatesConfig:
    """Which outputs stand beside the data set's own targets, and how the editors are asked."""

    editors: tuple[str, ...] = ()  # hub names or folders
    source: bool = True  # the untouched source as a candidate: the commonest failure
    num_inference_steps: int = 100  # denoising steps
    guidance_scale: float = 7.5  # text guidance scale
    image_guidance_scale: float = 1.5  # image guidance scale
    batch_size: int = 8  # images that are edited at a time
    seed: int = 42  # of row 0; row i has this + i
    half: bool = True  # fp16 on a GPU


def load_candidates_editor(config: CandidatesConfig, editor: int) -> Editor:
    """One of the editors, in half precision on a GPU where that is asked for."""
    dtype = devices.inference_dtype(None if config.half else "float32")
    return load_editor(config.editors[editor], device=devices.default_device(), dtype=dtype)


def edit_rows(
    editor: Editor, config: CandidatesConfig, rows: Rows, data: DataConfig, first: int, folder: Path
) -> None:
    """Writes an editor's edits of `rows`, the first of which is row `first` of the data set: 00000000.png …,
    by its number.

    The noise of row i has seed `config.seed` + i.
    """
    folder.mkdir(parents=True)
    settings = EditConfig(config.num_inference_steps, config.guidance_scale, config.image_guidance_scale)
    for ids, batch in batches(rows, data, config.batch_size, fields=()):
        numbers = range(first, first + len(ids))
        edited = editor(
            batch.source, batch.instruction, [config.seed + i for i in numbers], settings=settings
        )
        for number, image in zip(numbers, edited, strict=True):
            to_pil(image).save(folder / f"{number:08d}.png")
        first += len(ids)


def make_candidates(
    config: CandidatesConfig,
    editor: int,
    rows: Rows,
    data: DataConfig,
    folder: Path,
    share: Share | None = None,
) -> None:
    """What one of the editors makes of all rows."""
    # its edits do not depend on which other candidates there are
    own = replace(config, editors=(), source=False)
    made_of = {"editor": config.editors[editor], "how": own, "data": data, "rows": len(rows)}
    parts = row_shards(rows, config.batch_size)

    @cache
    def load() -> Editor:
        return load_candidates_editor(config, editor)

    def make(number: int, path: Path) -> None:
        edit_rows(load(), config, parts[number], data, number * len(parts[0]), path)

    stage(folder, made_of, make, len(parts), share=share)


class WithCandidates(Sequence):
    """Every row as often as it has candidates: target, source, one for each editor.

    `folder` holds what the editors made: editor-0/SHARD/00000000.png …, by the row's number in the data set.
    """

    def __init__(self, rows: Rows, config: CandidatesConfig, folder: Path) -> None:
        self.rows = rows
        editors = [f"editor-{k}" for k in range(len(config.editors))]
        self.kinds = ["target", *(["source"] if config.source else []), *editors]
        self.edits = {name: sorted((folder / name).glob("*/*.png")) for name in editors}

    def __len__(self) -> int:
        return len(self.rows) * len(self.kinds)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        at, kind = divmod(index, len(self.kinds))
        sample = self.rows[at]
        name = self.kinds[kind]
        edited = {"target": sample.target, "source": sample.source}.get(name)
        if edited is None:
            edited = sample.edited if name == "target" else load_image(self.edits[name][at])
        return replace(sample, id=f"{sample.id}/{name}", edited=edited)


def candidate_rows(
    config: CandidatesConfig | None, rows: Rows, data: DataConfig, folder: Path, share: Share | None = None
) -> Rows:
    """The rows that are scored: the data set's own, or each with its candidates, which are made in `folder`
    where they are not there yet.
    """
    if config is None:
        return rows
    for k in range(len(config.editors)):
        make_candidates(config, k, rows, data, folder / f"editor-{k}", share)
    return WithCandidates(rows, config, folder)
