"""Guard against regressions: a planted drop fails, noise does not."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardedit.evaluation.score_guard import changes, not_compared, read_baseline
from rewardedit.scoring import write_records

SOURCES = 60


def records(scores, editor="a", scorer="s", first=0):
    """Records of two requests for each source, as the scoring engine makes them."""
    made = []
    for i, score in enumerate(scores, first):
        row = {"editor": editor, "request": f"r{i}", "source_id": f"source {i // 2}", "name": f"r{i}"}
        valid = bool(np.isfinite(score))
        made.append(
            {
                "id": f"{editor}/r{i}",
                "instruction": "make it red",
                "scorer": scorer,
                "score": float(score) if valid else None,
                "valid": valid,
                "reason": None if valid else "damaged",
                "parts": {},
                "row": row,
            }
        )
    return made


def noisy(rng, mean=0.0):
    """Scores before and after: sources differ more than two runs of one editor do."""
    of_sources = np.repeat(rng.normal(size=SOURCES), 2)
    before = of_sources + rng.normal(size=2 * SOURCES) * 0.1
    after = of_sources + rng.normal(size=2 * SOURCES) * 0.1 + mean
    return before, after


def test_noise_passes_and_a_planted_drop_fails():
    """An editor by two scorers, without an allowance, in 100 pairs of runs."""
    rng = np.random.default_rng(0)
    alarms = 0
    caught = 0
    for _ in range(100):
        before = []
        now = []
        for scorer in ("s", "t"):
            earlier, later = noisy(rng)
            before += records(earlier, scorer=scorer)
            now += records(later, scorer=scorer)
        alarms += any(change.failure for change in changes(now, before, 0.0))
    for _ in range(10):
        earlier, later = noisy(rng, mean=-0.1)
        (change,) = changes(records(later), records(earlier), 0.02)
        caught += bool(change.failure)
    assert alarms <= 5
    assert caught == 10


def test_a_drop_within_the_allowance_passes():
    earlier, later = noisy(np.random.default_rng(1), mean=-0.1)
    (change,) = changes(records(later), records(earlier), 0.02)
    assert change.failure == "fell by more than 0.02"
    assert change.change.ci95[1] < -0.02
    (change,) = changes(records(later), records(earlier), 0.02, {"s": 0.2})
    assert change.failure == ""
    assert change.allowed == 0.2


def test_lost_scores_fail_however_the_others_change():
    earlier, later = noisy(np.random.default_rng(2), mean=0.5)
    later[:6] = np.nan
    (change,) = changes(records(later), records(earlier), 0.0)
    assert (change.failure, change.lost, change.change.n) == ("", 6, 114)
    (change,) = changes(records(later)[:-1], records(earlier), 0.0)
    assert change.failure == "7 of 120 scores of the baseline are missing or invalid now"


def test_a_single_editor_is_the_same_whatever_its_name():
    earlier, later = noisy(np.random.default_rng(3))
    (change,) = changes(records(later, "new"), records(earlier, "old"), 0.0)
    assert change.editor == "new"
    two = [*records(earlier, "old"), *records(earlier, "older")]
    with pytest.raises(ValueError, match="old by s, older by s in the baseline and new by s now"):
        changes(records(later, "new"), two, 0.0)


def test_missing_editor_is_refused_and_missing_scorer_named():
    earlier, later = noisy(np.random.default_rng(5))
    two = [*records(earlier, "a"), *records(earlier, "b"), *records(earlier, "a", "t")]
    with pytest.raises(ValueError, match="all editors of the baseline; got none of b by s;"):
        changes(records(later, "a"), two, 0.0)
    now = [*records(later, "a"), *records(later, "b"), *records(later, "new")]
    assert [(one.scorer, one.editor) for one in changes(now, two, 0.0)] == [("s", "a"), ("s", "b")]
    assert not_compared(now, two) == ["t"]


def test_a_baseline_of_other_images_is_refused():
    earlier, later = noisy(np.random.default_rng(4))
    with pytest.raises(ValueError, match="no request has a valid score in both"):
        changes(records(later, first=1000), records(earlier), 0.0)


def test_baselines_are_read_and_other_files_refused(tmp_path):
    made = records([0.5, np.nan])
    write_records(made, tmp_path / "scores.parquet")
    read = read_baseline(tmp_path / "scores.parquet")
    assert [record["score"] for record in read] == [0.5, None]
    assert read[0]["row"] == made[0]["row"]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    plain = [{**record, "row": {"folder": "a"}} for record in made]
    write_records(plain, tmp_path / "of_score.parquet")
    (tmp_path / "text.parquet").write_text("no table")
    for name in ("other", "of_score", "text", "missing"):
        with pytest.raises(ValueError, match=rf"--against .*{name}\.parquet"):
            read_baseline(tmp_path / f"{name}.parquet")
