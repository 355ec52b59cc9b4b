"""Missing parts of schedulers: the predicted clean latents, a test whether a gradient passes through a step,
and DDIM's inverse for models that predict the clean latents.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType, NoneType
from typing import Any, Literal

import numpy as np
import torch
from diffusers import DDIMInverseScheduler, DDIMScheduler, EulerAncestralDiscreteScheduler
from diffusers.schedulers.scheduling_ddim_inverse import DDIMSchedulerOutput
from jaxtyping import Float
from torch import Tensor

# Types of a scheduler's attributes that hold for any rows, or can be divided by rows.
DIVISIBLE = (
    NoneType,
    bool,
    int,
    float,
    str,
    list,
    tuple,
    dict,
    Tensor,
    np.ndarray,
    np.generic,
    torch.device,
    torch.dtype,
    FunctionType,
)
EULER = ("EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler")
FLOW = "FlowMatchEulerDiscreteScheduler"


def step_options(
    scheduler: Any, generator: torch.Generator | Sequence[torch.Generator] | None
) -> dict[str, Any]:
    """The options of these that a scheduler's `step` takes: no added noise, if it can go without (DDIM),
    and generators.
    """
    taken = inspect.signature(scheduler.step).parameters
    options = {"eta": 0.0, "generator": list(generator) if isinstance(generator, Sequence) else generator}
    return {name: value for name, value in options.items() if name in taken}


def copy_of_rows(scheduler: Any, rows: slice, shape: torch.Size) -> Any:
    """Copies a scheduler in the middle of a sampling of latents of a shape; of the earlier predictions that
    multistep schedulers keep, the copy has these rows.

    Raises:
        ValueError: naming a scheduler with a state that cannot be divided, such as DPMSolverSDE's noise tree.
    """
    scheduler_copy = copy.copy(scheduler)
    for name, value in vars(scheduler).items():
        if isinstance(value, list):
            setattr(scheduler_copy, name, [_rows_of(kept, rows, shape) for kept in value])
            continue
        if rows != slice(None) and not isinstance(value, DIVISIBLE):
            raise ValueError(
                f"{type(scheduler).__name__}: keeps {name} ({type(value).__name__}) between steps, which "
                "cannot be divided into micro-batches; use DDIM, DDPM, Euler or DPM-Solver++"
            )
        setattr(scheduler_copy, name, _rows_of(value, rows, shape))
    return scheduler_copy


def _rows_of(value: Any, rows: slice, shape: torch.Size) -> Any:
    """Rows of a tensor of this shape; any other value as it is."""
    return value[rows] if isinstance(value, Tensor) and value.shape == shape else value


def pred_x0(
    scheduler: Any,
    model_pred: Float[Tensor, "b c h w"],
    t: Tensor,
    sample: Float[Tensor, "b c h w"],
    options: dict[str, Any],
) -> Float[Tensor, "b c h w"]:
    """The clean latents that a prediction implies, as computed by the scheduler itself (it takes the step).

    Raises:
        ValueError: for a scheduler that does not return them.
    """
    if type(scheduler).__name__ == FLOW:  # x_t = (1 − σ) x_0 + σ ε, and the prediction is ε − x_0
        return sample - scheduler.sigmas[step_index(scheduler, t)] * model_pred
    out = scheduler.step(model_pred, t, sample, **options)
    for name in ("pred_original_sample", "denoised"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    if str(scheduler.config.get("algorithm_type")).endswith("dpmsolver++"):
        return scheduler.model_outputs[-1]
    raise ValueError(
        f"{type(scheduler).__name__} returns no prediction of the clean latents; score prev_sample instead"
    )


def require_between(between: tuple[float, float]) -> None:
    """Raises ValueError unless `between` is two rising shares of the denoising steps, in [0, 1]."""
    if not 0 <= between[0] < between[1] <= 1:
        raise ValueError(f"between: expected two rising shares in [0, 1]; got {between}")


def step_index(scheduler: Any, timestep: Tensor | float) -> int:
    """The index of a time step in the schedule, from 0 (the first)."""
    times = scheduler.timesteps
    return int((times - torch.as_tensor(timestep).flatten()[0].to(times)).abs().argmin())


def holds_for(between: tuple[float, float], scheduler: Any, timestep: Tensor | float) -> bool:
    """True if a step lies in a part of the schedule; a part includes its start and excludes its end."""
    if between == (0.0, 1.0):
        return True  # without waiting for the accelerator, which holds the time steps
    return between[0] <= step_index(scheduler, timestep) / len(scheduler.timesteps) < between[1]


def pred_x0_coefficients(scheduler: Any, timestep: Any, index: int) -> tuple[float, float]:
    """a and b of the predicted clean latents, a · sample + b · prediction, at step `index` of the schedule.

    For code that has to go back from the clean latents to the prediction;
    `require_coefficients` checks for which schedulers.
    """
    if type(scheduler).__name__ in (*EULER, FLOW):
        return 1.0, -float(scheduler.sigmas[index])
    alpha = float(scheduler.alphas_cumprod[int(timestep)])
    prediction_type = scheduler.config.prediction_type
    if prediction_type == "epsilon":
        return alpha**-0.5, -(((1 - alpha) / alpha) ** 0.5)
    if prediction_type == "v_prediction":
        return alpha**0.5, -((1 - alpha) ** 0.5)
    return 0.0, 1.0


def ddim_alphas(scheduler: Any, index: int) -> tuple[float, float]:
    """ᾱ before and after step `index` of DDIM's schedule."""
    t = int(scheduler.timesteps[index])
    following = t - scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    after = scheduler.final_alpha_cumprod if following < 0 else scheduler.alphas_cumprod[following]
    return float(scheduler.alphas_cumprod[t]), float(after)


def require_coefficients(scheduler: Any) -> None:
    """Raises ValueError for a scheduler whose predictions `pred_x0_coefficients` cannot read."""
    prediction_type = scheduler.config.get("prediction_type")
    name = type(scheduler).__name__
    if name == FLOW and not scheduler.config.get("invert_sigmas"):
        return
    if name in EULER and prediction_type == "epsilon" and not scheduler.config.get("use_flow_sigmas"):
        return
    known = name in ("DDIMScheduler", "DDPMScheduler", "LCMScheduler")
    if not known or prediction_type not in ("epsilon", "v_prediction", "sample"):
        raise ValueError(
            "reward guidance: expected DDIM, DDPM, LCM, Euler (epsilon) or flow matching; got "
            f"{name}, {prediction_type!r}"
        )


def require_differentiable(
    scheduler: Any, set_timesteps: Callable[[Any, int, Tensor], None] | None = None
) -> None:
    """Tries a step on a scheduler of the same configuration.

    Args:
        set_timesteps: prepares it for so many steps on latents; None: the scheduler's own method.

    Raises:
        ValueError: naming a scheduler whose step passes no gradient to the UNet's prediction.
    """
    name = type(scheduler).__name__
    probe = type(scheduler).from_config(scheduler.config)
    predicted = torch.zeros(1, 1, 2, 2, requires_grad=True)
    if set_timesteps is None:
        probe.set_timesteps(4)
    else:
        set_timesteps(probe, 4, predicted)
    options = step_options(probe, torch.Generator().manual_seed(0))
    try:
        with torch.enable_grad():
            moved = probe.step(
                predicted, probe.timesteps[0], torch.ones(1, 1, 2, 2), **options, return_dict=False
            )[0]
    except Exception as error:
        raise ValueError(
            f"{name}: a step outside its pipeline fails ({error}); use DDIM, Euler or DPM-Solver++"
        ) from error

    if not moved.requires_grad:
        raise ValueError(f"{name}: its step has no gradient; use DDIM, Euler or DPM-Solver++")


class SampleDDIMInverseScheduler(DDIMInverseScheduler):
    """DDIM's inverse for a model that predicts the clean latents.

    Such a prediction is converted to one of the noise at the noise level given to the model. diffusers'
    inverse uses the level before the step, which is 0 at the first step: a division by zero.
    """

    def step(
        self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True
    ) -> DDIMSchedulerOutput | tuple[Tensor, Tensor]:
        """The latents one step noisier, at the level of `timestep`, and the clean ones that they imply."""
        before = int(timestep) - self.config.num_train_timesteps // self.num_inference_steps
        alpha_before = self.alphas_cumprod[before] if before >= 0 else self.initial_alpha_cumprod
        alpha = self.alphas_cumprod[int(timestep)]
        noise = (sample - alpha.sqrt() * model_output) / (1 - alpha).sqrt()
        clean = (sample - (1 - alpha_before).sqrt() * noise) / alpha_before.sqrt()
        noisier = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise
        if not return_dict:
            return noisier, clean
        return DDIMSchedulerOutput(prev_sample=noisier, pred_original_sample=clean)


def set_ddim(pipe: Any) -> None:
    """Gives a pipeline DDIM and its inverse, on the model's own noise schedule."""
    config = pipe.scheduler.config
    # The inverse supports two ways to space steps; other samplers' models, such as Euler's, may have a third.
    spacing = "trailing" if config.get("timestep_spacing") == "trailing" else "leading"
    pipe.scheduler = DDIMScheduler.from_config(config, timestep_spacing=spacing)
    sample = config.get("prediction_type") == "sample"
    inverse = SampleDDIMInverseScheduler if sample else DDIMInverseScheduler
    pipe.inverse_scheduler = inverse.from_config(pipe.scheduler.config)


def set_scheduler(pipe: Any, name: Literal["ddim", "euler_ancestral"] | None) -> None:
    """Gives a pipeline this scheduler, on the model's own noise schedule; with None it keeps its own."""
    kinds = {"ddim": DDIMScheduler, "euler_ancestral": EulerAncestralDiscreteScheduler}
    if name is not None:
        pipe.scheduler = kinds[name].from_config(pipe.scheduler.config)
