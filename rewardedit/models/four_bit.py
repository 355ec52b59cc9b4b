"""Frozen linear layers in 4 bits: NF4 with double quantisation (QLoRA, Dettmers et al. 2023, Sec. 3).

The layers are bitsandbytes' own. Diffusers' quantiser, which would make the same ones, refuses to load
without a GPU.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from rewardedit.models.extras import install_command

Bits = Literal["4bit"]
KEPT = ("lm_head", "visual")  # parts of text encoders that stay as they are, as in vision-language models
BLOCK = 64  # weights with one scale, which is stored in 8 bits
SCALES = 256  # scales with one scale of their own, in fp32
TABLES = 4 * (16 + 256 + 1)  # bytes of a layer's code books and of the scales' mean


def require_bitsandbytes() -> None:
    """Raises ValueError if bitsandbytes is not installed."""
    if find_spec("bitsandbytes") is None:
        raise ValueError(f"quantize needs bitsandbytes: {install_command('quantize')}")


def linear_layers(module: nn.Module, kept: Sequence[str] = ()) -> Iterator[tuple[str, nn.Linear]]:
    """Yields the layers of a model that are quantised, with their names.

    Layers whose input its code casts to the type of their weights (transformers' `_keep_in_fp32_modules`) are
    none of them.

    Args:
        kept: names of layers, or beginnings of names, that stay as they are.
    """
    parts = {*KEPT, *(getattr(module, "_keep_in_fp32_modules", None) or ())}
    for name, layer in module.named_modules():
        stays = bool(parts & set(name.split("."))) or name.startswith(tuple(kept))
        if isinstance(layer, nn.Linear) and not stays:
            yield name, layer


@torch.no_grad()
def quantize(module: nn.Module, device: torch.device | str, kept: Sequence[str] = ()) -> None:
    """Replaces the linear layers of a model on a CPU by 4-bit ones, one after another, on `device`; all else
    stays where it is.

    Raises:
        ValueError: if bitsandbytes is not installed.
    """
    require_bitsandbytes()
    from bitsandbytes.nn import Linear4bit, Params4bit  # pyright: ignore[reportMissingImports]

    for name, layer in list(linear_layers(module, kept)):
        made = Linear4bit(
            layer.in_features, layer.out_features, layer.bias is not None, quant_type="nf4", device="meta"
        )
        weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=made)
        made.weight = weight.to(device)
        made.bias = layer.bias
        # Its faster form on some CPUs takes sides that are multiples of 32 alone.
        made.support_avx512bf16_for_cpu = False
        made.register_forward_pre_hook(_compute_as_linear)
        module.set_submodule(name, made.train(layer.training))
    module.is_loaded_in_4bit = True  # for PEFT, which merges adapters of such models in another way


def _compute_as_linear(layer: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Lets a 4-bit layer compute in the type in which a linear layer would."""
    x, *others = given
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    if layer.compute_dtype != x.dtype:
        layer.compute_dtype = x.dtype
        layer.compute_type_is_set = True
    return (x, *others)


def four_bit_bytes(n: int) -> int:
    """Bytes of a layer's n weights in 4 bits, with their scales."""
    scales = -(-n // BLOCK)
    return -(-n // 2) + scales + 4 * -(-scales // SCALES) + TABLES


def saved_bytes(module: nn.Module, number: int, kept: Sequence[str] = ()) -> int:
    """Bytes by which a model shrinks if its layers are quantised.

    Args:
        number: bytes of a weight before.
    """
    sizes = [layer.weight.numel() for _, layer in linear_layers(module, kept)]
    return sum(size * number - four_bit_bytes(size) for size in sizes)


def largest_layer(module: nn.Module, kept: Sequence[str] = ()) -> int:
    """Weights of the largest of its quantised layers, which are restored one layer at a time to compute."""
    return max((layer.weight.numel() for _, layer in linear_layers(module, kept)), default=0)
