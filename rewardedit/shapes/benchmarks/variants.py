"""Variants of a training that a program trains one after another; an interrupted program is resumed."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rewardedit.config import to_dict
from rewardedit.files import write_json
from rewardedit.models import resolve_model
from rewardedit.shapes.vocabulary import WORLD_VERSION


def figures_of(folder: Path, made_of: Any, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Figures that `make` has measured in `folder`; it is called again if they are of other settings.

    An interrupted run with the same settings is left for `make` to resume.
    """
    made_of = json.loads(json.dumps({"made_of": made_of, "world": WORLD_VERSION}))
    mark = folder / "made_of.json"
    kept = folder / "figures.json"
    if not mark.is_file() or json.loads(mark.read_text()) != made_of:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(mark, made_of)
    if not kept.is_file():
        write_json(kept, make(folder))
    return json.loads(kept.read_text())


def run_of(config: Any, start: str, edits: dict[str, torch.Tensor]) -> list[Any]:
    """Inputs of a variant's figures: settings, hash of its initial weights, hash of the rated edits."""
    weights = hashlib.sha256()
    for path in sorted(Path(resolve_model(start)).rglob("*.safetensors")):
        weights.update(path.read_bytes())
    images = hashlib.sha256()
    for name, edited in edits.items():
        images.update(name.encode() + edited.numpy().tobytes())
    return [to_dict(config), weights.hexdigest(), images.hexdigest()]
