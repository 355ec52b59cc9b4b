"""Stand-in of Flow-Factory's reward models, written from their stated contract."""

import inspect
from dataclasses import dataclass
from typing import Any


@dataclass
class RewardModelOutput:
    rewards: Any
    extra_info: dict[str, Any] | None = None


class BaseRewardModel:
    required_fields: tuple[str, ...] = ()
    use_tensor_inputs = False

    def __init__(self, config: Any, accelerator: Any) -> None:
        self.config = config
        self.accelerator = accelerator
        self.device = accelerator.device
        self.dtype = config.dtype


class PointwiseRewardModel(BaseRewardModel):
    required_fields = ("image", "prompt")


class GroupwiseRewardModel(BaseRewardModel):
    required_fields = ("image", "prompt")


def call(model: BaseRewardModel, samples: list[dict[str, Any]]) -> RewardModelOutput:
    """Calls a model with the fields in its signature; one that is None in a sample is dropped for all."""
    names = [name for name in inspect.signature(model.__call__).parameters if name in samples[0]]
    fields = {}
    for name in names:
        values = [sample[name] for sample in samples]
        if all(value is not None for value in values):
            fields[name] = values
    return model(**fields)
