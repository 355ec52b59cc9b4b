"""Relabelling of a data set: every row is scored, the scores get a scale,
and the scale gives labels and texts (ADIEE Sec. 3.4).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from rewardedit import devices, models
from rewardedit.data import DataConfig, Rows
from rewardedit.data.digests import file_digests
from rewardedit.data.stream import StreamedRows, count_rows
from rewardedit.files import AnyPath, replaced, write_json
from rewardedit.language.usage import USAGE, as_settings, read_usage
from rewardedit.reward_prompt import PRESETS, RewardPrompt, RewardScale, label_rows
from rewardedit.scorer_spec import ScorerSpec, resolve_spec, spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scorers.load import packaged_files, scorer_fingerprints
from rewardedit.scoring import NO_ROWS, read_columns, read_records, score_shards, write_records
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import Share
from rewardedit.synthesis.candidates import CandidatesConfig
from rewardedit.untrusted import read_settings_file

SCALE = "scale.json"
LABELLED = "part-{:05d}.parquet"  # names of the labelled shards


@dataclass(frozen=True)
class RelabelConfig:
    """Settings of relabelling: the scorer, the scale and the words of labels."""

    # scorer whose score becomes the label: a name, a sum such as clip_d:0.7,l1:0.3, or a mapping with weights
    # and options
    scorer: ScorerSpec
    # form of the label: ADIEE's or HIVE's words, a learned embedding, or a template
    prompt: Literal["adiee", "hive", "learned", "custom"] = "adiee"
    template: str | None = None  # text with {instruction} and {word}, for prompt=custom only
    words: tuple[str, ...] | None = None  # words of the labels, from worst to best; None: the prompt's own
    upper: tuple[float, ...] | None = None  # highest score, from 0 to 10, of each word; None: even bins
    # maps scores to 0–10 by their quantiles over the rows, or by the scorer's declared range
    scale: Literal["quantiles", "range"] = "quantiles"
    batch_size: int = 64  # rows that are scored at a time

    def __post_init__(self) -> None:
        object.__setattr__(self, "scorer", resolve_spec(self.scorer))
        if (self.prompt == "custom") != (self.template is not None):
            raise ValueError("template: required by prompt=custom, and allowed with no other prompt")
        # refuses a template or bins that do not fit, before rows are scored
        self.reward_prompt(RewardScale.from_range(0, 1))

    def reward_prompt(self, scale: RewardScale) -> RewardPrompt:
        """The prompt with its scale."""
        bins: dict[str, Any] = {}
        if self.words is not None:
            bins["words"] = self.words
        if self.upper is not None:
            bins["upper"] = self.upper
        if self.template is not None:
            return RewardPrompt(self.template, scale=scale, **bins)
        return replace(PRESETS[self.prompt](scale), **bins)


def read_scale(path: AnyPath) -> RewardScale:
    """Reads a scale that `relabel` wrote.

    Raises:
        ValueError: if the file holds none.
    """
    knots = read_settings_file(path).get("knots")
    if not isinstance(knots, list) or not all(isinstance(knot, int | float) for knot in knots):
        raise ValueError(f"{path}: expected the knots of a scale; remove {path.parent} and relabel again")
    return RewardScale(tuple(knots))


@dataclass
class Relabelled:
    """Scores and labels of all rows, in order."""

    score: list[float]  # NaN if invalid
    label: list[int | None]  # None if the score is invalid
    scale: RewardScale


def relabel(
    config: RelabelConfig,
    rows: Rows | StreamedRows,
    data: DataConfig,
    folder: AnyPath,
    candidates: CandidatesConfig | None = None,
    share: Share | None = None,
    loaded: Scorer | None = None,
) -> Relabelled:
    """Scores and labels every row into `folder`; complete shards of an earlier run are reused.

    Rows are scored shard by shard. The scale needs all scores, and labels need the scale, so the labelled
    shards are written after all rows are scored, with `scale.json`: the scale, the scorer, its fingerprint
    and endpoint usage, if any. A scorer that has a fingerprint is loaded to compute it, even if all labels
    are done.

    Args:
        candidates: settings of the candidate edits among `rows`, besides the data's own edits.
        loaded: the scorer on its device, if it is loaded already.

    Raises:
        ValueError: if the folder holds labels by another scorer, of other rows, or in other words; if no row
            can be scored, or the scores give no scale.
    """
    made_of = _made_of(config, rows, data, folder, candidates)
    name = spec_name(config.scorer)
    scorers = Lazy(partial(_load, config.scorer, name), None if loaded is None else {name: loaded})
    load = partial(_on_device, scorers)
    fingerprints = scorer_fingerprints({name: config.scorer}, scorers)
    if fingerprints:
        made_of["fingerprints"] = fingerprints

    if config.scale == "range" and not (folder / SCALE).exists():
        _require_bounds(name, load()[name])  # before all rows are scored

    scored = score_shards(
        folder,
        made_of,
        rows,
        load,
        data.size,
        data.resize,
        config.batch_size,
        data.workers,
        finish=partial(_label, config, folder, load, fingerprints.get(name)),
        share=share,
    )
    return _read_labelled(folder, len(scored))


def _made_of(
    config: RelabelConfig,
    rows: Rows | StreamedRows,
    data: DataConfig,
    folder: AnyPath,
    candidates: CandidatesConfig | None,
) -> dict[str, Any]:
    """Everything that scores and labels depend on, except the scorer's fingerprint."""
    editors = [] if candidates is None else list(candidates.editors)
    made_of = {
        "relabel": config,
        "data": data,
        "candidates": candidates,
        "rows": count_rows(rows),
        "models": packaged_files(config.scorer) | models.fingerprints(models.names_in(editors)),
    }
    if digests := file_digests([config, data, candidates], folder):
        made_of["files"] = digests
    return made_of


def _load(scorer: ScorerSpec, name: str) -> dict[str, Scorer]:
    return {name: load_scorer(scorer, device="cpu")}


def _on_device(loaded: Callable[[], dict[str, Scorer]]) -> dict[str, Scorer]:
    """Scorers, loaded if need be, on the default device of the process that scores."""
    return {name: scorer.to(devices.default_device()) for name, scorer in loaded().items()}


def _require_bounds(name: str, scorer: Scorer) -> None:
    """Raises ValueError if a scorer declares no finite range, which gives no scale."""
    low, high = scorer.range
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"scale=range: the scores of {name} have no bounds; use scale=quantiles")


def _label(
    config: RelabelConfig,
    folder: AnyPath,
    load: Callable[[], dict[str, Scorer]],
    fingerprint: dict[str, Any] | None,
    scored: list[AnyPath],
) -> None:
    """Fits the scale to all scores, and writes the labelled shards and `scale.json`."""
    scale = _fit_scale(config, _read_scores(config, scored), load)
    prompt = config.reward_prompt(scale)
    for number, path in enumerate(scored):
        with replaced(folder / LABELLED.format(number)) as aside:
            write_records(label_rows(read_records(path), prompt), aside)

    described: dict[str, Any] = {"knots": list(scale.knots), "scorer": spec_name(config.scorer)}
    if fingerprint is not None:
        described["fingerprint"] = fingerprint
    if used := read_usage([folder / USAGE]):
        described["usage"] = as_settings(used)
    write_json(folder / SCALE, described)


def _read_scores(config: RelabelConfig, scored: list[AnyPath]) -> list[float]:
    """Scores of all shards, NaN for invalid ones.

    Raises:
        ValueError: if there is none, or no valid one.
    """
    scores, reasons = read_columns(scored, "score", "reason")
    if not scores:
        raise ValueError(NO_ROWS)
    if set(scores) == {None}:
        raise ValueError(f"no row can be scored by {config.scorer}; the first: {reasons[0]}")
    return _with_nan(scores)


def _fit_scale(
    config: RelabelConfig, scores: list[float], load: Callable[[], dict[str, Scorer]]
) -> RewardScale:
    """The scale of the scores' quantiles, or of the range that the scorer declares."""
    if config.scale == "quantiles":
        return RewardScale.from_quantiles(scores)
    return RewardScale.from_range(*load()[spec_name(config.scorer)].range)


def _read_labelled(folder: AnyPath, shards: int) -> Relabelled:
    """Scores and labels of a number of labelled shards, and their scale."""
    labelled = [folder / name for name in map(LABELLED.format, range(shards))]
    scale = read_scale(folder / SCALE)
    scores, labels = read_columns(labelled, "score", "label")
    return Relabelled(_with_nan(scores), labels, scale)


def _with_nan(scores: list[float | None]) -> list[float]:
    """Scores with NaN in place of None."""
    return [float("nan") if score is None else score for score in scores]
