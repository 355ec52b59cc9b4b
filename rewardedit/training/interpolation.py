"""A training that the monitor watches, and edits of its prompts with a share of the change, from the base (0)
to the result (1).
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.batch_sizes import free_memory
from rewardedit.data.worlds import Samples
from rewardedit.diffusion.editor_files import LORA
from rewardedit.diffusion.editors import Editor, load_editor
from rewardedit.files import replaced
from rewardedit.processes import processes
from rewardedit.scorers import Scorer
from rewardedit.training.monitor import HackingMonitor, MonitorConfig
from rewardedit.training.trainable import TrainConfig

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def train_watched(
    prompts: tuple[EditBatch, Samples | None],
    scorers: dict[str, Scorer],
    folder: Path,
    config: MonitorConfig,
    train: TrainConfig,
    base: str,
    tune: Callable[[HackingMonitor], Path],
    guidance: tuple[float, float] | None = None,
) -> None:
    """Trains an editor, the monitor watching; a run that it stopped ends with the best editor. Writes
    monitor.json and monitor.html.

    Args:
        prompts: as `fixed_prompts` returns them.
        scorers: the training reward first, then the held-out one.
        tune: trains, calling the monitor, and returns the folder of the result.
        guidance: scales of text and image at which the monitor samples; None: the base's own.
    """
    checks = -(-train.max_steps // (train.validate_every or train.max_steps)) + len(WEIGHTS)
    lora_of = base if train.lora_rank else None
    monitor = HackingMonitor(*prompts, scorers, folder, config, checks, lora_of, guidance)
    result = tune(monitor)
    free_memory()
    if monitor.stopped and processes().is_main_process:
        with replaced(result) as aside:
            shutil.copytree(monitor.best_folder, aside)
    processes().wait_for_everyone()  # until the result is saved
    monitor.report(evaluate_interpolations(base, result, monitor, WEIGHTS))


def evaluate_interpolations(
    base: str, result: Path, monitor: HackingMonitor, weights: tuple[float, ...]
) -> list[dict[str, Any]]:
    """Evaluates the fixed prompts with each share of the change, from 0 (the base) to 1 (the result)."""
    editor = load_editor(str(result), device=devices.default_device(), dtype="auto")
    out = []
    set_scale = (
        _scale_of_lora(editor) if (result / LORA).is_file() else _scale_of_weights(editor, base, result)
    )
    for scale in weights:
        set_scale(scale)
        out.append({"scale": scale, **monitor.evaluate(editor)})
    return out


def _scale_of_lora(editor: Editor) -> Callable[[float], None]:
    return lambda scale: editor.pipe.set_adapters(
        editor.pipe.get_list_adapters()[editor.family.denoiser_name], scale
    )


def _scale_of_weights(editor: Editor, base: str, result: Path) -> Callable[[float], None]:
    """Function that sets the UNet between base and result, both kept in main memory in fp32."""
    family = editor.family
    first = family.denoiser(load_editor(base, device="cpu", dtype=torch.float32).pipe)
    tuned = family.denoiser(load_editor(str(result), device="cpu", dtype=torch.float32).pipe)
    unet = family.denoiser(editor.pipe)
    family.add_source_channels(first)

    @torch.no_grad()
    def set_scale(scale: float) -> None:
        for weight, start, end in zip(unet.parameters(), first.parameters(), tuned.parameters(), strict=True):
            weight.copy_(torch.lerp(start, end, scale))

    return set_scale
