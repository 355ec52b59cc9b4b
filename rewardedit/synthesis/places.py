"""Separate places that an edit changes, and what it draws and clears there. RGB in [0, 1]."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from rewardedit.images import gaussian_blur
from rewardedit.regions.boxes import numbered_components
from rewardedit.regions.change_map import GRID, dilated

Image = Float[Tensor, "3 h w"]
Place = Bool[Tensor, "h w"]
MIN_PLACE_SHARE = 0.2  # least share of the changed area: a smaller place is a remnant of another
RING = 3  # width of a place's surround, in 1/64 of the longer side
BLUR = 1.0  # in 1/64 of the longer side


def edited_places(mask: Float[Tensor, "1 h w"]) -> list[Place]:
    """Separate places of an edit's change mask, largest first, without small ones."""
    numbers, _ = numbered_components(mask[0] > 0.5)
    areas = numbers.flatten().bincount()[1:]
    order = areas.argsort(descending=True).tolist()
    return [numbers == i + 1 for i in order if areas[i] >= MIN_PLACE_SHARE * areas.sum()]


def surround(image: Image, place: Place) -> Float[Tensor, "3 1 1"]:
    """Median colour around a place; of the whole image if nothing is around it."""
    width = RING * max(1, round(max(image.shape[-2:]) / GRID))
    ring = (dilated(place[None, None].float(), width)[0, 0] > 0) & ~place
    around = image[:, ring] if ring.any() else image.flatten(1)
    return around.median(1).values[:, None, None]


def drawn(image: Image, place: Place) -> Float[Tensor, "h w"]:
    """RGB distance of each pixel of a place from the colour around it; 0 elsewhere."""
    unit = max(image.shape[-2:]) / GRID
    distance = (image - surround(image, place)).norm(dim=0, keepdim=True)
    return gaussian_blur(distance[None], BLUR * unit)[0, 0] * place


def moved(source: Image, target: Image, places: Sequence[Place]) -> tuple[Place, Place] | None:
    """Old and new place of an object that an edit moves. Of the two places that the edit changes, the old one
    shows something in the source and nothing in the target, the new one the reverse. None if this is not the
    case.
    """
    if len(places) != 2:
        return None

    def fades(place: Place) -> bool:
        return float(drawn(source, place).sum()) > float(drawn(target, place).sum())

    first, second = places
    if fades(first) == fades(second):
        return None
    return (first, second) if fades(first) else (second, first)
