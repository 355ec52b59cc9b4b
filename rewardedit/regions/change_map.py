"""Change mask: a soft mask of an edit from the images alone, without a model."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import gaussian_blur
from rewardedit.images.values import require_fit, require_unit_range

FLOOR = (0.03, 0.06)  # OKLab distances: below the first a change counts as 0, above the second as 1
# the same as shares of the strongest change: an edit stands out from a mere drift
PEAK_SHARE = (0.2, 0.4)
PEAK = 0.995  # quantile of the distances that counts as the strongest
STRONG = 2.5  # times the bounds above: changes that stay even where they are thin
DRIFT = 0.04  # the largest shift of the whole image, in OKLab, that is taken for exposure and removed
LARGEST = 2**24  # most values that torch takes a quantile of; a larger image is subsampled
GRID = 64  # cleaning happens at the scale of an image of so many pixels a side


def change_mask(
    source: Float[Tensor, "b 3 h w"], edited: Float[Tensor, "_ 3 _ _"], grow: int = 1
) -> Float[Tensor, "b 1 h w"]:
    """Soft mask, in [0, 1], of the difference between two images (RGB in [0, 1]).

    The distance in OKLab (Ottosson 2020), averaged over 1/64 of the image; a small shift of the whole image
    is taken for exposure and removed; changes that are weak, absolutely or relative to the strongest one,
    count as noise; faint specks and lines of about 1/64 of the image are removed and the rest grows by `grow`
    times that. If nothing differs, the mask is 0.

    Raises:
        ValueError: if an image is not finite, or not in [0, 1], or the two differ in size.
    """
    require_unit_range("source", source)
    require_unit_range("edited", edited)
    require_fit("edited", edited, tuple(source.shape))
    with torch.no_grad():
        unit = max(1, round(max(source.shape[-2:]) / GRID))
        difference = gaussian_blur(oklab(edited.float()) - oklab(source.float()), 0.7 * unit)
        shift = difference.flatten(2).median(dim=2).values[:, :, None, None]
        difference = difference - shift * (shift.norm(dim=1, keepdim=True) < DRIFT)
        distance = difference.norm(dim=1, keepdim=True)
        values = distance.flatten(1)
        values = values[:, :: math.ceil(values.shape[1] / LARGEST)]
        peak = values.quantile(PEAK, dim=1)[:, None, None, None]
        low = torch.clamp(PEAK_SHARE[0] * peak, min=FLOOR[0])
        high = torch.clamp(PEAK_SHARE[1] * peak, min=FLOOR[1])
        mask = ((distance - low) / (high - low)).clamp(0, 1)
        strong = ((distance - STRONG * low) / (STRONG * (high - low))).clamp(0, 1)
        opened = dilated(eroded(mask, unit), unit)  # without specks and lines
        return dilated(torch.maximum(opened, strong), grow * unit)


def dilated(mask: Float[Tensor, "b 1 h w"], radius: int) -> Float[Tensor, "b 1 h w"]:
    """The largest value within `radius` pixels of each place (a square): along the rows, then the columns."""
    for axis in (3, 2) if radius else ():
        mask = _largest_along(mask, axis, radius)
    return mask


def _largest_along(mask: Float[Tensor, "b 1 h w"], axis: int, radius: int) -> Float[Tensor, "b 1 h w"]:
    """The largest value within `radius` places along an axis, by windows that double in length."""
    sides = [radius, radius, 0, 0] if axis == 3 else [0, 0, radius, radius]
    row = F.pad(mask, sides, value=float("-inf"))
    window = 2 * radius + 1
    length = 1
    while length < window:
        step = min(length, window - length)
        n = row.shape[axis] - step
        row = torch.maximum(row.narrow(axis, 0, n), row.narrow(axis, step, n))
        length += step
    return row


def eroded(mask: Float[Tensor, "b 1 h w"], radius: int) -> Float[Tensor, "b 1 h w"]:
    """The smallest value within `radius` pixels of each place (a square)."""
    return 1 - dilated(1 - mask, radius)


def oklab(image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    """Converts sRGB in [0, 1] to OKLab (Ottosson 2020): lightness in [0, 1], then two opponent axes, about
    [−0.4, 0.4].

    Euclidean distances in it are nearly perceptual: 0.02 is just noticeable.
    """
    image = image.clamp(0, 1)
    linear = torch.where(image <= 0.04045, image / 12.92, ((image + 0.055) / 1.055) ** 2.4)
    cones = torch.einsum("ij,bjhw->bihw", linear.new_tensor(_TO_CONES), linear)
    return torch.einsum("ij,bjhw->bihw", linear.new_tensor(_FROM_CONES), cones.clamp_min(0) ** (1 / 3))


_TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_FROM_CONES = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
