import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import zeros

from rewardedit import models as model_names
from rewardedit.cli import checks as doctor
from rewardedit.cli import main, recipe_names
from rewardedit.cli.checks import HubCache, hub_cache, incomplete
from rewardedit.cli.downloads import GB, in_short
from rewardedit.cli.needs import missing_requirements, source_of
from rewardedit.cli.recipes import downloads, load_recipe

EDITORS = (
    "Qwen/Qwen-Image-Edit-2511",
    "black-forest-labs/FLUX.1-Kontext-dev",
    "black-forest-labs/FLUX.2-klein-base-4B",
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty Hugging Face cache, in a working directory without runs."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def cache_repo(home: Path, name: str, files: dict[str, str], kind: str = "model") -> Path:
    """A repository in huggingface_hub's own layout: blobs, and a snapshot of links to them."""
    folder = home / "hub" / f"{kind}s--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for number, (file, content) in enumerate(files.items()):
        blob = folder / "blobs" / f"{number:040x}"
        blob.write_text(content)
        link = snapshot / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return folder


def report(capsys, *words: str) -> tuple[int, dict]:
    code = main(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def needs(found: dict, recipe: str) -> dict[str, str]:
    return {need["name"]: need["kind"] for need in found["recipes"][recipe]["needs"]}


def test_what_works_offline_is_told_without_a_connection(home, capsys, monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    code, found = report(capsys)
    assert (code, found["broken"]) == (0, [])
    versions = {package["name"]: package["version"] for package in found["packages"]}
    for name in ("torch", "diffusers", "transformers", "peft", "accelerate", "safetensors", "datasets"):
        assert versions[name] == metadata.version(name)
    assert {"trl", "xformers"} <= versions.keys()
    assert found["device"]["name"] == "cpu"
    assert found["attention"] == {
        "backend": "sdpa",
        "reason": "the UNet is on cpu, and xformers runs on CUDA",
    }
    assert found["recipes"]["quickstart"] == {"needs": [], "problem": None}
    assert set(found["recipes"]) == set(recipe_names())
    models = {model["name"]: model["bytes"] for model in found["packaged_models"]}
    assert models.keys() == model_names.NAMES.keys()
    assert models["shapes/clip"] > 2**20
    assert found["cache"] == {"folder": str(home / "hub"), "repos": []}


def test_one_screen_tells_what_is_missing(home, capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 38
    assert max(len(line) for line in lines if "cache" not in line) <= 100, "but for a long path"
    (refl,) = [line for line in lines if line.startswith("  magicbrush-refl ")]
    # magicbrush-jul7, Qwen2.5-VL-7B, DINOv2 base, CLIP large; and MagicBrush
    assert refl.endswith("downloads 51 GB")
    assert not any("…" in line for line in lines), "nothing is cut"
    assert any("SEED-Data-Edit-Part3" in line for line in lines)
    assert any("adiee-scorer " in line and "after magicbrush-adiee-data" in line for line in lines)
    world = next(i for i, line in enumerate(lines) if "drawn shapes" in line)
    assert all("magicbrush" not in line for line in lines[world:])
    assert "Everything that works offline is ready" in lines


def test_one_recipe_is_told_in_full(home, capsys):
    assert main(["doctor", "magicbrush-refl"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("magicbrush-refl: not ready\n")
    assert "\n  needs the model vinesmsuic/magicbrush-jul7: not in" in out
    assert "shapes" not in out
    assert main(["doctor", "magicbrush-relf"]) == 2
    assert "did you mean magicbrush-refl?" in capsys.readouterr().err


def test_the_same_is_told_in_plain_words(home, capsys):
    assert main(["doctor", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  torch {metadata.version('torch')}" in lines
    assert "attention: sdpa (the UNet is on cpu, and xformers runs on CUDA)" in lines
    assert any(line.startswith("device: cpu (CPU, ") and "built without CUDA" in line for line in lines)
    assert lines[lines.index(f"Hugging Face cache: {home / 'hub'}") + 1] == "  empty"
    assert "  quickstart: ready" in lines
    start = lines.index("  magicbrush-refl: not ready")
    needed = "    needs the model vinesmsuic/magicbrush-jul7: not in the cache; "
    assert any(line.startswith(needed) for line in lines[start : start + 8])
    assert lines[-1] == "Everything that works offline is ready"


def test_a_model_in_the_cache_is_no_longer_needed(home, capsys):
    _, before = report(capsys, "humanedit-vifi-clip")
    name = "openai/clip-vit-base-patch16"
    assert needs(before, "humanedit-vifi-clip")[name] == "model"
    cache_repo(home, name, {"config.json": "{}", "model.safetensors": "x" * 2**20})
    _, after = report(capsys, "humanedit-vifi-clip")
    (repo,) = after["cache"]["repos"]
    assert (repo["kind"], repo["name"], repo["problem"]) == ("model", name, None)
    assert 2**20 <= repo["bytes"] < 2**20 + 100
    assert name not in needs(after, "humanedit-vifi-clip")
    assert main(["doctor", "--all"]) == 0
    assert f"  model {name}: 1.0 MiB" in capsys.readouterr().out.splitlines()


def test_a_model_that_was_fetched_in_part_is_needed_still(home, capsys):
    name = "openai/clip-vit-base-patch16"
    cache_repo(home, name, {"config.json": "{}"})
    _, found = report(capsys, "humanedit-vifi-clip")
    assert found["cache"]["repos"][0]["problem"] == "its weights are missing"
    (need,) = [n for n in found["recipes"]["humanedit-vifi-clip"]["needs"] if n["name"] == name]
    assert need["remedy"].startswith("in the cache, but its weights are missing; ")
    assert main(["doctor"]) == 0
    assert f"  model {name}: 0.0 MiB; its weights are missing" in capsys.readouterr().out.splitlines()


def test_rows_that_were_prepared_before_are_there(home, capsys):
    _, before = report(capsys, "humanedit-vifi-clip")
    assert needs(before, "humanedit-vifi-clip")["BryanW/HumanEdit"] == "data"
    folder = home / "datasets" / "BryanW___human_edit" / "default" / "0.0.0"
    folder.mkdir(parents=True)
    (folder / "human_edit-train.arrow").write_bytes(b"x")
    _, after = report(capsys, "humanedit-vifi-clip")
    assert "BryanW/HumanEdit" not in needs(after, "humanedit-vifi-clip")


def test_a_run_that_another_recipe_makes_is_needed_until_it_is_there(home, capsys, tmp_path):
    _, before = report(capsys, "shapes/adiee-data")
    folder = "runs/shapes-comparison-editors/half-done"
    assert needs(before, "shapes/adiee-data")[folder] == "run"
    (need,) = [n for n in before["recipes"]["shapes/adiee-data"]["needs"] if n["name"] == folder]
    assert need["remedy"] == "rewardedit train shapes/comparison-editors makes it"
    (tmp_path / folder).mkdir(parents=True)
    _, after = report(capsys, "shapes/adiee-data")
    assert folder not in needs(after, "shapes/adiee-data")


def test_a_data_folder_that_is_missing_is_told(home, capsys, tmp_path):
    _, before = report(capsys, "captioner")
    (need,) = [n for n in before["recipes"]["captioner"]["needs"] if n["kind"] == "data"]
    assert (need["name"], need["remedy"]) == ("data/captions", "no such file or folder")
    (tmp_path / "data" / "captions").mkdir(parents=True)
    _, after = report(capsys, "captioner")
    assert "data/captions" not in needs(after, "captioner")


def test_an_optional_package_is_needed_by_the_recipe_that_imports_it(home, capsys, monkeypatch):
    _, before = report(capsys, "captioner")
    assert "trl" not in needs(before, "captioner")
    find = importlib.util.find_spec

    def find_others(name, *more):
        return None if name == "trl" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    _, after = report(capsys, "captioner")
    (need,) = [n for n in after["recipes"]["captioner"]["needs"] if n["kind"] == "package"]
    assert (need["name"], need["remedy"]) == ("trl", "pip install 'trl>=1.0'")
    assert after["broken"] == []
    _, other = report(capsys, "quickstart")
    assert "trl" not in needs(other, "quickstart")


def test_weights_that_come_with_the_package_and_are_missing_are_broken(home, capsys, monkeypatch):
    monkeypatch.setitem(model_names.NAMES, "shapes/clip", "nowhere")
    code, found = report(capsys)
    assert code == 1
    assert "shapes/clip: its weights are missing; install rewardedit again" in found["broken"]
    assert any(line.startswith("recipe quickstart: needs the model shapes/clip") for line in found["broken"])
    assert main(["doctor"]) == 1
    assert "  shapes/clip: not there; rewardedit train shapes/clip makes one" in capsys.readouterr().out


def test_a_default_editor_that_cannot_be_loaded_is_broken_and_the_rest_is_told(home, capsys, monkeypatch):
    monkeypatch.setitem(model_names.NAMES, "shapes/editor", "nowhere")
    code, found = report(capsys, "quickstart")
    assert code == 1
    assert found["attention"] is None
    assert found["device"]["name"] == "cpu"
    assert any(line.startswith("attention: OSError: ") for line in found["broken"])


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (None, "not installed; pip install 'peft>="),
        ("0.1", "is 0.1, and >="),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_broken(version, problem, home, capsys, monkeypatch):
    real = metadata.version

    def fake(name):
        if name != "peft":
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", fake)
    code, found = report(capsys, "quickstart")
    assert code == 1
    assert any(line.startswith(f"peft: {problem}") for line in found["broken"])


def test_a_package_that_cannot_be_imported_is_broken(home, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    code, found = report(capsys, "quickstart")
    assert code == 1
    (line,) = [line for line in found["broken"] if line.startswith("peft: ")]
    assert "cannot be imported (ModuleNotFoundError" in line


def test_a_recipe_that_cannot_be_read_says_why_and_the_others_are_told(home, capsys, monkeypatch):
    from rewardedit.cli import recipes

    broken = {"trainer": "refl", "train": {"max_stesp": 3}}
    load = recipes.configs.load_yaml

    def load_others(path):
        return broken if path.stem == "magicbrush-refl" else load(path)

    monkeypatch.setattr(recipes.configs, "load_yaml", load_others)
    code, found = report(capsys)
    assert code == 0
    assert "did you mean train.max_steps?" in found["recipes"]["magicbrush-refl"]["problem"]
    assert found["recipes"]["quickstart"] == {"needs": [], "problem": None}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("config.json", "model.safetensors"), None),
        (("config.json", "pytorch_model.bin"), None),
        (("config.json",), "its weights are missing"),
        (("model_index.json", "unet/a.safetensors", "vae/a.safetensors", "text_encoder/a.safetensors"), None),
        (
            ("model_index.json", "unet/a.safetensors", "text_encoder/a.safetensors"),
            "the weights of its vae are missing",
        ),
        (("model.safetensors.index.json", "a.safetensors", "b.safetensors"), None),
        (("model.safetensors.index.json", "a.safetensors"), "1 of 2 files of weights are missing"),
    ],
)
def test_what_a_cached_model_lacks(names, expected, tmp_path):
    pipeline = {"unet": ["diffusers", "X"], "vae": ["diffusers", "X"], "text_encoder": ["transformers", "X"]}
    content = {
        "model_index.json": json.dumps({**pipeline, "transformer": [None, None]}),
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
        ),
    }
    files = {}
    for name in names:
        files[name] = tmp_path / name
        files[name].parent.mkdir(exist_ok=True)
        files[name].write_text(content.get(name, ""))
    assert incomplete(files) == expected


def test_the_cache_is_where_the_environment_says(home, tmp_path, monkeypatch):
    assert hub_cache().folder == home / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "tables"))
    assert (hub_cache().folder, hub_cache().datasets_folder) == (tmp_path / "own", tmp_path / "tables")


def test_weights_of_a_packaged_model_are_counted(tmp_path, monkeypatch):
    monkeypatch.setitem(model_names.NAMES, "shapes/detector", str(tmp_path))
    save_file({"a": zeros(10)}, tmp_path / "model.safetensors")
    (found,) = [model for model in doctor.packaged_models() if model.name == "shapes/detector"]
    assert found.bytes == (tmp_path / "model.safetensors").stat().st_size
    shutil.rmtree(tmp_path)
    (found,) = [model for model in doctor.packaged_models() if model.name == "shapes/detector"]
    assert found.bytes is None


def test_its_help_waits_for_no_library():
    script = (
        "import sys\nfrom rewardedit.cli import main\n"
        "try:\n    main(['doctor', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'numpy', 'datasets'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "It downloads nothing" in done.stdout


def test_headers_say_the_downloads_of_an_empty_cache():
    empty = HubCache(Path("none"), Path("none"), ())
    for name in recipe_names():
        trainer, config = load_recipe(name, [])
        needs = missing_requirements(config, source_of(trainer, config), empty, recipe_names())
        fetched = [need.name for need in needs if need.on_hub]
        assert downloads(name) == in_short(fetched), name
    assert not set(EDITORS) - set(GB)


def test_recipes_stand_on_a_screen_with_their_gb(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 105
    assert not any("…" in line for line in lines)
    (kontext,) = [line for line in lines if line.startswith("  kontext-refl ")]
    assert kontext.split()[1:5] == ["50", "GiB", "70", "GB"]
    (chain,) = [line for line in lines if line.startswith("  magicbrush-adiee ")]
    assert chain.split()[1:3] == ["55", "GiB"], "the most of its phases, 54.4, never less"
