"""GPU memory of a step, measured by running it on the `meta` device: real modules, no data,
no GPU.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GIB = 2**30
OVERHEAD = GIB  # CUDA's context and its kernels' workspaces
FULL = 4
HALF = 2  # FULL: bytes of a number in fp32; HALF: in bf16 or fp16


def parameters(module: nn.Module) -> int:
    """Number of parameters of a module."""
    return sum(p.numel() for p in module.parameters())


def weights(module: nn.Module) -> int:
    """Bytes of a module's parameters, each in its own type."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def table(stages: dict[str, int]) -> str:
    """Line of the stages' memory: "memory, GiB: candidates 4.1, scores 3.2, step 17.0"."""
    return "memory, GiB: " + ", ".join(f"{name} {size / GIB:.1f}" for name, size in stages.items())


@dataclass(frozen=True)
class Bytes:
    """Bytes of one part of a step: those that its forward pass keeps for the backward pass,
    and its peak.
    """

    kept: int
    peak: int


def peak_memory(forward: Callable[[], Tensor], autocast: torch.dtype | None = None) -> Bytes:
    """Runs a forward pass and, if its result has a gradient, the backward pass; counts tensors on `meta`.

    Existing tensors are not counted. `autocast` is the type of a mixed-precision run;
    types are chosen as on CUDA.
    """
    counter = _Counter()
    with _WholeNumbers(), _LikeCuda(autocast), counter:
        out = forward()
        kept = counter.now
        if out.requires_grad:
            out.float().mean().backward()
    return Bytes(kept, counter.peak)


class _Counter(TorchDispatchMode):
    """Counts the bytes of each storage from when an operation returns it until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {_key(value) for value in _flat(args) if isinstance(value, Tensor)}
        out = func(*args, **(kwargs or {}))
        for value in _flat((out,)):
            if isinstance(value, Tensor) and value.is_meta:
                self._add(value.untyped_storage(), before)
        return out

    def _add(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = storage._cdata
        size = storage.nbytes()
        if key in self.alive or key in before:
            return
        self.alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.now -= size


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _flat(values: Any) -> Iterator[Any]:
    """Yields the items of nested tuples and lists."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value


def _named(*names: str) -> set[Any]:
    return {getattr(torch, name) for name in names}


# Autocast's lists for CUDA, as far as these models need them: operations in half precision, and in fp32.
IN_HALF = _named("conv2d", "matmul", "bmm", "baddbmm", "addmm", "mm") | {
    torch._C._nn.linear,
    Tensor.matmul,
    Tensor.__matmul__,
}
IN_FULL = _named("group_norm", "layer_norm", "softmax") | {
    Tensor.softmax,
    F.group_norm,
    F.layer_norm,
    F.softmax,
    F.mse_loss,
}
INDEXED = {Tensor.__getitem__, Tensor.__setitem__}
READ = {Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__float__, Tensor.__int__}


class _WholeNumbers(TorchFunctionMode):
    """Keeps integer tensors on the CPU, with their values, and moves them to `meta` where they meet tensors
    there: a vision-language model looks up the positions of image tokens in its input ids.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.to and not args[0].is_meta and not args[0].is_floating_point():
            given = (*args[1:], *kwargs.values())
            dtypes = [value for value in given if isinstance(value, torch.dtype)]
            dtypes += [value.dtype for value in given if isinstance(value, Tensor)]
            if not dtypes or not dtypes[0].is_floating_point:
                return func(args[0], *dtypes)
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        on_meta = any(tensor.is_meta for tensor in tensors)
        if on_meta and func in INDEXED:
            return func(_to_meta(args[0]), _indices(args[1]), *map(_to_meta, args[2:]))
        if on_meta:
            args, kwargs = tree_map(_to_meta, (args, kwargs))
        out = func(*args, **kwargs)
        made_there = isinstance(out, Tensor) and out.is_meta and not on_meta and "device" in kwargs
        if made_there and not out.is_floating_point():
            return func(*args, **{**kwargs, "device": "cpu"})
        return out


def _indices(index: Any) -> Any:
    """An index with its tensors on `meta`; a mask becomes the positions where it is true."""
    indices: list[Any] = []
    for axis_index in index if isinstance(index, tuple) else (index,):
        if isinstance(axis_index, Tensor) and axis_index.dtype == torch.bool and not axis_index.is_meta:
            indices += map(_to_meta, axis_index.nonzero(as_tuple=True))
        else:
            indices.append(_to_meta(axis_index))
    return tuple(indices)


def _to_meta(value: Any) -> Any:
    """Moves a tensor to `meta`; leaves single numbers, which operations accept on any device, and other
    values as they are.
    """
    return value.to("meta") if isinstance(value, Tensor) and value.dim() else value


class _LikeCuda(TorchFunctionMode):
    """Makes `meta` behave like CUDA: autocast's types, attention that keeps no n × n matrix,
    and values to read, which are all zero.
    """

    def __init__(self, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.autocast = autocast

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:  # to count what checkpointing recomputes there, too
            with self:
                gradient = (torch.ones_like(args[0]),)
                return _engine_run_backward(
                    args[:1], gradient, False, False, (), allow_unreachable=True, accumulate_grad=True
                )
        if func in READ and args[0].is_meta:
            return func(torch.zeros(args[0].shape, dtype=args[0].dtype))
        attention = func is F.scaled_dot_product_attention
        if self.autocast is not None and (func in IN_HALF or attention):
            args = self._cast(args, self.autocast)
            kwargs = {k: self._cast(v, self.autocast) for k, v in kwargs.items()}
        elif self.autocast is not None and func in IN_FULL:
            args = self._cast(args, torch.float32)
        if attention:
            names = ("query", "key", "value")[len(args) :]
            operands = [*args[:3], *(kwargs[name] for name in names)]
            if operands[0].is_meta:
                return _efficient_attention(*operands, scale=kwargs.get("scale"))
        return func(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._cast(v, dtype) for v in value)
        if (
            not isinstance(value, Tensor)
            or not value.is_meta
            or not value.is_floating_point()
            or value.dtype == dtype
        ):
            return value
        return value.to(dtype)


def _efficient_attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # groups of queries share keys and values, which are repeated
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, None, True, scale=scale)[
        0
    ]
