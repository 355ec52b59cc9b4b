"""Reading as bytes and SSIM in one blur, beside what they replaced: python benchmarks/speed_reading.py

Rows of two images each, from the bytes of their files to a batch in [0, 1]: by the library, and by plain
lines that make floating-point of each image and then resize it. SSIM: with its five blurs as one, and one
after the other, three channels at a time; and the scorer beside torchmetrics' function. On one thread, as a
process that reads ahead has, in pairs that alternate which of the two comes first; a ratio is the time of
the other over the library's.
"""

import io
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

import numpy as np
import skimage.data
import torch
import torch.nn.functional as F
from command_line import read_command_line
from PIL import Image
from speed_measures import Ways, matrix_limit, measure_path
from torch import Tensor

from rewardedit.batch import EditBatch, EditSample
from rewardedit.data import read_batches
from rewardedit.images import load_pil
from rewardedit.scorers import load_scorer
from rewardedit.scorers.preservation import RIM, SIGMA, ssim_map

ROUNDS = 61
ROWS = 8
SIDE = 512  # of the files
SIZE = 256  # that they are resized to
FORMATS = {"JPEG": {"quality": 92}, "PNG": {}, "WEBP": {"quality": 92}}


class Files(Sequence):
    """Rows of a photograph and another one, as bytes of files of one format."""

    def __init__(self, kind: str, rows: int, side: int) -> None:
        self.files = []
        for name in ("astronaut", "chelsea"):
            file = io.BytesIO()
            photograph = Image.fromarray(getattr(skimage.data, name)()).resize((side, side))
            photograph.save(file, kind, **FORMATS[kind])
            self.files.append(file.getvalue())
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        source, edited = (load_pil(io.BytesIO(file)) for file in self.files)
        return EditSample(str(index), source, "make it a cat", edited)


def read(rows: Files, size: int) -> list[EditBatch]:
    """Reads the rows by the library."""
    batches = []
    for batch in read_batches(rows, size, "crop", len(rows), fields=()):
        assert batch.pixels is not None
        batches.append(batch.pixels.to("cpu"))
    return batches


def read_plainly(rows: Files, size: int) -> list[EditBatch]:
    """Reads the rows as floating-point: decodes, converts, resizes."""
    images: list[list[Tensor]] = [[], []]
    for _ in range(len(rows)):
        for kind, file in zip(images, rows.files, strict=True):
            with Image.open(io.BytesIO(file)) as image:
                array = np.asarray(image.convert("RGB"), dtype=np.float32) / 255
            tensor = torch.from_numpy(array).permute(2, 0, 1).contiguous()[None]
            resized = F.interpolate(tensor, (size, size), mode="bicubic", antialias=True, align_corners=False)
            kind.append(resized.clamp(0, 1))
    return [EditBatch(torch.cat(images[0]), ["make it a cat"] * len(rows), torch.cat(images[1]))]


def blur_plainly(image: Tensor) -> Tensor:
    """A Gaussian blur with replicated borders, by channel."""
    place = torch.arange(-RIM, RIM + 1, dtype=image.dtype)
    weights = torch.exp(-0.5 * (place / SIGMA) ** 2)
    weights = (weights / weights.sum()).expand(image.shape[1], 1, -1)
    c = image.shape[1]
    image = F.conv2d(F.pad(image, (RIM, RIM, 0, 0), mode="replicate"), weights[:, :, None, :], groups=c)
    return F.conv2d(F.pad(image, (0, 0, RIM, RIM), mode="replicate"), weights[:, :, :, None], groups=c)


def ssim_plainly(x: Tensor, y: Tensor) -> Tensor:
    """SSIM of the window around each pixel, by five blurs."""
    mean_x = blur_plainly(x)
    mean_y = blur_plainly(y)
    xx = blur_plainly(x * x)
    yy = blur_plainly(y * y)
    xy = blur_plainly(x * y)
    brightness = (2 * mean_x * mean_y + 0.01**2) / (mean_x**2 + mean_y**2 + 0.01**2)
    structure = (2 * (xy - mean_x * mean_y) + 0.03**2) / ((xx - mean_x**2) + (yy - mean_y**2) + 0.03**2)
    return brightness * structure


def reading(kind: str, rows: int, side: int, size: int) -> Ways:
    """Rows of files of a format that are read."""
    files = Files(kind, rows, side)
    return {"plain": partial(read_plainly, files, size), "ours": partial(read, files, size)}


def blurring(rows: int, side: int, size: int) -> Ways:
    """SSIM's map of rows."""
    batch = read(Files("PNG", rows, side), size)[0]
    images = (batch.source, batch.edited)
    return {"plain": partial(ssim_plainly, *images), "ours": partial(ssim_map, *images)}


def scoring(rows: int, side: int, size: int) -> Ways:
    """SSIM of rows by torchmetrics, which counts windows across the images' rim too, and by the scorer."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    batch = read(Files("PNG", rows, side), size)[0]
    theirs = partial(structural_similarity_index_measure, data_range=1.0, reduction="none")
    return {
        "plain": partial(theirs, batch.edited, batch.source),
        "ours": partial(load_scorer("ssim"), batch),
    }


def measure(
    rounds: int = ROUNDS, rows: int = ROWS, side: int = SIDE, size: int = SIZE, memory: bool = True
) -> dict[str, dict[str, float]]:
    """The figures of `measure_path` of each comparison; that with torchmetrics where it is installed."""
    paths = {}
    for kind in FORMATS:
        paths[f"reading two {kind} of {side} px to {size}"] = partial(reading, kind, rows, side, size)
    paths["ssim against the five blurs one by one"] = partial(blurring, rows, side, size)
    if find_spec("torchmetrics") is None:
        print("ssim against torchmetrics: left out, as torchmetrics is not installed", file=sys.stderr)
    else:
        paths["ssim against torchmetrics"] = partial(scoring, rows, side, size)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matrix_limit.cache_clear()
    try:
        return {path: measure_path(make, rounds, memory=memory) for path, make in paths.items()}
    finally:
        torch.set_num_threads(threads)
        matrix_limit.cache_clear()


if __name__ == "__main__":
    line = read_command_line(__doc__)
    line.keep("speed-reading", {"ratios": measure()})
