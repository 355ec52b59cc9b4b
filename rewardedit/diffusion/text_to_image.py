"""Text-to-image pipelines: stock `StableDiffusionPipeline`s, also ones that share an editor's autoencoder and
text encoder and keep no copy of them.
"""

import copy
from pathlib import Path
from typing import Any

import torch

from rewardedit.diffusion.editors import load_editor
from rewardedit.files import replaced, write_json
from rewardedit.models import pretrained, resolve_model
from rewardedit.untrusted import read_settings_file

SHARED = "text_to_image.json"  # file that names the editor with the other parts


def load_text_to_image(
    name: str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Any:
    """Loads a `StableDiffusionPipeline` by hub name, "shapes/text-to-image", or its folder.

    Raises:
        ValueError: if there is no such pipeline.
    """
    from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    path = Path(resolve_model(name))
    no_checker: dict[str, Any] = {"safety_checker": None, "requires_safety_checker": False}
    try:
        if (path / SHARED).is_file():
            shared = str(read_settings_file(path / SHARED).get("editor"))
            editor = load_editor(shared, device=device, dtype=dtype).pipe
            pipe = StableDiffusionPipeline(
                vae=editor.vae,
                text_encoder=editor.text_encoder,
                tokenizer=editor.tokenizer,
                unet=pretrained.load(UNet2DConditionModel, str(path / "unet"), dtype=dtype),
                scheduler=pretrained.load(DDIMScheduler, str(path / "scheduler")),
                feature_extractor=None,
                **no_checker,
            )
        else:
            pipe = pretrained.load(StableDiffusionPipeline, resolve_model(name), dtype=dtype, **no_checker)
    except OSError as error:
        raise ValueError(
            f"text-to-image {name!r}: no Stable Diffusion pipeline can be loaded from there "
            f"({str(error).splitlines()[0]})"
        ) from error

    pipe = pipe.to(device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def save_text_to_image(pipe: Any, folder: Path, editor: str) -> None:
    """Writes the UNet in fp16 and the schedule, and the name of the `editor` that has the other parts."""
    with replaced(folder) as aside:
        aside.mkdir()
        copy.deepcopy(pipe.unet).half().save_pretrained(aside / "unet")
        pipe.scheduler.save_pretrained(aside / "scheduler")
        write_json(aside / SHARED, {"editor": editor})
