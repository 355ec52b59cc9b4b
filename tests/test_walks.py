"""Walks of a newcomer over the README alone, with the wheel in a fresh environment.

The environment sees the installed libraries, but not this checkout. The hub's cache holds tiny models under
the published names, and there is no network.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from tests.hub_cache import write_cache
from tests.readme import ROOT, blocks, sections, write_images, write_pairs

pytestmark = pytest.mark.slow

# The README's training, cut short: fewer and smaller updates, images of 64 pixels, one denoising step.
SHORT = [
    "train.max_steps=24",  # enough for an interruption after the first checkpoint
    "train.batch_size=4",
    "train.lr_warmup_steps=1",
    "train.checkpoint_every=2",
    "train.validate_every=12",
    "train.validation_rows=1",
    "train.tracker=none",
    "reward.num_inference_steps=[2]",
    "monitor.n=4",
    "monitor.num_inference_steps=1",
    "evaluate.n=8",
    "evaluate.val_n=4",
    "evaluate.num_inference_steps=[1]",
    "evaluate.guidance_scale=[2.0]",
]

# The quickstart, cut short: two updates on few rows, then seven edits with one guidance.
QUICK = [
    "data.limit=64",
    "train.max_steps=2",
    "train.batch_size=8",
    "train.lr_warmup_steps=1",
    "train.checkpoint_every=2",
    "train.tracker=none",
    "evaluate.n=7",
    "evaluate.val_n=7",
    "evaluate.num_inference_steps=[1]",
    "evaluate.guidance_scale=[1.0]",
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A fresh environment in which the wheel is installed, and a cache of published models."""
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "source").mkdir()
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    # From a copy: a build leaves its folder beside its files, and later builds would take old ones from it.
    for name in ("rewardedit", "trainers", "recipes", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / "source" / name)
    subprocess.run([*build, str(folder / "source")], check=True)
    (wheel,) = folder.glob("rewardedit-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "venv" / "lib" / version / "site-packages"
    # Paths in a .pth file are searched; .pth files there, such as that of this checkout, are not read.
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    subprocess.run([*install, "--no-index", str(wheel)], check=True)
    cache = write_cache(folder / "hub")
    return {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A reader's own files: two images, and 200 pairs."""
    write_images(tmp_path)
    write_pairs(tmp_path)
    return tmp_path


def run(words: list[str], environment: dict[str, str], here: Path, expected: int = 0) -> str:
    """Output of a command."""
    done = subprocess.run(words, env=environment, cwd=here, capture_output=True, text=True)
    assert done.returncode == expected, done.stderr[-3000:]
    return done.stdout + done.stderr


def commands(title: str, program: str = "rewardedit") -> list[list[str]]:
    """The commands of a program in a section of the README."""
    lines = "\n".join(blocks(sections(title), "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [command for command in words if command and command[0] == program]


def python(title: str, here: Path) -> list[str]:
    """The command that runs the section's Python block."""
    (block,) = blocks(sections(title), "python")
    (here / "block.py").write_text(block)
    return ["python", "block.py"]


def test_two_photographs_are_scored(environment, here):
    first, several, *_ = commands("Score")
    told = run([*first, "--json"], environment, here, expected=0)
    assert "bpm: openai/clip-vit-large-patch14" in told
    told = run(several, environment, here)
    assert all(f"  {name}  " in told for name in ("vlm_judge", "clip_d", "l1"))
    assert "tensor" in run(python("Score", here), environment, here)
    assert "rewardedit/shapes" not in told


def test_the_best_of_eight_is_chosen_by_a_function(environment, here):
    run(python("Choose: best of N", here), environment, here)
    assert (here / "best.png").is_file()
    edit = ["rewardedit", "edit", "photo.jpg", "make the man's pants white", "--steps", "1", "--size", "32"]
    assert "edited images are in edited; gallery: " in run(edit, environment, here)
    assert len(list((here / "edited").glob("photo*.png"))) == 2, "before and after"


def test_an_editor_is_trained_on_own_pairs_and_resumed(environment, here):
    train = next(command for command in commands("Train") if "path: pairs.csv" in " ".join(command))
    words = [word.replace("size: 256", "size: 64") for word in train]
    name = next(word.removeprefix("name=") for word in words if word.startswith("name="))
    folder = here / "runs" / name
    process = subprocess.Popen(
        [*words, *SHORT],
        env=environment,
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 540
    while not list(folder.glob("checkpoints/step-*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 130, said[-3000:]
    assert not (folder / "metrics.json").exists()
    resume = re.search(r"rewardedit train \S+ --resume", said)
    assert resume, said[-2000:]
    said = run(resume[0].split(), environment, here)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["n"] > 1
    assert metrics["differences"]
    assert (folder / "report.html").is_file()
    stock = (
        "from diffusers import StableDiffusionInstructPix2PixPipeline as Pipeline\n"
        "from PIL import Image\n"
        "pipe = Pipeline.from_pretrained('vinesmsuic/magicbrush-jul7', safety_checker=None)\n"
        f"pipe.load_lora_weights('runs/{name}/lora')\n"
        "photo = Image.open('photo.jpg')\n"
        "pipe('make it white', image=photo, num_inference_steps=1).images[0].save('stock.png')\n"
    )
    (here / "stock.py").write_text(stock)
    run(["python", "stock.py"], environment, here)
    assert (here / "stock.png").is_file()


def test_the_quickstart_ends_with_a_comparison(environment, here):
    """The recipe and the offline world's models come with the wheel."""
    said = run(["rewardedit", "train", "quickstart", *QUICK], environment, here)
    folder = here / "runs" / "quickstart"
    oracle = json.loads((folder / "metrics.json").read_text())["oracle"]
    assert oracle["n"] == 7
    assert {"base", "conditioned_five", "conditioned_one"} <= set(oracle)
    assert "conditioned_five" in said
    assert (folder / "report.html").is_file()
    assert str(ROOT) not in said, "nothing is read from the checkout"


def test_doctor_and_the_plan_of_a_full_size_training(environment, here):
    told = run(["rewardedit", "doctor"], environment, here)
    assert "magicbrush-refl" in told
    ((_, launch, *words),) = commands("Train", "accelerate")
    assert launch == "launch"
    assert words[:2] == ["--num_processes", "8"]
    launch = ["python", "-m", "accelerate.commands.launch", "--cpu"]  # the environment has no scripts of it
    own = ["data={name: table, path: pairs.csv, size: 256}", "evaluate=null"]
    told = run([*launch, *words, *own], environment, here)
    assert "memory, GiB" in told
    assert told.count("memory, GiB") == 1, "one process says the plan"
