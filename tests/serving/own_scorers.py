"""Scorers of a user's own, which do what servers have to withstand."""

import os
import signal
import time

import torch
from torch import Tensor

import rewardedit
from rewardedit import EditBatch


def brightness(batch: EditBatch) -> Tensor:
    return batch.edited.mean((1, 2, 3))


@rewardedit.scorer(range=(0, 1))
def strict(batch: EditBatch) -> Tensor:
    """Brightness; refuses the whole batch for one instruction, and fails at another."""
    for instruction in batch.instruction:
        if instruction == "refuse":
            raise ValueError("this instruction is refused")
        if instruction == "fail":
            raise KeyError("no such word")
        if instruction == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    score = brightness(batch)
    nan = torch.tensor([instruction == "void" for instruction in batch.instruction])
    return torch.where(nan, torch.nan, score)


def slow(batch: EditBatch) -> Tensor:
    """Brightness, after a while that does not depend on the number of edits."""
    time.sleep(0.3)
    return brightness(batch)


class Unloadable(rewardedit.Scorer):
    """Has no weights."""

    def __init__(self) -> None:
        raise ValueError("there are no such weights")
