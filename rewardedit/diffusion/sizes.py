"""Sizes at which images are edited: the one of an editor's training, and messages about large ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from rewardedit import devices
from rewardedit.diffusion.editors import Editor
from rewardedit.processes import notice

USUAL_SIDE = 1024  # pixels, of editors that do not say at what size they were trained
LARGE = 2  # factor over the time at that side from which --size is suggested


def trained_side(editor: Editor) -> int:
    """Returns the side in pixels that an editor was trained on, by its denoiser's config."""
    size = editor.family.denoiser(editor.pipe).config.get("sample_size")
    return size * editor.pipe.vae_scale_factor if isinstance(size, int) else USUAL_SIDE


def hint_at_size(editor: Editor, path: Path, source: Float[Tensor, "1 3 h w"]) -> None:
    """Suggests `--size`, once a run, if an image is edited at its own size and that takes far longer."""
    h, w = source.shape[-2:]
    side = trained_side(editor)
    cost = (min(h, w) / side) ** 2
    if cost >= LARGE:
        notice(
            f"{path}: is edited at its own {w} x {h} pixels, which takes at least {cost:.0f} times the time "
            f"and memory of --size {side}, at which the editor was trained",
            key="edited at its own size",
        )


def smaller_size(size: int | None) -> str:
    """Returns advice on `--size`, if memory ran out at the given one."""
    return "give --size, such as 512" if size is None else f"give a --size below {size}"


@contextmanager
def out_of_memory_told(path: Path, source: Float[Tensor, "1 3 h w"], remedy: str) -> Iterator[None]:
    """Raises ValueError with this remedy if the memory of a GPU or of the machine ran out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not devices.is_out_of_memory(error):
            raise
        h, w = source.shape[-2:]
        raise ValueError(f"{path}: out of memory at {w} x {h} pixels; {remedy}") from None
