"""Scorers by name, and `load_scorer`."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.models import EXACT, fingerprints
from rewardedit.nearest import hint
from rewardedit.scorer_spec import ScorerSpec, all_terms, read_spec
from rewardedit.scorers.base import FunctionScorer, Scorer, WeightedSum
from rewardedit.scorers.own import find_own

BUILT_IN = {
    "clip_d": "rewardedit.scorers.clip:ClipD",
    "clip_t": "rewardedit.scorers.clip:ClipT",
    "clip_i": "rewardedit.scorers.clip:ClipI",
    "l1": "rewardedit.scorers.preservation:L1",
    "l2": "rewardedit.scorers.preservation:L2",
    "psnr": "rewardedit.scorers.preservation:Psnr",
    "ssim": "rewardedit.scorers.preservation:Ssim",
    "lpips": "rewardedit.scorers.preservation:Lpips",
    "dino_i": "rewardedit.scorers.preservation:DinoI",
    "vifi_clip": "rewardedit.scorers.vifi_clip:ViFiClip",
    "bpm": "rewardedit.scorers.bpm.bpm:Bpm",
    "adiee": "rewardedit.scorers.adiee:Adiee",
}

# Scorers that combine others.
COMBINED = {
    "lower_of": "rewardedit.scorers.lower_of:LowerOf",
}

# Scorers of models that do not come with the package: a spec names them by options of `from_pretrained`.
OWN_MODELS = {
    "dice": "rewardedit.scorers.dice:Dice",
    "dice_clip_i": "rewardedit.scorers.dice_clip:DiceClipI",
    "dice_clip_t": "rewardedit.scorers.dice_clip:DiceClipT",
    "vlm_judge": "rewardedit.scorers.vlm_judge:VlmJudge",
}

MODEL_OPTIONS = (
    "base",
    "checkpoint",
    "coherence",
    "detector",
    "parser",
    "segmenter",
)  # those that name a model
WITHOUT_MODEL = ("change", "grammar", "rules", "http://", "https://")  # values of them that load none


def load_scorer(
    spec: str | Mapping[str, Any] | Callable[[EditBatch], Tensor],
    *,
    device: torch.device | str = "auto",
    **options: Any,
) -> Scorer:
    """Loads a scorer by name ("clip_d"), a weighted sum ("clip_d:0.7,l1:0.3"), or the user's own scorer
    ("file.py:function", "package.module:Class"; see `rewardedit.scorer`), or wraps a plain function
    `(EditBatch) -> (b,)`.

    Options go to the scorer's `from_pretrained` (or its constructor, if it has none). Options of a sum's
    scorers are given in a mapping: {"clip_d": {"weight": 0.7}, "l1": {"weight": 0.3, "region": "outside"}}.

    Args:
        device: "auto": a GPU if there is one. Batches may lie anywhere.

    Raises:
        ValueError: on an unknown name, a malformed sum, a class that is not a `Scorer`, or an unknown option.
    """
    device = devices.default_device() if device == "auto" else device
    return _load(spec, options).to(device)


def _load(spec: str | Mapping[str, Any] | Callable[[EditBatch], Tensor], options: dict[str, Any]) -> Scorer:
    if not isinstance(spec, str | Mapping):
        if not callable(spec):
            raise ValueError(f"scorer: expected a name, a mapping or a function; got {type(spec).__name__}")
        return FunctionScorer(spec, **options)
    terms = read_spec(spec)
    if options and len(terms) > 1:
        key = next(iter(options))
        raise ValueError(
            f"scorer {spec!r}: {key}: say which of its scorers takes it: {{NAME: {{weight: …, {key}: …}}, …}}"
        )
    scorers = {name: _load_one(name, {**term.options, **options}) for name, term in terms.items()}
    weights = {name: term.weight for name, term in terms.items() if term.weight is not None}
    return WeightedSum(scorers, weights) if weights else next(iter(scorers.values()))


def families(spec: str | Mapping[str, Any]) -> set[str]:
    """The families of a spec's scorers, as their classes declare them; nothing is loaded."""
    return {find_scorer(name).family for name, _ in all_terms(spec)}


def packaged_files(spec: str | Mapping[str, Any], **options: Any) -> dict[str, str]:
    """The packaged models that `load_scorer(spec, **options)` loads, each with a digest of its files, so that
    scores by another version of them are recognised; no weights are read.
    """
    return fingerprints(packaged_models(spec, **options))


def packaged_models(spec: str | Mapping[str, Any], **options: Any) -> set[str]:
    """The names of the packaged models that `load_scorer(spec, **options)` loads."""
    names: set[str] = set()
    for name, term in all_terms(spec):
        names |= find_scorer(name).packaged_models(all_options(name, term.options | options))
    return names


def models_of(spec: str | Mapping[str, Any], **options: Any) -> list[str]:
    """The names of all models that `load_scorer(spec, **options)` loads; nothing is loaded."""
    names: list[str] = []
    for name, term in all_terms(spec):
        names += _models_in(find_scorer(name).resolved(all_options(name, term.options | options)))
    return list(dict.fromkeys(names))


def _models_in(options: Mapping[str, Any]) -> Iterator[str]:
    """Models that a scorer's options name, also those of its locator."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _models_in(value)
        elif key in MODEL_OPTIONS and isinstance(value, str) and not value.startswith(WITHOUT_MODEL):
            yield value.partition("#")[0]  # "#" is followed by a file of the repository


def all_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a scorer with the defaults of those that are not given.

    Raises:
        ValueError: on an unknown option.
    """
    defaults = {key: value.default for key, value in _parameters(name).items()}
    unknown = set(options) - set(defaults)
    if unknown:
        takes = f"expected options among {', '.join(sorted(defaults))}" if defaults else "expected no options"
        near = hint(min(unknown), sorted(defaults))
        raise ValueError(f"scorer {name}: {takes}; got {', '.join(sorted(unknown))}{near}")
    return defaults | dict(options)


def scorer_fingerprints(
    specs: Mapping[str, ScorerSpec], load: Callable[[], Mapping[str, Scorer]]
) -> dict[str, dict[str, Any]]:
    """The fingerprints of all scorers that have one (see `Scorer.fingerprint`), by the names of `specs`.

    Args:
        load: returns the scorers by the same names; it is called only if one of their classes has a
            fingerprint.
    """
    terms = chain.from_iterable(map(all_terms, specs.values()))
    if all(find_scorer(name).fingerprint is Scorer.fingerprint for name, _ in terms):
        return {}
    fingerprints = {name: scorer.fingerprint for name, scorer in load().items()}
    return {name: fingerprint for name, fingerprint in fingerprints.items() if fingerprint}


def find_scorer(name: str) -> type[Scorer]:
    """The class of a scorer by its name, "package.module:Name" or "file.py:Name"; nothing is loaded.

    Raises:
        ValueError: on an unknown name, or a class that is not a `Scorer`.
    """
    path = {**BUILT_IN, **COMBINED, **OWN_MODELS}.get(name, name)
    is_exact = name.lower().endswith(EXACT) and ":" not in name
    if is_exact or path.startswith("rewardedit.shapes"):
        raise ValueError(f"{name}: the exact rating knows the truth; it evaluates and is not a scorer")
    if ":" not in path:
        names = [*BUILT_IN, *COMBINED, *OWN_MODELS]
        raise ValueError(
            f"no scorer named {name!r}; expected one of {', '.join(names)}, or one of your own as "
            f"file.py:function or package.module:Class{hint(name, names)}"
        )
    return find_own(path)


def _load_one(name: str, options: dict[str, Any]) -> Scorer:
    all_options(name, options)  # refuses unknown ones
    return _build(name)(**options).eval().requires_grad_(False)


def _build(name: str) -> Callable[..., Scorer]:
    scorer = find_scorer(name)
    return getattr(scorer, "from_pretrained", scorer)


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_build(name)).parameters
