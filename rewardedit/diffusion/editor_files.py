"""The files of a saved editor beside its pipeline: sampling settings, LoRA weights,
the reward prompt and its embedding.
"""

from pathlib import Path
from typing import Any

from rewardedit.models import fetched
from rewardedit.reward_prompt import FILE as PROMPT
from rewardedit.untrusted import read_settings_file

SETTINGS = "sampling.json"
EMBEDDING = "reward_embedding.safetensors"
LORA = "pytorch_lora_weights.safetensors"


def files_of_editor(name: str) -> Path:
    """The folder of the files next to an editor's pipeline: sampling settings, the reward prompt and its
    embedding, or a LoRA. From an editor on the hub only these are downloaded.

    Raises:
        ValueError: if nothing can be downloaded under a hub name.
    """
    return fetched(name, (SETTINGS, PROMPT, EMBEDDING, LORA))


def read_beside(path: Path) -> tuple[dict[str, Any], Any, Any]:
    """Settings next to an editor, and the base that they name beside them with the bits in which it was
    stored while its LoRA was trained; None if they name none.
    """
    settings = read_settings_file(path / SETTINGS) if (path / SETTINGS).is_file() else {}
    base = settings.pop("base", None)
    return settings, base, settings.pop("quantize", None)


def own_lora(name: str, path: Path, base: Any) -> Path | None:
    """The file of LoRA weights in an editor's folder; None for a pipeline without them.

    Raises:
        ValueError: if there is a LoRA without the name of its base, or a base without its LoRA.
    """
    if not (path / "model_index.json").is_file() and _loras_in(path):
        if base is None:
            raise ValueError(
                f"editor {name!r}: a LoRA, which does not name its base; give both: --model BASE --lora "
                f'{name}, in Python load_editor("BASE", lora="{name}")'
            )
        return find_lora(str(path))
    if (path / LORA).is_file():  # next to a whole pipeline
        return path / LORA
    if base is not None:
        raise ValueError(f"editor {name!r}: {SETTINGS} names the base {base}, but there is no {LORA} for it")
    return None


def find_lora(name: str) -> Path:
    """The file of LoRA weights that a name stands for: itself, or the only one in its folder.

    Raises:
        ValueError: if there is none, or there are several and none has diffusers' name.
    """
    if Path(name).is_file():
        return Path(name)
    folder = fetched(name, (LORA, SETTINGS, PROMPT, EMBEDDING))
    loras = _loras_in(folder)
    if len(loras) != 1:
        names = ", ".join(path.name for path in loras) or "no .safetensors file"
        raise ValueError(f"lora {name!r}: expected {LORA} or one .safetensors file; got {names}")
    return loras[0]


def _loras_in(folder: Path) -> list[Path]:
    """Files that may be a LoRA; only the one with diffusers' name, if it is there."""
    if (folder / LORA).exists():
        return [folder / LORA]
    return sorted(path for path in folder.glob("*.safetensors") if path.name != EMBEDDING)
