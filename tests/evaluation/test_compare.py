"""Comparisons of editors: settings are chosen on val, and the test set is looked at once."""

from dataclasses import replace

from rewardedit import load_scorer
from rewardedit.data.shapes import Shapes, ShapesOracle
from rewardedit.diffusion.editors import EditConfig, load_editor, save_editor
from rewardedit.evaluation.compare import EvaluateConfig, compare


def test_settings_are_chosen_on_val(tmp_path):
    base = load_editor("shapes-editor")
    samples = Shapes("val").batch(0, 7)
    save_editor(base, tmp_path / "pipeline")
    evaluate = EvaluateConfig(n=7, val_n=7, num_inference_steps=(1, 2), guidance_scale=(1.4,), autocast=False)
    rewards = {"l1": load_scorer("l1"), "l2": load_scorer("l2")}
    metrics = compare(evaluate, "shapes-editor", {"variant": tmp_path / "pipeline"}, rewards, tmp_path)
    edits = [
        base(samples.source, samples.instruction, range(7), settings=EditConfig(n, 1.4, 1.2)) for n in (1, 2)
    ]
    rated = [float(ShapesOracle().rate(samples, edited).score.mean()) for edited in edits]
    for name in ("base", "variant"):
        chosen = metrics["settings"][name]
        assert list(chosen["val"].values()) == [round(value, 3) for value in rated]
        assert chosen["steps"] == (1 if rated[0] >= rated[1] else 2)


def test_a_grid_that_is_not_given_lies_around_the_base_s_own_settings():
    asked = EvaluateConfig().around(EditConfig(10, 1.5, 1.0))
    assert (asked.num_inference_steps, asked.guidance_scale) == ((10,), (1.125, 1.5, 1.875))
    assert EvaluateConfig().around(EditConfig(1, 1.2, 1.0)).guidance_scale == (1.0, 1.2, 1.5)
    given = EvaluateConfig(num_inference_steps=(2, 4), guidance_scale=(3.0,))
    assert given.around(EditConfig(10, 1.5, 1.2)) == replace(given, image_guidance_scale=(1.2,))


def test_without_text_guidance_the_image_s_is_not_tried_twice():
    found = EvaluateConfig(
        num_inference_steps=(2, 4), guidance_scale=(1.0, 1.5), image_guidance_scale=(1.0, 1.2)
    ).grid()
    asked = [(s.num_inference_steps, s.guidance_scale, s.image_guidance_scale) for s in found]
    assert asked == [(2, 1, 1), (2, 1.5, 1), (2, 1.5, 1.2), (4, 1, 1), (4, 1.5, 1), (4, 1.5, 1.2)]
