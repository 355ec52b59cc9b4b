"""CUDA graphs of a denoiser: its calls without gradient are recorded, once for each shape, and replayed.

At small batches a GPU waits for Python to launch the kernels of a step one by one; a replay launches all of
them at once and computes the same. Kernels read the weights where they are: weights that are changed in
place count at the next call. Hooks of the denoiser, as of mask guidance, stay outside. What Python chose
while a call was recorded, such as the active adapters and their scale, stays as it was.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from rewardedit import devices

MOST = 8  # shapes that are recorded, each with memory of its own; calls of others run as they are
WARM_UP = 3  # calls before a recording, in which kernels are loaded, compiled and chosen


@dataclass(frozen=True)
class Recording:
    """A recorded call: its graph, the tensors that it reads, and its output, which replays overwrite."""

    graph: Any
    inputs: list[Tensor]
    output: Any

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """Returns the call's result for other tensors of the same shapes."""
        for held, given in zip(self.inputs, inputs, strict=True):
            held.copy_(given)
        self.graph.replay()
        return tree_map_only(Tensor, torch.clone, self.output)


class Replay:
    """A forward pass whose calls without gradient on a GPU are recorded and replayed; others run as they are.

    Where recording fails, one warning says so, and no further call is recorded.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.recorded: dict[str, Recording] = {}
        self.seconds = 0.0
        self.failure: str | None = None  # why calls run as they are

    def __str__(self) -> str:
        if self.failure is not None:
            return f"graphs: not recorded ({self.failure})"
        return f"graphs: {len(self.recorded)} recorded in {self.seconds:.1f} s"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values, _ = tree_flatten((args, kwargs))
        tensors = [value for value in values if isinstance(value, Tensor)]
        if self.failure is not None or torch.is_grad_enabled() or not self.can_record(tensors):
            return self.forward(*args, **kwargs)

        key = _describe((args, kwargs))
        if key not in self.recorded and len(self.recorded) < MOST:
            self._add(key, tensors, args, kwargs)
        if key not in self.recorded:
            return self.forward(*args, **kwargs)
        return self.recorded[key](tensors)

    def can_record(self, tensors: list[Tensor]) -> bool:
        """True for a call on a GPU, by its tensors."""
        return any(tensor.is_cuda for tensor in tensors)

    def record(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        """A CUDA graph of a call, and what the call returned."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        # A weight that autocast has cast before would not be cast again when it has changed.
        dtype = torch.get_autocast_dtype("cuda")
        enabled = torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", dtype, enabled, cache_enabled=False):
            with torch.cuda.stream(aside):
                for _ in range(WARM_UP):
                    call()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = call()
        return graph, output

    def _add(self, key: str, tensors: list[Tensor], args: Any, kwargs: Any) -> None:
        """Records a call, or notes why that failed."""
        began = time.monotonic()
        where = max(tensors, key=Tensor.numel).device  # time steps may be on the host
        inputs = [tensor.to(where, copy=True) for tensor in tensors]
        held = iter(inputs)
        values, layout = tree_flatten((args, kwargs))
        own = tree_unflatten([next(held) if isinstance(v, Tensor) else v for v in values], layout)
        try:
            graph, output = self.record(lambda: self.forward(*own[0], **own[1]))
        except RuntimeError as error:
            if devices.is_out_of_memory(error):
                raise
            self.failure = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(
                f"graphs: nothing was recorded, calls run as they are: {self.failure}", stacklevel=4
            )
            return
        self.recorded[key] = Recording(graph, inputs, output)
        self.seconds += time.monotonic() - began


def _describe(call: Any) -> str:
    """All that a recorded call depends on but the values of its tensors."""
    values, layout = tree_flatten(call)
    kinds = [(v.shape, v.dtype) if isinstance(v, Tensor) else v for v in values]
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return repr((layout, kinds, autocast))


def replay_calls(denoiser: Any) -> Replay:
    """Makes a denoiser record and replay its calls, in place.

    Returns:
        The record of it, to print once something was sampled.
    """
    replay = Replay(denoiser.forward)
    denoiser.forward = replay
    return replay
