"""Locators by name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rewardedit.regions.base import ChangeMaskLocator, GivenMaskLocator, Locator, ObjectLocator
from rewardedit.regions.grounded_sam import GroundedSam
from rewardedit.regions.sam3 import Sam3

FINDERS: dict[str, Callable[..., Any]] = {
    "grounded_sam": GroundedSam.from_pretrained,
    "sam3": Sam3.from_pretrained,
}
DEFAULT = "grounded_sam"
WITHOUT_MODEL: dict[str, Callable[[], Locator]] = {"change_map": ChangeMaskLocator, "mask": GivenMaskLocator}


def locator_options(regions: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """A locator's name and options, from a name alone, or from options with or without the name."""
    return {"name": DEFAULT, **({"name": regions} if isinstance(regions, str) else regions or {})}


def locator_models(regions: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a locator, with the defaults of its finder if it has one; none of its models is
    loaded.
    """
    options = locator_options(regions)
    finder = FINDERS.get(options["name"])
    parameters = {} if finder is None else inspect.signature(finder).parameters
    return {name: value.default for name, value in parameters.items()} | options


def load_locator(name: str, *, dtype: torch.dtype = torch.float32, **options: Any) -> Locator:
    """Loads a locator by name: "grounded_sam" and "sam3" find the objects that the instruction names,
    "change_map" takes the difference between the images, "mask" the row's own mask.

    Options go to the finder's `from_pretrained`, e.g. detector="IDEA-Research/grounding-dino-tiny".

    Raises:
        ValueError: on an unknown name, an unknown option, or a model that cannot be loaded.
    """
    if name in WITHOUT_MODEL:
        if options:
            raise ValueError(f"regions {name!r}: takes no options; got {', '.join(sorted(options))}")
        return WITHOUT_MODEL[name]()
    if name not in FINDERS:
        names = ", ".join([*FINDERS, *WITHOUT_MODEL])
        raise ValueError(f"regions: expected one of {names}; got {name!r}")
    try:
        return ObjectLocator(FINDERS[name](dtype=dtype, **options))
    except TypeError as error:
        raise ValueError(f"regions {name!r}: {error}") from error
