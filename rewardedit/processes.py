"""This process among those that a launcher started together."""

import sys
from collections.abc import Callable

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor

from rewardedit import devices


def processes() -> PartialState:
    """This process among its fellows; without a GPU they are CPU processes,
    which accelerate wants to be told.
    """
    return PartialState(cpu=devices.default_device() == "cpu")


def on_main_process(action: Callable[[], None]) -> None:
    """Does something short on the main process while the others wait;
    what is wrong with it is raised on all of them.

    For what takes no longer than seconds: the others wait in a collective, which times out.

    Raises:
        ValueError: where the action raises one, or an OSError.
    """
    wrong: list[str | None] = [None]
    if processes().is_main_process:
        try:
            action()
        except (ValueError, OSError) as error:
            wrong = [str(error)]
    broadcast_object_list(wrong)
    if wrong[0] is not None:
        raise ValueError(wrong[0])


def sum_of_processes(values: Tensor) -> Tensor:
    """The sum of what each process gives, on all of them."""
    state = processes()
    if state.num_processes == 1:
        return values
    total = values.to(state.device)
    torch.distributed.all_reduce(total)
    return total.cpu()


def any_process(here: bool) -> bool:
    """True on all processes where it is on one of them."""
    return bool(sum_of_processes(torch.tensor([float(here)])))


def print_on_main(text: str) -> None:
    """Prints on the main process."""
    if processes().is_main_process:
        print(text)


_noticed: set[str] = set()


def notice(text: str, key: str | None = None) -> None:
    """Prints a line of advice to stderr on the main process, once however often it is called.

    Args:
        key: shared by lines with different texts; only the first of them is printed. None: the text.
    """
    key = key or text
    if key not in _noticed and processes().is_main_process:
        _noticed.add(key)
        print(text, file=sys.stderr)
