"""Attacks on edits of a table and of the world: what passes, what transfers, and what is made once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rewardedit.batch import EditBatch, EditSample
from rewardedit.data import DataConfig
from rewardedit.data.table import Table
from rewardedit.data.worlds import WorldConfig
from rewardedit.evaluation.robustness.measure import (
    AttackScores,
    RobustnessConfig,
    combination_name,
    score_attacks,
    stepped_name,
)
from rewardedit.evaluation.robustness.rows import JudgedEdits, judged_table, judged_world, spread
from rewardedit.evaluation.robustness.tables import (
    BEFORE,
    CHANGE,
    PASSING,
    make_tables,
    measure_baselines,
    measure_effects,
)
from rewardedit.evaluation.scorer_use import ScorerUse
from rewardedit.images import to_pil
from rewardedit.scorers import load_scorer, scorer
from rewardedit.stages.lazy import Lazy

SIDE = 16
CONFIG = RobustnessConfig(attacks=("saturation", "blur"), bounds=(8,), steps=4, stepped=3)
scored: list[int] = []  # sizes of the batches that `redness` has scored


@scorer(differentiable=True, range=(0.0, 1.0))
def redness(batch: EditBatch) -> torch.Tensor:
    scored.append(len(batch))
    return batch.edited[:, 0].mean((1, 2))


@scorer(differentiable=True, range=(0.0, 1.0))
def warmth(batch: EditBatch) -> torch.Tensor:
    return (1 + batch.edited[:, 0] - batch.edited[:, 2]).mean((1, 2)) / 2


@scorer(range=(0.0, 1.0))
def blueness(batch: EditBatch) -> torch.Tensor:
    return batch.edited[:, 2].detach().mean((1, 2))


def use(function: Any) -> ScorerUse:
    name = function.__name__
    return ScorerUse(name, {"scorer": name}, Lazy(lambda: load_scorer(function)))


USES = {function.__name__: use(function) for function in (redness, warmth, blueness)}


def plain(red: float, blue: float = 0.4) -> torch.Tensor:
    return torch.tensor([red, 0.2, blue])[:, None, None].expand(3, SIDE, SIDE).clone()


def edits(n: int = 5) -> JudgedEdits:
    """Good edits are red; failed ones fall short of the threshold by 4 levels, the last by 40. Good ones are
    also bluer, but for the first.
    """
    rows = []
    for number in range(n):
        rows.append(
            EditSample(
                f"good {number}", plain(0.1), "make it red", plain((160 + number) / 255, (102 + number) / 255)
            )
        )
    for number in range(n):
        red = 120 if number == n - 1 else 156
        rows.append(EditSample(f"failed {number}", plain(0.1), "make it red", plain(red / 255)))
    sources = [f"source {number % n}" for number in range(2 * n)]
    return JudgedEdits(rows, list(range(n)), list(range(n, 2 * n)), sources)


def test_gradient_steps_pass_and_transfer_by_hand(tmp_path: Path):
    config = replace(CONFIG, stepped=5, good_share=1.0)
    found = score_attacks(tmp_path, edits(), USES, config, {}, SIDE)
    assert set(found.stepped) == {"redness", "warmth"}  # blueness has no gradient

    effects = measure_effects(found, edits(), measure_baselines(found, edits(), config))
    own = effects[stepped_name("redness", 8)]
    assert own["redness"].passed.mean_b == 0
    assert own["redness"].passed.mean_a == 0.8  # 8 levels are enough for all but the last
    assert own["warmth"].passed.mean_a == 0.8  # red is half of warmth
    assert own["blueness"].passed.mean_a == own["blueness"].passed.mean_b == 1

    other = effects[stepped_name("warmth", 8)]
    assert other["redness"].passed.mean_a == 0.8
    assert other["blueness"].passed.mean_a == 0  # the steps take blue away
    assert other["blueness"].rise.difference < 0
    rise = 255 * (found.stepped["redness"][8]["redness"] - found.failed["none"]["redness"])
    np.testing.assert_allclose(rise, 8, atol=1e-3)


def test_combination_is_scored_as_the_lower_of_two(tmp_path: Path):
    config = replace(CONFIG, combinations=(("redness", "warmth"),))
    found = score_attacks(tmp_path, edits(), USES, config, {}, SIDE)
    name = combination_name(("redness", "warmth"))
    both = np.concatenate([found.good["redness"], found.failed["none"]["redness"]])
    median, spread = found.centres["redness"]
    assert (median, spread) == (np.median(both), both.std(ddof=1))
    centred = [
        (found.good[one] - found.centres[one][0]) / found.centres[one][1] for one in ("redness", "warmth")
    ]
    np.testing.assert_array_equal(found.good[name], np.minimum(*centred))
    assert name in found.stepped
    assert (found.stepped[name][8][name] > found.failed["none"][name][:3]).all()


def test_second_call_scores_nothing_and_finds_the_same(tmp_path: Path):
    first = score_attacks(tmp_path, edits(), USES, CONFIG, {}, SIDE)
    scored.clear()
    again = score_attacks(tmp_path, edits(), USES, CONFIG, {}, SIDE)
    assert not scored
    assert make_tables(again, edits(), CONFIG) == make_tables(first, edits(), CONFIG)
    with pytest.raises(ValueError, match="made with other settings"):
        score_attacks(tmp_path, edits(), USES, replace(CONFIG, steps=5), {}, SIDE)


def test_table_s_column_says_which_edits_are_good(tmp_path: Path):
    lines = ["source,edited,instruction,good"]
    for number, cell in enumerate(["yes", "1", "False", "no", ""]):
        to_pil(plain(number / 10)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{number}.png,make it red,{cell}")
    file = tmp_path / "edits.csv"
    file.write_text("\n".join(lines))
    found = judged_table(Table(str(file)))
    assert (found.good, found.failed, found.rate) == ([0, 1], [2, 3], None)

    file.write_text("\n".join([*lines[:-1], "4.png,4.png,make it red,perhaps"]))
    with pytest.raises(ValueError, match="row 4: good: expected true or false; got perhaps"):
        judged_table(Table(str(file)))
    file.write_text("\n".join(lines[:3]))
    with pytest.raises(ValueError, match="expected failed edits of at least two source images; got 0"):
        judged_table(Table(str(file)))


def test_world_s_edits_are_rated_before_and_after(tmp_path: Path):
    mix = {"right": 0.5, "wrong_object": 0.25, "untouched": 0.25}
    data = DataConfig("shapes", split="test", limit=8, shapes=WorldConfig(quality_mix=mix))
    found = judged_world(data, good_from=9, failed_up_to=1)
    config = RobustnessConfig(attacks=("pasted source",), bounds=())
    scores = score_attacks(tmp_path, found, {"redness": USES["redness"]}, config, {}, data.size)
    assert set(scores.ratings) == {"none", "pasted source"}
    assert (scores.ratings["none"] <= 1).all()
    assert len(scores.ratings["none"]) == len(found.failed)
    assert make_tables(scores, found, config)[-1].title == "Exact ratings"


def test_edits_of_other_sources_are_chosen_first():
    sources = ["a", "a", "a", "b", "b", "c"]
    assert spread(range(6), sources, 3) == [0, 3, 5]
    assert spread(range(6), sources, 4) == [0, 1, 3, 5]
    assert spread([5, 1, 2], sources, None) == [1, 2, 5]


def test_edit_that_an_attack_made_better_is_left_out():

    scores = AttackScores(
        good={"redness": np.array([0.9, 0.8])},
        failed={
            "none": {"redness": np.array([0.1, 0.2, 0.3])},
            "blur": {"redness": np.array([0.9, 0.3, 0.5])},
        },
        stepped={},
        chosen=np.arange(3),
        centres={},
        ratings={"none": np.array([0.0, 0.0, 1.0]), "blur": np.array([9.0, 0.5, 1.0])},
    )
    rows = JudgedEdits([], [0, 1], [2, 3, 4], list("abcde"))
    config = RobustnessConfig(attacks=("blur",))
    effect = measure_effects(scores, rows, measure_baselines(scores, rows, config))["blur"]["redness"]
    assert effect.passed.n == 2
    assert effect.rise.n == 2
    assert effect.passed.mean_a == 0


def test_shares_before_and_after_are_of_the_same_edits():
    """Of four failed edits two pass; the steps are made for one that passes and two that do not."""
    scores = AttackScores(
        good={"redness": np.array([0.5, 0.5])},
        failed={
            "none": {"redness": np.array([0.6, 0.1, 0.2, 0.9])},
            "blur": {"redness": np.array([0.6, 0.6, 0.6, 0.9])},
        },
        stepped={"redness": {8: {"redness": np.array([0.9, 0.9, 0.2])}}},
        chosen=np.array([0, 1, 2]),
        centres={},
        ratings={},
    )
    rows = JudgedEdits([], [0, 1], [2, 3, 4, 5], list("abcdef"))
    config = RobustnessConfig(attacks=("blur",), bounds=(8,))
    tables = {table.title: table.rows[0].cells for table in make_tables(scores, rows, config)}
    after, before, change = (tables[title] for title in (PASSING, BEFORE, CHANGE))
    for column, shares in {"blur": (1, 1 / 2), "steps 8/255": (2 / 3, 1 / 3)}.items():
        assert (after[column].value, before[column].value) == shares
        assert change[column].value == pytest.approx(shares[0] - shares[1])
        assert after[column].n == before[column].n == change[column].n
        assert change[column].ci95 is not None


def test_unreadable_row_is_left_out_and_others_count(tmp_path: Path):
    rows = edits()

    class Broken(list):
        def __getitem__(self, number: int) -> EditSample:
            if number == 6:
                raise ValueError("damaged")
            return super().__getitem__(number)

    broken = replace(rows, rows=Broken(rows.rows))
    found = score_attacks(tmp_path, broken, {"redness": USES["redness"]}, CONFIG, {}, None)
    assert np.isnan(found.failed["blur"]["redness"]).tolist() == [False, True, False, False, False]
    assert np.isnan(found.stepped["redness"][8]["redness"]).tolist() == [False, True, False]
