"""The small trained models of the offline world, by name; each comes from the recipe of the same name."""

import hashlib
from pathlib import Path

NAMES = {
    "shapes-adiee-scorer": "adiee",
    "shapes-clip": "clip",
    "shapes-detector": "detector",
    "shapes-editor": "editor",
    "shapes-segmenter": "segmenter",
    "shapes-text-to-image": "text_to_image",
    "shapes-vifi-clip": "vifi_clip",
    "shapes-vlm": "vlm",
}


def resolve_model(name: str) -> str:
    """Where a model is: the folder of a packaged one, a run's pipeline/ or lora/,
    and any other path or hub name as it is.
    """
    if name in NAMES:
        return str(Path(__file__).parent / NAMES[name])
    inner = [Path(name) / result for result in ("pipeline", "lora") if (Path(name) / result).is_dir()]
    return str(inner[0]) if inner else name


def digests() -> dict[str, str]:
    """Of each packaged model that is there, twelve hexadecimal digits of its weights' SHA-256."""
    found = {}
    for name, folder in NAMES.items():
        weights = sorted((Path(__file__).parent / folder).rglob("*.safetensors"))
        if weights:
            content = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in weights)
            found[name] = hashlib.sha256(content).hexdigest()[:12]
    return found
