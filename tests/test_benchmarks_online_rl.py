"""The grid of online reinforcement learning: its arms, figures and table, and a run of it at tiny size."""

import json
import sys
import time
from typing import Any

import pytest

from rewardedit import load_scorer
from rewardedit.config import to_dict
from rewardedit.evaluation.held_out import of_world
from rewardedit.shapes import Shapes
from rewardedit.training.environment import environment
from tests.readme import BENCHMARKS, WORLD

sys.path[:0] = [str(BENCHMARKS), str(WORLD / "benchmarks")]

TINY = [
    *("data.limit=8", "train.max_steps=1", "train.batch_size=4", "monitor.n=2", "train.tracker=none"),
    *("evaluate.n=3", "evaluate.val_n=2", "evaluate.num_inference_steps=[1]", "evaluate.guidance_scale=[1]"),
]
TINY_ONLINE = [*TINY, "reward.group_size=2", "reward.num_inference_steps=2"]


def test_arms_share_base_reward_monitor_and_comparison():
    import online_rl

    recipes = [online_rl.recipe_of(arm) for arm in (online_rl.BASE, *online_rl.ARMS)]
    for recipe in recipes:
        assert recipe.base == "shapes/editor"
        assert recipe.reward.scorer == {"adiee": {"checkpoint": "shapes/adiee", "question": 0}}
        assert (recipe.data.limit, recipe.data.offset) == (recipes[0].data.limit, recipes[0].data.offset)
        assert recipe.evaluate == recipes[0].evaluate
        assert recipe.monitor == recipes[0].monitor
        assert recipe.train.batch_size == recipes[0].train.batch_size
        assert recipe.train.validate_every * 2 == recipe.train.max_steps
    by_arm = dict(zip(online_rl.ARMS, recipes[1:], strict=True))
    assert by_arm["nft"].reward.noise_mask is None
    assert by_arm["nft_masked"].reward.noise_mask == "change"
    differing = {"reward": {**to_dict(by_arm["nft"])["reward"], "noise_mask": "change"}}
    assert {**to_dict(by_arm["nft"]), **differing} == to_dict(by_arm["nft_masked"])
    for arm in ("pairs", "refl"):
        assert by_arm[arm].data.shapes.quality_mix == {"right": 1.0}


def test_figures_are_each_arm_minus_the_others():
    import online_rl

    test = of_world(Shapes("test").batch(0, 7))
    test.batch.mask[6] = 1  # an edit of all of the image
    scorers = {"l1": load_scorer("l1"), "ssim": load_scorer("ssim", against="target")}
    edits = {"base": test.source, "pairs": test.batch.target, "nft": test.source}
    found = online_rl.figures(edits, test, scorers)
    assert found["n"] == 7
    assert found["means"]["base"]["oracle"] == 0
    gain = found["differences"]["base"]["pairs"]["oracle"]
    assert gain["difference"] == pytest.approx(found["means"]["pairs"]["oracle"])
    assert gain["difference"] > 9
    assert found["differences"]["pairs"]["nft"]["oracle"]["difference"] == -gain["difference"]
    outside = found["differences"]["base"]["nft"]["change_outside"]
    assert outside["difference"] == 0
    assert outside["n"] == 6
    assert set(found["differences"]["nft"]) == {"base", "pairs"}
    assert set(found["flags"]) == set(edits)


def result_of(*arms: str) -> dict[str, Any]:
    """A result with these arms beside the base, all figures by hand."""
    gain = {"difference": 0.5, "ci95": [0.25, 0.75]}
    outside = {"difference": -0.001, "ci95": [-0.002, 0.0]}
    training = {"updates": 1500, "minutes": 19.6, "first": {"adiee": 6.0}, "last": {"adiee": 7.0}, "flags": 2}
    names = ("base", *arms)
    minus = {arm: {"oracle": gain, "change_outside": outside} for arm in names}
    return {
        "command": "this",
        **environment(),
        "n": 4,
        "means": {arm: {"oracle": 7.25, "adiee": 7.5} for arm in names},
        "differences": {"base": {arm: minus[arm] for arm in arms}},
        "flags": {
            **dict.fromkeys(names),
            "nft": "edges +0.3 spreads (limit +0.2): a; copied +0.1 (limit): b",
        },
        "settings": {arm: {"steps": 10, "text_guidance": 1.25} for arm in names},
        "trainings": dict.fromkeys(arms, training),
        "not_run": ["dpo", "flow_grpo"],
    }


def test_the_table_names_the_arms_that_are_missing(tmp_path, monkeypatch):
    import table_parts
    from tables_world import OF_THE_WORLD

    monkeypatch.setattr(table_parts, "FOLDERS", (tmp_path,))
    assert OF_THE_WORLD["online-rl"]() == table_parts.NOT_RECORDED

    (tmp_path / "online-rl.json").write_text(json.dumps(result_of("nft")))
    head, _, base, nft, _, below = OF_THE_WORLD["online-rl"]().splitlines()
    assert "| `adiee` | that of the monitor, first → last |" in head
    assert base == "| base |  |  | 10, 1.25 | 7.25 |  |  | 7.50 |  |  |  |"
    assert nft == (
        "| **DiffusionNFT** | 1,500 | 20 | 10, 1.25 | 7.25 | +0.50 [+0.25, +0.75] |  | 7.50 | 6.00 → 7.00 | "
        "-0.0010 [-0.0020, +0.0000] | edges, copied; 2 while training |"
    )
    assert below.startswith("Not run: online DPO; Flow-GRPO. n = 4 held-out edits. `this`")
    assert "earlier runs" not in below

    kept = {"nft": {"commit": "0123456789", "date": "2026-01-01"}}
    (tmp_path / "online-rl.json").write_text(json.dumps({**result_of("nft"), "kept": kept}))
    assert OF_THE_WORLD["online-rl"]().endswith(
        " From earlier runs with the same base: DiffusionNFT (2026-01-01, commit 01234567). "
        "Arms of different runs are compared with the base alone."
    )


def test_recorded_arms_stand_beside_those_that_are_measured_anew():
    import online_rl

    recorded = {**result_of("pairs", "refl", "nft"), "health": {}, "commit": "first", "date": "2026-01-01"}
    recorded["differences"]["pairs"] = {"refl": "both kept", "nft": "old nft", "base": "kept"}
    now = {**result_of("nft"), "health": {}, "not_run": ["pairs", "refl", "dpo"]}
    now["means"]["nft"] = {"oracle": 8.0}
    now["differences"] = {"base": {"nft": "new"}, "nft": {"base": "new"}}
    assert online_rl.with_recorded(now, None) is now
    joined = online_rl.with_recorded(now, recorded)
    assert set(joined["means"]) == {"base", "pairs", "refl", "nft"}
    assert joined["means"]["nft"] == {"oracle": 8.0}
    assert joined["not_run"] == ["dpo"]
    assert joined["differences"]["base"]["nft"] == "new"
    assert joined["differences"]["base"]["refl"] == recorded["differences"]["base"]["refl"]
    assert joined["differences"]["pairs"] == {"refl": "both kept", "base": "kept"}
    assert joined["kept"]["refl"] == {"commit": "first", "date": "2026-01-01"}
    assert set(joined["kept"]) == {"pairs", "refl"}

    later = {**joined, "commit": "second", "date": "2026-01-02"}
    kept = online_rl.with_recorded({**now, "means": {"base": now["means"]["base"]}}, later)["kept"]
    assert {arm: origin["commit"] for arm, origin in kept.items()} == {
        "pairs": "first",
        "refl": "first",
        "nft": "second",
    }
    now["means"]["base"] = {"oracle": 7.0, "adiee": 7.5}
    with pytest.raises(ValueError, match="expected the means of this base on 4 rows; got others"):
        online_rl.with_recorded(now, recorded)


def test_minutes_of_a_start_that_is_killed_count(tmp_path, monkeypatch):
    import online_rl

    def killed(words: list[str]) -> int:
        (tmp_path / "nft").mkdir()
        (tmp_path / "nft" / online_rl.CONFIG).write_text("name: nft")
        ends = time.monotonic() + 30
        while not (tmp_path / "nft" / "minutes.json").is_file():
            assert time.monotonic() < ends
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(online_rl, "COUNT_EVERY", 0.01)
    monkeypatch.setattr(online_rl.cli, "main", killed)
    with pytest.raises(KeyboardInterrupt):
        online_rl.train("nft", tmp_path)


@pytest.mark.slow
def test_a_stopped_grid_goes_on_and_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    import online_rl

    arms = {"nft": ["shapes/nft", "variants=[nft]", "reward.noise_mask=null", *TINY_ONLINE]}
    arms["pairs"] = [*online_rl.ARMS["pairs"], *TINY]
    arms["flow_grpo"] = ["shapes/flow-grpo", *TINY, "reward.group_size=2"]  # is to fail
    monkeypatch.setattr(online_rl, "ARMS", arms)
    monkeypatch.setattr(online_rl, "RESULTS", tmp_path)  # without a recorded result

    def grid(*words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [str(WORLD / "benchmarks" / "online_rl.py"), str(tmp_path), *words])
        capsys.readouterr()
        online_rl.main()
        out = capsys.readouterr().out
        return json.loads(out[out.index("\n{\n") :])

    main = online_rl.cli.main
    monkeypatch.setattr(online_rl.cli, "main", lambda words: 143)
    with pytest.raises(SystemExit) as stopped:
        grid()
    assert stopped.value.code == 143
    monkeypatch.setattr(
        online_rl.cli, "main", lambda words: 1 if "shapes/flow-grpo" in words else main(words)
    )
    found = grid()
    assert list(found["means"]) == ["base", "nft", "pairs"]
    assert found["not_run"] == ["flow_grpo"]
    assert found["trainings"]["nft"]["images"] == 4
    assert found["settings"]["pairs"]["steps"] == 1

    monkeypatch.setattr(online_rl.cli, "main", lambda words: pytest.fail("what is trained is trained again"))
    assert grid("nft") == found
    arms["nft"].append("train.lr=1e-5")
    with pytest.raises(ValueError, match=r"other settings: train\.lr"):
        grid("nft")
