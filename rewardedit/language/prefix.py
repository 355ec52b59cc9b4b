"""A language model's prefix, computed once for any number of continuations (design of the ADIEE scorer).

In a causal model the keys and values of a prefix do not depend on what follows it. They are computed once,
without gradient, and every continuation attends to them and to its own, so that they are not computed again
and no backward pass goes through them. All continuations of one prefix read it without a copy, with and
without a gradient, if flash attention supports them (`has_lse`).

A continuation may be followed by several others, such as an edited image by questions about it: these attend
to several parts, the prefix of all rows and their row's own continuation (`followed`).
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

NAME = "shared_prefix"
_LOCK = threading.Lock()
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # one for each language model

Layers = tuple[tuple[Tensor, Tensor], ...]  # keys and values, one pair per layer


@dataclass(frozen=True)
class Prefix:
    """Keys and values of a prefix, one pair per layer."""

    keys: tuple[Float[Tensor, "1 heads p d"], ...]
    values: tuple[Float[Tensor, "1 heads p d"], ...]
    whole: Layers | None = None  # keys and values of all rows computed together; this is a view of them
    row: int = 0  # index of this prefix among those rows

    def __len__(self) -> int:
        """Number of tokens."""
        return self.keys[0].shape[-2]


@dataclass(frozen=True)
class KeyValueParts:
    """Keys or values of one layer: the shared prefix in parts, each of one row or all, and each row's own."""

    before: tuple[Float[Tensor, "_ heads _ d"], ...]
    continuation: Float[Tensor, "b heads s d"]


class PrefixLayer(CacheLayerMixin):
    """One layer of a prefix, as parts of keys and values, to which nothing is added."""

    is_sliding = False

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        # keys and values of the continuation read last
        self.continuation: tuple[Tensor, Tensor] | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, as the layer is initialised."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Joins the prefix with a continuation's own keys and values, for `attend`."""
        # Under autocast the rotary embedding leaves keys in another dtype than values.
        key_states = key_states.to(value_states.dtype)
        self.continuation = (key_states, value_states)
        keys, values = zip(*self.parts, strict=True)
        return KeyValueParts(keys, key_states), KeyValueParts(values, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys, and their offset."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Number of tokens in all parts."""
        return sum(keys.shape[-2] for keys, _ in self.parts)

    def get_max_length(self) -> int:
        """Unlimited."""
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier releases of transformers


def split_rows(cache: Any) -> list[Prefix]:
    """The rows of a model's cache, each a view of it."""
    keys = [layer.keys.detach().to(layer.values.dtype) for layer in cache.layers]
    values = [layer.values.detach() for layer in cache.layers]
    layers = tuple(zip(keys, values, strict=True))
    row_keys = zip(*(key.split(1) for key in keys), strict=True)
    row_values = zip(*(value.split(1) for value in values), strict=True)

    prefixes = []
    for row, (own_keys, own_values) in enumerate(zip(row_keys, row_values, strict=True)):
        prefixes.append(Prefix(own_keys, own_values, layers, row))
    return prefixes


def as_cache(prefixes: Sequence[Prefix]) -> Cache:
    """Prefixes of b continuations as a cache for the model; nothing is copied if all are the same prefix, or
    all rows that were computed together, in order.
    """
    first = prefixes[0]
    if all(prefix is first for prefix in prefixes):
        return _cache_of(first.keys, first.values)
    whole = first.whole
    in_order = [prefix.row for prefix in prefixes if prefix.whole is whole] == [*range(len(prefixes))]
    if whole is not None and in_order and len(whole[0][0]) == len(prefixes):
        return _cache_of(*zip(*whole, strict=True))
    keys = map(torch.cat, zip(*(prefix.keys for prefix in prefixes), strict=True))
    values = map(torch.cat, zip(*(prefix.values for prefix in prefixes), strict=True))
    return _cache_of(keys, values)


def _cache_of(keys: Iterable[Tensor], values: Iterable[Tensor]) -> Cache:
    """A cache with these keys and values, one of each per layer."""
    return Cache(layers=[PrefixLayer([layer]) for layer in zip(keys, values, strict=True)])


def extend(cache: Cache) -> Cache:
    """Returns the cache extended by the continuation that was read last."""
    layers = []
    for layer in cache.layers:
        assert isinstance(layer, PrefixLayer)
        assert layer.continuation is not None
        layers.append(PrefixLayer([*layer.parts, layer.continuation]))
    return Cache(layers=layers)


def alone_with(language_model: Any) -> Any:
    """A lock to hold while running a language model that is also used with `prefix_attention`."""
    with _LOCK:
        return _LOCKS.setdefault(language_model, threading.RLock())


@contextmanager
def prefix_attention(language_model: Any) -> Iterator[None]:
    """Makes a language model of transformers use `attend` within the block, only in this thread."""
    config = language_model.config
    with alone_with(language_model):
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
    """Causal attention of continuations (b, heads, s, d) to their prefix and to themselves; texts are padded
    on the right only, so that no other mask is needed.

    Raises:
        ValueError: on dropout, or another mask.
    """
    if kwargs.get("dropout") or attention_mask is not None:
        raise ValueError("a shared prefix: expected no dropout and no mask besides the causal one")
    # May differ from the queries' dtype under autocast, and from the prefix's if autocast began after it.
    dtype = value.continuation.dtype
    keys = [tensor.to(dtype) for tensor in (*key.before, key.continuation)]
    values = [tensor.to(dtype) for tensor in (*value.before, value.continuation)]
    query = query.to(dtype)
    if has_lse(query):
        out = AttentionInParts.apply(query, scaling, *keys, *values)
    else:
        out = dense_attention(query, keys, values, scaling)
    return out.transpose(1, 2).contiguous(), None


def dense_attention(
    query: Float[Tensor, "b heads s d"],
    keys: Sequence[Float[Tensor, "_ kv_heads _ d"]],
    values: Sequence[Float[Tensor, "_ kv_heads _ d"]],
    scaling: float | None,
) -> Float[Tensor, "b heads s d"]:
    """Attention to all parts concatenated and copied for every row, if no kernel gives log-sum-exps."""
    groups = query.shape[1] // keys[-1].shape[1]

    def joined(parts: Sequence[Tensor]) -> Tensor:
        whole = torch.cat([tensor.expand(len(query), -1, -1, -1) for tensor in parts], 2)
        return whole.repeat_interleave(groups, 1)

    k = joined(keys)
    v = joined(values)
    bias = bottom_right(query.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(query, k, v, attn_mask=bias, scale=scaling)


def bottom_right(queries: int, keys: int) -> Any:
    """The causal mask of queries that are the last of the keys. It is made outside torch's dispatch modes,
    such as the one that estimates memory, as torch cannot make it within them.
    """
    with _disable_current_modes():
        return causal_lower_right(queries, keys)


class AttentionInParts(torch.autograd.Function):
    """Attention to each part separately, combined by the parts' log-sum-exps; the last part is the rows'
    own, and causal.

    For the backward pass it keeps the parts uncopied. From the output and log-sum-exp of the whole attention
    a fused kernel's backward pass computes a single part's share of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, scaling: float | None, *parts: Tensor) -> Tensor:
        """`parts`: all keys, then all values (b or 1, key-value heads, n, d)."""
        keys, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        out, weight, ctx.seeds = None, None, []
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            fold = Fold.of(query, key, causal=number == len(keys) - 1)
            attended, seen_weight, seeds = attention_with_lse(
                fold.fold(query), fold.expand(key), fold.expand(value), scaling, fold.causal
            )
            seen, seen_weight = fold.unfold(attended), fold.unfold(seen_weight[..., None])
            ctx.seeds.append(seeds)
            if out is None or weight is None:
                out, weight = seen, seen_weight
                continue
            share = torch.sigmoid(seen_weight - weight).to(out.dtype)
            out = out + share * (seen - out)
            weight = torch.logaddexp(weight, seen_weight)

        ctx.save_for_backward(query, out, weight, *parts)
        ctx.scaling = scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the query and of those parts that need one."""
        query, out, weight, *parts = ctx.saved_tensors
        keys, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        of_query, of_keys, of_values = torch.zeros_like(query), [], []
        for number, (key, value, seeds) in enumerate(zip(keys, values, ctx.seeds, strict=True)):
            fold = Fold.of(query, key, causal=number == len(keys) - 1)
            of_rows, of_key, of_value = backward_with_lse(
                fold.fold(gradient),
                fold.fold(query),
                fold.expand(key),
                fold.expand(value),
                fold.fold(out),
                fold.fold(weight)[..., 0],
                seeds,
                ctx.scaling,
                fold.causal,
            )
            of_query += fold.unfold(of_rows)
            needed = ctx.needs_input_grad[2 + number]
            of_keys.append(fold.reduce(of_key) if needed else None)
            needed = ctx.needs_input_grad[2 + len(keys) + number]
            of_values.append(fold.reduce(of_value) if needed else None)

        return of_query, None, *of_keys, *of_values


@dataclass(frozen=True)
class Fold:
    """Layout of queries (b, heads, s, d) by which a part is read without a copy: queries that attend to the
    same keys (those of grouped heads, and those of all rows if the part has one row) form one long row. A
    causal mask does not allow that: there keys are repeated for their group.
    """

    b: int
    kv_heads: int
    groups: int
    s: int
    shared: bool  # the part has one row, which all rows attend to
    causal: bool

    @classmethod
    def of(cls, query: Tensor, key: Tensor, causal: bool) -> "Fold":
        """The layout for these queries and the keys of a part."""
        b, heads, s, _ = query.shape
        kv_heads = key.shape[1]
        return cls(b, kv_heads, heads // kv_heads, s, len(key) < b, causal)

    def fold(self, x: Float[Tensor, "b heads s d"]) -> Tensor:
        """Folds queries, or tensors of their shape."""
        if self.causal:
            return x
        x = x.unflatten(1, (self.kv_heads, self.groups))
        if self.shared:
            return x.transpose(0, 1).reshape(1, self.kv_heads, self.b * self.groups * self.s, -1)
        return x.flatten(2, 3)

    def unfold(self, x: Tensor) -> Float[Tensor, "b heads s d"]:
        """Inverse of `fold`."""
        if self.causal:
            return x
        if self.shared:
            x = x.view(self.kv_heads, self.b, self.groups, self.s, -1).transpose(0, 1)
        return x.reshape(self.b, self.kv_heads * self.groups, self.s, -1)

    def expand(self, tensor: Tensor) -> Tensor:
        """Repeats keys or values for their group under a causal mask."""
        return tensor.repeat_interleave(self.groups, 1) if self.causal and self.groups > 1 else tensor

    def reduce(self, x: Tensor) -> Tensor:
        """The gradient of the input of `expand`."""
        return x.unflatten(1, (self.kv_heads, self.groups)).sum(2) if self.causal else x


def has_lse(query: Tensor) -> bool:
    """True if flash attention, which gives log-sum-exps, supports these queries: on a CPU, and in half
    precision on a GPU of compute capability 8.0 or higher; `meta` stands for such a GPU.
    """
    device = query.device
    if device.type == "cpu":
        return True
    if device.type not in ("cuda", "meta") or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    return device.type == "meta" or torch.cuda.get_device_capability(device) >= (8, 0)


def attention_with_lse(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, causal: bool
) -> tuple[Float[Tensor, "b heads s d"], Float[Tensor, "b heads s"], tuple[Tensor, ...]]:
    """Attention and the log-sum-exp of each query's logits, by the fused kernels behind torch's own function,
    and the further tensors that the kernel's backward pass needs.
    """
    aten = torch.ops.aten
    query = query.contiguous()
    key = key.contiguous()
    value = value.contiguous()
    if query.device.type == "cpu":
        out, weight = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scaling
        )
        return out, weight, ()
    out, weight, _, _, _, _, *seeds, _ = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, causal, scale=scaling
    )
    return out, weight, tuple(seeds)


def backward_with_lse(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    weight: Tensor,
    seeds: tuple[Tensor, ...],
    scaling: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; `out` and `weight` may belong to an attention over more keys, of
    which these are a part.
    """
    aten = torch.ops.aten
    tensors = [tensor.contiguous() for tensor in (gradient, query, key, value, out, weight)]
    if query.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(*tensors, 0.0, causal, scale=scaling)
    # All rows have the same length, so that there are no cumulative lengths.
    lengths = (None, None, query.shape[2], key.shape[2])
    return aten._scaled_dot_product_flash_attention_backward(
        *tensors, *lengths, 0.0, causal, *seeds, scale=scaling
    )


AttentionInterface.register(NAME, attend)
