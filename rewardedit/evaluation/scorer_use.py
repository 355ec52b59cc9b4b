"""Scorers of a benchmark: loaded when they are needed, with everything that their scores depend on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rewardedit.data.digests import file_digests
from rewardedit.scorer_spec import ScorerSpec
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scorers.load import packaged_files, scorer_fingerprints
from rewardedit.stages.lazy import Lazy


@dataclass(frozen=True)
class ScorerUse:
    """A scorer by name."""

    name: str
    made_of: dict[str, Any]  # everything that scores depend on: settings, packaged models, fingerprint, files
    load: Callable[[], Scorer]  # on the default device; loaded once

    def by_name(self) -> dict[str, Scorer]:
        """The scorer, as the scoring engine takes it."""
        return {self.name: self.load()}


def use_scorers(specs: Mapping[str, ScorerSpec]) -> dict[str, ScorerUse]:
    """The scorers of these specs by their names; nothing is loaded that has no fingerprint."""
    return {name: _use(name, spec) for name, spec in specs.items()}


def _use(name: str, spec: ScorerSpec) -> ScorerUse:
    load = Lazy(partial(_load, spec))
    made_of: dict[str, Any] = {"scorer": spec, "models": packaged_files(spec)}
    if digests := file_digests([spec]):
        made_of["files"] = digests
    if fingerprints := scorer_fingerprints({name: spec}, lambda: {name: load()}):
        made_of["fingerprint"] = fingerprints[name]
    return ScorerUse(name, made_of, load)


def _load(spec: ScorerSpec) -> Scorer:
    return load_scorer(spec)
