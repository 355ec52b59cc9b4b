import numpy as np
import pytest

from rewardedit.evaluation.statistics import (
    difference_of_groups,
    paired_bootstrap,
    spearman,
    spearman_difference,
)


def test_the_interval_of_a_plain_difference_is_that_of_the_normal_theory():
    rng = np.random.default_rng(0)
    b = rng.normal(size=2000)
    a = b + 0.5 + rng.normal(size=2000)
    found = paired_bootstrap(a, b)
    assert found.difference == pytest.approx((a - b).mean())
    half = 1.96 * (a - b).std() / np.sqrt(2000)
    assert found.ci95 == pytest.approx((found.difference - half, found.difference + half), abs=0.01)


def test_items_of_one_source_count_as_one():
    rng = np.random.default_rng(1)
    shared = np.repeat(rng.normal(size=50), 20)
    alone = paired_bootstrap(shared, np.zeros(1000))
    clustered = paired_bootstrap(shared, np.zeros(1000), np.repeat(np.arange(50), 20))
    assert clustered.clusters == 50
    width = [c.ci95[1] - c.ci95[0] for c in (alone, clustered)]
    assert width[1] / width[0] == pytest.approx(np.sqrt(20), rel=0.2)


def test_it_covers_the_truth_about_95_times_in_a_hundred():
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(200):
        low, high = paired_bootstrap(rng.normal(0.3, 1, 80), np.zeros(80), resamples=500, seed=seed).ci95
        hits += low <= 0.3 <= high
    assert 180 <= hits <= 199


def test_the_interval_is_from_the_2_5th_to_the_97_5th_percentile():
    """Half of 100 items are 1, the others 0: a resample's mean is binomial(100, 1/2) / 100,
    whose percentiles are 40 and 60.
    """
    found = paired_bootstrap(np.repeat([0.0, 1.0], 50), np.zeros(100))
    assert found.ci95 == pytest.approx((0.40, 0.60), abs=0.005)  # from the 5th to the 95th: 0.42 to 0.58


def test_a_source_counts_by_its_items():
    """50 sources with nine items of 1, and 50 with one item of 0:
    with k large ones drawn the mean is 9 k / (9 k + 100 − k).
    """
    values = np.concatenate([np.ones(450), np.zeros(50)])
    found = paired_bootstrap(
        values, np.zeros(500), np.concatenate([np.repeat(np.arange(50), 9), np.arange(50, 100)])
    )
    assert found.difference == pytest.approx(0.9)
    assert found.ci95 == pytest.approx((360 / 420, 540 / 580), abs=0.005)  # k is 40 and 60 at the percentiles


def test_the_interval_of_a_seed_stays_the_same():
    """By resampling with numpy alone: `rng.integers(8, size=(500, 8))` draws the sources of 500 resamples. Of
    eight sources the outer shares are Φ(−√(8/7) · 2.3646) = 0.574 %.
    """
    values = np.sqrt(np.arange(1, 13))
    source = np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 6, 7])
    found = paired_bootstrap(values, np.full(12, 2.0), source, resamples=700, seed=3)
    rng = np.random.default_rng(3)
    drawn = np.concatenate([rng.integers(8, size=(500, 8)), rng.integers(8, size=(200, 8))])
    total, count = np.bincount(source, values - 2), np.bincount(source)
    means = total[drawn].sum(1) / count[drawn].sum(1)
    assert found.ci95 == pytest.approx(tuple(np.percentile(means, [0.57367, 100 - 0.57367])), rel=1e-4)


def test_the_interval_of_few_sources_covers_the_truth_too():
    """Plain percentiles of ten sources cover it in 89 of 100."""
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(400):
        low, high = paired_bootstrap(rng.normal(0.3, 1, 10), np.zeros(10), resamples=400, seed=seed).ci95
        hits += low <= 0.3 <= high
    assert 0.93 < hits / 400 < 0.97


def test_spearman_by_hand():
    for a, b, rho in (
        ([1, 2, 3, 4], [1, 2, 3, 1000], 1),  # ranks, not values
        ([1, 2, 3, 4], [9, 7, 1, 0], -1),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 − 6 Σd² / (n (n² − 1)), Σd² = 4
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),  # ties at 2.5
    ):
        assert spearman(a, b, resamples=10).value == pytest.approx(rho)


def test_the_interval_of_spearman_is_that_of_fisher_s_transformation():
    rng = np.random.default_rng(3)
    a = rng.normal(size=400)
    low, high = spearman(a, a + rng.normal(size=400), resamples=300).ci95
    half = (np.arctanh(high) - np.arctanh(low)) / 2
    assert half == pytest.approx(1.96 * 1.03 / np.sqrt(400 - 3), rel=0.2)


def test_items_of_one_source_are_drawn_together_for_spearman():
    """Each item ten times with one source: ranks are spread by ten,
    and a resample's ρ is that of the items alone.
    """
    rng = np.random.default_rng(4)
    a = rng.normal(size=30)
    b = a + rng.normal(size=30)
    repeated = spearman(np.repeat(a, 10), np.repeat(b, 10), np.repeat(np.arange(30), 10), resamples=100)
    assert repeated.ci95 == pytest.approx(spearman(a, b, resamples=100).ci95)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="paired"):
        paired_bootstrap([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="finite"):
        paired_bootstrap([1.0, float("nan")], [1.0, 2.0])
    with pytest.raises(ValueError, match="at least two source images"):
        paired_bootstrap([1.0, 2.0], [1.0, 2.0], ["a", "a"])


def test_the_difference_of_two_groups_has_the_normal_theory_s_interval():
    rng = np.random.default_rng(5)
    values = rng.normal(size=3000)
    in_a = np.arange(3000) < 1000
    values[in_a] += 0.5
    found = difference_of_groups(values, in_a, np.arange(3000))
    assert found.difference == pytest.approx(values[in_a].mean() - values[~in_a].mean())
    half = 1.96 * np.sqrt(values[in_a].var() / 1000 + values[~in_a].var() / 2000)
    # of 90 %: 0.012 nearer
    assert found.ci95 == pytest.approx((found.difference - half, found.difference + half), abs=0.007)


def test_what_two_groups_share_of_a_source_falls_out_of_their_difference():
    """Each source adds the same to its items of both groups: the difference knows nothing of it."""
    rng = np.random.default_rng(6)
    shared = np.repeat(rng.normal(0, 10, size=40), 2)
    in_a = np.tile([True, False], 40)
    found = difference_of_groups(shared + in_a, in_a, np.repeat(np.arange(40), 2))
    assert found.ci95 == pytest.approx((1.0, 1.0))
    assert found.clusters == 40
    apart = difference_of_groups(shared + in_a, in_a, np.arange(80))
    assert apart.ci95[1] - apart.ci95[0] > 4


@pytest.mark.parametrize(
    ("values", "in_a", "message"),
    [
        ([1.0, np.nan], [True, False], "finite"),
        ([1.0, 2.0], [True, True], "both groups"),
        ([1.0], [], "expected"),
    ],
)
def test_groups_that_cannot_be_compared_are_refused(values, in_a, message):
    with pytest.raises(ValueError, match=message):
        difference_of_groups(values, in_a, np.arange(len(values)))


def test_two_rank_correlations_are_compared_on_the_same_resamples():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=300)
    good, poor = truth + 0.5 * rng.normal(size=300), truth + 2 * rng.normal(size=300)
    ids = np.repeat(np.arange(100), 3)
    found = spearman_difference(good, poor, truth, ids)
    assert found.mean_a == spearman(good, truth).value
    assert found.difference == pytest.approx(found.mean_a - found.mean_b)
    assert 0 < found.ci95[0] < found.difference < found.ci95[1]
    assert (found.n, found.clusters) == (300, 100)
    # Of a rival that is always right the interval is that of ρ alone, less 1.
    alone = [end - 1 for end in spearman(good, truth, ids, resamples=200).ci95]
    assert spearman_difference(good, truth, truth, ids, resamples=200).ci95 == pytest.approx(alone)
    same = spearman_difference(good, good, truth, ids, resamples=50)
    assert same.ci95 == (0, 0)
    shifted = spearman_difference(good, 3 * good + 1, truth, ids, resamples=50)
    assert shifted.ci95 == (0, 0), "ranks are the same"


def test_one_source_image_gives_no_interval():
    values = np.arange(6.0)
    same = ["a"] * 6
    found = spearman(values, values, same)
    assert found.value == pytest.approx(1)
    assert np.isnan(found.ci95).all()
    assert found.as_dict("rho") == {
        "rho": found.value,
        "ci95": (None, None),  # JSON has no NaN
        "n": 6,
        "clusters": 1,
        "p": None,
        "reason": "no interval: all items are of one source image",
    }
    for refused in (
        lambda: paired_bootstrap(values, values, same),
        lambda: spearman_difference(values, values, values, same),
        lambda: difference_of_groups(values, values > 2, same),
    ):
        with pytest.raises(ValueError, match="at least two source images; got 1"):
            refused()


def test_source_images_may_be_named_by_pairs():
    rng = np.random.default_rng(0)
    values = rng.normal(size=12)
    truth = values + rng.normal(size=12)
    numbers = np.repeat(np.arange(4), 3)
    names = [("magicbrush", int(number)) for number in numbers]
    assert spearman(values, truth, names) == spearman(values, truth, numbers)
    assert paired_bootstrap(values, truth, names) == paired_bootstrap(values, truth, numbers)
    in_a = np.arange(12) % 2 == 0
    assert difference_of_groups(values, in_a, names) == difference_of_groups(values, in_a, numbers)
