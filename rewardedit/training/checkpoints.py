"""Training checkpoints: written under a temporary name and renamed; reading them runs no code in them.

A folder step-000100 holds what accelerate saves of models, optimizers and random numbers, which is read as
weights and plain values only, and state-0.safetensors and so on: the states of the learning rate, the
averages and the trained parameters, with tensors as they are and all else as JSON in the file's metadata. Of
a model with adapters it holds the adapters and what is trained.
"""

import json
import pickle
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from accelerate.utils import load as load_plain
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rewardedit.files import put_in_place, remove
from rewardedit.processes import on_main_process
from rewardedit.untrusted import CONTENT_ERRORS, is_system_error

KEPT_CHECKPOINTS = 2
STATE = "state-{}.safetensors"
EARLIER_STATE = "custom_checkpoint_{}.pkl"  # as earlier versions wrote it, through accelerate
PLAIN = str | bool | int | float | None  # values that JSON holds as they are


@runtime_checkable
class Stateful(Protocol):
    """A part of a training that a checkpoint holds."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class TrainedParameters:
    """State in a checkpoint of a model that accelerate does not prepare: its trained parameters, in their
    order.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters

    def state_dict(self) -> dict[str, Tensor]:
        return {str(i): parameter.detach() for i, parameter in enumerate(self.parameters)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for i, parameter in enumerate(self.parameters):
            parameter.copy_(state[str(i)])


def save_checkpoint(accelerator: Accelerator, folder: Path, step: int, states: Sequence[Stateful]) -> None:
    """Writes `checkpoints/step-000100` with all prepared objects and `states`, under a temporary name first;
    removes old checkpoints.
    """
    parent = folder / "checkpoints"
    final = parent / f"step-{step:06d}"
    aside = parent / f".step-{step:06d}.partial"
    if accelerator.is_main_process:
        remove(aside)
        parent.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    try:
        hook = accelerator.register_save_state_pre_hook(partial(_without_frozen, accelerator))
        try:
            accelerator.save_state(str(aside))
        finally:
            hook.remove()
        if accelerator.is_main_process:
            for i, state in enumerate(states):
                write_state(state.state_dict(), aside / STATE.format(i))
    except BaseException:  # do not leave half a checkpoint on a full disk
        remove(aside)
        raise
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        put_in_place(aside, final)
        for old in checkpoints(folder)[:-KEPT_CHECKPOINTS]:
            remove(old)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    return sorted((folder / "checkpoints").glob("step-*"), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Number of steps done when a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def load_newest_checkpoint(accelerator: Accelerator, folder: Path, states: Sequence[Stateful]) -> int:
    """Loads the newest checkpoint and returns its step; 0 if there is none.

    Raises:
        ValueError: if one of its files cannot be read, or holds more than weights and plain values.
    """
    available = checkpoints(folder)
    if not available:
        return 0
    checkpoint = available[-1]
    try:
        on_main_process(lambda: convert_earlier(checkpoint))
        # Accelerate ignores random states that it cannot read; the run would continue with different ones.
        load_plain(checkpoint / f"random_states_{accelerator.process_index}.pkl")
        hook = accelerator.register_load_state_pre_hook(partial(_load_adapters, accelerator))
        try:
            accelerator.load_state(str(checkpoint))
        finally:
            hook.remove()
        for i, state in enumerate(states):
            state.load_state_dict(read_state(checkpoint / STATE.format(i)))
    except (*CONTENT_ERRORS, SafetensorError) as error:
        if is_system_error(error):
            raise
        raise ValueError(unreadable(checkpoint, error)) from error
    # Accelerate restores its count of micro-batches and updates when it is a multiple of those per update;
    # with another number of processes this might never happen.
    accelerator.step = 0
    return step_of(checkpoint)


def _without_frozen(
    accelerator: Accelerator, models: list[nn.Module], weights: list[dict[str, Tensor]], folder: str
) -> None:
    """Leaves of a model with adapters its adapters and trained weights alone, as accelerate's hooks do: the
    frozen base may be a thousand times larger, and is read from its own folder.
    """
    for i, model in enumerate(models):
        bare = accelerator.unwrap_model(model)
        if has_adapters(bare):
            kept = changing_weights(bare)
            changing = {}
            for key, weight in weights[i].items():
                name = key.removeprefix("module.")
                if name in kept:
                    changing[name] = weight
            weights[i] = changing


def _load_adapters(accelerator: Accelerator, models: list[nn.Module], folder: str) -> None:
    """Loads all models if one has adapters, whose file lacks the frozen weights; accelerate then loads none.

    Raises:
        ValueError: if a file lacks a weight that training changes, or holds one that the model has not.
    """
    if not any(has_adapters(accelerator.unwrap_model(model)) for model in models):
        return
    for i, model in enumerate(models):
        bare = accelerator.unwrap_model(model)
        path = Path(folder) / ("model.safetensors" if i == 0 else f"model_{i}.safetensors")
        weights = {name.removeprefix("module."): weight for name, weight in load_file(path).items()}
        needed = changing_weights(bare) if has_adapters(bare) else set(bare.state_dict())
        missing = sorted(needed - set(weights))
        unknown = sorted(set(weights) - set(bare.state_dict()))
        if missing or unknown:
            problem = f"lacks {missing[0]}" if missing else f"holds {unknown[0]}, which the model has not"
            raise ValueError(f"{path.name} {problem}")
        bare.load_state_dict(weights, strict=False)
    models.clear()


def has_adapters(model: nn.Module) -> bool:
    """True if PEFT has added adapters to a layer of the model."""
    return bool(_adapted_layers(model))


def changing_weights(model: nn.Module) -> set[str]:
    """Names of a model's trained weights and of all its adapters; one may follow another without gradient."""
    names = {name for name, weight in model.named_parameters() if weight.requires_grad}
    for name, layer in _adapted_layers(model).items():
        for parameter, _ in layer.named_parameters():
            if parameter.split(".")[0] in layer.adapter_layer_names:
                names.add(f"{name}.{parameter}")
    return names


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Layers with adapters, by name."""
    if "peft" not in sys.modules:  # slow to import; without it there are none
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}


def unreadable(checkpoint: Path, error: BaseException) -> str:
    """Error message: why a checkpoint cannot be loaded, and what to do."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, pickle.UnpicklingError):
        reason = "a file holds code or is cut off, and only weights and plain values are read"
    return f"{checkpoint}: cannot be loaded ({reason}); remove it, and the run goes on from the one before"


def convert_earlier(checkpoint: Path) -> None:
    """Converts states that an earlier version stored as pickles to this version's format, without running
    code in them.
    """
    for i, path in enumerate(sorted(checkpoint.glob(EARLIER_STATE.format("*")))):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{path.name} holds code or is cut off") from error
        write_state(state, checkpoint / STATE.format(i))
        path.unlink()


def write_state(state: dict[str, Any], path: Path) -> None:
    """Writes tensors as safetensors; their positions, and all other values, as JSON in the metadata."""
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_packed(state, tensors))
    save_file(tensors, path, {"state": plain})


def read_state(path: Path) -> Any:
    """Reads the state that `write_state` wrote, its tensors on the CPU.

    Raises:
        OSError, ValueError, SafetensorError: if there is no such file, or it is no such state.
    """
    with safe_open(path, "pt") as file:
        plain = json.loads((file.metadata() or {})["state"])
        return _unpacked(plain, file)


def _packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replaces each tensor in the value by a number, and adds the tensor to `tensors`."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"values": {str(key): _packed(inner, tensors) for key, inner in value.items()}}
    if isinstance(value, list | tuple):
        return [_packed(inner, tensors) for inner in value]
    assert isinstance(value, PLAIN), f"a state of tensors and plain values cannot hold a {type(value)}"
    return value


def _unpacked(value: Any, tensors: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors.get_tensor(value["tensor"])
    return {key: _unpacked(inner, tensors) for key, inner in value["values"].items()}
