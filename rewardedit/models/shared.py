"""Parts of packaged pipelines whose weights another packaged model has.

`shared.json` in a pipeline's folder names that model for each such part, which has a folder of the same name
there. The part's own file holds the weights that the other model lacks.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from rewardedit.models import NAMES, resolve_model
from rewardedit.untrusted import read_settings_file

SHARED = "shared.json"
WEIGHTS = "diffusion_pytorch_model.safetensors"


def read_weights(folder: str | Path, component: str) -> dict[str, Tensor]:
    """Weights of a part of a saved pipeline, by their names."""
    return load_file(Path(folder) / component / WEIGHTS)


def shared_parts(folder: str, index: dict[str, Any], dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Loads the parts of a pipeline that `shared.json` names; {} for a pipeline without that file.

    Args:
        index: the pipeline's, as `pretrained.load_index` returned it.
        dtype: of the weights; None: float32.

    Raises:
        ValueError: if a part's weights are not those of a packaged model.
    """
    import diffusers

    path = Path(folder) / SHARED
    parts = {}
    for component, name in read_settings_file(path).items() if path.is_file() else ():
        if name not in NAMES:
            raise ValueError(
                f"{path}: {component}: expected the name of a packaged model; got {str(name)[:80]!r}"
            )
        kind = getattr(diffusers, index[component][1])
        module = kind.from_config(kind.load_config(folder, subfolder=component))
        weights = read_weights(resolve_model(name), component) | read_weights(folder, component)
        for key, value in weights.items():
            weights[key] = value.to(dtype or torch.float32) if value.is_floating_point() else value
        module.load_state_dict(weights, assign=True)
        parts[component] = module.eval()
    return parts
