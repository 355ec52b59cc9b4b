"""Code in a model card that loads the result: with rewardedit, and with the library it was made for."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardedit.diffusion.editor_files import EMBEDDING, SETTINGS
from rewardedit.reward_prompt import RewardPrompt
from rewardedit.untrusted import read_settings_file

SIDE = 512  # pixels of the image in the examples, where the data have no size of their own
INSTRUCTION = "make the sky red"
SCORERS = {"vifi_clip": "vifi_clip", "adiee_scorer": "adiee", "vlm_sft": "dice"}  # by trainer
BASE = "path/to/the/base"  # stands for a base that is no model of the hub


@dataclass(frozen=True)
class Usage:
    """Sampling of a result: the prompt that asks for the best score, and the settings."""

    prompt: str = INSTRUCTION  # prompt of stock diffusers
    has_embedding: bool = False  # a learned embedding, which stock diffusers does not read
    sampling: tuple[tuple[str, float], ...] = ()  # options of the pipeline's call

    @classmethod
    def of_result(cls, folder: Path) -> "Usage":
        """Reads the files next to an editor; all defaults if there are none."""
        prompt = RewardPrompt.load(folder)
        path = folder / SETTINGS
        sampling = read_settings_file(path) if path.is_file() else {}
        numbers = [(k, v) for k, v in sampling.items() if isinstance(v, int | float)]
        text = INSTRUCTION if prompt is None else prompt.best(INSTRUCTION)
        return cls(text, (folder / EMBEDDING).is_file(), tuple(numbers))


def examples(
    kind: str, repo: str, base: str | None, trainer: str, usage: Usage, size: Any
) -> list[tuple[str, str]]:
    """Code blocks with their titles, for a kind of result; names are quoted as Python quotes them."""
    name = json.dumps(repo)
    side = size if isinstance(size, int) else SIDE
    if kind in ("pipeline", "lora"):
        stock = [] if usage.has_embedding else [("diffusers", _diffusers(kind, name, base, usage, side))]
        return [("rewardedit", _rewardedit(name, side)), *stock]
    if kind == "captioner":
        code = "from rewardedit.language.vlm import load_vlm\n\n"
        return [("rewardedit", f"{code}captioner = load_vlm({json.dumps(base)}, adapter={name})")]
    if kind in ("scorer", "dice"):
        scorer = json.dumps(SCORERS.get(trainer, "vifi_clip"))
        load = f"scorer = load_scorer({scorer}, checkpoint={name})"
        edit = (
            'batch = EditBatch(read_images("photo.jpg"), '
            f'[{json.dumps(INSTRUCTION)}], read_images("edited.png"))'
        )
        head = "from rewardedit import EditBatch, load_scorer\nfrom rewardedit.images import read_images"
        return [("rewardedit", f"{head}\n\n{load}\n{edit}\nprint(scorer(batch).score)")]
    return []


def _rewardedit(name: str, side: int) -> str:
    return (
        "from PIL import Image\n\n"
        "from rewardedit import load_editor\n"
        "from rewardedit.images import to_pil\n\n"
        f"editor = load_editor({name})\n"
        f'photo = Image.open("photo.jpg").convert("RGB").resize(({side}, {side}))\n'
        f"edited = editor(photo, {json.dumps(INSTRUCTION)})\n"
        'to_pil(edited[0]).save("edited.png")'
    )


def _diffusers(kind: str, name: str, base: str | None, usage: Usage, side: int) -> str:
    load = f"pipe = DiffusionPipeline.from_pretrained({name})\n"
    if kind == "lora":
        load = (
            f"pipe = DiffusionPipeline.from_pretrained({json.dumps(base or BASE)})\n"
            f"pipe.load_lora_weights({name})\n"
        )
    options = "".join(f", {key}={value}" for key, value in usage.sampling)
    return (
        "from diffusers import DiffusionPipeline\nfrom PIL import Image\n\n"
        f"{load}"
        f'photo = Image.open("photo.jpg").convert("RGB").resize(({side}, {side}))\n'
        f"edited = pipe({json.dumps(usage.prompt)}, image=photo{options}).images[0]\n"
        'edited.save("edited.png")'
    )
