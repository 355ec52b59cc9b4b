"""Editors with frozen parts in 4 bits, on which a LoRA is trained."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rewardedit.diffusion.families import EditFamily
from rewardedit.models import four_bit


def require_quantizable(family: EditFamily) -> None:
    """Raises ValueError if 4 bits would save an editor next to nothing, or bitsandbytes is not installed."""
    if not family.quantized_parts:
        raise ValueError(
            f"quantize: expected an editor by flow matching, whose weights are linear layers; got "
            f"{type(family).__name__}, which has convolutions; leave it out"
        )
    four_bit.require_bitsandbytes()


def quantize_pipeline(family: EditFamily, pipe: Any, device: torch.device | str) -> None:
    """Stores the linear layers of denoiser and large text encoder of a pipeline, which is on a CPU, in 4 bits
    on `device`; the rest of it stays where it is.

    Raises:
        ValueError: as `require_quantizable`.
    """
    require_quantizable(family)
    for name in family.quantized_parts:
        module = getattr(pipe, name)
        if module is not None:
            four_bit.quantize(module, device, kept_layers(family, name))


def kept_layers(family: EditFamily, name: str) -> tuple[str, ...]:
    """Names of the layers of a part that stay as they are."""
    return family.quantized_except if name == family.denoiser_name else ()


def saved_bytes(family: EditFamily, parts: Mapping[str, nn.Module], number: int) -> int:
    """Bytes by which parts of a pipeline shrink in 4 bits; 0 for those that stay as they are.

    Args:
        parts: by their names in the pipeline.
        number: bytes of a weight before.
    """
    total = 0
    for name in family.quantized_parts:
        if name in parts:
            total += four_bit.saved_bytes(parts[name], number, kept_layers(family, name))
    return total


def largest_layer(family: EditFamily, parts: Mapping[str, nn.Module]) -> int:
    """Weights of the largest layer in 4 bits, which is restored while it computes."""
    sizes = [0]
    for name in family.quantized_parts:
        if name in parts:
            sizes.append(four_bit.largest_layer(parts[name], kept_layers(family, name)))
    return max(sizes)
