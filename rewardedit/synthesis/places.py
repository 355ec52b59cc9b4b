"""The separate places that an edit changes, and what is drawn and cleared there. RGB in [0, 1]."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from rewardedit.images import gaussian_blur
from rewardedit.regions.boxes import components
from rewardedit.regions.change_map import GRID, dilated

Image = Float[Tensor, "3 h w"]
Place = Bool[Tensor, "h w"]
LEAST = 0.2  # of all that is changed: a smaller place is a rest of another
RING = 3  # 1/64 of the longer side: how wide the surround of a place is
BLUR = 1.0  # 1/64 of the longer side


def edited_places(mask: Float[Tensor, "1 h w"]) -> list[Place]:
    """The separate places of an edit's change mask, largest first, without small ones."""
    found = components(mask[0] > 0.5)
    areas = found.flatten(1).sum(1)
    order = areas.argsort(descending=True).tolist()
    return [found[i] for i in order if areas[i] >= LEAST * areas.sum()]


def surround(image: Image, place: Place) -> Float[Tensor, "3 1 1"]:
    """The median colour around a place; of the whole image where nothing is around it."""
    width = RING * max(1, round(max(image.shape[-2:]) / GRID))
    ring = (dilated(place[None, None].float(), width)[0, 0] > 0) & ~place
    around = image[:, ring] if ring.any() else image.flatten(1)
    return around.median(1).values[:, None, None]


def drawn(image: Image, place: Place) -> Float[Tensor, "h w"]:
    """How far each pixel of a place is, in RGB, from the colour around it; 0 elsewhere."""
    unit = max(image.shape[-2:]) / GRID
    distance = (image - surround(image, place)).norm(dim=0, keepdim=True)
    return gaussian_blur(distance[None], BLUR * unit)[0, 0] * place


def moved(source: Image, target: Image, places: Sequence[Place]) -> tuple[Place, Place] | None:
    """The old and the new place of what an edit moves: of the two places that it changes, in the old one
    something is in the source and nothing in the target, in the new one it is the other way round. None
    where it is not so.
    """
    if len(places) != 2:
        return None
    first, second = (
        float(drawn(source, place).sum()) > float(drawn(target, place).sum()) for place in places
    )
    if first == second:
        return None
    return (places[0], places[1]) if first else (places[1], places[0])
