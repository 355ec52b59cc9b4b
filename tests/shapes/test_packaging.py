"""A packaged pipeline takes the weights of its autoencoder from another packaged model."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rewardedit import load_editor
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.diffusion.saving import save_editor
from rewardedit.models.shared import SHARED, WEIGHTS
from rewardedit.shapes import Shapes, packaging
from rewardedit.shapes.flow_architecture import make_pipeline, normalise
from rewardedit.shapes.packaging import package
from rewardedit.training.environment import environment
from rewardedit.training.estimate import load_blueprint
from tests.readme import BENCHMARKS, WORLD

pytestmark = pytest.mark.world

VAE = {"vae": "shapes/editor"}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    known = load_editor("shapes/editor", device="cpu", dtype=torch.float32).pipe
    pipe = make_pipeline(known, width=48, blocks=(1, 1), text_width=16, shift=2.0)
    torch.nn.init.normal_(pipe.transformer.proj_out.weight, std=0.1)
    normalise(pipe.vae, torch.randn(2, 16, 8, 8) * 3)
    folder = tmp_path_factory.mktemp("run") / "pipeline"
    save_editor(Editor(pipe.to(dtype=torch.float16), SamplingConfig(2, 2.0, 1.0)), folder)
    return folder


@pytest.fixture(scope="module")
def packaged(pipeline, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("assets") / "flow_editor"
    package(pipeline, folder, VAE)
    return folder


def test_a_packaged_editor_edits_as_the_whole_one(pipeline, packaged):
    samples = Shapes("test").batch(0, 1)
    whole, small = (load_editor(str(folder), device="cpu") for folder in (pipeline, packaged))
    assert small.settings == whole.settings
    expected, given = whole.pipe.vae.state_dict(), small.pipe.vae.state_dict()
    assert expected.keys() == given.keys()
    for name, value in expected.items():
        assert torch.equal(value, given[name]), name
    edited = small(samples.source, samples.instruction, seeds=[3])
    assert torch.equal(edited, whole(samples.source, samples.instruction, seeds=[3]))
    assert not small.pipe.vae.training
    assert load_blueprint(str(packaged), 64).bytes() == load_blueprint(str(pipeline), 64).bytes()


def test_only_what_the_other_model_lacks_is_packaged(pipeline, packaged):
    assert json.loads((packaged / SHARED).read_text()) == VAE
    kept = load_file(packaged / "vae" / WEIGHTS)
    assert {name.partition(".")[0] for name in kept} == {"bn"}
    assert (packaged / "transformer" / WEIGHTS).read_bytes() == (
        pipeline / "transformer" / WEIGHTS
    ).read_bytes()


def test_other_weights_are_not_packaged(pipeline, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(packaging, "MOST_BYTES", 1000)
        with pytest.raises(ValueError, match="expected at most 1,000 bytes; got"):
            package(pipeline, tmp_path / "large", VAE)
    path = pipeline / "vae" / WEIGHTS
    weights = load_file(path)
    try:
        save_file({**weights, "decoder.conv_in.bias": weights["decoder.conv_in.bias"] + 1}, path)
        with pytest.raises(ValueError, match=r"expected decoder\.conv_in\.bias of shapes/editor"):
            package(pipeline, tmp_path / "other", VAE)
    finally:
        save_file(weights, path)
    assert not list(tmp_path.iterdir())


def test_weights_are_shared_with_packaged_models_alone(packaged):
    path = packaged / SHARED
    path.write_text(json.dumps({"vae": "me/editor"}))
    try:
        with pytest.raises(ValueError, match="vae: expected the name of a packaged model; got 'me/editor'"):
            load_editor(str(packaged), device="cpu")
    finally:
        path.write_text(json.dumps(VAE))


def test_the_program_packages_a_run_and_keeps_its_figures(pipeline, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(WORLD / "benchmarks"))
    import command_line
    import package_flow_editor
    from tables_editors import flow_editor

    run = pipeline.parent
    metrics = {"n": 4, "oracle": 5.5, "guidance_scale": 2.0}
    for name, oracle in (("untouched", 1.0), ("shapes/editor", 7.0)):
        metrics[name] = {"oracle": oracle, "ci95_of_difference": [5 - oracle, 6 - oracle]}
    (run / "metrics.json").write_text(json.dumps(metrics))
    (run / "environment.json").write_text(json.dumps({**environment(), "commit": "of the run"}))
    monkeypatch.setattr(sys, "argv", [str(WORLD / "benchmarks" / "package_flow_editor.py"), str(run)])
    package_flow_editor.main(tmp_path / "assets")
    assert not (tmp_path / "assets").exists()

    kept = {}
    monkeypatch.setattr(command_line, "keep", lambda *given: kept.update(zip("nwfr", given, strict=True)))
    sys.argv.append("--write")
    package_flow_editor.main(tmp_path / "assets")
    assert (tmp_path / "assets" / SHARED).is_file()
    assert (kept["n"], kept["w"]) == ("flow-editor", "rewardedit train shapes/flow-editor")
    assert kept["f"]["commit"] == "of the run"
    assert kept["f"]["oracle"] == 5.5
    table = flow_editor({"command": kept["w"], **kept["f"]})
    assert "| untouched sources | 1.00 | +4.50 [+4.00, +5.00] |" in table
    assert "| `shapes/editor` | 7.00 | -1.50 [-2.00, -1.00] |" in table
    assert "n = 4 held-out edits; guidance scale 2, chosen on val." in table
