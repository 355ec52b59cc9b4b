"""Models by name: published ones on the hub, folders, and the small ones that come with the package."""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rewardedit.nearest import hint

# Published models that are taken where none is named.
CLIP = "openai/clip-vit-large-patch14"
DINO = "facebook/dinov2-base"
DETECTOR = "IDEA-Research/grounding-dino-base"
SEGMENTER = "facebook/sam-vit-base"
JUDGE = "Qwen/Qwen2.5-VL-7B-Instruct"
EDITOR = "vinesmsuic/magicbrush-jul7"

# The small models that come with the package know a generated world; their names begin with its name.
WORLDS = {"shapes": "rewardedit.shapes.plug"}  # module of each world, which has it as WORLD
SMALL = "shapes/"
EXACT = "oracle"  # name of a generated world's exact rating in results; it is never a scorer
SIDE = 64  # pixels a side of the images that they know
FOLDER = Path(__file__).parents[1] / "shapes" / "assets"
NAMES = {
    "shapes/adiee": "adiee",
    "shapes/clip": "clip",
    "shapes/detector": "detector",
    "shapes/dice": "dice",
    "shapes/editor": "editor",
    "shapes/flow-editor": "flow_editor",
    "shapes/segmenter": "segmenter",
    "shapes/text-to-image": "text_to_image",
    "shapes/vifi-clip": "vifi_clip",
    "shapes/vlm": "vlm",
}

RECIPES = {"shapes/adiee": "shapes/adiee-scorer"}  # recipes of small models, where named otherwise
TERMS = "accept its terms on its page on the hub, then `hf auth login`"  # of a gated repository
NO_DATASET = "doesn't exist on the Hub or cannot be accessed"  # of 🤗 datasets
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
RELATIVE = re.compile(r"(\.{0,2}|runs|data)/.*")  # paths that look like hub names


def is_hub_name(name: str) -> bool:
    """True for a name in the form of the hub's that is neither a local path nor a packaged model."""
    if name in NAMES or RELATIVE.fullmatch(name):
        return False
    return bool(HUB_NAME.fullmatch(name)) and not Path(name).exists()


def resolve_model(name: str) -> str:
    """Location of a model: the folder of a packaged one, a run's pipeline/ or lora/ (of its last phase),
    and any other path or hub name as it is.

    Raises:
        ValueError: if the name is one of the small models', but no such model is there.
    """
    if name in NAMES:
        return str(FOLDER / NAMES[name])
    if name.startswith(SMALL) and not Path(name).exists():
        raise ValueError(f"no model {name!r}; the small models are {', '.join(NAMES)}{hint(name, NAMES)}")
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
    if folder.is_dir() or not is_hub_name(name):
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=None if files is None else list(files)))
    except HfHubHTTPError as error:
        first = str(error).strip().splitlines()[0]
        other = f"{name} is no folder here, and it cannot be fetched from the hub ({first}); check the name"
        raise ValueError(f"model {refusal(name, error) or other}") from error
    except OSError as error:
        raise ValueError(no_network(name)) from error


def refusal(name: str, error: BaseException) -> str | None:
    """The message for a model or data set that the hub does not give to this user; None if an error, and
    those that it came from, are of another kind.
    """
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    for cause in causes(error):
        # 🤗 datasets drops the hub's own errors.
        if isinstance(cause, GatedRepoError) or "is a gated dataset" in str(cause):
            return f"{name} is gated: {TERMS}"
        if isinstance(cause, RepositoryNotFoundError) or NO_DATASET in str(cause):
            return (
                f"{name} is no file or folder here, and not on the hub, or private there: check the name, or "
                "`hf auth login`"
            )
        if isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403):
            return f"{name} is not given to this login: `hf auth login` with a token that may read it"
    return None


class NotOnHub(Exception):
    """Published weights that are downloaded from elsewhere than the hub are not there, and not to be fetched
    now.
    """


def awaits_download(error: BaseException) -> bool:
    """True for an error that came from a file which is not in the cache while nothing is to be fetched."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    kinds = (LocalEntryNotFoundError, OfflineModeIsEnabled, NotOnHub)
    for cause in causes(error):
        if isinstance(cause, kinds):
            return True
        # 🤗 datasets names the kind of an error that it drops.
        if isinstance(cause, ConnectionError) and any(kind.__name__ in str(cause) for kind in kinds):
            return True
    return False


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came from, but for those that `raise … from None` hides."""
    passed: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in passed:
        yield cause
        passed.append(cause)
        hidden = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or hidden


def no_network(name: str) -> str:
    """The message for a model that is not in the cache while the hub cannot be reached."""
    return (
        f"{name} is not in the cache and the hub cannot be reached; connect once, or copy a cache that has "
        f"it (hf download {name}); to try things out without a download, take the small models of "
        'drawn shapes: --world shapes, in Python checkpoint="shapes/clip" or load_editor("shapes/editor")'
    )


def require_checkpoint(scorer: str, checkpoint: str | None, recipe: str, small: str) -> str:
    """Returns the checkpoint of a scorer for which no weights are published.

    Args:
        recipe: the recipe that trains one.
        small: the small one that comes with the package.

    Raises:
        ValueError: if it is None.
    """
    if checkpoint is None:
        raise ValueError(
            f"scorer {scorer}: expected a checkpoint, as no trained one is published; train one with "
            f"`rewardedit train {recipe}` and name runs/{recipe}/scorer; for images of drawn shapes "
            f"take {small} (in the shell: --world shapes)"
        )
    return checkpoint


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
    by_name = {}
    for name, folder in NAMES.items():
        root = FOLDER / folder
        if name not in names or not root.is_dir():
            continue
        content = hashlib.sha256()
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            content.update(path.relative_to(root).as_posix().encode() + b"\0")
            content.update(_sha256(path))
        by_name[name] = content.hexdigest()[:12]
    return by_name


def digests() -> dict[str, str]:
    """Digests of the packaged models that are there: twelve hexadecimal digits of their weights' SHA-256."""
    by_file = {}
    for name, folder in NAMES.items():
        weights = sorted((FOLDER / folder).rglob("*.safetensors"))
        if weights:
            content = b"".join(map(_sha256, weights))
            by_file[name] = hashlib.sha256(content).hexdigest()[:12]
    return by_file


def _sha256(path: Path) -> bytes:
    """SHA-256 of a file, which is read again only if its size or time has changed."""
    stat = path.stat()
    return _sha256_of(path, stat.st_size, stat.st_mtime_ns)


@cache
def _sha256_of(path: Path, size: int, mtime_ns: int) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
