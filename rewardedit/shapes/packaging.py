"""Packaging of a trained pipeline without the weights that come with the package already."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from rewardedit.files import replaced, write_json
from rewardedit.models import resolve_model
from rewardedit.models.shared import SHARED, WEIGHTS, read_weights

MOST_BYTES = 3 * 2**20  # of a packaged pipeline


def package(pipeline: Path, folder: Path, shared: Mapping[str, str]) -> None:
    """Copies a pipeline to `folder`, replacing it, without the weights that packaged models have.

    Args:
        shared: packaged model by part of the pipeline.

    Raises:
        ValueError: if a part lacks a weight of that model, or has another value of it; if the copy is larger
            than `MOST_BYTES`.
    """
    with replaced(folder) as aside:
        shutil.copytree(pipeline, aside)
        for part, name in shared.items():
            weights = read_weights(aside, part)
            for key, value in read_weights(resolve_model(name), part).items():
                own = weights.pop(key, None)
                if own is None or own.dtype != value.dtype or not torch.equal(own, value):
                    raise ValueError(f"{pipeline / part}: expected {key} of {name}; got other weights")
            save_file(weights, aside / part / WEIGHTS)
        write_json(aside / SHARED, dict(shared))

        size = sum(path.stat().st_size for path in aside.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            raise ValueError(
                f"{pipeline}: expected at most {MOST_BYTES:,} bytes; got {size:,}; train a smaller one"
            )
