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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cuda  # noqa: E402
import cuda_parts  # noqa: E402
from cuda import Part  # noqa: E402


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
    assert cuda.shares(cuda.PARTS)["quickstart"] == 120
    assert cuda.shares(cuda.choose("attention")) == {"attention": 540}
    assert [part.name for part in cuda.choose("attention, tests")] == ["tests", "attention"]
    with pytest.raises(
        ValueError, match="expected some of tests, quickstart, trainers, attention, benchmarks; got test"
    ):
        cuda.choose("test")


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
    found = cuda.run_part(script("sleeps", code), 3.0, tmp_path)
    assert time.monotonic() - began < 300
    assert found["status"] == "cut off"
    child = int(found["tail"])
    for _ in range(100):
        if not alive(child):
            break
        time.sleep(0.1)
    assert not alive(child)


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
        "PYTHONPATH": os.pathsep.join(folders),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [
        sys._base_executable,
        str(checkout / "benchmarks" / "cuda.py"),
        "--tiny",
        "--parts",
        "attention",
    ]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "cuda-cpu.json").read_text())
    assert record["commit"] is None
    assert record["packages"]["rewardedit"] == "0.1.0"
    part = record["parts"]["attention"]
    assert part["status"] == "ok"
    assert part["figures"]["xformers"] == "the UNet is on cpu, and xformers runs on CUDA"
    assert part["figures"]["sdpa, 64 px"]["unet_forward_backward_ms"] > 0
    assert (out / "cuda-cpu.html").is_file()
    assert sysconfig.get_paths()["purelib"] not in done.stderr


def test_without_a_gpu_it_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cuda.main(["--parts", "attention"]) == 2
    assert "--tiny" in capsys.readouterr().err
    assert cuda.main(["--parts", "attentoin"]) == 2


def test_the_trainers_part_runs_a_recipe_and_goes_on_after_one_that_fails(tmp_path, monkeypatch):
    runs = cuda_parts.trainer_runs

    def with_a_mistake(*args):
        found = runs(*args)
        return {
            "reward_conditioned, broken": (
                "magicbrush-reward-conditioned",
                ["base=nowhere", "candidates=null"],
            ),
            **found,
        }

    monkeypatch.setattr(cuda_parts, "trainer_runs", with_a_mistake)
    figures = cuda_parts.Figures(tmp_path / "figures.json")
    cuda_parts.trainers(figures, tiny=True, only=("reward_conditioned, broken", "reward_conditioned, LoRA"))
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert figures.failed
    assert "error" in kept["reward_conditioned, broken"]
    assert kept["reward_conditioned, LoRA, 64 px"]["seconds_per_step"] > 0


def test_every_trainer_of_full_size_is_run_at_both_sizes(tmp_path):
    runs = cuda_parts.trainer_runs(tmp_path, "clip", tmp_path, tiny=False)
    kinds = ("reward_conditioned, LoRA", "reward_conditioned", "refl, LoRA", "refl")
    assert set(runs) == {"vifi_clip", *(f"{kind}, {size} px" for kind in kinds for size in (256, 512))}


def test_the_full_size_models_have_the_parameters_of_stable_diffusion():
    import sd15
    import torch

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
