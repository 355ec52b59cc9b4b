"""Families of editors, one file each; `family_of` returns that of a pipeline."""

from typing import Any

from rewardedit.diffusion.families.base import Conditioning, EditFamily
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.families.true_cfg import FluxKontext, QwenImageEdit

__all__ = ["FAMILIES", "Conditioning", "EditFamily", "family_of", "family_that_loads"]

FAMILIES: tuple[EditFamily, ...] = (InstructPix2Pix(), FluxKontext(), QwenImageEdit())


def family_of(pipe: Any) -> EditFamily:
    """The family of a pipeline; an unknown one can only be sampled from."""
    names = {kind.__name__ for kind in type(pipe).__mro__}
    for family in FAMILIES:
        if not names.isdisjoint(family.pipelines):
            return family
    return EditFamily()


def family_that_loads(class_name: str) -> EditFamily | None:
    """The family that can load a saved pipeline of that class as an editor; None if there is none."""
    for family in FAMILIES:
        if class_name in family.loadable:
            return family
    return None
