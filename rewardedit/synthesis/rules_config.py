"""Settings of the label rules: one group for each kind of rule, each of which checks itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rewardedit.config import named
from rewardedit.synthesis.damage import DAMAGES


@dataclass(frozen=True)
class ThresholdsConfig:
    """Thresholds of the measurements: percentiles of a data set's own images, or a number."""

    similarity_percentile: float = 5.0  # percentile of the sources' similarity to targets, by encoder
    # percentile of the targets' own CLIP-D: outputs of strong methods below it are partly done
    clip_d_percentile: float = 50.0
    clip_d: float | None = None  # fixed CLIP-D threshold in place of the percentile; the paper's is 0.2

    def __post_init__(self) -> None:
        if self.clip_d is not None and self.clip_d_percentile != 50.0:
            raise ValueError(
                f"clip_d_percentile: clip_d sets the threshold already, {self.clip_d:g}; set one of the two"
            )
        for name in ("similarity_percentile", "clip_d_percentile"):
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name}: expected 0 to 100; got {getattr(self, name)}")


@dataclass(frozen=True)
class NegativesConfig:
    """Repetitions of right edits with an image or an instruction that does not fit, labelled 0."""

    other_image: float | None = None  # share of rows repeated with another row's target
    # repetitions of a row's target with other rows' instructions; below 1: share of rows
    other_instruction: float | None = None
    # share of rows whose target is repeated with the same instruction for another object; needs captions
    object_swap: float = 0.0
    word_swap: int = 0  # repetitions, at most, of a row's target with a word of its instruction replaced
    # groups of words; replacing a word by another of its group changes the request
    word_groups: tuple[tuple[str, ...], ...] = ()
    # share of methods' outputs that are repeated with another row's instruction, whether a rule labels them
    # or not; not for outputs that `by_target` labels
    output_other_instruction: float = 0.0
    # share of a sequence's turns that are repeated with a later turn's instruction: an edit of the right
    # image, but not the requested one; with turns=one at most one turn
    later_turn: float = 0.0

    def __post_init__(self) -> None:
        for name in ("other_image", "object_swap", "output_other_instruction", "later_turn"):
            _require_share(name, getattr(self, name))
        for name in ("other_instruction", "word_swap"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name}: expected at least 0; got {getattr(self, name)}")
        if any(_count_words(group) < 2 for group in self.word_groups):
            raise ValueError("word_groups: expected at least two words in each group, e.g. [[left, right]]")
        if self.word_swap and not self.word_groups:
            raise ValueError("word_swap needs word groups: set word_groups, e.g. [[left, right]]")

    @property
    def uses_other_rows(self) -> bool:
        """True if an image or an instruction comes from another row of the batch."""
        shares = (self.other_image, self.other_instruction, self.object_swap, self.output_other_instruction)
        return any(shares) or self.word_swap > 0


@dataclass(frozen=True)
class DamageConfig:
    """Damaged forms of a row's target, labelled by the kind and the strength of their damage. Each is
    repeated with an instruction that it does not follow.
    """

    per_target: int  # number of damaged forms, at most, of a row's target
    kinds: tuple[str, ...] = ()  # kinds of damage, by names of `rewardedit.synthesis.damage`; empty: all

    def __post_init__(self) -> None:
        if self.per_target < 1:
            raise ValueError(f"per_target: expected at least 1; got {self.per_target}; set damage: null")
        if unknown := set(self.kinds) - set(DAMAGES):
            raise ValueError(
                f"kinds: expected some of {', '.join(DAMAGES)}; got {', '.join(sorted(unknown))}"
            )


@dataclass(frozen=True)
class ByTargetConfig:
    """Labels of outputs by their distance from the target in place of the thresholds, where only one result
    is right: see `rewardedit.synthesis.distance_to_target`. Such an output is repeated, labelled 0, with
    other rows' instructions, a right one with all that its row's target does not follow.
    """

    labels: tuple[tuple[float, float], ...]  # [share of the edit, label] pairs, such as [[0, 10], [1, 0]]
    # label outputs that leave the object to be moved in its old place as failed
    object_not_moved: bool = False

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.labels]
        are_valid = all(share >= 0 and 0 <= label <= 10 for share, label in self.labels)
        if not shares or not are_valid or shares != sorted(set(shares)):
            raise ValueError(
                "labels: expected rising shares with labels from 0 to 10, such as [[0, 10], [1, 0]]"
            )


@dataclass(frozen=True)
class RulesConfig:
    """Thresholds and shares of the rules. The preset fills in settings that are None."""

    # values of unset rules. ours: thresholds of this data set, and no labels that an autoencoder's traces
    # reveal; paper: ADIEE's
    preset: Literal["ours", "paper"] = "ours"
    thresholds: ThresholdsConfig = field(default_factory=ThresholdsConfig)  # limits of the measurements
    # share of targets (damaged or not), sources and turns that are passed through the autoencoder, as all
    # outputs of methods were
    vae_roundtrip: float | None = None
    # choices of source, target and edited image of a sequence that become rows: one, drawn by the seed, as in
    # ADIEE, or all
    turns: Literal["one", "all"] = "one"
    # repetitions with an image or an instruction that does not fit, labelled 0
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    damage: DamageConfig | None = None  # damaged targets; None: none
    by_target: ByTargetConfig | None = None  # labels of outputs by their distance from the target; None: none

    def __post_init__(self) -> None:
        for name, value in PRESETS[self.preset].items():
            given = getattr(self, name)
            if isinstance(value, Mapping):
                with named(name):
                    object.__setattr__(self, name, _filled(given, value))
            elif given is None:
                object.__setattr__(self, name, value)
        _require_share("vae_roundtrip", self.vae_roundtrip)


PRESETS: dict[str, dict[str, Any]] = {
    "ours": {"vae_roundtrip": 0.5, "negatives": {"other_image": 0.25, "other_instruction": 0.25}},
    "paper": {
        "vae_roundtrip": 0.0,
        "thresholds": {"clip_d": 0.2},
        "negatives": {"other_image": 0.0, "other_instruction": 0.0},
    },
}


def known(value: float | None) -> float:
    """Value of a setting that the preset has filled in."""
    assert value is not None
    return value


def _filled(group: Any, values: Mapping[str, float]) -> Any:
    """The group with these values for its settings that are None."""
    unset = {name: value for name, value in values.items() if getattr(group, name) is None}
    return replace(group, **unset)


def _require_share(name: str, value: float | None) -> None:
    """Raises ValueError if a setting is given and no share."""
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a share from 0 to 1; got {value}")


def _count_words(group: tuple[str, ...]) -> int:
    """Number of different words, whatever their case."""
    return len(set(map(str.lower, group)))
