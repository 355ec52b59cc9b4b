"""Numbers of a step, copied from the device to the host all at once."""

from collections.abc import Sequence

import torch
from torch import Tensor


class HostCopy:
    """Numbers on their way to the host: reading them waits for what they were computed from, and not for work
    that the device was given since.
    """

    def __init__(self, numbers: Sequence[Tensor], device: torch.device) -> None:
        """
        Args:
            numbers: 0-dim tensors; those of the host are copied to `device` first.
        """
        in_float64 = [number.detach().to(device, torch.float64, non_blocking=True) for number in numbers]
        together = torch.stack(in_float64)
        is_cuda = device.type == "cuda"
        # A copy that does not block goes to pinned memory, which is filled once the event has passed.
        self._numbers = together.to("cpu", non_blocking=is_cuda)
        self._copied = torch.cuda.Event() if is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def read(self) -> list[float]:
        """Returns the numbers, in their order."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._numbers.tolist()
