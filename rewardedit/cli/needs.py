"""Finds models, data, packages, and runs of other recipes that a recipe needs and that are missing.

Loads and downloads nothing.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import re
import typing
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rewardedit.cli.checks import HubCache
from rewardedit.cli.recipes import run_name
from rewardedit.data import DataConfig, PairsConfig
from rewardedit.data.sequences import SequencesConfig
from rewardedit.models import HUB_NAME, NAMES, WORLDS, resolve_model
from rewardedit.models.extras import extras, install_command
from rewardedit.scorer_spec import ScorerSpec, all_terms
from rewardedit.scorers.load import models_of
from rewardedit.synthesis.difference_settings import DifferencePairsConfig
from rewardedit.synthesis.methods import MethodConfig
from rewardedit.training.noise_masks import WITHOUT_MODEL

# Settings that name a model: a packaged one, a folder, a run's folder, or one on the hub.
MODEL_SETTINGS = (
    "adapter",
    "autoencoder",
    "base",
    "checkpoint",
    "clip",
    "editor",
    "editors",
    "encoder",
    "model",
    "init_from",
    "text_encoder",
    "vae",
)
IN_FOLDERS = ("dice_d", "seed_data_edit", "table")  # data sets that are never opened by a hub name
RUNS = "runs"


@dataclass(frozen=True)
class Missing:
    """Something that a recipe needs and that is missing, and what to do about it."""

    kind: Literal["model", "data", "run", "package"]
    name: str
    remedy: str
    on_hub: bool = False  # it may be fetched
    streamed: bool = False  # it is read from the hub as it is used, and never stored


@dataclass(frozen=True)
class Reference:
    """Something that settings name."""

    kind: Literal["model", "data", "package"]
    name: str
    on_hub: bool = True  # true if the name may be one on the hub
    streamed: bool = False


def missing_requirements(
    config: Any, source: str, cache: HubCache, recipes: Collection[str]
) -> list[Missing]:
    """Finds everything that a recipe names and that is missing, but for what an earlier phase of it makes.

    Args:
        config: its trainer's config, with every setting filled in.
        source: source code of its trainer's module, whose imports are examined.
        recipes: names of all recipes; each makes a run of the same name.
    """
    packages = [Reference("package", name) for name in optional_packages(source)]
    needs: list[Missing] = []
    for thing in dict.fromkeys([*references(config), *packages]):
        if is_result(thing.name, config):
            continue
        need = missing(thing, cache, recipes)
        if need is not None:
            needs.append(need)
    return needs


def is_result(name: str, config: Any) -> bool:
    """True for the result of a phase of this config, such as phase-1/scorer."""
    return name.partition("/")[0] in getattr(config, "phases", {})


def source_of(module: Any, config: Any) -> str:
    """Source code of a recipe's trainer, or of those of all its phases."""
    trainings = getattr(config, "trainings", dict)().values()
    modules = [module, *(importlib.import_module(type(phase.settings).__module__) for phase in trainings)]
    return "\n".join(map(inspect.getsource, dict.fromkeys(modules)))


def references(config: Any) -> Iterator[Reference]:
    """Models, data and packages that settings name, also in nested groups."""
    if isinstance(config, DataConfig | SequencesConfig | PairsConfig):
        if config.name not in WORLDS:
            streamed = isinstance(config, DataConfig) and config.stream
            yield Reference("data", config.path, config.name not in IN_FOLDERS, streamed)
        return
    if isinstance(config, MethodConfig) and config.kind == "folder":
        yield Reference("data", config.model, on_hub=False)
        return
    if isinstance(config, DifferencePairsConfig):
        yield Reference("data", config.annotations, on_hub=False)
    hints = typing.get_type_hints(type(config))
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if values.get("init_from") and {"vae", "text_encoder"} <= values.keys():
        values |= {"vae": None, "text_encoder": None}  # a pipeline takes the place of its parts
    for name, value in values.items():
        yield from _references_of(name, hints[name], value)


def _references_of(name: str, hint: Any, value: Any) -> Iterator[Reference]:
    """Models, data and packages that one setting names."""
    if value is None:
        return
    if _is_scorer(hint):
        for spec in _with_models(value):
            yield from _references_of_scorer(spec)
    elif dataclasses.is_dataclass(value) or isinstance(value, dict):
        for group in _groups(value):
            yield from references(group)
    elif name in MODEL_SETTINGS:
        for model in _each(value):
            yield Reference("model", model)
    elif name == "quantize" or value == "adamw8bit":
        yield Reference("package", "bitsandbytes")


def _references_of_scorer(spec: ScorerSpec) -> Iterator[Reference]:
    """Models of a scorer, and the package that quantises them."""
    yield from (Reference("model", model) for model in models_of(spec))
    bits = {term.options.get("quantize") for _, term in all_terms(spec)}
    if bits - {None, "none"}:
        yield Reference("package", "bitsandbytes")


def _each(value: Any) -> tuple[Any, ...]:
    """The values of a setting that may have one or several."""
    return value if isinstance(value, tuple) else (value,)


def _with_models(value: Any) -> list[Any]:
    """The scorers of a setting; regions that no scorer finds are left out."""
    return [spec for spec in _each(value) if spec not in WITHOUT_MODEL]


def _groups(value: Any) -> list[Any]:
    """Groups of settings: the value itself, or those of a mapping."""
    values = value.values() if isinstance(value, dict) else (value,)
    return [group for group in values if dataclasses.is_dataclass(group)]


def _is_scorer(hint: Any) -> bool:
    """True if a setting of this type is a scorer, or several of them."""
    first = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
    return set(typing.get_args(first)) - {type(None)} == set(typing.get_args(ScorerSpec))


def optional_packages(source: str) -> list[str]:
    """Optional packages of rewardedit that a module imports, by its source."""
    return [name for name in extras() if re.search(rf"^\s*(import|from) {name}\b", source, re.M)]


def missing(thing: Reference, cache: HubCache, recipes: Collection[str]) -> Missing | None:
    """Returns the need for something that settings name; None if it is there."""
    name = thing.name
    if thing.kind == "package":
        if importlib.util.find_spec(name) is not None:
            return None
        extra = extras().get(name)
        return Missing("package", name, f"pip install {name}" if extra is None else install_command(extra))
    if name in NAMES:
        complete = any(Path(resolve_model(name)).rglob("*.safetensors"))
        return None if complete else Missing("model", name, f"{made_by(name, recipes)}; then name its run")
    if Path(name).exists():
        return None
    first, *rest = Path(name).parts
    if first == RUNS and rest:
        return _made(name, rest[0], recipes)
    if not (thing.on_hub and HUB_NAME.fullmatch(name)):
        return Missing(thing.kind, name, "no such file or folder")
    return _missing_rows(thing, cache) if thing.kind == "data" else _missing_model(name, cache)


def _made(name: str, run: str, recipes: Collection[str]) -> Missing:
    """Returns the need for a run that another recipe makes."""
    return Missing("run", name, made_by(run, recipes) or "no recipe makes it; give a folder that is there")


def made_by(run: str, recipes: Collection[str]) -> str | None:
    """Says which recipe makes a run, or the packaged model of the same name; None if none does."""
    makers = [recipe for recipe in recipes if run_name(recipe) == run]
    return f"rewardedit train {makers[0]} makes it" if makers else None


def _missing_model(name: str, cache: HubCache) -> Missing | None:
    repo = cache.find(name)
    if repo is not None and repo.problem is None:
        return None
    state = "not in the cache" if repo is None else f"in the cache, but {repo.problem}"
    return Missing("model", name, f"{state}; fetched when you are online, or by: hf download {name}", True)


def _missing_rows(data: Reference, cache: HubCache) -> Missing | None:
    if cache.has_rows(data.name):
        return None
    read = "streamed" if data.streamed else "fetched"
    remedy = f"not in the cache; {read} when you are online, or give the path of a copy"
    return Missing("data", data.name, remedy, True, data.streamed)
