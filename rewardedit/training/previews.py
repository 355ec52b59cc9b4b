"""Previews: edits of a few rows by the editor in training, for inspection."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from rewardedit.batch import collate
from rewardedit.data import DataConfig, Rows, require_size
from rewardedit.data.stream import StreamedRows
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.images import to_pil
from rewardedit.processes import processes

STEPS = 20


def save_previews(
    editor: Editor,
    rows: Rows | StreamedRows,
    data: DataConfig,
    n: int,
    folder: Path,
    sampling: AbstractContextManager[None],
) -> None:
    """Writes source and edit of the first n rows side by side, as 00.png …; each process writes its share.
    Streamed rows are taken from the first file.

    A preview that fails does not end the run: a warning gives the reason.

    Args:
        sampling: context within which the editor can encode texts and sample.
    """
    state = processes()
    if isinstance(rows, StreamedRows):
        rows = rows.files[0].rows()
    settings = SamplingConfig(STEPS, editor.settings.guidance_scale, editor.settings.image_guidance_scale)
    folder.mkdir(parents=True, exist_ok=True)
    with _warned("previews"), sampling:
        for i in range(state.process_index, min(n, len(rows)), state.num_processes):
            with _warned(f"preview of row {i}"):
                batch = collate([rows[i]], require_size(data), data.resize)
                edited = editor(batch.source, batch.instruction, [i], settings=settings)
                to_pil(torch.cat([batch.source[0], edited[0]], dim=2)).save(folder / f"{i:02d}.png")


@contextmanager
def _warned(missing: str) -> Iterator[None]:
    """Turns an error into a warning that names what is missing."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"no {missing}, the training goes on: {reason}", stacklevel=4)
