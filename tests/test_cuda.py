"""`make cuda` on the CPU: its parts at tiny size, and the runner's own rules. On a GPU:
the `gpu` tests beside.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cuda  # noqa: E402
from cuda import Part  # noqa: E402
from cuda_parts import __main__ as cuda_parts  # noqa: E402
from cuda_parts import graphs, trainings  # noqa: E402
from cuda_parts.figures import Figures  # noqa: E402

from rewardedit.cli import load_recipe  # noqa: E402
from rewardedit.diffusion import replaying  # noqa: E402
from tests.models import tiny_pipeline  # noqa: E402
from tests.reruns import Rerun  # noqa: E402

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def script(name: str, code: str, weight: float = 1.0) -> Part:
    return Part(name, weight, ("-c", code), ("-c", code))


def alive(pid: int) -> bool:
    """True if a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_shares_add_up_to_nine_minutes_and_belong_to_the_parts_chosen():
    assert sum(cuda.shares(cuda.PARTS).values()) == pytest.approx(540)
    assert cuda.shares(cuda.PARTS)["refl"] == 130
    assert cuda.shares(cuda.choose("attention")) == {"attention": 540}
    assert [part.name for part in cuda.choose("attention, tests")] == ["tests", "attention"]
    names = [part.name for part in cuda.PARTS]
    assert names[0] == "refl"
    assert set(names) == {"tests", *cuda_parts.PARTS}
    with pytest.raises(ValueError, match=f"expected some of {', '.join(names)}; got test"):
        cuda.choose("test")


def test_what_a_part_leaves_of_its_share_goes_to_the_next(tmp_path):
    parts = [script("quick", ""), script("next", "", weight=2.0), script("last", "")]
    results = cuda.run_parts(parts, tmp_path, len, total=400)
    assert results["quick"]["share"] == 100
    assert results["next"]["share"] == pytest.approx((400 - results["quick"]["seconds"]) * 2 / 3)
    assert results["last"]["share"] > 180


def test_each_part_compiles_into_a_folder_of_its_own(tmp_path):
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    code = f"import os; print(*(os.environ[name] for name in {names}), sep='\\n')"
    found = cuda.run_parts([script("a", code), script("b", code)], tmp_path, len, total=60)
    a, b = (part["tail"].split() for part in found.values())
    assert a == ["caches/a/inductor", "caches/a/triton"]
    assert b == ["caches/b/inductor", "caches/b/triton"]


def test_a_part_s_temporary_files_are_in_the_copy(tmp_path):
    code = "import os, tempfile; open(tempfile.mkdtemp() + '/left', 'w').close(); os.kill(os.getpid(), 9)"
    assert cuda.run_part(script("leaves", code), 60, tmp_path)["status"] == "failed"
    assert len(list(tmp_path.rglob("left"))) == 1


def test_results_name_no_folders_of_the_machine(tmp_path):
    code = """
import json, os
line = f'{os.getcwd()}/rewardedit/cli.py and "/opt/x/site-packages/torch/nn.py", 3; 9 images/s; http://a/b/c'
print(line)
open(os.environ['FIGURES'], 'w').write(json.dumps({'error': line}))
"""
    found = cuda.run_part(script("says", code), 60, tmp_path)
    line = 'rewardedit/cli.py and "…/nn.py", 3; 9 images/s; http://a/b/c'
    assert found["tail"] == f"{line}\n"
    assert found["figures"] == {"error": line, "images_per_second": 9.0}


def test_figures_are_replaced_as_a_whole(tmp_path):
    """A part is killed at any moment, and its figures are read then."""
    figures = Figures(tmp_path / "figures.json")
    figures.add("first", 1.5)
    os.link(figures.path, tmp_path / "before.json")
    figures.add("second", float("nan"))
    assert json.loads((tmp_path / "before.json").read_text()) == {"first": 1.5}
    assert json.loads(figures.path.read_text()) == {"first": 1.5, "second": None}


def test_it_goes_on_after_a_failure_and_writes_down_what_there_is(tmp_path):
    figures = "import os, json; open(os.environ['FIGURES'], 'w').write(json.dumps({'kernel': {'ms': 2.5}}))"
    parts = [
        script("breaks", f"{figures}; print('12.5 images/s'); raise SystemExit('<out of memory>')"),
        Part("lacks", 1, ("-c", ""), ("-c", ""), needs="no_such_module"),
        script("works", "import os; print(os.environ['HF_HUB_OFFLINE'])"),
    ]
    seen = []
    results = cuda.run_parts(parts, tmp_path, lambda found: seen.append(list(found)), total=60)
    assert {name: found["status"] for name, found in results.items()} == {
        "breaks": "failed",
        "lacks": "skipped",
        "works": "ok",
    }
    assert results["breaks"]["figures"] == {"kernel": {"ms": 2.5}, "images_per_second": 12.5}
    assert results["works"]["tail"] == "1\n"
    assert seen == [["breaks"], ["breaks", "lacks"], ["breaks", "lacks", "works"]]
    assert cuda.failures(results) == ["breaks (failed)"]

    path = cuda.write(tmp_path, {"device": "NVIDIA H200", "commit": None}, results)
    assert path.name == "cuda-nvidia-h200.json"
    record = json.loads(path.read_text())
    assert record["failed"] == ["breaks (failed)"]
    assert record["parts"]["breaks"]["command"].startswith("python -c")
    page = path.with_suffix(".html").read_text()
    assert "&lt;out of memory&gt;" in page
    assert "<td>2.5</td>" in page


def test_a_part_that_takes_too_long_is_killed_with_its_children(tmp_path):
    code = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
    began = time.monotonic()
    found = cuda.run_part(script("sleeps", code), 1.5, tmp_path)
    assert time.monotonic() - began < 300
    assert found["status"] == "cut off"
    child = int(found["tail"])
    for _ in range(100):
        if not alive(child):
            break
        time.sleep(0.1)
    assert not alive(child)


@pytest.mark.slow
def test_it_works_from_a_checkout_without_git_and_installation(tmp_path):
    """The interpreter that the virtual environment was made from has none of our packages but those it is
    lent.
    """
    checkout = tmp_path / "checkout"
    out = tmp_path / "out"
    checkout.mkdir()
    for name in ("rewardedit", "trainers", "recipes", "tests", "benchmarks", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    folders = [path for path in sys.path if "site-packages" in path]
    environment = {
        **os.environ,
        "PATH": "",
        "REWARDEDIT_COMMIT": COMMIT,
        "PYTHONPATH": os.pathsep.join(folders),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [
        sys._base_executable,
        str(checkout / "benchmarks" / "cuda.py"),
        "--tiny",
        "--parts",
        "graphs",
    ]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "cuda-cpu.json").read_text())
    assert record["commit"] == COMMIT
    assert record["commit_from"] == "REWARDEDIT_COMMIT"
    assert f"commit: {COMMIT} (from REWARDEDIT_COMMIT)" in done.stdout
    assert record["packages"]["rewardedit"] == "0.1.0"
    part = record["parts"]["graphs"]
    assert part["status"] == "ok", part["tail"]
    kept = part["figures"]
    assert kept["sampling, eager, batch 1"]["difference"] == 0
    assert kept["sampling, eager, batch 1"]["step_with_mask_ms"] > 0
    assert kept["rollout, eager, batch 1"]["first_rollout_seconds"] > 0
    assert kept["sampling, graph, batch 1"] == {"skipped": "CUDA graphs need a GPU"}
    assert kept["sampling, regional, batch 1"] == {"skipped": "torch.compile needs a C++ compiler"}
    assert (out / "cuda-cpu.html").is_file()
    assert sysconfig.get_paths()["purelib"] not in done.stderr


def test_without_a_gpu_it_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cuda.main(["--parts", "attention"]) == 2
    assert "--tiny" in capsys.readouterr().err
    assert cuda.main(["--parts", "attentoin"]) == 2


def figures_of(part: str, path: Path) -> dict:
    """Figures that a part keeps at tiny size, none of which failed."""
    figures = Figures(path)
    cuda_parts.run(part, figures, tiny=True)
    assert not figures.failed
    return json.loads(path.read_text())


def test_refl_is_measured_beside_the_papers_loop_and_writes_no_checkpoint(tmp_path, monkeypatch):
    written = []

    def look(_, runs):
        base = Path(runs["refl, 64 px"][1][0].removeprefix("base="))
        written.extend(path.name for path in (base.parent / "first").rglob("*"))

    monkeypatch.setattr(trainings, "STEPS", 2)
    monkeypatch.setattr(trainings, "compare_memory", look)  # slow tests compare
    kept = figures_of("refl", tmp_path / "figures.json")
    ours, papers = kept["refl, 64 px"], kept["papers' loop"]
    assert ours["rows_per_second"] == pytest.approx(2 / ours["seconds_per_update"])
    assert kept["refl over papers' loop"] == {
        "speed": papers["seconds_per_update"] / ours["seconds_per_update"]
    }
    assert "config.yaml" in written
    assert {"checkpoints", "pipeline", "lora"}.isdisjoint(written)


@pytest.mark.slow
def test_candidates_that_share_a_prefix_score_as_whole_passes_do(tmp_path):
    kept = figures_of("prefix", tmp_path / "figures.json")
    for name in ("2 candidates", "gradient"):
        assert kept[f"{name}, seconds"]["difference"] < 1e-3
        assert kept[f"{name}, seconds"]["speed"] > 0
    assert kept["gradient, GiB"] == {"skipped": "memory is measured on CUDA"}


def test_a_way_whose_predictions_differ_is_refused():
    assert graphs.require_near(torch.full((4,), 1.03), torch.ones(4)) == pytest.approx(0.03)
    with pytest.raises(ValueError, match=r"expected within 0\.05 of the eager one, got 0\.5"):
        graphs.require_near(torch.full((4,), 1.5), torch.ones(4))


@torch.no_grad()
def test_a_replayed_unet_predicts_as_the_eager_one(monkeypatch):
    monkeypatch.setattr(replaying, "Replay", Rerun)
    unet = tiny_pipeline().unet
    sample = torch.randn(1, unet.config.in_channels, 8, 8)
    words = torch.randn(1, 77, unet.config.cross_attention_dim)
    plain = unet(sample, 5, words).sample
    with graphs.running(unet, "graph"):
        assert isinstance(unet.forward, Rerun)
        assert torch.equal(unet(sample, 5, words).sample, plain)
        assert len(unet.forward.recorded) == 1
    assert "forward" not in vars(unet)


@torch.no_grad()
def test_calls_that_were_not_recorded_are_no_graph():
    unet = tiny_pipeline().unet
    sample = torch.randn(1, unet.config.in_channels, 8, 8)
    words = torch.randn(1, 77, unet.config.cross_attention_dim)
    refused = pytest.raises(RuntimeError, match=r"got graphs: not recorded \(no GPU\)")
    with refused, graphs.running(unet, "graph"):
        unet(sample, 5, words)
    assert "forward" not in vars(unet)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["refl", "graphs", "trainers", "benchmarks", "attention", "quickstart"])
def test_whole_parts_run(part, tmp_path):
    kept = figures_of(part, tmp_path / "figures.json")
    if part == "graphs":  # with a compiler
        assert kept["sampling, regional, batch 1"]["difference"] < 1e-4
    if part == "attention":
        assert kept["xformers"] == "the UNet is on cpu, and xformers runs on CUDA"
        assert kept["sdpa, 64 px"]["unet_forward_backward_ms"] > 0


@pytest.mark.slow
def test_the_tests_part_finds_its_tests_and_those_that_train_come_last(tmp_path):
    cuda.lay_out(tmp_path)
    found = cuda.run_parts(cuda.choose("tests"), tmp_path, len, tiny=True)["tests"]
    assert found["status"] == "ok", found["tail"]
    names = re.findall(r"(?:::|<Function )(\w+)", found["tail"])
    files = [word for word in cuda.PYTEST if word.startswith("tests/")]
    assert "attention" in files[0]
    assert names[-1] == "test_the_small_models_are_trained_from_scratch"


@pytest.mark.slow
def test_the_gpu_s_tests_load_no_published_model(tmp_path):
    """The first of them, which names no device, passes on a CPU without network."""
    cuda.lay_out(tmp_path)
    words = (*cuda.PYTEST, "-k", "test_edit_and_score")
    found = cuda.run_part(Part("tests", 1, words, words), 600, tmp_path)
    assert found["status"] == "ok", found["tail"]
    assert "test_edit_and_score PASSED" in found["tail"]


@pytest.mark.slow
def test_a_run_that_fails_is_recorded_and_others_have_their_estimates(tmp_path):
    figures = Figures(tmp_path / "figures.json")
    broken = ("magicbrush-reward-conditioned", ["base=nowhere", "candidates=null"])
    trainings.measure_runs(figures, {"broken": broken}, tmp_path)
    assert figures.failed
    runs = trainings.trainer_runs(tmp_path, "shapes/clip", tiny=True)
    trainings.compare_memory(figures, {"vifi_clip": runs["vifi_clip"]})
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert "error" in kept["broken"]
    assert 0 < kept["vifi_clip, memory"]["estimated_gib"] < 1


def test_a_peak_is_compared_with_its_estimate(monkeypatch):
    monkeypatch.setattr(trainings, "estimated_gib", lambda recipe, words: 6.0)
    figures = Figures()
    figures.add("refl, 512 px", {"peak_gib": 5.0})
    trainings.compare_memory(figures, {"refl, 512 px": ("magicbrush-refl", [])})
    found = {"estimated_gib": 6.0, "peak_gib": 5.0, "estimated_over_peak": 1.2}
    assert figures.values["refl, 512 px, memory"] == found
    papers = {"seconds_per_update": 8.0, "peak_gib": 10.0}
    ours = {"seconds_per_update": 2.0, "peak_gib": 5.0}
    assert trainings.against_papers(ours, papers) == {"speed": 4.0, "memory": 0.5}


def test_every_trainer_of_full_size_is_run_at_both_sizes(tmp_path):
    runs = trainings.trainer_runs(tmp_path, "clip", tiny=False)
    kinds = ("reward_conditioned, LoRA", "reward_conditioned")
    assert set(runs) == {"vifi_clip", *(f"{kind}, {size} px" for kind in kinds for size in (256, 512))}
    runs = trainings.refl_runs(tmp_path, "clip", tiny=False)
    assert [*runs] == [f"{kind}, {size} px" for size in (512, 256) for kind in ("refl", "refl, LoRA")]
    for recipe, words in runs.values():
        _, config = load_recipe(recipe, words)
        assert config.train.micro_batches(1) == (2, 4)
        assert config.reward.num_inference_steps == (50,)


def test_the_full_size_models_have_the_parameters_of_stable_diffusion():
    import sd15

    with torch.device("meta"):
        unet = sd15.make_unet()
        vae = sd15.make_vae()
        text = sd15.make_text_encoder(sd15.make_tokenizer())
    millions = [round(sum(p.numel() for p in m.parameters()) / 1e6, 1) for m in (unet, vae, text.encoder)]
    assert millions == [859.5, 83.7, 85.1]


def test_the_makefile_hands_over_what_it_is_given():
    shown = subprocess.run(
        [
            "make",
            "--no-print-directory",
            "-n",
            "cuda",
            "PYTHON=python9",
            "OUT=there",
            "PARTS=tests,attention",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    ).stdout
    assert re.fullmatch(r'python9 benchmarks/cuda\.py --out "there" --parts "tests,attention"\n', shown)


def test_the_files_with_tests_for_a_gpu_are_named():
    """Others import what a machine with one may lack."""
    marked = {
        str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in p.read_text()
    }
    named = {word for word in cuda.PYTEST if word.startswith("tests/")}
    assert named == marked - {"tests/test_cuda.py"}
