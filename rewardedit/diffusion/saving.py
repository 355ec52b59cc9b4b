"""Saving of editors, so that stock diffusers and `load_editor` load them."""

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from rewardedit.diffusion.editor_files import EMBEDDING, SETTINGS
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.files import replaced, write_json
from rewardedit.untrusted import read_settings_file


def save_settings(folder: Path, settings: SamplingConfig, more: dict[str, Any] | None = None) -> None:
    """Writes the sampling settings next to a saved editor; other entries of that file are kept."""
    path = folder / SETTINGS
    known = read_settings_file(path) if path.is_file() else {}
    write_json(path, {**known, **asdict(settings), **(more or {})})


def save_editor(editor: Editor, folder: Path, *, base: str | None = None) -> None:
    """Writes a pipeline that stock diffusers loads, with the reward prompt and sampling settings next to it.

    The folder is written aside and renamed, replacing an earlier one: it is there whole or not at all.
    With `base`, only the UNet's LoRA weights are written, and the name of the pipeline that they belong to.

    Raises:
        ValueError: for a whole pipeline in 4 bits.
    """
    if base is None and editor.quantize is not None:
        raise ValueError("quantize: a pipeline in 4 bits is not saved whole; load it with quantize=None")
    with replaced(folder) as aside:
        aside.mkdir()
        with nullcontext() if editor.half is None else editor.half.in_fp32():
            _write_editor(editor, aside, base)


def _load_in_full_precision(folder: Path) -> None:
    """Sets the saved components to load in float32: stock diffusers does so by default, but transformers
    follows a model's file, and both are to do the same, even if the weights were saved in float16.
    """
    for path in folder.glob("*/config.json"):
        config = read_settings_file(path)
        if config.get("dtype", "float32") != "float32":
            write_json(path, {**config, "dtype": "float32"})


def _write_editor(editor: Editor, folder: Path, base: str | None) -> None:
    bits = {} if editor.quantize is None else {"quantize": editor.quantize}
    save_settings(folder, editor.settings, {} if base is None else {"base": base, **bits})
    if base is None:
        editor.pipe.save_pretrained(folder)
        _load_in_full_precision(folder)
    else:
        editor.family.save_lora(editor.family.denoiser(editor.pipe), folder)
    if editor.prompt is not None:
        editor.prompt.save(folder)
    if editor.embedding is not None:
        weights = editor.embedding.state_dict()
        save_file({name: value.contiguous().cpu() for name, value in weights.items()}, folder / EMBEDDING)
