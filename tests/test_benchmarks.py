"""The benchmark programs run, shortened; on CUDA they do more of the same."""

import json
import sys
from pathlib import Path

import pytest
import torch

from rewardedit import cli
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.shapes import Shapes
from tests.readme import BENCHMARKS, ROOT, WORLD

sys.path[:0] = [str(BENCHMARKS), str(WORLD / "benchmarks")]


@pytest.mark.world
def test_guidance():
    import guidance
    from guidance_cost import seconds_per_step

    from rewardedit import load_editor

    grid = (SamplingConfig(1, 1.0, 1.0), SamplingConfig(2, 1.5, 1.0))
    found = guidance.quality(14, 7, grid)
    assert found["settings"]["guided"]["guidance_scale"] == 1.5, "a mask restricts guidance"
    assert set(found["oracle"]) == {"plain", "guided"}
    assert found["guided_minus_plain"]["preservation"]["difference"] > 0
    cost = seconds_per_step(load_editor("shapes/editor").pipe, size=16, batch=1, steps=2, rounds=2)
    assert cost["plain"] > 0


def test_preservation_looks_outside_the_mask_alone():
    import guidance

    source = torch.zeros(2, 3, 8, 8)
    mask = torch.zeros(2, 1, 8, 8)
    mask[..., :4] = 1
    edited = source.clone()
    edited[0, ..., :4] = 1.0
    edited[1, ..., 4:] = 0.5
    assert guidance.preservation(source, edited, mask).tolist() == [1.0, 0.5]


@pytest.mark.world
def test_best_of_n(tmp_path, monkeypatch):
    import best_of_n

    grid = {1: SamplingConfig(1, 1.3, 1.0)}
    found = best_of_n.compare(3, 2, 2, tmp_path, grid)
    assert found["oracle"]["oracle's choice"] >= max(
        v for k, v in found["oracle"].items() if k != "oracle's choice"
    )
    assert set(found["with_captions"]["oracle"]) == {"clip_d", "clip_d:0.7,l1:0.3"}
    assert found["oracle"].keys() - found["against_one_sample"].keys() == {"one sample"}
    monkeypatch.setattr(best_of_n, "choose", None)  # nothing is chosen again
    assert best_of_n.compare(3, 2, 2, tmp_path, grid) == found


def test_each_way_of_choosing_takes_the_number_of_steps_that_is_best_on_val(tmp_path, monkeypatch):
    import best_of_n

    val = {2: {"one sample": 7.0, "l1": 3.0}, 4: {"one sample": 6.0, "l1": 5.0}}
    tried = []

    def choose(editor, samples, n, settings):
        steps = settings.num_inference_steps
        tried.append((len(samples), steps, n))
        rated = val[steps]
        if len(samples) == 3:  # test, where all is the other way round
            rated = {name: 10 - rating for name, rating in rated.items()}
        ratings = {name: [rating] * len(samples) for name, rating in rated.items()}
        return {"without_captions": ratings, "with_captions": {"l1": ratings["l1"]}}

    monkeypatch.setattr(best_of_n, "choose", choose)
    grid = {steps: SamplingConfig(steps, 1.5, 1.0) for steps in (2, 4)}
    found = best_of_n.compare(3, 2, 8, tmp_path, grid)
    assert found["steps"] == {"one sample": 2, "l1": 4}
    assert found["oracle"] == {"one sample": 3.0, "l1": 5.0}
    assert tried == [(2, 2, 8), (2, 4, 8), (3, 4, 8), (3, 2, 1)]  # one sample needs no candidates beside it


def test_a_sum_of_scorers_takes_what_the_weighted_scores_say():
    import best_of_n
    from common import load_scorer

    from rewardedit import EditBatch, WeightedSum

    samples = Shapes("val").batch(0, 4)
    edits = EditBatch(
        samples.source[:1].expand(4, -1, -1, -1),
        samples.instruction[:1] * 4,
        torch.stack([samples.source[0], samples.target[0], samples.source[1], samples.target[2]]),
    )
    scorers = {name: load_scorer(name) for name in ("l1", "vifi_clip")}
    names = ("l1", "vifi_clip", "l1:1000,vifi_clip:0.01", "l1:0.01,vifi_clip:1")
    found = best_of_n.best(scorers, edits, names)
    assert found["l1"] == 0
    assert found["l1:1000,vifi_clip:0.01"] == 0
    whole = WeightedSum(scorers, {"l1": 0.01, "vifi_clip": 1.0})(edits).score
    assert found["l1:0.01,vifi_clip:1"] == found["vifi_clip"] == int(whole.argmax())


@pytest.mark.world
def test_agreement():
    import agreement

    agreement.RESAMPLES = 5
    found = agreement.measure(["shapes/editor"], 28, (SamplingConfig(1, 1.2, 1.0),))
    assert found["n"] == 28
    assert set(found["rho"]) == set(agreement.GROUPS)
    row = found["rho"]["source, edited, instruction"]["clip_d"]
    assert set(row) == {"all", "extremes", "kinds"}
    assert -1 <= row["all"]["alignment"]["rho"] <= 1


@pytest.mark.slow
def test_throughput():
    import throughput

    from rewardedit import load_scorer

    assert throughput.samples_a_second(70, rounds=1) > 0
    found = throughput.measure(load_scorer("clip_d", checkpoint="shapes/clip"), 64, batch=16, rounds=1)
    assert min(found.values()) > 0
    assert set(found) == {"one by one", "batched", "8 candidates", "8 candidates, prepared"}


@pytest.mark.slow
def test_a_shared_prefix_gives_the_states_of_whole_passes():
    import prefix

    prefix.TOKENS = {"small": (24, 16)}
    model = prefix.make_model("small", "cpu")
    source, edited = prefix.embeddings(model, 1, 24, 0), prefix.embeddings(model, 3, 16, 1)
    with torch.no_grad():
        states = [way(model, source, edited) for way in (prefix.whole, prefix.sharing)]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)
    found = prefix.measure("small", "cpu", candidates=(1, 2), rounds=1)
    assert {"1", "2", "gradient"} <= set(found)
    assert found["2"]["sharing"]["seconds"] > 0
    assert found["gradient"]["whole"]["gib"] >= 0


@pytest.mark.slow
def test_a_process_has_a_peak_of_its_own():
    import multiprocessing

    import prefix

    held = torch.ones(60 * 2**20 // 4 * 4)  # 240 MiB, of which a new process knows nothing
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        assert alone.apply(prefix.peak_kib) < prefix.peak_kib()
    del held


def test_planted_defects_lie_outside_what_was_asked():
    import heat

    from rewardedit.shapes import Shapes

    samples = Shapes("val", kinds=("add", "recolour")).batch(0, 28)
    edited, disc, fits = heat.plant(samples)
    assert fits.float().mean() > 0.8
    assert (disc * samples.mask)[fits].sum() == 0
    area = disc.flatten(1).mean(1)
    assert area.min() > 0.015
    assert area.max() < 0.105
    assert torch.equal(
        edited[disc.expand(-1, 3, -1, -1) == 0], samples.target[disc.expand(-1, 3, -1, -1) == 0]
    )
    torch.testing.assert_close(heat.top_share(disc, disc), (area / heat.TOP).clamp(max=1), rtol=0, atol=0.01)


@pytest.mark.world
def test_retrieval(tmp_path):
    import retrieval

    words = ["data.limit=32", "held_out.limit=14", "train.max_steps=2", "train.batch_size=8"]
    found = retrieval.compare(words, rates=(1e-3,), runs=tmp_path)
    assert found["test"]["mean"]["swap"] == 0
    assert found["recall@1_temporal_minus_mean"]["n"] == found["test"]["temporal"]["n"]
    trained = tmp_path / "mean-0.001" / "config.yaml"
    before = trained.stat().st_mtime_ns
    assert retrieval.compare(words, rates=(1e-3,), runs=tmp_path) == found
    assert trained.stat().st_mtime_ns == before
    retrieval.compare([*words, "train.max_steps=1"], rates=(1e-3,), runs=tmp_path)
    assert "max_steps: 1\n" in trained.read_text()


@pytest.mark.world
def test_reward_guidance(tmp_path, monkeypatch):
    import reward_guidance

    monkeypatch.setattr(reward_guidance, "EDITS", 7)
    monkeypatch.setattr(reward_guidance, "VAL", 7)
    monkeypatch.setattr(reward_guidance, "SCALES", (0.02,))
    monkeypatch.setattr(reward_guidance, "SCORERS", {"clip_d": "shapes/clip"})
    steps = {4: SamplingConfig(4, 1.25, 1.0)}
    found = reward_guidance.compare(tmp_path, steps)
    guided = found["guided_minus_plain"]["clip_d"]
    assert guided["score"]["difference"] > 0
    assert set(guided["by_part"]) == set(reward_guidance.PARTS)
    monkeypatch.setattr(reward_guidance, "edit", None)  # nothing is edited again
    assert reward_guidance.compare(tmp_path, steps) == found


def test_what_guides_is_chosen_on_val(monkeypatch):
    import numpy as np
    import reward_guidance

    val = {(2, 0.0): 4, (2, 0.1): 6, (2, 0.2): 5, (4, 0.0): 7, (4, 0.1): 3, (4, 0.2): 5}

    def edit(editor, name, scale, samples, settings, between=reward_guidance.WHOLE):
        rating = val[settings.num_inference_steps, scale]
        if len(samples) == 5:  # test, where all is the other way round
            rating = 10 - rating
        return np.full(len(samples), rating), np.zeros(len(samples))

    monkeypatch.setattr(reward_guidance, "edit", edit)
    grid = {steps: SamplingConfig(steps, 1.5, 1.0) for steps in (2, 4)}
    found = reward_guidance.measure(None, "clip_d", 5, 3, grid, (0.1, 0.2))
    assert (found["plain_steps"], found["steps"], found["scale"]) == (4, 2, 0.1)
    assert found["oracle"]["mean_a"] == 4
    assert found["oracle"]["mean_b"] == 3


@pytest.mark.world
def test_refl_steps_do_the_same_work():
    import refl

    work = refl.small(batch=2, steps=2)
    torch.testing.assert_close(work.cached[0], work.encode()[0])
    found = refl.measure_time(lambda: work, rounds=1)
    for way in ("papers", "ours"):
        assert set(found[way]["milliseconds"]) == set(refl.PARTS)
    assert refl.peak(lambda: work, "ours") > 0


def test_tables_say_where_another_world_or_editor_was_measured():
    from table_parts import is_current, measured

    from rewardedit.training.environment import environment

    here = {"command": "this", **environment(), "date": "today"}
    earlier = {**here, "models": {**here["models"], "shapes/editor": "0" * 12}}
    first = {name: value for name, value in here.items() if name not in ("world", "models")}
    assert measured(here) == f"`this`, {here['device']}, today."
    moved = {**here, "command": "python benchmarks/heat.py x"}
    assert measured(moved).startswith("`python rewardedit/shapes/benchmarks/heat.py x`, ")
    stayed = measured({**here, "command": "python benchmarks/refl.py"})
    assert stayed.startswith("`python benchmarks/refl.py`, ")
    assert measured(earlier).endswith("today. With an earlier editor.")
    assert measured(first).endswith("World 1: not comparable with world 2.")
    assert [is_current(found) for found in (here, earlier, first)] == [True, False, False]
    before = {**here, "models": {**here["models"], "shapes/adiee": "0" * 12}}
    assert is_current(before)  # it has no scorer
    for command in (
        "python benchmarks/heat.py",
        "python benchmarks/adiee.py",
        "rewardedit train shapes/reward-conditioned relabel.scorer=adiee",
        "rewardedit train shapes/refl",
    ):
        used = {**before, "command": command}
        assert measured(used).endswith("today. With an earlier ADIEE scorer.")
        assert not is_current(used)
    both = {**earlier, "models": {}, "command": "python benchmarks/heat.py"}
    models = "editor and an earlier ADIEE scorer and an earlier ViFi-CLIP"
    assert measured(both).endswith(f"With an earlier {models}.")
    vifi_clip = {**here, "models": {**here["models"], "shapes/vifi-clip": "0" * 12}}
    assert is_current(vifi_clip)
    for command in ("rewardedit train quickstart relabel.scorer=vifi_clip", "python benchmarks/hacking.py"):
        used = {**vifi_clip, "command": command}
        assert measured(used).endswith("today. With an earlier ViFi-CLIP.")
        assert not is_current(used)


def test_programs_parse_their_command_line_and_write_tracked_files_with_write_alone(monkeypatch, capsys):
    import command_line

    for path in sorted([*BENCHMARKS.glob("*.py"), *(WORLD / "benchmarks").glob("*.py")]):
        text = path.read_text()
        parses = "read_command_line(" in text or "ArgumentParser(" in text
        assert parses or "__main__" not in text, f"{path.name}: --help would run it"
        assert "sys.argv" not in text or path.name in ("command_line.py", "scale.py"), path.name
    kept = []
    monkeypatch.setattr(command_line, "keep", lambda *args: kept.append(args))
    program = str(WORLD / "benchmarks" / "heat.py")
    monkeypatch.setattr(sys, "argv", [program, "a", "b"])
    command_line.read_command_line("", "FOLDER").keep("heat", {"n": 3})
    assert json.loads(capsys.readouterr().out) == {"n": 3}
    assert kept == []
    monkeypatch.setattr(sys, "argv", [program, "a", "--write", "b"])
    command_line.read_command_line("", "FOLDER").keep("heat", {"n": 3})
    command = "python rewardedit/shapes/benchmarks/heat.py a b"
    assert kept == [("heat", command, {"n": 3}, WORLD / "benchmarks" / "results")]
    for words in (["--help"], ["x"], ["--wirte"]):
        monkeypatch.setattr(sys, "argv", ["benchmarks/memory.py", *words])
        with pytest.raises(SystemExit):
            command_line.read_command_line("Memory of the recipes.")


def test_what_is_out_of_date_is_made_again_in_order(tmp_path, monkeypatch):
    import remake
    import table_parts

    from rewardedit.training.environment import environment

    monkeypatch.setattr(table_parts, "FOLDERS", (tmp_path,))
    made_here = json.dumps({"command": "this", **environment()})
    for name in remake.ORDER:
        (tmp_path / f"{name}.json").write_text(made_here)
    assert remake.out_of_date() == []
    (tmp_path / "heat.json").unlink()
    (tmp_path / "quickstart.json").write_text('{"command": "this"}')
    assert remake.out_of_date() == ["quickstart", "heat"]

    called = []
    monkeypatch.setattr(remake.subprocess, "run", lambda command, **_: called.append(command))
    monkeypatch.setattr(remake, "record", lambda run, command, folder: called.append([run.name, command]))
    remake.remake("quickstart-without-captions")
    from remake import VIFI_CLIP

    words = ["quickstart", VIFI_CLIP, "relabel.upper=null"]
    assert called[0][1:6] == ["train", *words, "name=quickstart-without-captions"]
    assert called[1] == ["quickstart-without-captions", " ".join(["rewardedit train", *words])]
    for name in remake.ORDER:
        *_, last = remake.commands(name)
        assert Path(last[0] if name in remake.RUNS else last[1]).is_file(), name
    assert [words[2:] for words in remake.commands("hacking")] == [
        ["train", "runs/hacking", "calibration", "honest", "--write"],
        ["train", "runs/hacking", "calibration", "reward_only", "--write"],
        ["train", "runs/hacking", "test", "honest", "--write"],
        ["train", "runs/hacking", "test", "reward_only", "--write"],
        ["judge", "runs/hacking", "--write"],
    ]
    data, labels = (  # without the last word of those that go on, where runs/ has them here
        [word for word in words if word != "--resume"] for words in remake.commands("labels-adiee-data")
    )
    assert "shapes/adiee-data" in data
    made = f"runs/{data[-1].removeprefix('name=')}/compared/rows"
    assert load_recipe("shapes/reward-conditioned", labels[3:-1])[1].data.path == made
    for recipe, *settings in remake.RUNS.values():
        load_recipe(recipe, settings)  # none is refused


def test_labellers_and_rewards_stand_side_by_side_where_the_world_is_this_one(tmp_path, monkeypatch):
    import table_parts
    from tables_editors import labellers

    from rewardedit.training.environment import environment

    monkeypatch.setattr(table_parts, "FOLDERS", (tmp_path,))
    assert labellers() == table_parts.NOT_RECORDED
    here = {"command": "this", **environment(), "date": "today"}
    five, one = 7.5, 0.25
    oracle = {"base": 7.0, "conditioned_five": five, "conditioned_one": one, "refl": 7.25}
    oracle |= {"ci95": [0.125, 0.75], "n": 560}
    for name, found in (
        ("labels-adiee", here),
        ("shapes-refl", here),
        ("shapes-refl-vifi-clip", {**here, "world": 1}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({**found, "oracle": oracle}))
    rows = labellers().splitlines()[2:4]
    adiee = "| labels, asked for five | `adiee` |"
    assert rows[0] == f"{adiee} 560 | 7.00 | 7.50 | +0.50 [+0.12, +0.75] | 0.25 |"
    assert rows[1] == "| reward (ReFL) | `adiee` | 560 | 7.00 | 7.25 | +0.25 [+0.12, +0.75] |  |"
    assert "vifi_clip" not in labellers()


@pytest.mark.slow
def test_one_place_for_each_thing_and_few_comprehensions():
    import code_metrics

    for places in ("scoring", "stages_done", "predicted_x0", "source_channels"):
        assert len(getattr(code_metrics, places)(ROOT)) == 1, places
    assert code_metrics.private_imports(ROOT) == []
    assert code_metrics.per_hundred_statements(ROOT)[0] <= 4.0  # comprehensions
    assert code_metrics.nested_comprehensions(ROOT) <= 0.02
    for kept in (code_metrics.parse, code_metrics.source_of, code_metrics.functions, code_metrics.calls):
        kept.cache_clear()  # a million nodes, which every later collection of garbage would look through


@pytest.mark.world
def test_runs_are_trained_and_kept_for_judging(tmp_path, monkeypatch):
    import hacking
    import hacking_runs

    small = {"DATA": DataConfig("shapes", limit=8), "N": 3, "POOLS": {"test": (0, 7)}}
    small |= {"CHECK_EVERY": {"honest": 1}, "STEPS": {"honest": 2}}
    small["SEEDS"] = {("test", "honest"): range(1, 3)}
    for name, value in small.items():
        monkeypatch.setattr(hacking_runs, name, value)
    hacking.train(tmp_path, "test", "honest", range(1, 2))
    (run,) = hacking.runs_of(tmp_path, "test", "honest")
    assert [edited.shape for edited in run.edits] == [(3, 3, 64, 64)] * 3
    assert not torch.equal(run.edits[0], run.edits[2])
    values = hacking.measured(tmp_path, "test", "honest", run)
    assert {"reward", "held_out", "oracle", "edges"} <= set(values[2])
    monkeypatch.setattr(hacking_runs, "described", lambda kind, seed: {"lr": 1.0})
    with pytest.raises(ValueError, match=r"1\.npz was made with other settings.*lr"):
        hacking.runs_of(tmp_path, "test", "honest")
    monkeypatch.setattr(hacking_runs, "N", 4)
    with pytest.raises(ValueError, match="was made with other settings: n: 3 there, 4 here"):
        hacking.train(tmp_path, "test", "honest", range(1, 2))


@pytest.mark.parametrize(("change", "honest"), [(0.2, True), (0.0, True), (-0.5, False)])
def test_a_run_is_honest_unless_the_oracle_clearly_fell(change, honest):
    import hacking

    base = torch.linspace(0, 10, 80)
    noise = torch.linspace(-0.1, 0.1, 80)
    values = [{"oracle": base}, {"oracle": base - 9}, {"oracle": base + change + noise}]
    assert hacking.is_honest(values) is honest


@pytest.mark.world
def test_hacks_are_planted_and_found():
    import hacking

    samples = Shapes("val").batch(0, 35)
    checks = hacking.CHECKS["honest"]
    edits = [(samples.target * 255).round().byte()] * (checks + 1)
    run = hacking.Run(1, "l1", samples, edits)
    base = {**run.values(edits[0]), "oracle": torch.zeros(35)}
    for kind, strengths in hacking.STRENGTHS.items():
        planted = [run.values(hacking.plant(kind, s, edits[k], run, k)) for k, s in enumerate(strengths, 1)]
        assert hacking.first_flag(planted, base, checks) is not None, kind
        assert torch.equal(hacking.plant(kind, 0.0, edits[0], run, 0), edits[0]), kind
    assert hacking.first_flag([run.values(edit) for edit in edits[1:]], base, checks) is None


def test_a_command_s_cpu_seconds_are_those_of_its_process_and_their_failure_is_told(tmp_path):
    import startup

    busy = "import time; began = time.process_time()\nwhile time.process_time() - began < 0.5: pass"
    assert startup.cpu_seconds([sys.executable, "-c", busy], tmp_path) > 0.4
    assert startup.cpu_seconds([sys.executable, "-c", "import time; time.sleep(1)"], tmp_path) < 0.9
    with pytest.raises(RuntimeError, match="no such thing"):
        startup.cpu_seconds([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path)
    startup.write_pair(tmp_path)
    words = startup.commands(tmp_path)
    assert cli.main(words["rewardedit score, one pair, l1"][2:]) == 0


def test_reading_and_ssim_beside_what_they_replaced():
    import speed_reading

    found = speed_reading.measure(rounds=2, rows=1, side=24, size=16, memory=False)
    assert list(found) == [
        "reading two JPEG of 24 px to 16",
        "reading two PNG of 24 px to 16",
        "reading two WEBP of 24 px to 16",
        "ssim against the five blurs one by one",
        "ssim against torchmetrics",
    ]
    for path, figures in found.items():
        assert ("limit_share" in figures) == path.startswith("ssim")
        assert figures["ratio"] > 0
        assert figures["n"] == 2
    files = speed_reading.Files("JPEG", rows=2, side=128)
    ((ours,), (plain,)) = (way(files, 64) for way in (speed_reading.read, speed_reading.read_plainly))
    assert ours.instruction == plain.instruction
    for name in ("source", "edited"):
        away = (getattr(ours, name) - getattr(plain, name)).abs()
        assert away.mean() <= 0.31 / 255
    plain = speed_reading.ssim_plainly(ours.source, ours.edited)
    torch.testing.assert_close(speed_reading.ssim_map(ours.source, ours.edited), plain, rtol=0, atol=1e-6)
