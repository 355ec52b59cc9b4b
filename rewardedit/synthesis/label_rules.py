"""Rules that label edits from 0 to 10 without human raters (ADIEE Sec. 3.1).

A rule of `OUTPUT_RULES` examines the measurements of one output of an editing method. The rules are tried in
order: the first that holds gives the label, and an output for which none holds has no label. The other rules
need no measurement: they label images that a data set already has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rewardedit.synthesis.damage import DAMAGES

Grade = Literal["weak", "strong", "other"]  # usual quality of a method's outputs
FAILED = 0.0
PARTLY = 5.0
RIGHT = 10.0


@dataclass(frozen=True)
class Measured:
    """Measurements of an output; None for those that cannot be taken."""

    clip_d: float | None  # CLIP directional similarity (Eq. 1); None if the two captions are the same
    # similarity to the target by two image encoders (Eq. 2, 3); None without a target
    similarity: tuple[float | None, float | None]


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the measurements; `find_thresholds` takes them from a data set."""

    clip_d: float
    similarity: tuple[float, float]  # threshold of each encoder


@dataclass(frozen=True)
class Rule:
    """A condition and the label that it gives."""

    name: str
    label: float
    holds: Callable[[Measured, Thresholds, Grade], bool]


def no_progress(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True for CLIP-D ≤ 0: the output is no nearer to the target caption than the source, or equals it."""
    return measured.clip_d is not None and measured.clip_d <= 0


def unlike_target(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True if, by both encoders, the output is less similar to the target than nearly all sources are."""
    pairs = zip(measured.similarity, thresholds.similarity, strict=True)
    return all(value is not None and value < limit for value, limit in pairs)


def weak_method(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True for an output of a method that usually fails."""
    return grade == "weak"


def partly_done(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True for an output of a strong method with a CLIP-D below the threshold."""
    return grade == "strong" and measured.clip_d is not None and measured.clip_d < thresholds.clip_d


OUTPUT_RULES = (
    Rule("no_progress", FAILED, no_progress),
    Rule("unlike_target", FAILED, unlike_target),
    Rule("weak_method", FAILED, weak_method),
    Rule("partly_done", PARTLY, partly_done),
)
# Labels of the data set's own images, by rule.
OWN_LABELS = {
    "target": RIGHT,
    "source": FAILED,
    "augmented_source": FAILED,
    "another_image": FAILED,  # another row's target with this row's instruction
    # this row's target, or an output near it, with another row's instruction, with its own for another
    # object of the image, and with its own with a word altered
    "another_instruction": FAILED,
    "another_object": FAILED,
    "another_word": FAILED,
}
DAMAGED = "damaged_target"  # this row's target with a damage that gives the label
UNREACHED = "unreached"  # a method's output, labelled by its distance from the target
UNTOUCHED = "untouched"  # a method's output that changes almost nothing: FAILED
LEFT_BEHIND = "left_behind"  # a method's output that leaves the object to be moved in its place: FAILED
ANOTHER_INSTRUCTION = "output_another_instruction"  # a method's output with another row's: FAILED
ANOTHER_TURN = "another_turn"  # a turn's edit with a later turn's instruction: FAILED
SHARES = ("vae_roundtrip", "another_image", "another_object", ANOTHER_INSTRUCTION, ANOTHER_TURN)  # 0 to 1
PERCENTILES = ("similarity_percentile", "clip_d_percentile")  # 0 to 100
COUNTS = ("another_instruction", "another_word", "damages_per_target")  # at least 0
DROPPED = "dropped"  # no rule holds


def label_output(measured: Measured, thresholds: Thresholds, grade: Grade) -> tuple[str, float | None]:
    """Name and label of the first rule that holds; `DROPPED` and None if none does."""
    for rule in OUTPUT_RULES:
        if rule.holds(measured, thresholds, grade):
            return rule.name, rule.label
    return DROPPED, None


@dataclass(frozen=True)
class RulesConfig:
    """Thresholds and shares of the rules. The preset fills in settings that are None."""

    # values of unset rules. ours: thresholds of this data set, and no labels that an autoencoder's traces
    # reveal; paper: ADIEE's
    preset: Literal["ours", "paper"] = "ours"
    similarity_percentile: float = 5.0  # percentile of the sources' similarity to targets, by encoder
    # percentile of the targets' own CLIP-D: outputs of strong methods below it are partly done
    clip_d_percentile: float = 50.0
    clip_d: float | None = None  # fixed CLIP-D threshold in place of the percentile; the paper's is 0.2
    # share of targets (damaged or not), sources and turns that are passed through the autoencoder, as all
    # outputs of methods were
    vae_roundtrip: float | None = None
    another_image: float | None = None  # share of rows repeated with another row's target, labelled 0
    # repetitions of a row's target with other rows' instructions, labelled 0; below 1: share of rows
    another_instruction: float | None = None
    # share of rows whose target is repeated with the same instruction for another object, labelled 0; needs
    # captions
    another_object: float = 0.0
    # number of repetitions, at most, of a row's target with a word of its instruction altered, labelled 0
    another_word: int = 0
    # groups of words; replacing a word by another of its group changes the request
    word_groups: tuple[tuple[str, ...], ...] = ()
    # number of damaged forms, at most, of a row's target, labelled by the kind and the strength of their
    # damage; each is repeated with an instruction that it does not follow
    damages_per_target: int = 0
    # kinds of damage, by names of `rewardedit.synthesis.damage`; empty: all
    damage_kinds: tuple[str, ...] = ()
    # [share, label] pairs that label outputs by their distance from the target, where only one result is
    # right, in place of the thresholds: see `rewardedit.synthesis.distance_to_target`. Such an output is
    # repeated, labelled 0, with other rows' instructions, a right one with all that its row's target does not
    # follow
    distance_to_target: tuple[tuple[float, float], ...] = ()
    # label outputs that leave the object to be moved in its old place as failed; needs `distance_to_target`
    object_not_moved: bool = False
    # share of methods' outputs that are repeated with another row's instruction, labelled 0, whether a rule
    # labels them or not; not for outputs that `distance_to_target` labels
    output_another_instruction: float = 0.0
    # choices of source, target and edited image of a sequence that become rows: one, drawn by the seed, as in
    # ADIEE, or all
    turns: Literal["one", "all"] = "one"
    # share of a sequence's turns that are repeated with a later turn's instruction, labelled 0: an edit of
    # the right image, but not the requested one; with turns=one at most one turn
    another_turn: float = 0.0

    def __post_init__(self) -> None:
        self._take_preset()
        self._require_numbers()
        self._require_distances()
        self._require_word_groups()
        if unknown := set(self.damage_kinds) - set(DAMAGES):
            raise ValueError(
                f"damages: expected some of {', '.join(DAMAGES)}; got {', '.join(sorted(unknown))}"
            )
        if self.object_not_moved and not self.distance_to_target:
            raise ValueError(
                "object_not_moved: expected labels in distance_to_target, such as [[0, 10], [1, 0]]"
            )
        if self.another_word and not self.word_groups:
            raise ValueError("another_word needs word groups: set word_groups, e.g. [[left, right]]")

    def _take_preset(self) -> None:
        """Fills in the settings that are None."""
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _require_numbers(self) -> None:
        """Raises ValueError if the threshold is given twice, or a number lies outside its range."""
        if self.clip_d is not None and self.clip_d_percentile != 50.0:
            raise ValueError(
                f"clip_d_percentile: clip_d sets the threshold already, {self.clip_d:g}; set one of the two"
            )
        for name in PERCENTILES:
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name}: expected 0 to 100; got {getattr(self, name)}")
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share from 0 to 1; got {getattr(self, name)}")
        for name in COUNTS:
            if self.share(name) < 0:
                raise ValueError(f"{name}: expected at least 0; got {getattr(self, name)}")

    def _require_distances(self) -> None:
        """Raises ValueError if the shares do not rise, or a share or a label lies outside its range."""
        shares = [share for share, _ in self.distance_to_target]
        are_valid = all(share >= 0 and 0 <= label <= 10 for share, label in self.distance_to_target)
        if not are_valid or shares != sorted(set(shares)):
            raise ValueError(
                "distance_to_target: expected rising shares with labels from 0 to 10, such as [[0, 10], "
                "[1, 0]]"
            )

    def _require_word_groups(self) -> None:
        """Raises ValueError if a group holds fewer than two words."""
        if any(_count_words(kind) < 2 for kind in self.word_groups):
            raise ValueError("word_groups: expected at least two words in each group, e.g. [[left, right]]")

    def share(self, name: str) -> float:
        """Returns a share, or a count, which the preset may have filled in."""
        value = getattr(self, name)
        assert value is not None
        return value


def _count_words(kind: tuple[str, ...]) -> int:
    """Number of different words, whatever their case."""
    return len(set(map(str.lower, kind)))


PRESETS: dict[str, dict[str, Any]] = {
    "ours": {"vae_roundtrip": 0.5, "another_image": 0.25, "another_instruction": 0.25},
    "paper": {"clip_d": 0.2, "vae_roundtrip": 0.0, "another_image": 0.0, "another_instruction": 0.0},
}


def find_thresholds(
    config: RulesConfig, sources: Sequence[Measured], targets: Sequence[Measured]
) -> Thresholds:
    """Percentiles over a data set's own sources and targets, which are measured in the same way as outputs.

    Raises:
        ValueError: if no source has a similarity.
    """
    similarity = []
    for encoder in range(2):
        values = [measured.similarity[encoder] for measured in sources]
        what = f"the sources' similarity to their targets by encoder {encoder + 1}"
        similarity.append(percentile(values, config.similarity_percentile, what))

    clip_d = config.clip_d
    if clip_d is None:
        own = [measured.clip_d for measured in targets if measured.clip_d is not None]
        # Without captions no output has a CLIP-D either, so the threshold does not matter.
        clip_d = float(np.percentile(own, config.clip_d_percentile)) if own else 0.0
    return Thresholds(clip_d, (similarity[0], similarity[1]))


def percentile(values: Sequence[float | None], q: float, what: str) -> float:
    """Percentile q of the values that are not None, by linear interpolation.

    Raises:
        ValueError: if all are None.
    """
    known = [value for value in values if value is not None]
    if not known:
        raise ValueError(f"label rules: no row has {what}")
    return float(np.percentile(known, q))
