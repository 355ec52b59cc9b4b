"""Makes the photographs of the offline world from those of scikit-image.

Command: python -m tests.shapes.make_photographs

Each is written as a gray PNG of 15 bits with its red, green and blue planes one below the other: with 8 bits,
one in four of the values where an object's edge is blended with a photograph would be another,
and with 16 they would all be over a MiB.
"""

import numpy as np
from PIL import Image
from skimage import data
from skimage.transform import resize

from rewardedit.shapes.render import FADED, LEVELS, PHOTOGRAPHS, PHOTOGRAPHS_FOLDER

SHORTER = 160  # pixels


def originals() -> dict[str, np.ndarray]:
    """The images (h, w, 3) in [0, 1], shorter side 160 pixels."""
    images = {
        "astronaut": data.astronaut(),
        "coffee": data.coffee(),
        "chelsea": data.chelsea(),
        "rocket": data.rocket(),
        "immunohistochemistry": data.immunohistochemistry(),
        "motorcycle": data.stereo_motorcycle()[0],
    }
    assert tuple(images) == PHOTOGRAPHS
    return {name: _small(image) for name, image in images.items()}


def _small(image: np.ndarray) -> np.ndarray:
    h, w = image.shape[:2]
    scale = SHORTER / min(h, w)
    return resize(image, (round(h * scale), round(w * scale)), anti_aliasing=True).astype(np.float32)


def faded(image: np.ndarray) -> np.ndarray:
    """An image in [0, 1] with the contrast that backdrops have."""
    low, span = FADED
    return low + span * image


def levels(values: np.ndarray) -> np.ndarray:
    """Values as a file of 256 levels stores them."""
    return np.round(values.astype(np.float32) * np.float32(255))


def stored(image: np.ndarray) -> np.ndarray:
    """The image in `LEVELS`, chosen so that the backdrop has the 256 levels of a file that it has without
    them.
    """
    found = np.round(image * LEVELS)
    for step in (1, -1):
        moved = np.clip(found + step, 0, LEVELS)
        wrong = levels(faded(np.float32(found) / np.float32(LEVELS))) != levels(faded(image))
        better = levels(faded(np.float32(moved) / np.float32(LEVELS))) == levels(faded(image))
        found = np.where(wrong & better, moved, found)
    return found.astype(np.uint16)


if __name__ == "__main__":
    for name, picture in originals().items():
        planes = stored(picture).transpose(2, 0, 1)
        Image.fromarray(planes.reshape(-1, planes.shape[-1])).save(
            PHOTOGRAPHS_FOLDER / f"{name}.png", optimize=True
        )
