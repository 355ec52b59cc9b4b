"""CUDA graphs of a denoiser: its calls without gradient are recorded, once for each shape, and replayed.

At small batches a GPU waits for Python to launch the kernels of a step one by one; a replay launches all of
them at once and computes the same. Kernels read the weights where they are: weights that are changed in
place count at the next call. Where weights have moved, or adapters, their scales or attention processors
have changed, all recordings are dropped. Hooks of the denoiser itself, as of mask guidance, stay outside.
What else Python chose while a call was recorded stays as it was, until `Replay.release`.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from rewardedit import devices
from rewardedit.batch_sizes import HELD, free_memory

MOST = 8  # recordings at a time; beyond them the least recently used is dropped
WARM_UP = 3  # calls before a recording, in which kernels are loaded, compiled and chosen
ADAPTERS = ("scaling", "_active_adapter", "_disable_adapters", "merged_adapters")  # of a layer, by PEFT


@dataclass(frozen=True)
class Recording:
    """A recorded call: its graph, the tensors that it reads, and its output, which replays overwrite."""

    graph: Any
    inputs: list[Tensor]
    output: Any

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """Output of the call for other tensors of the same shapes."""
        for held, given in zip(self.inputs, inputs, strict=True):
            held.copy_(given)
        self.graph.replay()
        return tree_map_only(Tensor, torch.clone, self.output)


class Replay:
    """A denoiser's forward pass whose calls without gradient on a GPU are recorded and replayed; others run
    as they are.

    Where recording fails, one warning says so, and no further call is recorded. Where memory runs out, the
    recordings give theirs back.
    """

    def __init__(self, denoiser: nn.Module, enabled: bool = True) -> None:
        self.denoiser = denoiser
        self.enabled = enabled  # False: all calls run as they are, and count nowhere
        self.forward: Callable[..., Any] = denoiser.forward
        self.recorded: dict[str, Recording] = {}  # the least recently used first
        self.too_large: set[str] = set()  # calls whose recording does not fit into memory
        self.state: list[Any] = []  # of the denoiser, when it was recorded
        self.pool: Any = None  # memory of all recordings: they run one at a time, and outputs are copied
        self.stream: Any = None  # on which all are recorded, as a pool belongs to one
        self.made = 0
        self.seconds = 0.0
        self.as_they_are = 0  # calls that were not replayed
        self.has_gpu = False
        self.failure: str | None = None  # why calls run as they are
        HELD.add(self)

    def __str__(self) -> str:
        failure = "no GPU" if self.as_they_are and not self.has_gpu else self.failure
        if failure is not None:
            return f"graphs: not recorded ({failure})"
        return (
            f"graphs: {self.made} recorded in {self.seconds:.1f} s; {self.as_they_are} calls ran as they are"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.enabled:
            return self.forward(*args, **kwargs)
        values, _ = tree_flatten((args, kwargs))
        tensors = [value for value in values if isinstance(value, Tensor)]
        is_on_gpu = self.can_record(tensors)
        self.has_gpu = self.has_gpu or is_on_gpu
        if self.failure is None and is_on_gpu and not torch.is_grad_enabled():
            recording = self._recording(tensors, args, kwargs)
            if recording is not None:
                return recording(tensors)
        self.as_they_are += 1
        return self.forward(*args, **kwargs)

    @contextmanager
    def within(self) -> Iterator[None]:
        """Within this context calls are recorded and replayed even where `enabled` is False: those of a
        training's rollouts, while other adapters are at work in its losses.
        """
        before = self.enabled
        self.enabled = True
        try:
            yield
        finally:
            self.enabled = before

    def release(self) -> bool:
        """Drops all recordings and their memory; later calls are recorded anew. True if there were any."""
        had_some = bool(self.recorded)
        self.recorded.clear()
        self.pool = None
        return had_some

    def can_record(self, tensors: list[Tensor]) -> bool:
        """True for a call on a GPU, by its tensors."""
        return any(tensor.is_cuda for tensor in tensors)

    def record(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        """A CUDA graph of a call on the current GPU, and what the call returned."""
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()
        here = torch.cuda.current_stream()
        aside = self.stream
        aside.wait_stream(here)
        # A weight that autocast has cast before would not be cast again when it has changed.
        dtype = torch.get_autocast_dtype("cuda")
        enabled = torch.is_autocast_enabled("cuda")
        # A recording that fails may leave its own stream behind as the current one.
        with torch.cuda.stream(here), torch.autocast("cuda", dtype, enabled, cache_enabled=False):
            with torch.cuda.stream(aside):
                for _ in range(WARM_UP):
                    call()
            here.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Other threads may pin memory, or watch over NCCL, meanwhile.
            with torch.cuda.graph(graph, self.pool, aside, capture_error_mode="thread_local"):
                output = call()
        return graph, output

    def _recording(self, tensors: list[Tensor], args: Any, kwargs: Any) -> Recording | None:
        """The recording of such a call, which is made at the first one; None if there cannot be one."""
        state = module_state(self.denoiser)
        if state != self.state:
            self.release()
            self.too_large.clear()
            self.state = state

        key = _describe((args, kwargs))
        if key not in self.recorded and key not in self.too_large:
            self._add(key, tensors, args, kwargs)
        recording = self.recorded.pop(key, None)
        if recording is not None:
            self.recorded[key] = recording  # behind those that were used before it
        return recording

    def _add(self, key: str, tensors: list[Tensor], args: Any, kwargs: Any) -> None:
        """Records a call, or notes why that failed."""
        began = time.monotonic()
        while len(self.recorded) >= MOST:
            del self.recorded[next(iter(self.recorded))]

        try:
            recording = self._record(tensors, args, kwargs)
        except (RuntimeError, MemoryError) as error:
            if not _ran_out(error):
                self.failure = (str(error).strip() or type(error).__name__).splitlines()[0]
                warnings.warn(
                    f"graphs: nothing was recorded, calls run as they are: {self.failure}", stacklevel=5
                )
                return
        else:
            self.recorded[key] = recording
            self.made += 1
            self.seconds += time.monotonic() - began
            return

        # The error is gone here, and with it the tensors in the frames of its traceback.
        if not self.release():  # without other recordings it did not fit either
            self.too_large.add(key)
        free_memory()

    def _record(self, tensors: list[Tensor], args: Any, kwargs: Any) -> Recording:
        """Records a call on tensors of its own, which calls outside of an inference mode may write too."""
        where = max(tensors, key=Tensor.numel).device  # time steps may be on the host
        with torch.inference_mode(False), torch.no_grad(), _current(where):
            inputs = [tensor.to(where, copy=True) for tensor in tensors]
            held = iter(inputs)
            values, layout = tree_flatten((args, kwargs))
            arguments = tree_unflatten([next(held) if isinstance(v, Tensor) else v for v in values], layout)
            graph, output = self.record(lambda: self.forward(*arguments[0], **arguments[1]))
        return Recording(graph, inputs, output)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Context in which a GPU is the current one: kernels of others would not be in the recording."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _ran_out(error: BaseException) -> bool:
    """True for an error of memory, also where ending the recording raised another one after it."""
    before = error.__context__
    return devices.is_out_of_memory(error) or (before is not None and devices.is_out_of_memory(before))


def module_state(module: nn.Module) -> list[Any]:
    """All that a recorded call depends on of its module: where its tensors are, which adapters work how
    much, and the attention processors.

    Read at each call, so that a loop over dictionaries takes the place of torch's own walks.
    """
    state: list[Any] = []
    todo: list[nn.Module | None] = [module]
    while todo:
        one = todo.pop()
        if one is None:  # a child that was taken out
            continue
        attributes = vars(one)
        if attributes["_modules"]:
            todo += attributes["_modules"].values()
        for tensor in (*attributes["_parameters"].values(), *attributes["_buffers"].values()):
            if tensor is not None:
                state.append(tensor.data_ptr())
        state.append(attributes["training"])
        if "processor" in attributes:
            processor = attributes["processor"]
            state += processor, getattr(processor, "_attention_backend", None)
        if "scaling" in attributes:  # a layer with adapters
            state += [_frozen(attributes.get(name)) for name in ADAPTERS]
    return state


def _frozen(choice: Any) -> Any:
    """A copy of a list or dictionary, which may change in place; another value as it is."""
    if isinstance(choice, dict):
        return tuple(choice.items())
    return tuple(choice) if isinstance(choice, list) else choice


def _describe(call: Any) -> str:
    """All that a recorded call depends on but the values of its tensors."""
    values, layout = tree_flatten(call)
    kinds = [(v.shape, v.dtype) if isinstance(v, Tensor) else v for v in values]
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return repr((layout, kinds, autocast))


def replay_calls(denoiser: nn.Module, enabled: bool = True) -> Replay:
    """Makes a denoiser record and replay its calls, in place.

    Args:
        enabled: everywhere; False: in `Replay.within` alone.

    Returns:
        The record of it, to print once something was sampled.
    """
    replay = Replay(denoiser, enabled)
    denoiser.forward = replay
    return replay
