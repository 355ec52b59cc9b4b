"""Figures of the comparison of scorers, each against values worked out by hand."""

import numpy as np
import pytest

from rewardedit.evaluation.protocols.protocol import ItemScores
from rewardedit.shapes.bench.edits import PICTURED, World
from rewardedit.shapes.bench.figures import (
    ACROSS,
    RETRIEVED,
    SEEDS,
    TRUTH,
    WITHIN,
    Edits,
    chance,
    editor_means,
    favoured_rows,
    measure_scorer,
    measure_values,
    retrieval,
    seed_pairs,
)
from rewardedit.shapes.bench.rows import NOISE, TARGET, BenchRows, Item, all_items, other_rows
from rewardedit.shapes.bench.settings import COPY, EDITOR, SCORERS, ShapesBench, short_name

pytestmark = pytest.mark.world
N = 4
BENCH = ShapesBench(n=N, candidates=3, seeds=2, editors=(EDITOR, COPY))
KEYS = [(EDITOR, 0), (COPY, 0), (EDITOR, 1)]
RATINGS = {
    (EDITOR, 0): np.array([9.0, 2, 5, 6]),
    (COPY, 0): np.array([1.0, 0, 2, 3]),
    (EDITOR, 1): np.array([3.0, 4, 5.5, 0]),
}
EDITS = Edits(KEYS, ["a", "b", "c", "d"], RATINGS)


def test_better_of_two_seeds_by_hand():
    values = {
        (EDITOR, 0): np.array([0.9, 0.5, 0.1, 0.4]),
        (EDITOR, 1): np.array([0.2, np.nan, 0.9, 0.4]),
    }
    right, sources = seed_pairs(values, EDITS, least=1.0)
    # the first is right, an edit without a score is worst, ratings 0.5 apart do not count, equal scores half
    np.testing.assert_array_equal(right, [1, 0, np.nan, 0.5])
    assert sources == ["a", "b", "c", "d"]


def test_exact_rating_as_a_score_agrees_everywhere():
    found = measure_values(RATINGS, EDITS, BENCH)
    assert found[WITHIN].value == found[ACROSS].value == pytest.approx(1)
    assert found[SEEDS].value == 1
    assert found[SEEDS].n == 3


def test_which_editor_made_it_knows_nothing_within_one():
    found = measure_values(editor_means(EDITS), EDITS, BENCH)
    assert found[WITHIN].value is None
    assert "all first values are equal" in found[WITHIN].reason
    assert found[SEEDS].value == 0.5
    assert (found[ACROSS].value or 0) > 0.5


def item_scores(own: float, other: float, noise: float = 0.0) -> ItemScores:
    """Scores of the ground truth with its own and others' instructions; the last row's own is missing."""
    values: dict[str, float | None] = {}
    for row in range(N):
        values[Item((TARGET, 0), row, row, "usual").id] = own if row < N - 1 else None
        values[Item((NOISE, 0), row, row, "usual").id] = noise
        values[Item((PICTURED, 0), row, row, "usual").id] = 0.1
        for told in other_rows(row, N, BENCH.candidates):
            values[Item((TARGET, 0), row, told, "usual").id] = other
        for key in KEYS:
            values[Item(key, row, row, "usual").id] = RATINGS[key][row]
    return ItemScores({"scorer": values})


def test_retrieval_shares_first_place_among_equal_scores():
    assert retrieval(item_scores(0.9, 0.2), "scorer", "usual", BENCH).tolist() == [1, 1, 1, 0]
    np.testing.assert_allclose(retrieval(item_scores(0.5, 0.5), "scorer", "usual", BENCH), [1 / 3] * 3 + [0])
    assert other_rows(2, N, 3) == [3, 0]


def test_ground_truth_competes_with_noise_and_a_picture():
    images = {
        (TARGET, 0): np.array([3.0, 1, 2, np.nan]),
        (NOISE, 0): np.array([1.0, 2, 2, 0]),
        (PICTURED, 0): np.array([2.0, 0, 2, np.nan]),
    }
    np.testing.assert_allclose(favoured_rows(images), [1, 0, 1 / 3, 0])


def test_all_figures_of_a_scorer_at_once():
    found = measure_scorer(item_scores(0.9, 0.2), "scorer", "usual", EDITS, BENCH)
    assert found[RETRIEVED].value == found[TRUTH].value == 0.75
    assert found[WITHIN].value == pytest.approx(1)
    assert found["not scored"].value == 0
    assert set(chance(BENCH)) == set(found) - {"not scored"}
    assert chance(BENCH)[RETRIEVED].value == pytest.approx(1 / 3)


def test_wordings_change_the_text_and_nothing_else():
    world = World(N)
    assert world.usual.source.equal(world.reserved.source)
    assert world.usual.target.equal(world.reserved.target)
    assert world.usual.instruction != world.reserved.instruction


def test_rows_show_a_scorer_no_more_than_an_editor_got():
    world = World(N)
    items = all_items(KEYS, N, BENCH.candidates)
    assert len({item.id for item in items}) == len(items) == 2 * N * (len(KEYS) + 3 + 2)
    rows = BenchRows(items, world, dict.fromkeys([*KEYS, (PICTURED, 0)], world.usual.target))
    for i, item in enumerate(items):
        sample = rows[i]
        assert sample.target is sample.mask is sample.target_caption is None
        texts = world.usual if item.wordings == "usual" else world.reserved
        assert sample.instruction == texts.instruction[item.told]


def test_names_leave_out_what_all_scorers_share():
    names = list(map(short_name, SCORERS))
    assert names[:3] == ["adiee", "bpm", "bpm(missing_object=failed)"]
    with pytest.raises(ValueError, match="scorers: expected each once"):
        ShapesBench(scorers=("l1", {"l1": {"against": "source"}}))
    with pytest.raises(ValueError, match=EDITOR):
        ShapesBench(editors=(COPY,))
