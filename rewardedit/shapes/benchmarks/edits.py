"""Edits by the shipped editor and by editors of different quality that its recipes make, kept for reuse."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from common import RESULTS
from rate_editor import edit
from rate_editors import OTHERS, SCORED, UNSEEN
from safetensors import safe_open
from safetensors.torch import save_file

from rewardedit import load_editor
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.files import replaced
from rewardedit.shapes import Shapes
from rewardedit.shapes.vocabulary import WORLD_VERSION


def editors_in(runs: Path) -> dict[str, str]:
    """Folders of the shipped editor and the others, by name."""
    paths = {"shapes-editor": "shapes/editor"}
    for kind in (*SCORED, *UNSEEN):
        paths[f"shapes-editor-{kind}"] = str(runs / OTHERS / kind / "pipeline")
    return paths


def best_settings_of(names: list[str]) -> dict[str, SamplingConfig]:
    """Best settings of each editor on val, as found by rate_editors.py."""
    asked = json.loads((RESULTS / "shapes-editors.json").read_text())["settings"]
    return {name: SamplingConfig(**asked[name]) for name in names}


def edits_of(
    paths: Mapping[str, str],
    settings: Mapping[str, SamplingConfig],
    split: str,
    n: int,
    runs: Path,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Each editor's edits (n, 3, h, w) of a split's first samples, row i with the noise of
    seed + i, in 8 bits.

    They are read from runs/edits if the same weights have made them with the same settings before.
    """
    return {
        name: one_editors(name, path, settings[name], split, n, runs, seed) for name, path in paths.items()
    }


def one_editors(
    name: str, path: str, settings: SamplingConfig, split: str, n: int, runs: Path, seed: int
) -> torch.Tensor:
    editor = load_editor(path)
    made_of = json.dumps([weights(editor), vars(settings), WORLD_VERSION], sort_keys=True)
    kept = runs / "edits" / f"{name}-{split}-{seed}.safetensors"
    if kept.is_file():
        with safe_open(kept, "pt") as file:
            if file.metadata()["made_of"] == made_of and file.get_slice("edits").get_shape()[0] >= n:
                return file.get_slice("edits")[:n].float() / 255
    edits = (edit(editor, Shapes(split).batch(0, n), settings, seed) * 255).round().byte()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with replaced(kept) as aside:
        save_file({"edits": edits}, aside, {"made_of": made_of})
    return edits.float() / 255


def weights(editor: Editor) -> str:
    """A fingerprint of an editor's weights and scheduler."""
    digest = hashlib.sha256()
    for module in (editor.pipe.unet, editor.pipe.text_encoder, editor.pipe.vae):
        for value in module.state_dict().values():
            digest.update(value.cpu().contiguous().numpy().tobytes())
    digest.update(json.dumps(dict(editor.pipe.scheduler.config), sort_keys=True, default=str).encode())
    return digest.hexdigest()
