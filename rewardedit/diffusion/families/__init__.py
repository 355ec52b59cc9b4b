"""Families of editors, one file each; `family_of` returns that of a pipeline."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from rewardedit.diffusion.families.base import Conditioning, EditFamily
from rewardedit.diffusion.families.flux2_klein import Flux2Klein
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.families.kontext import FluxKontext
from rewardedit.diffusion.families.qwen_image_edit import QwenImageEdit

__all__ = ["FAMILIES", "Conditioning", "EditFamily", "family_of", "family_that_loads"]

FAMILIES: tuple[EditFamily, ...] = (InstructPix2Pix(), FluxKontext(), Flux2Klein(), QwenImageEdit())


def family_of(pipe: Any) -> EditFamily:
    """The family of a pipeline; an unknown one can only be sampled from."""
    names = {kind.__name__ for kind in type(pipe).__mro__}
    for family in FAMILIES:
        if not names.isdisjoint(family.pipelines):
            return family.variant(pipe.config)
    return EditFamily()


def family_that_loads(index: Mapping[str, Any]) -> EditFamily | None:
    """The family that can load a saved pipeline as an editor, by its index file; None if there is none."""
    for family in FAMILIES:
        if index["_class_name"] in family.loadable:
            return family.variant(index)
    return None


def require_family(name: str, index: Mapping[str, Any]) -> EditFamily:
    """The family that can load the pipeline `name`, by its index file.

    Raises:
        ValueError: if there is none.
    """
    family = family_that_loads(index)
    if family is None:
        known = ", ".join(chain.from_iterable(family.loadable for family in FAMILIES))
        raise ValueError(
            f"editor {name!r}: expected one of {known}; got {index['_class_name']}; take such a pipeline"
        )
    return family
