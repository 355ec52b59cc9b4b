"""Comparisons of editors: settings are chosen on val, and the test set is looked at once."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rewardedit import load_scorer
from rewardedit.batch import Scores
from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import SamplingConfig, load_editor
from rewardedit.diffusion.saving import save_editor
from rewardedit.evaluation import comparison_wall
from rewardedit.evaluation.compare import compare, heat_of
from rewardedit.evaluation.comparison_metrics import VERSUS
from rewardedit.evaluation.comparison_page import write_page
from rewardedit.evaluation.comparison_report import table
from rewardedit.evaluation.comparison_wall import Compared, wall_of
from rewardedit.evaluation.evaluate_config import EvaluateConfig
from rewardedit.evaluation.hacking import hacking_signs
from rewardedit.evaluation.held_out import HeldOut, of_world
from rewardedit.reports.plain_names import scorer_name
from rewardedit.scorers.base import FunctionScorer
from rewardedit.shapes import Shapes, ShapesOracle

WORLD = DataConfig("shapes")


def test_settings_are_chosen_on_val(tmp_path):
    base = load_editor("shapes/editor")
    samples = Shapes("val").batch(0, 3)
    save_editor(base, tmp_path / "pipeline")
    evaluate = EvaluateConfig(
        data=WORLD, n=2, val_n=3, num_inference_steps=(1, 2), guidance_scale=(1.4,), autocast=False
    )
    rewards = {"l1": load_scorer("l1"), "l2": load_scorer("l2")}
    metrics = compare(evaluate, "shapes/editor", {"variant": tmp_path / "pipeline"}, rewards, tmp_path)
    edits = [
        base(samples.source, samples.instruction, range(3), settings=SamplingConfig(n, 1.4, 1.2))
        for n in (1, 2)
    ]
    rated = [float(ShapesOracle().rate(samples, edited).score.mean()) for edited in edits]
    for name in ("base", "variant"):
        chosen = metrics["settings"][name]
        assert list(chosen["val"].values()) == [round(value, 3) for value in rated]
        assert chosen["steps"] == (1 if rated[0] >= rated[1] else 2)


def test_a_reward_that_looks_outside_the_mask_is_given_the_mask_and_one_reward_raises_no_flag(tmp_path):
    save_editor(load_editor("shapes/editor"), tmp_path / "pipeline")
    evaluate = EvaluateConfig(data=WORLD, n=2, val_n=2, num_inference_steps=(1,), guidance_scale=(1.4,))
    spec = {"l1": {"region": "outside"}}
    rewards = {"l1": load_scorer(spec)}
    metrics = compare(evaluate, "shapes/editor", {"variant": tmp_path / "pipeline"}, rewards, tmp_path)
    assert 0.9 < metrics["rewards"]["variant"]["l1"] < 1
    assert metrics["flags"] == {"base": None, "variant": None}
    json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)


def test_a_reward_that_can_score_nothing_has_no_mean(tiny_editor, tmp_path):
    shutil.copytree(tiny_editor, tmp_path / "pipeline")
    evaluate = EvaluateConfig(data=WORLD, n=2, val_n=2, num_inference_steps=(1,), guidance_scale=(1.4,))
    rewards = {"none": FunctionScorer(lambda batch: torch.full((len(batch),), torch.nan))}
    metrics = compare(evaluate, tiny_editor, {"variant": tmp_path / "pipeline"}, rewards, tmp_path)
    assert metrics["rewards"] == {"base": {"none": None}, "variant": {"none": None}}
    assert (tmp_path / "report.html").is_file()


def test_editors_whose_truth_is_known_are_told_apart_with_the_right_signs(tiny_editor, tmp_path, monkeypatch):
    """The base edits a quarter rightly and copies the rest. Asked for five an editor hits nine of ten,
    and asked for one, in a tenth of the rows, it copies. A third one destroys.
    """
    from rewardedit.evaluation import compare as module

    test = Shapes("test", kinds=("recolour", "replace", "remove")).batch(0, 40)
    noise = torch.rand(test.source.shape, generator=torch.Generator().manual_seed(0))
    made = {
        ("base", 10.0): torch.cat([test.target[:10], test.source[10:]]),
        ("conditioned_five", 10.0): torch.cat([test.source[:1], test.target[1:37], test.source[37:]]),
        ("conditioned_five", 0.0): test.source[:4],
        ("hacked", 10.0): noise,
    }
    asked = []

    def edit_all(load, samples, score, settings, evaluate, folder, n=None):
        asked.append((folder.parent.name, score))
        assert n == (4 if score == 0 else None)
        folder.mkdir(parents=True)
        np.save(folder / "edits.npy", made[asked[-1]].numpy())
        return [folder / "edits.npy"]

    monkeypatch.setattr(module, "edit_all", edit_all)
    monkeypatch.setattr(Shapes, "batch", lambda *_: test)
    outputs = {name: tmp_path / name for name in ("conditioned_five", "hacked")}
    for folder in outputs.values():
        shutil.copytree(tiny_editor, folder)
    noisy = FunctionScorer(lambda batch: batch.edited.diff(dim=-1).abs().flatten(1).mean(1), family="edges")
    rewards = {"noisy": noisy, "ssim": load_scorer("ssim", against="target")}
    evaluate = EvaluateConfig(data=WORLD, n=40, val_n=1, num_inference_steps=(1,), guidance_scale=(1.4,))
    metrics = compare(evaluate, tiny_editor, outputs, rewards, tmp_path)

    assert metrics is not None
    assert sorted(asked) == sorted(made), "asked for one is asked for the worst"
    oracle = metrics["oracle"]
    expected = {"base": 2.5, "conditioned_five": 9, "conditioned_one": 0, "hacked": 0}
    assert {name: oracle[name] for name in expected} == pytest.approx(expected, abs=0.3)
    assert oracle["relative_gain"] == pytest.approx(oracle["conditioned_five"] / oracle["base"] - 1)
    for name in ("base", "hacked"):
        low, high = oracle[VERSUS.get(name, f"ci95_vs_{name}")]
        assert 0 < low < oracle["conditioned_five"] - oracle[name] < high, name
    assert metrics["flags"]["conditioned_five"] is None
    assert metrics["flags"]["conditioned_one"] is None
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"asked for one \([−\d.]+ − [−\d.]+, 4 edits\)", page)
    assert not re.search(r"base \([−\d.]+ − [−\d.]+, \d+ edits\)", page)
    assert oracle["ci95_vs_one"] == oracle["differences"]["conditioned_one"]["ci95"]
    assert oracle["differences"]["conditioned_one"]["difference"] == pytest.approx(7.5, abs=0.1)
    assert metrics["differences"]["ssim"]["conditioned_one"]["n"] == 4
    assert metrics["differences"]["ssim"]["base"]["n"] == 40
    assert "ssim -" in metrics["flags"]["hacked"], "the held-out reward falls while the training reward rises"
    outside = metrics["change_outside"]
    assert outside["hacked"]["ci95"][0] > 0.05
    assert outside["conditioned_five"]["difference"] == pytest.approx(0, abs=1e-3)
    difference = oracle["conditioned_five"] - oracle["base"]
    assert f"base                    {oracle['base']:6.2f}  {difference:+.2f} [" in table(
        metrics, "conditioned_five"
    )


@pytest.mark.parametrize("setting", [{"n": 1}, {"val_n": 0}, {"batch_size": 0}])
def test_numbers_that_would_fail_after_the_training_are_refused(setting):
    with pytest.raises(ValueError, match=f"{next(iter(setting))}: expected at least"):
        EvaluateConfig(**setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_inference_steps": (4, 0)}, "num_inference_steps: expected at least 1"),
        ({"image_guidance_scale": (0.9,)}, "image_guidance_scale: expected at least 1"),
    ],
)
def test_settings_that_would_fail_after_the_training_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        EvaluateConfig(**setting)


def test_a_grid_that_is_not_given_lies_around_the_base_s_own_settings():
    asked = EvaluateConfig().around(SamplingConfig(10, 1.75, 1.0))
    assert (asked.num_inference_steps, asked.guidance_scale) == ((10,), (1.5, 1.75, 2.0))
    assert EvaluateConfig().around(SamplingConfig(1, 1.05, 1.0)).guidance_scale == (1.0, 1.05, 1.2)
    assert EvaluateConfig().around(SamplingConfig(1, 1.0, 0.9)).image_guidance_scale == (1.0,)
    given = EvaluateConfig(num_inference_steps=(2, 4), guidance_scale=(3.0,))
    assert given.around(SamplingConfig(10, 1.5, 1.2)) == replace(given, image_guidance_scale=(1.2,))


def test_without_text_guidance_the_image_s_is_not_tried_twice():
    found = EvaluateConfig(
        num_inference_steps=(2, 4), guidance_scale=(1.0, 1.5), image_guidance_scale=(1.0, 1.2)
    ).grid()
    asked = [(s.num_inference_steps, s.guidance_scale, s.image_guidance_scale) for s in found]
    assert asked == [(2, 1, 1), (2, 1.5, 1), (2, 1.5, 1.2), (4, 1, 1), (4, 1.5, 1), (4, 1.5, 1.2)]


@pytest.fixture
def compared() -> tuple[Compared, HeldOut]:
    """Seven rows by a judge and another scorer; the result gains in row i what its index says."""
    samples = Shapes("test").batch(0, 7)
    rows = of_world(samples)
    gains = torch.tensor([0.0, 3.0, -2.0, 1.0, float("nan"), -1.0, 2.0])
    scores = {
        "base": {"l1": Scores.make(torch.zeros(7)), "ssim": Scores.make(torch.zeros(7))},
        "refl": {
            "l1": Scores.make(gains / 10, {"inside": gains}),
            "ssim": Scores.make(torch.tensor([0.0, 0.1, 0.1, 0.1, 0.1, 0.1, -0.5])),
        },
    }
    values = {name: by_scorer["l1"].score for name, by_scorer in scores.items()}
    edited = {"base": samples.source, "refl": samples.target}
    names = {name: scorer_name(name) for name in ("l1", "ssim")}
    signs = {name: hacking_signs(samples.source, images) for name, images in edited.items()}
    return Compared("refl", Path("runs/x/pipeline"), edited, "l1", values, scores, signs, names, "l1"), rows


def test_the_wall_shows_gains_losses_and_disagreements(compared, monkeypatch):
    of, rows = compared
    wall = wall_of(of, rows)
    gains = [edit.gain for edit in wall.edits]
    assert gains == [
        pytest.approx(gain) if gain is not None else None for gain in (0, 0.3, -0.2, 0.1, None, -0.1, 0.2)
    ]
    assert [edit.tone for edit in wall.edits] == ["", "better", "worse", "better", "", "worse", "better"]
    assert max(range(7), key=lambda i: wall.edits[i].disagreement or 0) == 6, "l1 rises and ssim falls"
    second = wall.edits[1]
    assert [one.label for one in second.images] == ["before", "base", "refl", "target"]
    assert second.facts[0] == ("seed", "1")
    assert ("L1 similarity · inside", ["–", "3.00"]) in second.scores
    assert wall.edits[4].images[2].note == "no score"
    assert ("L1 similarity: no score", "the score is not finite") in wall.edits[4].facts

    monkeypatch.setattr(comparison_wall, "MOST_SHOWN", 4)
    monkeypatch.setattr(comparison_wall, "EXTREMES", 1)
    short = wall_of(of, rows)
    assert [edit.facts[0][1] for edit in short.edits] == ["0", "1", "2", "6"]
    assert "4 of 7 edits are shown" in short.note


def test_heat_maps_are_made_of_the_greatest_gains_and_losses(compared, monkeypatch):
    of, rows = compared
    drawn = []
    monkeypatch.setattr(comparison_wall, "WITH_HEAT", 2)
    of = replace(of, heat=lambda row: drawn.append(row) or rows.source[row])
    wall = wall_of(of, rows)
    assert drawn == [1, 2, 5, 6]
    assert [one.label for one in wall.edits[2].hidden] == ["heat map of refl"]
    heat = heat_of(load_scorer("l1"), rows, of.edited["refl"])
    assert heat is not None
    assert heat(3).shape == rows.source[3].shape
    assert heat_of(load_scorer(lambda batch: batch.edited.mean((1, 2, 3))), rows, rows.source) is None


def test_the_headline_says_what_was_found(compared, tmp_path):
    of, rows = compared
    differences = {"l1": {"base": None}, "ssim": {"base": None}}
    means = {name: {"l1": 0.1, "ssim": 0.2} for name in of.edited}
    settings = {
        name: {"steps": 1, "text_guidance": 1.0, "image_guidance": 1.0, "val": {}} for name in of.edited
    }
    metrics = {"differences": differences, "rewards": means, "settings": settings, "val_n": 3, "flags": {}}
    page = write_page({**metrics, "flags": {"refl": "edges +0.4"}}, of, rows, tmp_path).read_text()
    assert "No clear difference from the base" in page
    assert "L1 similarity: refl 0.050 against 0.000, +0.050 [" in page
    assert all(f"</b> {name}" in page for name in ("wins", "tie<", "losses"))
    assert re.findall(r"<b>(\d+)</b>", page) == ["3", "1", "2"]
    assert "L1 similarity also trained the editor" in page
    assert "signs of reward hacking: edges +0.4" in page
    assert "--model runs/x/pipeline" in page
    assert len(json.loads((tmp_path / "samples.json").read_text())) == 4

    worse = replace(of, values={"base": torch.ones(7), "refl": torch.zeros(7)}, reward=None)
    page = write_page(metrics, worse, rows, tmp_path).read_text()
    assert "Worse than the base" in page
    assert "also trained" not in page
    none = replace(of, values={"base": torch.full((7,), torch.nan), "refl": torch.zeros(7)})
    assert "Base and result cannot be compared" in write_page(metrics, none, rows, tmp_path).read_text()
