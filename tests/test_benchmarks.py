"""The benchmark programs run, shortened; on CUDA they do more of the same."""

import json
import sys
from pathlib import Path

import pytest
import torch

from rewardedit import cli
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import EditConfig
from rewardedit.evaluation.hacking import LIMITS, Limit
from rewardedit.models import resolve_model
from rewardedit.scorers.load import BUILT_IN
from rewardedit.shapes import Shapes

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


@pytest.mark.world
def test_guidance():
    import guidance

    from rewardedit import load_editor

    grid = (EditConfig(1, 1.0, 1.0), EditConfig(2, 1.5, 1.0))
    found = guidance.quality(14, 7, grid)
    assert found["settings"]["guided"]["guidance_scale"] == 1.5, "a mask restricts guidance"
    assert set(found["oracle"]) == {"plain", "guided"}
    assert found["guided_minus_plain"]["preservation"]["difference"] > 0
    cost = guidance.seconds_per_step(load_editor("shapes-editor").pipe, size=16, batch=1, steps=2, rounds=2)
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

    grid = {1: EditConfig(1, 1.3, 1.0)}
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
    grid = {steps: EditConfig(steps, 1.5, 1.0) for steps in (2, 4)}
    found = best_of_n.compare(3, 2, 8, tmp_path, grid)
    assert found["steps"] == {"one sample": 2, "l1": 4}
    assert found["oracle"] == {"one sample": 3.0, "l1": 5.0}
    assert tried == [(2, 2, 8), (2, 4, 8), (3, 4, 8), (3, 2, 1)]  # one sample needs no candidates beside it


def test_a_sum_of_scorers_takes_what_the_weighted_scores_say():
    import best_of_n

    from rewardedit import EditBatch, WeightedSum, load_scorer

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
    found = agreement.measure(["shapes-editor"], 28, (EditConfig(1, 1.2, 1.0),))
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
    found = throughput.measure(load_scorer("clip_d"), 64, batch=16, rounds=1)
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

    words = ["data.rows=32", "held_out.rows=14", "train.max_steps=2", "train.batch_size=8"]
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
    monkeypatch.setattr(reward_guidance, "SCORERS", {"clip_d": "shapes-clip"})
    steps = {4: EditConfig(4, 1.25, 1.0)}
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
    grid = {steps: EditConfig(steps, 1.5, 1.0) for steps in (2, 4)}
    found = reward_guidance.measure(None, "clip_d", 5, 3, grid, (0.1, 0.2))
    assert (found["plain_steps"], found["steps"], found["scale"]) == (4, 2, 0.1)
    assert found["oracle"]["mean_a"] == 4
    assert found["oracle"]["mean_b"] == 3


def test_what_was_measured_of_reward_guidance_holds_what_the_page_says():
    found = recorded("reward-guidance")["guided_minus_plain"]
    assert set(found) == {"adiee", "vifi_clip", "clip_d"}
    for of_scorer in found.values():
        assert of_scorer["by_part"]["all steps"] == of_scorer["oracle"]
        assert of_scorer["by_part"]["second half"]["ci95"][0] > 0
        assert abs(of_scorer["by_part"]["first half"]["difference"]) < 0.05


@pytest.mark.world
def test_refl_steps_do_the_same_work():
    import refl

    work = refl.small(batch=2, steps=2)
    torch.testing.assert_close(work.cached[0], work.encode()[0])
    found = refl.measure_time(lambda: work, rounds=1)
    for way in ("papers", "ours"):
        assert set(found[way]["milliseconds"]) == set(refl.PARTS)
    assert refl.peak(lambda: work, "ours") > 0


def recorded(name: str) -> dict:
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())


def test_what_was_measured_holds_what_is_promised():
    quickstart = recorded("quickstart")["oracle"]
    guidance = recorded("guidance")
    without_captions = recorded("quickstart-without-captions")["oracle"]
    assert min(without_captions["ci95"][0], without_captions["ci95_vs_one"][0]) > 0
    assert without_captions["n"] == quickstart["n"]
    assert without_captions["base"] == pytest.approx(quickstart["base"], abs=0.01)  # side by side on the page
    assert min(quickstart["ci95"][0], quickstart["ci95_vs_one"][0]) > 0
    assert quickstart["n"] >= 256
    assert guidance["n"] >= 1024
    assert guidance["guided_minus_plain"]["preservation"]["ci95"][0] > 0
    assert guidance["guided_minus_plain"]["alignment"]["difference"] >= -0.2
    assert guidance["seconds_per_step"]["small, CPU, batch 8"]["extra_share"] <= 0.05
    comparison = recorded("shapes-reward-conditioned")["oracle"]
    assert comparison["n"] >= 512
    assert min(comparison[key][0] for key in ("ci95", "ci95_vs_one", "ci95_vs_unconditioned")) > 0


def test_reward_conditioning_gains_what_is_aimed_at():
    found = recorded("shapes-reward-conditioned")
    assert found["oracle"]["relative_gain"] >= 0.15
    assert found["flags"]["conditioned_five"] is None
    assert found["change_outside"]["conditioned_five"]["ci95"][0] <= 0
    best = recorded("shapes-editor")["settings"]["10"]["guidance_scale"]
    assert found["settings"]["base"]["text_guidance"] == best, "the base is at its best too"


@pytest.mark.parametrize("name", ["labels-adiee", "labels-vifi-clip"])
def test_labels_gain_without_captions(name):
    found = recorded(name)
    oracle, with_captions = found["oracle"], recorded("labels-clip-d")["oracle"]
    assert oracle["n"] >= 560
    assert oracle["base"] == pytest.approx(with_captions["base"], abs=0.01)  # one editor, one grid, one test
    assert min(oracle["ci95"][0], oracle["ci95_vs_one"][0]) > 0
    assert found["flags"]["conditioned_five"] is None
    assert found["change_outside"]["conditioned_five"]["ci95"][0] <= 0
    best = recorded("shapes-editor")["settings"]["10"]["guidance_scale"]
    assert found["settings"]["base"]["text_guidance"] == best, "the base is at its best too"


def test_labels_by_clip_d_of_the_instruction_alone_say_nothing():
    found = recorded("labels-clip-d-instructions")
    low, high = found["oracle"]["ci95_vs_one"]
    assert low < 0 < high, "the pages say that it does as well where it is asked for one"
    assert found["oracle"]["base"] == pytest.approx(recorded("labels-clip-d")["oracle"]["base"], abs=0.01)


def test_other_rewards_gain_less_and_vifi_clip_is_flagged():
    vifi_clip, clip_d = (recorded(f"shapes-refl-{name}") for name in ("vifi-clip", "clip-d"))
    ours = recorded("shapes-refl")["oracle"]
    for found in (vifi_clip, clip_d):
        assert found["oracle"]["n"] == ours["n"]
        assert found["oracle"]["base"] == pytest.approx(ours["base"], abs=0.01)
        assert found["oracle"]["ci95"][0] > 0
        assert found["oracle"]["refl"] < ours["refl"]
    assert "change_outside" in vifi_clip["flags"]["refl"]
    assert vifi_clip["change_outside"]["refl"]["ci95"][0] > 0
    assert clip_d["flags"]["refl"] is None


def test_clip_d_of_the_instruction_alone_as_a_reward_spoils_the_editor_and_is_flagged():
    found = recorded("shapes-refl-clip-d-instructions")
    assert found["oracle"]["n"] == recorded("shapes-refl")["oracle"]["n"]
    assert found["oracle"]["base"] == pytest.approx(recorded("shapes-refl")["oracle"]["base"], abs=0.01)
    assert found["oracle"]["ci95"][1] < 0
    assert found["flags"]["base"] is None
    assert "change_outside" in found["flags"]["refl"]


def test_labels_on_edits_of_the_scorers_own_data_gain_nothing_that_is_told_apart():
    found = recorded("labels-adiee-data")
    low, high = found["oracle"]["ci95"]
    assert low < 0 < high, "the page says that it may be nothing"
    assert found["oracle"]["ci95_vs_one"][0] > 0
    assert found["oracle"]["base"] == pytest.approx(recorded("labels-clip-d")["oracle"]["base"], abs=0.01)
    assert found["change_outside"]["conditioned_five"]["ci95"][1] < 0


def test_what_was_measured_of_the_editor_holds_what_is_promised():
    found = recorded("shapes-editor")
    assert found["n"] >= 560
    assert found["best_steps"] >= 8
    assert min(found["ci95_vs_1"][0], found["ci95_vs_2"][0]) > 0, "it samples: one step is not enough"
    plain = found["oracle"]["plain"]
    assert plain["all"] >= 4.0
    assert plain["add"] >= 3.0
    assert plain["move"] >= 1.5
    assert found["oracle"]["textured"]["all"] > 2.06
    assert found["oracle"]["photo"]["all"] > 1.13
    seeds = found["two_seeds"]
    assert seeds["pairs"] >= 140
    assert seeds["a_cell_apart"] >= 0.25
    assert seeds["both_right"] >= 0.08
    kept = json.loads((Path(resolve_model("shapes-editor")) / "editing.json").read_text())
    assert kept["num_inference_steps"] == found["best_steps"]


def test_editors_of_unlike_quality_are_spread():
    found = recorded("shapes-editors")
    means = found["mean"]
    assert found["n"] >= 280
    assert len(means) >= 5
    assert min(means.values()) >= 1.0
    assert max(means.values()) - min(means.values()) >= 1.5
    assert len(found["unseen"]) == 2
    assert set(found["unseen"]) < set(means)


def test_what_was_measured_of_text_to_image_holds_what_is_promised():
    found = recorded("shapes-text-to-image")
    assert found["n"] >= 560
    assert found["all_found"] >= 0.6
    assert found["by_objects"]["1"]["all_found"] >= 0.85
    assert set(found["by_objects"]) == {"1", "2", "3", "4", "5"}


def test_what_was_measured_of_scorers_holds_what_is_promised():
    retrieval = recorded("retrieval")
    heat = recorded("heat")
    temporal, mean = (retrieval["test"][pooling] for pooling in ("temporal", "mean"))
    assert temporal["n"] >= 1000
    assert retrieval["recall@1_temporal_minus_mean"]["ci95"][0] > 0
    assert temporal["recall@1"] >= 2 * mean["recall@1"]
    assert temporal["swap"] >= 0.95
    assert heat["n"] >= 256
    assert min(found["times"] for found in heat["scorers"].values()) >= 3
    assert set(recorded("throughput")["milliseconds_per_edit"]) == set(BUILT_IN)
    assert len(recorded("agreement")["rho"]) == 3
    for found in recorded("reward-guidance")["guided_minus_plain"].values():
        assert found["score"]["ci95"][0] > 0
        assert found["oracle"]["ci95"][0] > 0
    weights = Path(resolve_model("shapes-vifi-clip")).rglob("*.safetensors")
    assert sum(path.stat().st_size for path in weights) < 4 * 2**20


def test_what_was_measured_of_bpm_holds_what_is_promised():
    found = recorded("bpm")
    assert found["n"] >= 560
    assert found["mask_iou_median"] >= 0.7
    by_noise = found["ground_truth_by_noise"]["bpm"]
    assert set(by_noise) == {"5", "15", "50"}
    assert found["ground_truth"] == min(shares["ground_truth"] for shares in by_noise.values()) >= 0.87
    assert found["alignment"] >= 0.80
    assert found["ci95_vs_prior"][0] > 0
    assert found["alignment"] > found["prior"]
    assert len(found["two_seeds"]) >= 5
    parsed = recorded("bpm-parts")
    least = {"object": 0.97, "size": 0.99, "position": 0.97}
    assert set(parsed["parse"]) == set(parsed["parse_held_out"]) == set(least)
    for name, share in least.items():
        assert parsed["parse"][name] >= share, name
    for name in ("clip_t", "clip_d", "l2", "ssim", "lpips", "vifi_clip"):
        assert set(found["rivals"][name]) == {"ground_truth", "alignment"}
        assert found["rivals"][name]["ground_truth"] < found["ground_truth"] or name == "ssim"


def test_what_was_measured_of_bpm_s_masks_holds_what_is_promised():
    found = recorded("bpm-guidance")
    assert found["n"] >= 1120
    guided = found["oracle"]["guided"]
    assert guided["preservation"]["ci95"][0] > 0
    assert guided["score"]["ci95"][0] > 0
    for name in ("modification", "modification_or_missing"):
        assert guided[name]["difference"] >= -0.01, name
    for way in ("pasted", "pasted_feathered"):
        assert {"score", "preservation", "quality"} <= set(found["oracle"][way]), way
    better = found["oracle"]["guided_minus_pasted_quality"]["ci95"][0] > 0
    assert better or "guidance does not beat pasting" in (BENCHMARKS / "README.md").read_text()
    chosen = found["best_of_8"]
    assert chosen["bpm"]["ci95_vs_one_sample"][0] > 0
    assert chosen["bpm"]["mean"] < chosen["oracle's choice"]["mean"]
    best = recorded("best-of-n")
    for name in ("bpm", "adiee", "adiee:0.1,bpm:0.5"):
        assert best["against_one_sample"][name]["ci95"][0] > 0, name
        assert best["oracle"][name] < best["oracle"]["oracle's choice"], name


def test_what_was_measured_of_the_adiee_scorer_holds_what_is_promised():
    found = recorded("adiee")
    assert found["n"] >= 2240
    for of in (found, found["seen"]):
        assert of["ci95_vs_best_rival"][0] > 0
        rivals = of["spearman"].keys() - {"adiee", "same_labels"}
        assert {"bpm", "vifi_clip", "clip_d", "ssim", "shapes-vlm", "prior"} <= rivals
        assert "same_labels" in of["spearman"]
        for name in rivals:  # also over one that is better on test than the one that val chose
            assert of["ci95_vs"][name][0] > 0, name
        assert {"random", "always a tie"} <= of["pairwise"].keys()
    assert found["spearman"]["adiee"] >= 0.6
    assert found["own_margins"]["pairwise"]["adiee"] > found["pairwise"]["adiee"]
    assert found["own_margins"]["pairwise"].keys() == found["pairwise"].keys()
    checks = found["checks"]
    assert checks["untouched_sources"] < 2
    assert max(checks["source_and_edit_exchanged"], checks["other_instructions"]) < checks["true_edits"] - 5
    assert checks["spread_of_questions"] < 1


def test_what_was_measured_of_model_and_data_is_what_the_page_says():
    found = recorded("model-or-data")
    assert found["n"] >= 2240
    rho = {name: of["rho"] for name, of in found["spearman"].items()}
    assert rho["adiee"] > rho["same_labels"] > rho["vifi_clip"]
    assert found["adiee_above"]["same_labels"][0] > 0
    # "four fifths of the way"
    assert (rho["same_labels"] - rho["vifi_clip"]) / (rho["adiee"] - rho["vifi_clip"]) == pytest.approx(
        0.8, abs=0.05
    )


def test_what_was_measured_of_a_shared_prefix_holds_what_is_promised():
    found = recorded("prefix")["small, CPU"]
    source, candidate = found["source_tokens"], found["candidate_tokens"]
    assert source / (source + candidate) >= 0.6
    assert found["8"]["speedup"] >= 1.4
    assert found["gradient"]["memory_share"] < 1


def test_what_was_measured_of_refl_holds_what_is_promised():
    found = recorded("shapes-refl")
    oracle = found["oracle"]
    assert oracle["n"] >= 1024
    assert found["world"] == 2, "with the editor that samples"
    assert oracle["relative_gain"] >= 0.07
    assert min(oracle[key][0] for key in ("ci95", "ci95_vs_pairs_only")) > 0
    assert found["change_outside"]["refl"]["ci95"][0] <= 0
    assert found["settings"]["refl"]["steps"] >= 8
    assert {"predicted_x0", "reward_only", "draft_2", "draft_4"} <= set(oracle)
    small = recorded("refl-step")["steps"]["small editor, CPU, batch 16, 10 steps"]
    assert small["ours"]["samples_per_second"] > small["papers"]["samples_per_second"]


def test_tables_say_where_another_world_or_editor_was_measured():
    from table_parts import is_current, measured

    from rewardedit.training.environment import environment

    here = {"command": "this", **environment(), "date": "today"}
    earlier = {**here, "models": {**here["models"], "shapes-editor": "0" * 12}}
    first = {name: value for name, value in here.items() if name not in ("world", "models")}
    assert measured(here) == f"`this`, {here['device']}, today."
    assert measured(earlier).endswith("today. With an earlier editor.")
    assert measured(first).endswith("World 1: not comparable with world 2.")
    assert [is_current(found) for found in (here, earlier, first)] == [True, False, False]
    before = {**here, "models": {**here["models"], "shapes-adiee-scorer": "0" * 12}}
    assert is_current(before)  # it has no scorer
    for command in (
        "python benchmarks/heat.py",
        "python benchmarks/adiee.py",
        "rewardedit train shapes-reward-conditioned relabel.scorer=adiee",
        "rewardedit train shapes-refl",
    ):
        used = {**before, "command": command}
        assert measured(used).endswith("today. With an earlier ADIEE scorer.")
        assert not is_current(used)
    both = {**earlier, "models": {}, "command": "python benchmarks/heat.py"}
    models = "editor and an earlier ADIEE scorer and an earlier ViFi-CLIP"
    assert measured(both).endswith(f"With an earlier {models}.")
    vifi_clip = {**here, "models": {**here["models"], "shapes-vifi-clip": "0" * 12}}
    assert is_current(vifi_clip)
    for command in ("rewardedit train quickstart relabel.scorer=vifi_clip", "python benchmarks/hacking.py"):
        used = {**vifi_clip, "command": command}
        assert measured(used).endswith("today. With an earlier ViFi-CLIP.")
        assert not is_current(used)


def test_programs_parse_their_command_line_and_write_tracked_files_with_write_alone(monkeypatch, capsys):
    import command_line

    for path in sorted(BENCHMARKS.glob("*.py")):
        text = path.read_text()
        parses = "read_command_line(" in text or "ArgumentParser(" in text
        assert parses or "__main__" not in text, f"{path.name}: --help would run it"
        assert "sys.argv" not in text or path.name in ("command_line.py", "scale.py"), path.name
    kept = []
    monkeypatch.setattr(command_line, "keep", lambda *args: kept.append(args))
    monkeypatch.setattr(sys, "argv", ["benchmarks/heat.py", "a", "b"])
    command_line.read_command_line("", "FOLDER").keep("heat", {"n": 3})
    assert json.loads(capsys.readouterr().out) == {"n": 3}
    assert kept == []
    monkeypatch.setattr(sys, "argv", ["benchmarks/heat.py", "a", "--write", "b"])
    command_line.read_command_line("", "FOLDER").keep("heat", {"n": 3})
    assert kept == [("heat", "python benchmarks/heat.py a b", {"n": 3})]
    for words in (["--help"], ["x"], ["--wirte"]):
        monkeypatch.setattr(sys, "argv", ["benchmarks/memory.py", *words])
        with pytest.raises(SystemExit):
            command_line.read_command_line("Memory of the recipes.")


def test_what_is_out_of_date_is_made_again_in_order(tmp_path, monkeypatch):
    import remake
    import table_parts

    from rewardedit.training.environment import environment

    monkeypatch.setattr(table_parts, "RESULTS", tmp_path)
    made_here = json.dumps({"command": "this", **environment()})
    for name in remake.ORDER:
        (tmp_path / f"{name}.json").write_text(made_here)
    assert remake.out_of_date() == []
    (tmp_path / "heat.json").unlink()
    (tmp_path / "quickstart.json").write_text('{"command": "this"}')
    assert remake.out_of_date() == ["quickstart", "heat"]

    called = []
    monkeypatch.setattr(remake.subprocess, "run", lambda command, **_: called.append(command))
    monkeypatch.setattr(remake, "record", lambda run, command: called.append([run.name, command]))
    remake.remake("quickstart-without-captions")
    words = ["quickstart", "relabel.scorer=vifi_clip", "relabel.upper=null"]
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
    assert "shapes-adiee-data-compared" in data
    made = f"runs/{data[-1].removeprefix('name=')}/rows"
    assert load_recipe("shapes-reward-conditioned", labels[3:-1])[1].data.path == made
    for recipe, *settings in remake.RUNS.values():
        load_recipe(recipe, settings)  # none is refused


def test_labellers_and_rewards_stand_side_by_side_where_the_world_is_this_one(tmp_path, monkeypatch):
    import table_parts
    from tables_editors import labellers

    from rewardedit.training.environment import environment

    monkeypatch.setattr(table_parts, "RESULTS", tmp_path)
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


def test_the_weights_are_those_of_the_version_before_the_code_moved():
    runs = recorded("same-weights")["runs"]
    assert len(runs) == 4
    assert "shapes-refl, refl, 50 steps, fp32" in runs
    for name, run in runs.items():
        assert run["now"] == run["before"], name
        assert "losses and rewards" in run["now"], name
        assert sum(key.endswith(".safetensors") for key in run["now"]) >= 3, name


def test_quantiles_of_true_targets_train_better_than_the_score_as_it_is():
    found = recorded("reward-scale")
    oracle = found["oracle"]
    low, high = oracle["ci95_vs_quantiles"]
    assert low < high < 0, "none − quantiles"
    for name in ("base", "none", "quantiles"):
        grid = found["settings"][name]["val"]
        chosen = found["settings"][name]["text_guidance"]
        assert grid[f"6 steps, text {chosen:g}, image 1.2"] == max(grid.values()), "chosen on val"
        assert 1.25 < chosen < 2, "not at the end of the grid"
    said = (
        f"base {oracle['base']:.2f}, `none` {oracle['none']:.2f}, `quantiles` {oracle['quantiles']:.2f} "
        f"(n = {found['n']})"
    )
    page = " ".join((BENCHMARKS / "README.md").read_text().split())
    assert said in page
    assert f"{oracle['quantiles'] - oracle['none']:+.2f} [{-high:+.2f}, {-low:+.2f}]" in page


def test_every_fault_that_is_kept_was_seen_red():
    found = recorded("suite")
    assert found["faults"]["red"] == found["faults"]["planted"]
    assert found["faults"]["planted"] == len(list((BENCHMARKS.parent / "tests" / "faults").glob("*.patch")))
    assert found["seconds"] < 600


def test_there_is_one_place_for_each_thing():
    from code_metrics import measure

    places = {"score rows", "say that a stage is done", "compute predicted x0", "concatenate source channels"}
    found = measure(BENCHMARKS.parent, pyright=False)
    assert {name: found[f"places that {name}"] for name in places} == dict.fromkeys(places, 1)
    assert found["private cross-imports"] == 0
    kept = recorded("code-metrics")["after"]
    assert kept["unresolved imports"] == 0
    assert {name: kept[f"places that {name}"] for name in places} == dict.fromkeys(places, 1)


def test_what_was_measured_of_hacking_holds_what_is_promised():
    found = recorded("hacking")
    detected = found["detected"]
    assert set(detected) == {"noise", "flooding", "copying", "reward_only"}
    assert min(detected["noise"], detected["flooding"], detected["copying"]) >= 0.8
    assert found["false_alarms"] <= 0.05
    assert found["runs"].pop("honest") >= 60
    assert min(found["runs"].values()) >= 20
    seeds = [seed for own in found["seeds"].values() for seed in own]
    assert found["seeds"].keys() == {"calibration", "honest", "reward_only"}
    assert len(set(seeds)) == len(seeds)
    assert found["limits"] == found["limits_of_calibration"]
    assert found["limits"] == {hacking_name(limit): limit.most for limit in LIMITS}


@pytest.mark.xfail(reason="not reached: 19 of 24 runs on the reward alone are flagged", strict=True)
def test_runs_on_the_reward_alone_are_flagged_as_promised():
    assert recorded("hacking")["detected"]["reward_only"] >= 0.8


def hacking_name(limit: Limit) -> str:
    """As `benchmarks/hacking.py` writes it."""
    return f"{limit.name} {'+' if limit.direction > 0 else '-'}"


@pytest.mark.world
def test_runs_are_trained_and_kept_for_judging(tmp_path, monkeypatch):
    import hacking
    import hacking_runs

    small = {"DATA": DataConfig(rows=8), "N": 3, "POOLS": {"test": (0, 7)}}
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
    with pytest.raises(ValueError, match=r"1\.npz was made of other settings.*lr"):
        hacking.runs_of(tmp_path, "test", "honest")
    monkeypatch.setattr(hacking_runs, "N", 4)
    with pytest.raises(ValueError, match="was made of other settings: n: 3 there, 4 here"):
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


def test_commands_that_do_little_take_little():
    found = recorded("startup")["cpu_seconds"]
    assert max(found["after"]["import rewardedit"], found["after"]["rewardedit --help"]) < 0.3
    assert found["after"].keys() == found["before"].keys()


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


def test_a_stage_s_memory_is_flat_and_workers_and_processes_help():
    found = recorded("scale")
    few, many = (found["peak_gib"][rows] for rows in ("10000", "200000"))
    assert many <= 1.1 * few
    slow, fast = sorted(found["rows_per_s"].values())
    assert slow >= 0.9 * fast
    waiting = {workers: values["waiting"] for workers, values in found["workers"].items()}
    assert waiting["1"] <= waiting["0"] / 2
    assert found["processes"]["two_vs_one"] <= 0.65


def test_rules_label_enough_rows_of_enough_methods():
    found = recorded("adiee-data")
    assert found["rows"] >= 30_000
    assert found["minutes"] <= 60
    kept = [method["kept"] for method in found["methods"].values()]
    assert sum(kept) >= 10_000
    assert sum(n >= 1_000 for n in kept) >= 5
    assert not {"shapes-editor-wrong-object", "shapes-editor-right-only"} & set(found["methods"])
    for name in ("ci95_5_over_0", "ci95_10_over_5"):
        assert found[name][0] > 0
        assert found["shuffled"][name][0] < found[name][0]
    assert found["turns_spearman"]["rho"] > 0.9
    probe = found["probe"]
    assert probe["with_reconstruction"]["accuracy"] < probe["without_reconstruction"]["accuracy"]
    for rule in ("source", "target", "turns_none", "turns_some", "turns_all"):
        assert found["rules"][rule]["agree"] > 0.9
