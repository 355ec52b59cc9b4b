"""Rules that label edits from 0 to 10 without a person (ADIEE Sec. 3.1).

A rule of `OUTPUT_RULES` looks at what was measured of one output of an editing method. They are asked in
their order, the first that holds gives the label, and an output for which none holds has no label. The other
rules need no measurement: they label what a data set has anyway.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rewardedit.synthesis.damage import DAMAGES

Grade = Literal["weak", "strong", "other"]  # of a method: how good its outputs are as a rule
FAILED = 0.0
PARTLY = 5.0
RIGHT = 10.0


@dataclass(frozen=True)
class Measured:
    """What is known of an output. None stands for what cannot be measured."""

    clip_d: float | None  # CLIP directional similarity (Eq. 1); None where the two captions are the same
    # to the target, by two image encoders (Eq. 2, 3); None without a target
    similarity: tuple[float | None, float | None]


@dataclass(frozen=True)
class Thresholds:
    """What measurements are compared with; `find_thresholds` takes them from a data set."""

    clip_d: float
    similarity: tuple[float, float]  # of each encoder


@dataclass(frozen=True)
class Rule:
    """A condition with the label that it gives."""

    name: str
    label: float
    holds: Callable[[Measured, Thresholds, Grade], bool]


def no_progress(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """CLIP-D ≤ 0: the output is no nearer to the target caption than the source, or is the source."""
    return measured.clip_d is not None and measured.clip_d <= 0


def unlike_target(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """By both encoders less like the target than nearly all sources are."""
    pairs = zip(measured.similarity, thresholds.similarity, strict=True)
    return all(value is not None and value < limit for value, limit in pairs)


def weak_method(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """The output of a method that fails as a rule."""
    return grade == "weak"


def partly_done(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """The output of a strong method, with a CLIP-D under the threshold."""
    return grade == "strong" and measured.clip_d is not None and measured.clip_d < thresholds.clip_d


OUTPUT_RULES = (
    Rule("no_progress", FAILED, no_progress),
    Rule("unlike_target", FAILED, unlike_target),
    Rule("weak_method", FAILED, weak_method),
    Rule("partly_done", PARTLY, partly_done),
)
# Labels of what a data set has without any method, by rule.
OWN_LABELS = {
    "target": RIGHT,
    "source": FAILED,
    "augmented_source": FAILED,
    "another_image": FAILED,  # another row's target, under this row's instruction
    # this row's target, or what was made like it, under another row's instruction, under its own for another
    # object of the image, and under its own with a word altered
    "another_instruction": FAILED,
    "another_object": FAILED,
    "another_word": FAILED,
}
DAMAGED = "damaged_target"  # this row's target with a damage that gives the label
UNREACHED = "unreached"  # a method's output, labelled by how far it is from the target
UNTOUCHED = "untouched"  # a method's output that changes next to nothing: FAILED
LEFT_BEHIND = "left_behind"  # a method's output where what was to move is still there: FAILED
ANOTHER_INSTRUCTION = "output_another_instruction"  # a method's output, under another row's: FAILED
ANOTHER_TURN = "another_turn"  # a turn's edit, under a later turn's instruction: FAILED
SHARES = ("reconstructed", "another_image", "another_object", ANOTHER_INSTRUCTION, ANOTHER_TURN)  # 0 to 1
DROPPED = "dropped"  # no rule holds


def label_output(measured: Measured, thresholds: Thresholds, grade: Grade) -> tuple[str, float | None]:
    """The name of the first rule that holds and its label; `DROPPED` and None where none does."""
    for rule in OUTPUT_RULES:
        if rule.holds(measured, thresholds, grade):
            return rule.name, rule.label
    return DROPPED, None


@dataclass(frozen=True)
class RulesConfig:
    """Thresholds and shares of the rules. What is None is the preset's, which fills it in."""

    # ours: thresholds of this data set, no label that an autoencoder's traces tell; paper: ADIEE's
    preset: Literal["ours", "paper"] = "ours"
    similarity_percentile: float = 5.0  # of the sources' similarity to their targets, by each encoder
    # of the targets' own CLIP-D: outputs of strong methods below it are partly done
    clip_d_percentile: float = 50.0
    clip_d: float | None = None  # a fixed threshold in the place of that percentile; the paper's is 0.2
    # share of targets, damaged or not, sources and turns that go through the autoencoder, as all outputs of
    # methods did
    reconstructed: float | None = None
    another_image: float | None = None  # share of rows that also stand with another row's target, labelled 0
    # under how many other rows' instructions a row's target also stands, labelled 0; below 1: in this share
    another_instruction: float | None = None
    # share of rows whose target also stands under the same instruction for another object, labelled 0; needs
    # captions
    another_object: float = 0.0
    # at most how often a row's target also stands under its own instruction with a word altered, labelled 0
    another_word: int = 0
    # kinds of words, in each of which another word asks for something else
    alike: tuple[tuple[str, ...], ...] = ()
    # at most how many damaged forms of a row's target there are beside it, labelled by the kind and the
    # strength of their damage; each also stands under an instruction that it does not follow
    damaged: int = 0
    damages: tuple[str, ...] = ()  # of which kinds, names of `rewardedit.synthesis.damage`; none for all
    # [share, label] pairs, the rule for outputs where targets leave no choice, in place of those that
    # compare with thresholds: see `rewardedit.synthesis.unreached`. Such an output also stands, labelled 0,
    # under other rows' instructions, a right one under whatever else its row's target does not follow
    unreached: tuple[tuple[float, float], ...] = ()
    # with `unreached`: outputs where what was to move is still in its place have failed
    left_behind: bool = False
    # share of methods' outputs, labelled or not, that also stand under another row's instruction, labelled 0;
    # of those that `unreached` does not label
    output_another_instruction: float = 0.0
    # choices of source, target and edited image of a sequence that give rows: one, drawn by the seed, as in
    # ADIEE, or all
    turns: Literal["one", "all"] = "one"
    # share of a sequence's turns that also stand under a later turn's instruction, labelled 0: of one image
    # something else was edited than was asked for; with turns=one at most one turn
    another_turn: float = 0.0

    def __post_init__(self) -> None:
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.clip_d is not None and self.clip_d_percentile != 50.0:
            raise ValueError(
                f"clip_d_percentile: the threshold is fixed, clip_d: {self.clip_d:g}; give one of the two"
            )
        for name in ("similarity_percentile", "clip_d_percentile"):
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name}: expected 0 to 100; got {getattr(self, name)}")
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share from 0 to 1; got {getattr(self, name)}")
        for name in ("another_instruction", "another_word", "damaged"):
            if self.share(name) < 0:
                raise ValueError(f"{name}: expected at least 0; got {getattr(self, name)}")
        shares = [share for share, _ in self.unreached]
        if any(not (share >= 0 and 0 <= label <= 10) for share, label in self.unreached) or shares != sorted(
            set(shares)
        ):
            raise ValueError(
                "unreached: expected rising shares with labels from 0 to 10, such as [[0, 10], [1, 0]]"
            )
        if any(len({word.lower() for word in kind}) < 2 for kind in self.alike):
            raise ValueError("alike: expected at least two words of each kind, such as [[left, right]]")
        if unknown := set(self.damages) - set(DAMAGES):
            raise ValueError(f"damages: {', '.join(sorted(unknown))} unknown; there are {', '.join(DAMAGES)}")
        if self.left_behind and not self.unreached:
            raise ValueError("left_behind: expected labels in unreached, such as [[0, 10], [1, 0]]")
        if self.another_word and not self.alike:
            raise ValueError("another_word: expected kinds of words in alike, such as [[left, right]]")

    def share(self, name: str) -> float:
        """A share, or a count, which the preset may have filled in."""
        value = getattr(self, name)
        assert value is not None
        return value


PRESETS: dict[str, dict[str, Any]] = {
    "ours": {"reconstructed": 0.5, "another_image": 0.25, "another_instruction": 0.25},
    "paper": {"clip_d": 0.2, "reconstructed": 0.0, "another_image": 0.0, "another_instruction": 0.0},
}


def find_thresholds(
    config: RulesConfig, sources: Sequence[Measured], targets: Sequence[Measured]
) -> Thresholds:
    """The percentiles over a data set's own sources and targets, which are measured as outputs are.

    Raises:
        ValueError: where no source's similarity is there to take a percentile of.
    """
    similarity = [
        percentile(
            [measured.similarity[encoder] for measured in sources],
            config.similarity_percentile,
            f"the sources' similarity to their targets by encoder {encoder + 1}",
        )
        for encoder in range(2)
    ]
    clip_d = config.clip_d
    if clip_d is None:
        own = [measured.clip_d for measured in targets if measured.clip_d is not None]
        # Without captions no output has a CLIP-D either, which could lie below a threshold.
        clip_d = float(np.percentile(own, config.clip_d_percentile)) if own else 0.0
    return Thresholds(clip_d, (similarity[0], similarity[1]))


def percentile(values: Sequence[float | None], q: float, what: str) -> float:
    """Percentile q of the values that are there, by linear interpolation.

    Raises:
        ValueError: where none is.
    """
    known = [value for value in values if value is not None]
    if not known:
        raise ValueError(f"label rules: no row has {what}")
    return float(np.percentile(known, q))
