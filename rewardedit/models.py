"""Models by name: on the hub, in folders, and the offline world's, each made by the recipe of its name."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

SIDE = 64  # pixels a side of the images that the small models know
FOLDER = Path(__file__).parent / "shapes" / "assets"
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
    """Location of a model: the folder of a packaged one, a run's pipeline/ or lora/ (of its last phase),
    and any other path or hub name as it is.
    """
    if name in NAMES:
        return str(FOLDER / NAMES[name])
    phases = sorted(Path(name).glob("phase-*"), key=lambda path: (len(path.name), path.name))
    run = phases[-1] if phases else Path(name)
    inner = [run / result for result in ("pipeline", "lora") if (run / result).is_dir()]
    return str(inner[0]) if inner else name


def fetched(name: str, files: Sequence[str] | None = None) -> Path:
    """The folder of a model; for one on the hub, a folder with the files that were downloaded.

    Args:
        files: files to download, as names or patterns; None: all.

    Raises:
        ValueError: if nothing can be downloaded under a hub name.
    """
    folder = Path(resolve_model(name))
    if folder.is_dir() or name.count("/") != 1:
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=None if files is None else list(files)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"model {name}: no folder here, and it cannot be fetched from the hub ({first}); check the name "
            "and the network"
        ) from error


def names_in(settings: Any) -> set[str]:
    """The packaged models that are named anywhere in settings: mappings, sequences, and texts in them."""
    if isinstance(settings, str):
        return {settings} & NAMES.keys()
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    parts = settings if isinstance(settings, list | tuple) else ()
    return set().union(*map(names_in, parts))


def fingerprints(names: Collection[str] = NAMES.keys()) -> dict[str, str]:
    """Fingerprints of the packaged models that are there: twelve hexadecimal digits of the SHA-256 of all
    files of each: weights, settings, calibrations, words.
    """
    found = {}
    for name, folder in NAMES.items():
        root = FOLDER / folder
        if name not in names or not root.is_dir():
            continue
        content = hashlib.sha256()
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            content.update(path.relative_to(root).as_posix().encode() + b"\0")
            content.update(hashlib.sha256(path.read_bytes()).digest())
        found[name] = content.hexdigest()[:12]
    return found


def digests() -> dict[str, str]:
    """Digests of the packaged models that are there: twelve hexadecimal digits of their weights' SHA-256."""
    found = {}
    for name, folder in NAMES.items():
        weights = sorted((FOLDER / folder).rglob("*.safetensors"))
        if weights:
            content = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in weights)
            found[name] = hashlib.sha256(content).hexdigest()[:12]
    return found
