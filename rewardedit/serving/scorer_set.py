"""The scorers of a server: loaded together, described to clients, and applied to a batch of samples."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rewardedit import __version__, devices
from rewardedit.batch import PixelSample, Scores, collate_pixels
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.config import to_dict
from rewardedit.data.digests import file_digests
from rewardedit.scorer_spec import ScorerSpec, resolve_spec
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scorers.load import models_of, packaged_files
from rewardedit.scoring import TEXT_CUT, score_batch
from rewardedit.untrusted import is_system_error, printable

MOST_SHAPES = 64  # of images whose largest batches are kept


@dataclass(frozen=True)
class Score:
    """The score of one edit by one scorer; None if the edit is invalid for it, for the reason given."""

    score: float | None
    reason: str | None = None
    parts: dict[str, float] = field(default_factory=dict)


Row = dict[str, Score]  # scores of one edit, by the scorers' names


@dataclass(frozen=True)
class ScorerInfo:
    """Description of a served scorer. Higher scores are better for all of them."""

    name: str
    range: tuple[float | None, float | None]  # lowest and highest score; None: unbounded
    required_fields: list[str]  # fields of an item beyond source, edited and instruction
    models: list[str]  # names of the models that it loads
    device: str
    fingerprint: str  # changes with the scorer's options, weights and code: equal ones give equal scores
    family: str
    paper: str


@dataclass(frozen=True)
class ScorerSet:
    """Scorers by the names that clients use, not yet loaded; can be sent to another process."""

    specs: dict[str, ScorerSpec]
    options: dict[str, Any] = field(default_factory=dict)  # given to all of them

    def load(self, batch_size: int) -> "LoadedScorers":
        """Loads the scorers on the default device of this process."""
        device = devices.default_device()
        scorers = {
            name: load_scorer(spec, device=device, **self.options) for name, spec in self.specs.items()
        }
        infos = [self._describe(name, scorer, device) for name, scorer in scorers.items()]
        return LoadedScorers(scorers, infos, batch_size)

    def _describe(self, name: str, scorer: Scorer, device: str) -> ScorerInfo:
        low, high = (end if math.isfinite(end) else None for end in scorer.range)
        spec = self.specs[name]
        return ScorerInfo(
            name,
            (low, high),
            sorted(scorer.required_fields),
            models_of(spec, **self.options),
            torch.cuda.get_device_name() if device == "cuda" else device,
            self._fingerprint(spec, scorer),
            scorer.family,
            scorer.paper,
        )

    def _fingerprint(self, spec: ScorerSpec, scorer: Scorer) -> str:
        made_of = {
            "rewardedit": __version__,
            "scorer": to_dict(resolve_spec(spec)),
            "options": to_dict(self.options),
            "models": packaged_files(spec, **self.options),
            "files": file_digests([spec, self.options]),
            "own": scorer.fingerprint,
        }
        text = json.dumps(made_of, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class LoadedScorers:
    """Scorers that are ready, and for each size of images the largest batch that has fitted into memory."""

    scorers: dict[str, Scorer]
    infos: list[ScorerInfo]
    batch_size: int
    fitting: dict[torch.Size, BatchSize] = field(default_factory=dict)  # by the shape of the sources

    def score(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]:
        """Scores edits of one size by the named scorers; a batch that does not fit into memory is halved.

        No edit or scorer spoils another: if a batch fails, or a scorer refuses all of it, that scorer scores
        each edit alone.

        Raises:
            RuntimeError: if the GPU has failed, after which this process cannot score any more.
        """
        scorers = {name: self.scorers[name] for name in names}
        try:
            rows: list[Row] = []
            size = self._size_for(samples[0].source.shape)
            for scored in in_batches(list(samples), size, lambda chunk: _score_together(chunk, scorers)):
                rows += scored
        except Exception as error:  # any: scorers may be others' code
            if _has_lost_gpu(error):
                raise
            if len(samples) == 1 and len(names) == 1:
                return [{names[0]: Score(None, _reason(error))}]
            return self._score_apart(samples, names)
        return rows

    def _size_for(self, shape: torch.Size) -> BatchSize:
        """The largest batch of a shape: where large images do not fit, batches of small ones stay."""
        if shape not in self.fitting and len(self.fitting) >= MOST_SHAPES:
            self.fitting.clear()
        return self.fitting.setdefault(shape, BatchSize(self.batch_size))

    def _score_apart(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]:
        """Scores by each scorer by itself; by a single one, each edit by itself."""
        rows: list[Row] = [{} for _ in samples]
        if len(names) > 1:
            for name in names:
                for row, answers in zip(rows, self.score(samples, [name]), strict=True):
                    row |= answers
            return rows
        for row, sample in zip(rows, samples, strict=True):
            row |= self.score([sample], names)[0]
        return rows


def _score_together(samples: list[PixelSample], scorers: dict[str, Scorer]) -> list[Row]:
    scores = score_batch(collate_pixels(samples), scorers)
    rows: list[Row] = [{} for _ in samples]
    for name, of_batch in scores.items():
        answers = _scores(of_batch)
        alone = {name: scorers[name]}
        if len(samples) > 1 and _is_refused(of_batch) and not _lacks_field(samples, scorers[name]):
            answers = [_score_together([sample], alone)[0][name] for sample in samples]  # perhaps one's fault
        for row, score in zip(rows, answers, strict=True):
            row[name] = score
    return rows


def _is_refused(of_batch: Scores) -> bool:
    """True if a scorer has given one reason for all edits and nothing else."""
    return of_batch.parts.keys() <= {TEXT_CUT} and len(set(of_batch.reason)) == 1 and bool(of_batch.reason[0])


def _lacks_field(samples: list[PixelSample], scorer: Scorer) -> bool:
    """True if no edit can be scored, as all lack a field: a batch holds edits with the same fields."""
    return any(getattr(samples[0], field, None) is None for field in scorer.required_fields)


def _scores(of_batch: Scores) -> list[Score]:
    values = of_batch.score.tolist()
    parts = {name: tensor.tolist() for name, tensor in of_batch.parts.items()}
    scores = []
    for i, reason in enumerate(of_batch.reason):
        finite = {name: column[i] for name, column in parts.items() if math.isfinite(column[i])}
        scores.append(Score(values[i] if reason is None else None, reason, finite))
    return scores


def _has_lost_gpu(error: Exception) -> bool:
    """True for a fault of the GPU after which this process can compute nothing more on it."""
    is_fault = isinstance(error, RuntimeError) and is_system_error(error)
    return is_fault and not devices.is_out_of_memory(error)


def _reason(error: Exception) -> str:
    if devices.is_out_of_memory(error):
        return "memory ran out for this edit alone; send smaller images"
    lines = str(error).splitlines() or [""]
    text = printable(lines[0], 300)
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"
