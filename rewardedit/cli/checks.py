"""Checks of what is installed and present: packages, the device, the attention kernel, and weights.

Downloads nothing; the checks are independent of one another.
"""

import importlib
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rewardedit.models import NAMES, pretrained, resolve_model
from rewardedit.models.extras import IMPORTED, extras, requirements
from rewardedit.untrusted import CONTENT_ERRORS, read_settings_file

# the packaged models that commands use if none is named
DEFAULTS = ("shapes/clip", "shapes/editor", "shapes/vifi-clip")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
PARTS = ("unet", "transformer", "vae", "text_encoder")  # of a pipeline: the components with weights


@dataclass(frozen=True)
class Package:
    """One package that rewardedit uses."""

    name: str
    version: str | None  # None: not installed
    extra: str | None  # rewardedit's extra that installs it; None: rewardedit needs it
    problem: str | None  # why it cannot be used


@dataclass(frozen=True)
class Device:
    """The device that models will run on."""

    name: str  # as torch calls it
    hardware: str
    reason: str


@dataclass(frozen=True)
class CachedRepo:
    """One hub repository in the cache."""

    name: str
    kind: Literal["model", "dataset"]
    bytes: int
    problem: str | None  # why a model cannot be loaded from it


@dataclass(frozen=True)
class HubCache:
    """The Hugging Face cache."""

    folder: Path
    datasets_folder: Path  # folder of the tables that 🤗 datasets has prepared
    repos: tuple[CachedRepo, ...]

    def find(self, name: str) -> CachedRepo | None:
        """Returns a cached model; None if nothing of it is there."""
        return next((repo for repo in self.repos if (repo.kind, repo.name) == ("model", name)), None)

    def has_rows(self, name: str) -> bool:
        """True if a data set can be opened without the hub."""
        from datasets.naming import camelcase_to_snakecase

        namespace, _, dataset = name.partition("/")
        folder = self.datasets_folder / f"{namespace}___{camelcase_to_snakecase(dataset)}"
        return any(folder.rglob("*.arrow"))


@dataclass(frozen=True)
class PackagedModel:
    """One of the small models that come with the package."""

    name: str
    bytes: int | None  # bytes of its weights; None: not there
    default: bool  # true if commands use it where none is named


def packages() -> list[Package]:
    """Packages that rewardedit needs, by its own requirements, and its optional packages."""
    required = [w for w in requirements() if w.marker is None or w.marker.evaluate({"extra": ""})]
    needed = []
    for wanted in required:
        version = _version(wanted.name)
        problem = _problem(wanted.name, str(wanted.specifier), version)
        needed.append(Package(wanted.name, version, None, problem))
    optional = [Package(name, _version(name), extra, None) for name, extra in extras().items()]
    return [*needed, *optional]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _problem(name: str, specifier: str, version: str | None) -> str | None:
    """Fault of a required package: missing, too old, or not importable; None if there is none."""
    from packaging.specifiers import SpecifierSet

    if version is None:
        return f"not installed; pip install '{name}{specifier}'"
    if not SpecifierSet(specifier).contains(version, prereleases=True):
        return f"is {version}, and {specifier} is needed; pip install '{name}{specifier}'"
    if name not in IMPORTED:
        return None
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken installation raises anything
        return f"cannot be imported ({type(error).__name__}: {_first_line(error)})"
    return None


def device() -> Device:
    """The device that models will run on, and why."""
    import torch

    from rewardedit import devices

    name = devices.default_device()
    if name == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Device(name, f"{devices.device_name()}, {memory:.0f} GiB", "torch sees a GPU")
    if torch.version.cuda is None:
        reason = f"torch {torch.__version__} is built without CUDA"
    else:
        reason = (
            f"torch is built for CUDA {torch.version.cuda} and sees no GPU; look at the driver and at "
            "CUDA_VISIBLE_DEVICES"
        )
    return Device(name, devices.device_name(), reason)


def attention() -> Any:
    """The `AttentionChoice` of the default editor:
    the kernel that attention=auto takes for its UNet on the device, and why.

    Raises:
        OSError: if that editor is not there.
    """
    from diffusers import UNet2DConditionModel

    from rewardedit import devices
    from rewardedit.diffusion.attention import set_attention

    folder = Path(resolve_model("shapes/editor")) / "unet"
    unet: Any = pretrained.load(UNet2DConditionModel, str(folder), local_files_only=True)
    unet = unet.to(devices.default_device(), dtype=devices.inference_dtype()).eval()
    return set_attention(unet, "auto")


def packaged_models() -> list[PackagedModel]:
    """The small models by name, with the size of their weights."""
    models = []
    for name in NAMES:
        files = list(Path(resolve_model(name)).rglob("*.safetensors"))
        size = sum(file.stat().st_size for file in files) if files else None
        models.append(PackagedModel(name, size, name in DEFAULTS))
    return models


def hub_cache() -> HubCache:
    """The cache in the place where huggingface_hub and 🤗 datasets look for it, by environment variables."""
    from huggingface_hub import scan_cache_dir

    environment = os.environ
    general = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(environment.get("HF_HOME") or Path(general) / "huggingface").expanduser()
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
    folder = Path(hub).expanduser()
    tables = Path(environment.get("HF_DATASETS_CACHE") or home / "datasets").expanduser()
    scanned = scan_cache_dir(folder).repos if folder.is_dir() else ()
    kinds = ("model", "dataset")
    repos = []
    for repo in scanned:
        if repo.repo_type in kinds:
            repos.append(CachedRepo(repo.repo_id, repo.repo_type, repo.size_on_disk, _problem_of(repo)))
    return HubCache(folder, tables, tuple(sorted(repos, key=lambda repo: (repo.kind, repo.name))))


def _problem_of(repo: Any) -> str | None:
    """Reason why no revision of a cached model can be loaded; None if one can."""
    if repo.repo_type != "model":
        return None
    problems = []
    for revision in repo.revisions:
        files = {str(f.file_path.relative_to(revision.snapshot_path)): f.file_path for f in revision.files}
        problems.append(incomplete(files))
    return None if None in problems or not problems else problems[0]


def incomplete(files: dict[str, Path]) -> str | None:
    """Reason why a model cannot be loaded from its files; None if it can.

    Args:
        files: by their names in the repository.
    """
    try:
        return _incomplete(files)
    except CONTENT_ERRORS as error:
        return f"its files cannot be read ({_first_line(error)})"


def _incomplete(files: dict[str, Path]) -> str | None:
    weights = [name for name in files if name.endswith(WEIGHTS)]
    if not weights:
        return "its weights are missing"
    for index in (name for name in files if name.endswith(".safetensors.index.json")):
        shards = set(read_settings_file(files[index])["weight_map"].values())
        names = {Path(name).name for name in weights if Path(name).parent == Path(index).parent}
        if shards - names:
            return f"{len(shards - names)} of {len(shards)} files of weights are missing"
    if "model_index.json" in files:
        components = read_settings_file(files["model_index.json"])
        for component in PARTS:
            used = components.get(component) not in (None, [None, None])
            if used and not any(name.startswith(f"{component}/") for name in weights):
                return f"the weights of its {component} are missing"
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
