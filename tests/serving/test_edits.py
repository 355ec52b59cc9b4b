import numpy as np
import pytest
from PIL import Image

from rewardedit.batch import PixelSample
from rewardedit.images import to_pixels
from rewardedit.serving.budget import Budget, Reservation
from rewardedit.serving.edits import CHANNELS, RawEdit, decode_edit
from tests.serving.helpers import encoded, picture


def deep(width: int, height: int) -> Image.Image:
    """A gray image of 16 bits."""
    return Image.fromarray(np.full((height, width), 40_000, dtype=np.uint16))


def turned(image: Image.Image) -> Image.Image:
    """The image with the tag that it lies on its side."""
    exif = image.getexif()
    exif[0x0112] = 6
    image.info["exif"] = exif.tobytes()
    return image


@pytest.mark.parametrize(
    "images",
    [
        {"source": picture(1), "edited": picture(2)},
        {"source": picture(1, 40, 30), "edited": picture(2, 10, 10), "mask": picture(3, 5, 5, 1)},
        {"source": deep(40, 30), "edited": deep(10, 10), "mask": deep(5, 5)},
        {"source": turned(picture(1, 40, 30)), "edited": picture(2, 40, 30)},
    ],
)
def test_all_bytes_of_decoded_images_are_counted(images):
    reservation = Reservation(Budget(2**20, "decoded images"))
    raw = {}
    for name, image in images.items():
        exif = {"exif": image.info["exif"]} if "exif" in image.info else {}
        raw[name] = encoded(image, **exif)
    found = decode_edit(RawEdit(**raw, instruction="x"), 10_000, reservation)
    assert isinstance(found, PixelSample)
    needed = 0
    for name, image in images.items():
        before = to_pixels(image, CHANNELS[name])
        after = getattr(found, name)
        needed += before.nbytes + (after.nbytes if before.shape != after.shape else 0)
    assert needed <= reservation.held <= 2 * needed
