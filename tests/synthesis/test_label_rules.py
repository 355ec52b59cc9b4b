"""The rules by cases that are worked out by hand, and their order."""

import pytest

from rewardedit.synthesis.label_rules import (
    DROPPED,
    Measured,
    Thresholds,
    find_thresholds,
    label_output,
    no_progress,
    partly_done,
    unlike_target,
    weak_method,
)
from rewardedit.synthesis.measured import MeasureConfig
from rewardedit.synthesis.rules_config import ThresholdsConfig

CLIP_D = {"clip_d": {"checkpoint": "shapes/clip"}}
CLIP_I = {"clip_i": {"checkpoint": "shapes/clip"}}
LIMITS = Thresholds(clip_d=0.2, similarity=(0.8, 0.4))
GOOD = Measured(0.5, (0.9, 0.9))


@pytest.mark.parametrize(("clip_d", "holds"), [(-0.1, True), (0.0, True), (0.01, False), (None, False)])
def test_no_progress_is_a_clip_d_of_zero_or_less(clip_d, holds):
    assert no_progress(Measured(clip_d, (0.9, 0.9)), LIMITS, "other") is holds


@pytest.mark.parametrize(
    ("similarity", "holds"),
    [
        ((0.79, 0.39), True),
        ((0.8, 0.39), False),  # as like as the threshold is like enough
        ((0.79, 0.4), False),
        ((0.9, 0.1), False),  # by one encoder alone
        ((0.1, None), False),  # without a target
    ],
)
def test_unlike_the_target_is_under_both_thresholds(similarity, holds):
    assert unlike_target(Measured(0.5, similarity), LIMITS, "other") is holds


@pytest.mark.parametrize(("grade", "holds"), [("weak", True), ("other", False), ("strong", False)])
def test_all_outputs_of_a_weak_method_fail(grade, holds):
    assert weak_method(GOOD, LIMITS, grade) is holds


@pytest.mark.parametrize(
    ("clip_d", "grade", "holds"),
    [
        (0.1, "strong", True),
        (0.2, "strong", False),
        (0.1, "other", False),
        (0.1, "weak", False),
        (None, "strong", False),
    ],
)
def test_partly_done_is_a_strong_method_under_the_threshold(clip_d, grade, holds):
    assert partly_done(Measured(clip_d, (0.9, 0.9)), LIMITS, grade) is holds


@pytest.mark.parametrize(
    ("measured", "grade", "expected"),
    [
        (Measured(-0.1, (0.1, 0.1)), "weak", ("no_progress", 0.0)),  # all three hold; the first counts
        (Measured(0.1, (0.1, 0.1)), "strong", ("unlike_target", 0.0)),  # before it is partly done
        (GOOD, "weak", ("weak_method", 0.0)),
        (Measured(0.1, (0.9, 0.9)), "strong", ("partly_done", 5.0)),
        (GOOD, "strong", (DROPPED, None)),
        (Measured(0.1, (0.9, 0.9)), "other", (DROPPED, None)),
        (Measured(None, (None, None)), "strong", (DROPPED, None)),
    ],
)
def test_the_first_rule_that_holds_gives_the_label(measured, grade, expected):
    assert label_output(measured, LIMITS, grade) == expected


def test_thresholds_are_percentiles_of_the_data_set():
    """The 5th percentile of 0, 1 … 20 is 1 (5 % of the way), the 25th is 5."""
    sources = [Measured(None, (i / 10, i / 100)) for i in range(21)]
    targets = [Measured(i / 10, (1.0, 1.0)) for i in range(21)]
    found = find_thresholds(ThresholdsConfig(clip_d_percentile=25), sources, targets)
    assert found.similarity == pytest.approx((0.1, 0.01))
    assert found.clip_d == pytest.approx(0.5)


def test_what_cannot_be_measured_is_left_out_of_percentiles():
    nothing = Measured(None, (None, None))
    sources = [nothing, Measured(None, (0.5, 0.6)), nothing]
    found = find_thresholds(ThresholdsConfig(), sources, [nothing, Measured(0.3, (1.0, 1.0))])
    assert found.clip_d == pytest.approx(0.3)
    assert found.similarity == pytest.approx((0.5, 0.6))


def test_a_fixed_threshold_asks_no_target():
    assert find_thresholds(ThresholdsConfig(clip_d=0.2), [Measured(None, (0.5, 0.5))], []).clip_d == 0.2


@pytest.mark.parametrize(
    "similarity", [(CLIP_I, "ssim"), ({"clip_i": {"against": "source", "checkpoint": "shapes/clip"}}, CLIP_I)]
)
def test_a_similarity_to_the_source_is_refused(similarity):
    with pytest.raises(ValueError, match=r"measure\.similarity: expected a scorer that compares with "):
        MeasureConfig(CLIP_D, similarity).load()
    assert MeasureConfig(CLIP_D, (CLIP_I, {"ssim": {"against": "target"}})).load()


def test_nothing_to_take_a_percentile_of_is_refused():
    with pytest.raises(ValueError, match="no row has the sources' similarity"):
        find_thresholds(ThresholdsConfig(), [], [])
    assert find_thresholds(ThresholdsConfig(), [Measured(None, (0.5, 0.5))], []).similarity == (0.5, 0.5)
