"""Changes of a whole image that perform no edit, and the words in texts that rule them out."""

import re
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import resize

# Mirroring or rotation makes "left" wrong, and text and dials unreadable.
# These are stems: -s, -ed and -ing may follow.
DIRECTIONS = (
    *("left", "right", "top", "bottom", "above", "below", "under", "underneath", "beneath", "over"),
    *("upper", "lower", "up", "down", "upward", "upwards", "downward", "downwards", "upside", "sideways"),
    *("leftmost", "rightmost", "topmost", "lefthand", "righthand", "north", "south", "east", "west"),
    *(
        "clockwise",
        "counterclockwise",
        "anticlockwise",
        "flip",
        "flipp",
        "mirror",
        "reflect",
        "rotate",
        "rotat",
        "turn",
    ),
    *("way", "side", "opposite", "reverse", "revers", "direction", "face", "fac", "around", "swap", "swapp"),
    *("switch", "rotation", "reflection", "tilt", "invert", "higher", "overhead", "uppermost", "bottommost"),
    *("leftward", "leftwards", "rightward", "rightwards"),
    *("horizontal", "horizontally", "vertical", "vertically", "text", "word", "letter", "sign", "clock"),
)
# Instructions with these words ask for the zoom itself.
VIEWS = (
    "zoom",
    "crop",
    "cropp",
    "close-up",
    "closeup",
    "closer",
    "enlarge",
    "frame",
    "bigger",
    "larger",
    "grow",
)
FLIPS = ("flip_horizontal", "flip_vertical", "rotate_90", "rotate_180", "rotate_270")
AUGMENTATIONS = (*FLIPS, "zoom")
ZOOM = 0.85  # share of each side that the crop keeps


def says(texts: Iterable[str | None], words: tuple[str, ...]) -> bool:
    """True if one of the texts contains one of the words, possibly with an ending."""
    pattern = "|".join(map(re.escape, words))
    whole = re.compile(rf"\b(?:{pattern})(?:s|es|ed|d|ing)?\b", re.IGNORECASE)
    return any(text is not None and whole.search(text) for text in texts)


def allowed_augmentations(*texts: str | None) -> tuple[str, ...]:
    """Augmentations that do not change the meaning of an instruction and captions."""
    flips = () if says(texts, DIRECTIONS) else FLIPS
    zoom = () if says(texts, VIEWS) else ("zoom",)
    return (*flips, *zoom)


def augment(image: Float[Tensor, "3 h w"], name: str) -> Float[Tensor, "3 h w"]:
    """Augments a square image.

    Raises:
        ValueError: for an unknown name, or an image that is not square.
    """
    if name not in AUGMENTATIONS:
        raise ValueError(f"augmentation: expected one of {', '.join(AUGMENTATIONS)}; got {name!r}")
    h, w = image.shape[-2:]
    if h != w:
        raise ValueError(f"augmentation: expected a square image; got {(h, w)}")
    if name == "flip_horizontal":
        return image.flip(-1)
    if name == "flip_vertical":
        return image.flip(-2)
    if name == "zoom":
        side = max(1, round(h * ZOOM))
        first = (h - side) // 2
        return resize(image[None, :, first : first + side, first : first + side], (h, w))[0]
    return torch.rot90(image, int(name.removeprefix("rotate_")) // 90, (-2, -1))
