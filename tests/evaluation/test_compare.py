"""Comparisons of editors: settings are chosen on val, and the test set is looked at once."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from rewardedit import load_scorer
from rewardedit.diffusion.editors import EditConfig, load_editor, save_editor
from rewardedit.evaluation.compare import compare
from rewardedit.evaluation.comparison_metrics import VERSUS
from rewardedit.evaluation.comparison_report import table
from rewardedit.evaluation.evaluate_config import EvaluateConfig
from rewardedit.scorers.base import FunctionScorer
from rewardedit.shapes import Shapes, ShapesOracle


def test_settings_are_chosen_on_val(tmp_path):
    base = load_editor("shapes-editor")
    samples = Shapes("val").batch(0, 3)
    save_editor(base, tmp_path / "pipeline")
    evaluate = EvaluateConfig(n=2, val_n=3, num_inference_steps=(1, 2), guidance_scale=(1.4,), autocast=False)
    rewards = {"l1": load_scorer("l1"), "l2": load_scorer("l2")}
    metrics = compare(evaluate, "shapes-editor", {"variant": tmp_path / "pipeline"}, rewards, tmp_path)
    edits = [
        base(samples.source, samples.instruction, range(3), settings=EditConfig(n, 1.4, 1.2)) for n in (1, 2)
    ]
    rated = [float(ShapesOracle().rate(samples, edited).score.mean()) for edited in edits]
    for name in ("base", "variant"):
        chosen = metrics["settings"][name]
        assert list(chosen["val"].values()) == [round(value, 3) for value in rated]
        assert chosen["steps"] == (1 if rated[0] >= rated[1] else 2)


def test_a_reward_that_looks_outside_the_mask_is_given_the_mask_and_one_reward_raises_no_flag(tmp_path):
    save_editor(load_editor("shapes-editor"), tmp_path / "pipeline")
    evaluate = EvaluateConfig(n=2, val_n=2, num_inference_steps=(1,), guidance_scale=(1.4,))
    spec = {"l1": {"region": "outside"}}
    rewards = {"l1": load_scorer(spec)}
    metrics = compare(evaluate, "shapes-editor", {"variant": tmp_path / "pipeline"}, rewards, tmp_path)
    assert 0.9 < metrics["rewards"]["variant"]["l1"] < 1
    assert metrics["flags"] == {"base": None, "variant": None}
    json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)


def test_a_reward_that_can_score_nothing_has_no_mean(tmp_path):
    save_editor(load_editor("shapes-editor"), tmp_path / "pipeline")
    evaluate = EvaluateConfig(n=2, val_n=2, num_inference_steps=(1,), guidance_scale=(1.4,))
    rewards = {"none": FunctionScorer(lambda batch: torch.full((len(batch),), torch.nan))}
    metrics = compare(evaluate, "shapes-editor", {"variant": tmp_path / "pipeline"}, rewards, tmp_path)
    assert metrics["rewards"] == {"base": {"none": None}, "variant": {"none": None}}
    assert (tmp_path / "report.html").is_file()


def test_editors_whose_truth_is_known_are_told_apart_with_the_right_signs(tiny_editor, tmp_path, monkeypatch):
    """The base edits a quarter rightly and copies the rest. Asked for five an editor hits nine of ten,
    and asked for one it copies. A third one destroys.
    """
    from rewardedit.evaluation import compare as module

    test = Shapes("test", kinds=("recolour", "replace", "remove")).batch(0, 40)
    noise = torch.rand(test.source.shape, generator=torch.Generator().manual_seed(0))
    made = {
        ("base", 10.0): torch.cat([test.target[:10], test.source[10:]]),
        ("conditioned_five", 10.0): torch.cat([test.source[:4], test.target[4:]]),
        ("conditioned_five", 0.0): test.source,
        ("hacked", 10.0): noise,
    }
    asked = []

    def edit_all(load, samples, score, settings, evaluate, folder):
        asked.append((folder.parent.name, score))
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
    evaluate = EvaluateConfig(n=40, val_n=1, num_inference_steps=(1,), guidance_scale=(1.4,))
    metrics = compare(evaluate, tiny_editor, outputs, rewards, tmp_path)

    assert metrics is not None
    assert sorted(asked) == sorted(made), "asked for one is asked for the worst"
    oracle = metrics["oracle"]
    expected = {"base": 2.5, "conditioned_five": 9, "conditioned_one": 0, "hacked": 0}
    assert {name: oracle[name] for name in expected} == pytest.approx(expected, abs=0.3)
    assert oracle["relative_gain"] == pytest.approx(oracle["conditioned_five"] / oracle["base"] - 1)
    for name in ("base", "conditioned_one", "hacked"):
        low, high = oracle[
            "ci95_vs_one" if name == "conditioned_one" else VERSUS.get(name, f"ci95_vs_{name}")
        ]
        assert 0 < low < oracle["conditioned_five"] - oracle[name] < high, name
    assert metrics["flags"]["conditioned_five"] is None
    assert metrics["flags"]["conditioned_one"] is None
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
        ({"backdrops": ("foto",)}, "foto"),
        ({"num_inference_steps": (4, 0)}, "num_inference_steps: expected at least 1"),
        ({"image_guidance_scale": (0.9,)}, "image_guidance_scale: expected at least 1"),
    ],
)
def test_settings_that_would_fail_after_the_training_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        EvaluateConfig(**setting)


def test_a_grid_that_is_not_given_lies_around_the_base_s_own_settings():
    asked = EvaluateConfig().around(EditConfig(10, 1.75, 1.0))
    assert (asked.num_inference_steps, asked.guidance_scale) == ((10,), (1.5, 1.75, 2.0))
    assert EvaluateConfig().around(EditConfig(1, 1.05, 1.0)).guidance_scale == (1.0, 1.05, 1.2)
    assert EvaluateConfig().around(EditConfig(1, 1.0, 0.9)).image_guidance_scale == (1.0,)
    given = EvaluateConfig(num_inference_steps=(2, 4), guidance_scale=(3.0,))
    assert given.around(EditConfig(10, 1.5, 1.2)) == replace(given, image_guidance_scale=(1.2,))


def test_without_text_guidance_the_image_s_is_not_tried_twice():
    found = EvaluateConfig(
        num_inference_steps=(2, 4), guidance_scale=(1.0, 1.5), image_guidance_scale=(1.0, 1.2)
    ).grid()
    asked = [(s.num_inference_steps, s.guidance_scale, s.image_guidance_scale) for s in found]
    assert asked == [(2, 1, 1), (2, 1.5, 1), (2, 1.5, 1.2), (4, 1, 1), (4, 1.5, 1), (4, 1.5, 1.2)]
