"""Moving averages of the trained weights."""

from collections.abc import Iterable

import torch
from diffusers.training_utils import EMAModel
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverages(EMAModel):
    """EMAModel whose share of the old weights rises with the steps: 0, 1/11, 1/6 … up to the decay.

    On a GPU all weights are averaged by a few kernels, in place; EMAModel's own `foreach` needs a copy of
    them all. A CPU takes EMAModel's loop, which rounds otherwise in the last bit.
    """

    def __init__(self, parameters: list[nn.Parameter], decay: float) -> None:
        super().__init__(parameters, decay=decay, use_ema_warmup=True, inv_gamma=10.0, power=1.0)

    @torch.no_grad()
    def step(self, parameters: Iterable[nn.Parameter]) -> None:
        """Takes the weights after an update into the averages."""
        parameters = list(parameters)
        if all(p.device.type == "cpu" for p in parameters):
            super().step(parameters)
            return
        self.optimization_step += 1
        self.cur_decay_value = self.get_decay(self.optimization_step)
        average = get_ema_multi_avg_fn(self.cur_decay_value)
        average(tuple(self.shadow_params), tuple(parameters), 0)  # the last is not read
