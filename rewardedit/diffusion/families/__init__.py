"""Families of editors, one file each; `family_of` says which one a pipeline is of."""

from typing import Any

from rewardedit.diffusion.families.base import Conditioning, EditFamily
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.families.true_cfg import FluxKontext, QwenImageEdit

__all__ = ["FAMILIES", "Conditioning", "EditFamily", "family_of", "family_that_loads"]

FAMILIES: tuple[EditFamily, ...] = (InstructPix2Pix(), FluxKontext(), QwenImageEdit())


def family_of(pipe: Any) -> EditFamily:
    """The family of a pipeline; one that is not known can be sampled from, and no more."""
    names = {kind.__name__ for kind in type(pipe).__mro__}
    return next((family for family in FAMILIES if names & set(family.pipelines)), EditFamily())


def family_that_loads(class_name: str) -> EditFamily | None:
    """The family that makes an editor of a saved pipeline of that class; None where there is none."""
    return next((family for family in FAMILIES if class_name in family.loadable), None)
