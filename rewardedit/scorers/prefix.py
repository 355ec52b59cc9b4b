"""A language model's prefix, computed once for any number of continuations (design of the ADIEE scorer).

In a causal model the keys and values of what comes first do not depend on what follows. They are computed
once, without gradient, and every continuation attends to them beside its own, so that they are not computed
again and no backward pass goes through them. Where nothing needs a gradient, all continuations of one prefix
read it without a copy; with a gradient each layer puts it beside the row's own for as long as it attends.

A continuation may be followed by several others in its turn, such as an edited image by questions about it:
what they attend to is then in parts, the prefix of all and the row's own continuation (`followed`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

NAME = "shared_prefix"


Layers = tuple[tuple[Tensor, Tensor], ...]  # keys and values, a pair a layer


@dataclass(frozen=True)
class Prefix:
    """Keys and values of a prefix, one pair a layer."""

    keys: tuple[Float[Tensor, "1 heads p d"], ...]
    values: tuple[Float[Tensor, "1 heads p d"], ...]
    whole: Layers | None = None  # of all rows that were computed together, of which this is a view
    row: int = 0  # which of them this is

    def __len__(self) -> int:
        """Its tokens."""
        return self.keys[0].shape[-2]


@dataclass(frozen=True)
class Joined:
    """What a layer attends to: what came before, in parts of one row or of all rows, and each row's own."""

    before: tuple[Float[Tensor, "_ heads _ d"], ...]
    own: Float[Tensor, "b heads s d"]


class PrefixLayer(CacheLayerMixin):
    """One layer of what came before, in parts of keys and values, which nothing is added to."""

    is_sliding = False

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.own: tuple[Tensor, Tensor] | None = None  # of the continuation that was read last
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What came before beside a continuation's own keys and values, for `attend`."""
        self.own = (key_states, value_states)
        keys, values = (tuple(part) for part in zip(*self.parts, strict=True))
        return Joined(keys, key_states), Joined(values, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many keys there are, and where they begin."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """The tokens of all parts."""
        return sum(keys.shape[-2] for keys, _ in self.parts)

    def get_max_length(self) -> int:
        """It has no end."""
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier releases of transformers


def split_rows(cache: Any) -> list[Prefix]:
    """The rows of a model's cache, each a view of it."""
    layers = tuple((layer.keys.detach(), layer.values.detach()) for layer in cache.layers)
    return [
        Prefix(tuple(k[i : i + 1] for k, _ in layers), tuple(v[i : i + 1] for _, v in layers), layers, i)
        for i in range(len(layers[0][0]))
    ]


def as_cache(prefixes: Sequence[Prefix]) -> Cache:
    """Prefixes of b continuations as what a model takes; nothing is copied where all are one, or all rows
    that were computed together in their order.
    """
    first = prefixes[0]
    if all(prefix is first for prefix in prefixes):
        return Cache(layers=[PrefixLayer([part]) for part in zip(first.keys, first.values, strict=True)])
    whole = first.whole
    in_order = [prefix.row for prefix in prefixes if prefix.whole is whole] == [*range(len(prefixes))]
    if whole is not None and in_order and len(whole[0][0]) == len(prefixes):
        return Cache(layers=[PrefixLayer([part]) for part in whole])
    layers = range(len(first.keys))
    keys = [torch.cat([prefix.keys[i] for prefix in prefixes]) for i in layers]
    values = [torch.cat([prefix.values[i] for prefix in prefixes]) for i in layers]
    return Cache(layers=[PrefixLayer([part]) for part in zip(keys, values, strict=True)])


def followed(cache: Cache) -> Cache:
    """What comes after the continuation that was last read with such a cache: what it had, and its own."""
    layers = []
    for layer in cache.layers:
        assert isinstance(layer, PrefixLayer)
        assert layer.own is not None
        layers.append(PrefixLayer([*layer.parts, layer.own]))
    return Cache(layers=layers)


@contextmanager
def prefix_attention(language_model: Any) -> Iterator[None]:
    """While it is open, a language model of transformers attends through `attend`."""
    config = language_model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def attend(
    module: Any,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention of continuations (b, heads, s, d) to what came before and to themselves; texts are
    padded on the right alone, so that no other mask is needed.

    Raises:
        ValueError: for dropout, or another mask.
    """
    if kwargs.get("dropout") or attention_mask is not None:
        raise ValueError("a shared prefix: expected no dropout and no mask beside the causal one")
    groups = query.shape[1] // key.own.shape[1]  # grouped heads are repeated, also for the backward pass
    # Under autocast the rotary embedding leaves queries and keys in another type than values.
    dtype = value.own.dtype
    query = query.to(dtype)
    keys, values = (
        [part.to(dtype).repeat_interleave(groups, 1) for part in (*joined.before, joined.own)]
        for joined in (key, value)
    )
    one_for_all = len(query) > 1 and any(len(part) == 1 for part in keys)
    # Words after an edited image need none themselves; what they attend to does.
    needs_gradient = torch.is_grad_enabled() and any(part.requires_grad for part in (query, *keys, *values))
    if one_for_all and not needs_gradient and has_log_sum(query):
        out = shared(query, keys, values, scaling)
    else:
        k, v = (
            torch.cat([part.expand(len(query), -1, -1, -1) for part in parts], dim=2)
            for parts in (keys, values)
        )
        bias = bottom_right(query.shape[2], k.shape[2])
        out = F.scaled_dot_product_attention(query, k, v, attn_mask=bias, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def bottom_right(queries: int, keys: int) -> Any:
    """The causal mask of queries that are the last of the keys. Torch cannot make it while a mode watches
    tensors, as the one does that estimates memory.
    """
    with _disable_current_modes():
        return causal_lower_right(queries, keys)


def shared(
    query: Float[Tensor, "b heads s d"],
    keys: Sequence[Float[Tensor, "_ heads _ d"]],
    values: Sequence[Float[Tensor, "_ heads _ d"]],
    scaling: float | None,
) -> Float[Tensor, "b heads s d"]:
    """Attention to each part by itself, put together by their log-sum-exps; the last part is the rows' own.
    All rows' queries attend to a part of one row as one long row, so that it is read once.
    """
    b, heads, s, d = query.shape
    folded = query.transpose(0, 1).reshape(1, heads, b * s, d)
    out, weight = with_log_sum(query, keys[-1], values[-1], scaling, causal=True)
    for key, value in zip(keys[:-1], values[:-1], strict=True):
        if len(key) == b:
            seen, seen_weight = with_log_sum(query, key, value, scaling, causal=False)
        else:
            seen, seen_weight = with_log_sum(folded, key, value, scaling, causal=False)
            seen = seen.view(heads, b, s, d).transpose(0, 1)
            seen_weight = seen_weight.view(heads, b, s).transpose(0, 1)
        share = torch.sigmoid(seen_weight - weight)[..., None].to(out.dtype)
        out = out + share * (seen - out)
        weight = torch.logaddexp(weight, seen_weight)
    return out


def has_log_sum(query: Tensor) -> bool:
    """Whether a fused kernel that gives log-sum-exps takes these queries: in half precision that is flash
    attention, which older cards have not.
    """
    if query.device.type == "cpu" or query.dtype not in (torch.float16, torch.bfloat16):
        return True
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def with_log_sum(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, causal: bool
) -> tuple[Float[Tensor, "b heads s d"], Float[Tensor, "b heads s"]]:
    """Attention and the log-sum-exp of each query's logits, by the fused kernels behind torch's own function
    where they take these tensors.
    """
    aten = torch.ops.aten
    query, key, value = (tensor.contiguous() for tensor in (query, key, value))
    if query.device.type == "cpu":
        out, weight = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scaling
        )
        return out, weight
    if query.dtype in (torch.float16, torch.bfloat16):
        found = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scaling)
    else:
        found = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scaling
        )
    return found[0], found[1][..., : query.shape[2]]  # the kernel may fill up to a whole block


AttentionInterface.register(NAME, attend)
