import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from skimage import data

from rewardedit import RewardPrompt
from rewardedit.cli import load_recipe, main, parse, recipes
from rewardedit.cli.recipes import TRAINERS
from rewardedit.cli.settings import settings_of
from rewardedit.config import dump, parse_value
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.sizes import out_of_memory_told
from rewardedit.images import to_tensor
from rewardedit.shapes import Shapes
from rewardedit.training.run import start
from rewardedit.training.run_folder import release
from rewardedit.training.stopping import Stopped

SHAPES = "data.name=shapes"


@pytest.fixture
def photo(tmp_path) -> str:
    path = tmp_path / "cat.png"
    Image.fromarray(data.chelsea()).resize((70, 50)).save(path)
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "quickstar"], "no recipe 'quickstar'; did you mean quickstart?"),
        (["train", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (
            ["train", "quickstart", "train.max_stesp=3"],
            "unknown setting train.max_stesp; did you mean train.max_steps?",
        ),
        (
            ["relabel", "relabel.scorer={l1: 3}", "--out", "out"],
            "relabel.scorer l1: expected its weight and options",
        ),
        (["train", "quickstart", "train.lr=fast"], "train.lr: expected a number; got 'fast'"),
        (["train", "quickstart", "base=/nowhere", "--dry-run"], "editor '/nowhere' is not there"),
        (["train", "quickstart", "relabel.scorer=clip_x", "--dry-run"], "no scorer named 'clip_x'"),
        (
            ["train", "quickstart", "relabel.scorer=shapes_oracle", "--dry-run"],
            "the exact rating knows the truth",
        ),
        (
            ["train", "magicbrush-reward-conditioned", "data.path=/nowhere", "--dry-run"],
            "data /nowhere: no such file or folder",
        ),
        (["edit", "nowhere.png", "make it red", "--out", "out"], "nowhere.png: no such file"),
        (["edit", "nowhere.png", "--out", "out"], "say what to change"),
        (["edit", "nowhere.png", " ", "--out", "out"], "say what to change"),
        (["relabel", "data.name=table", "--out", "out"], "path: table rows need one"),
        (
            ["relabel", "train.lr=3", "--out", "out"],
            "relabel does not use the setting train; it uses those of data, candidates",
        ),
        (
            ["relabel", SHAPES, "data.offset=-1", "--out", "out"],
            "data.offset: expected at least 0; got -1",
        ),
        (
            ["relabel", SHAPES, "data.limit=0", "--out", "out"],
            "data.limit: expected at least 1; got 0",
        ),
        (
            [
                "relabel",
                "data.name=shapes",
                "relabel.scorer=l1",
                "relabel.prompt=custom",
                "relabel.template='{instruction} {word} {mood}'",
                "--out",
                "out",
            ],
            "relabel.template: expected {instruction} and {word} in it and no other braces",
        ),
        (
            ["relabel", "data.name=shapes", "relabel.scorer=l1", "relabel.words=[bad, good]", "--out", "out"],
            "relabel.words, upper: expected a rising upper bound for each word",
        ),
        (["score", "a.png", "b.png", ""], "the instruction is empty"),
        (
            ["score", "name=shapes", "limit=2", "--mask", "a.png"],
            "--mask goes with SOURCE EDITED INSTRUCTION",
        ),
    ],
)
def test_the_user_s_errors_are_one_line_with_a_remedy_and_exit_2(
    words, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len([line for line in err.splitlines() if not line.startswith("downloads ")]) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("steps: expected 3; got 'x'"), 2, "steps: expected 3; got 'x'"),
        (FileNotFoundError(2, "No such file or directory", "a.png"), 2, "a.png: No such file or directory"),
        (ValueError(), 2, "ValueError"),
        (KeyError("no such part"), 1, "KeyError: no such part (--debug shows where)"),
        (RuntimeError("first\nsecond"), 1, "RuntimeError: first (--debug shows where)"),
    ],
)
def test_errors_are_sentences_and_no_python_literals(error, code, line, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setattr(recipes, "run", fail)
    assert main(["recipes"]) == code
    assert capsys.readouterr().err == f"rewardedit: {line}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "quickstart", "train.lr=3e-4", "train.batch_size=2", "--out", "x", "--dry-run"],
        ["train", "quickstart", "--out", "x", "train.lr=3e-4", "train.batch_size=2", "--dry-run"],
        ["train", "--out", "x", "quickstart", "train.lr=3e-4", "--dry-run", "train.batch_size=2"],
        ["train", "--dry-run", "--out", "x", "quickstart", "train.lr=3e-4", "train.batch_size=2"],
    ],
)
def test_settings_stand_anywhere(words):
    args = parse(words)
    assert args.settings == ["train.lr=3e-4", "train.batch_size=2"]
    assert (args.recipe, args.out, args.dry_run) == ("quickstart", "x", True)
    edit = parse(["edit", "cat.png", "--out", "x", "make it red", "--seed", "3", "make it blue"])
    assert (edit.instruction, edit.seed) == (["make it red", "make it blue"], 3)


@pytest.mark.parametrize("words", [["train", "quickstart", "--sedes", "3"], ["recipes", "quickstart"]])
def test_options_that_are_not_there_are_refused(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert (
        f"rewardedit {words[0]}: error: unrecognized arguments: {words[-2] if '3' in words else words[-1]}"
        in capsys.readouterr().err
    )


def test_help_import_and_a_score_wait_for_no_library_that_they_do_not_need(photo):
    """torch, diffusers and transformers take seconds to import."""
    script = """
import sys
import rewardedit
from rewardedit import cli
from rewardedit.cli import main, parse
assert set(rewardedit.__all__) <= set(dir(rewardedit))
try:
    main(["--help"])
except SystemExit:
    pass
assert main(["recipes"]) == 0
heavy = {"torch", "diffusers", "transformers", "numpy", "PIL"} & set(sys.modules)
assert not heavy, heavy
assert main(["score", sys.argv[1], sys.argv[1], "make it red", "--scorer", "l1"]) == 0
heavy = {"diffusers", "transformers", "torch._dynamo"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script, photo], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_runs_as_a_module_for_launchers():
    done = subprocess.run([sys.executable, "-m", "rewardedit.cli", "recipes"], capture_output=True, text=True)
    assert "quickstart" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_name_is_there():
    import rewardedit

    found = {name: getattr(rewardedit, name) for name in rewardedit.__all__}
    assert [name for name, value in found.items() if value.__name__ != name] == []
    with pytest.raises(AttributeError, match="no attribute 'load_editors'"):
        rewardedit.load_editors  # noqa: B018


@pytest.mark.parametrize("place", range(3))
def test_debug_shows_where_and_stands_anywhere(place, capsys):
    words = ["train", "quickstar"]
    words.insert(place, "--debug")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "no recipe" in said


def test_dry_run_says_what_would_happen_and_does_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart", "train.lr=1e-4", "train.lora_rank=4", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 15
    assert re.search(
        r"disk: nothing to download; [\d.]+ GB free in .*, [\d.]+ GB for the run in runs/quick", out
    )
    assert "rows: 8960" in out
    assert "trained parameters: 0." in out
    assert "memory, GiB: scores " in out
    assert "all files and models are there" in out
    assert not list(tmp_path.iterdir())
    assert main(["train", "quickstart", "train.lr=1e-4", "--dry-run", "--settings"]) == 0
    assert "lr: 0.0001" in capsys.readouterr().out
    assert main(["train", "quickstart", "--settings"]) == 2
    assert "no effect without --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize("spec", ["strange.module:Reward", "clip_d:0.5,strange.module:Reward:0.5"])
def test_the_code_of_others_that_a_recipe_runs_is_named_before_it_is_imported(
    spec, tmp_path, capsys, monkeypatch
):
    imported = importlib.import_module

    def importing(name: str, *more: str) -> Any:
        if name == "strange.module":
            assert "runs code that is not rewardedit's: strange.module:Reward" in capsys.readouterr().err
            raise ImportError("it was to be imported now")
        return imported(name, *more)

    monkeypatch.setattr(importlib, "import_module", importing)
    (tmp_path / "own.yaml").write_text(
        f"trainer: refl\ndata: {{name: shapes}}\nreward: {{scorer: '{spec}'}}\n"
    )
    assert main(["train", str(tmp_path / "own.yaml"), "--out", str(tmp_path / "out")]) == 2
    assert "it was to be imported now" in capsys.readouterr().err


def test_a_recipe_without_such_code_says_nothing_of_it(capsys):
    assert (
        main(["train", "quickstart", "relabel.scorer=clip_d:0.7,l1:0.3", "base=/nowhere", "--dry-run"]) == 2
    )
    assert "runs code" not in capsys.readouterr().err


def test_a_dry_run_names_all_that_is_missing_and_what_it_knows_without_it(tiny_editor, capsys):
    data = "data={name: table, path: nowhere.csv, size: 32}"
    settings = [data, "evaluate=null", "candidates.editors=[some/editor, /nowhere]", f"base={tiny_editor}"]
    settings += ["relabel.scorer=l1", "train.batch_size=2"]
    assert main(["train", "quickstart", *settings, "--dry-run"]) == 2
    told = capsys.readouterr()
    missing = [line for line in told.out.splitlines() if line.startswith("not there:")]
    assert [line.split(":")[1] for line in missing] == [
        " the data nowhere.csv",
        " the model /nowhere",
    ]
    assert told.err.count("some/editor") == 1, "it is downloaded"
    assert "disk: 1 download of unknown size" in told.out
    assert "trained parameters: " in told.out
    assert "memory, GiB: " in told.out
    assert "all files and models are there" not in told.out
    assert "nowhere.csv" in told.err.splitlines()[-1]


def test_a_run_s_folder_stands_in_the_place_of_its_recipe(tmp_path, capsys):
    folder = tmp_path / "own"
    _, begun = load_recipe("quickstart", ["train.lr=1e-3", "relabel.scorer=l1"])
    start(folder, begun)
    release(folder)
    module, config = load_recipe(str(folder), ["train.max_steps=2000"])
    assert module.__name__ == "rewardedit.trainers.reward_conditioned"
    assert config == replace(begun, train=replace(begun.train, max_steps=2000))
    for more, error in (
        ([], "is a run; go on with it by --resume, or name a recipe"),
        (["--resume", "--out", str(tmp_path)], f"{folder} goes on in its own folder; leave --out out"),
        (["--resume", "relabel.scorer=ssim"], 'relabel.scorer: "l1" there, "ssim" here'),
    ):
        assert main(["train", str(folder), *more]) == 2
        assert error in capsys.readouterr().err
    assert main(["train", str(tmp_path / "nowhere"), "--resume"]) == 2
    assert "expected a recipe, or the folder of a run that has begun" in capsys.readouterr().err
    assert main(["train", "quickstart", "--resume", "--out", str(tmp_path / "nowhere")]) == 2
    assert "there is no run to go on with; leave --resume out to start one" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_an_interrupted_training_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    start(tmp_path / "own", load_recipe("quickstart", [])[1])
    ends = {
        KeyboardInterrupt(): (130, "interrupted"),
        Stopped("stopped after step 7", 15): (143, "stopped after"),
    }
    for error, (code, told) in ends.items():

        def fail(args, error=error):
            args.out = str(tmp_path / "own")
            raise error

        monkeypatch.setattr("rewardedit.cli.train.run", fail)
        assert main(["train", "quickstart"]) == code
        err = capsys.readouterr().err
        assert err.startswith(told)
        assert err.endswith(f"; go on with: rewardedit train {tmp_path / 'own'} --resume\n")


@pytest.mark.parametrize(
    ("error", "words", "told"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the notes."),
            ["train", "quickstart"],
            "out of GPU memory: CUDA out of memory. Tried to allocate 2 GiB.; take a smaller "
            "train.micro_batch_size, train.memory=auto; for FLUX and Qwen train.quantize=4bit; docs/",
        ),
        (
            RuntimeError("HIP out of memory"),
            ["edit", "photo.jpg", "add a hat"],
            "out of GPU memory: HIP out of memory; take a smaller --size, --quantize 4bit (FLUX, Qwen), or a "
            "smaller scorer; docs/",
        ),
        (
            MemoryError(),
            ["score", "a.jpg", "b.jpg", "add a hat"],
            "out of memory: MemoryError; take a smaller --size or a smaller scorer, or quantize: 4bit of a ",
        ),
        (
            MemoryError(),
            ["serve"],
            "out of memory: MemoryError; take a smaller --batch-size or a smaller scorer; docs/",
        ),
    ],
)
def test_memory_that_runs_out_has_a_remedy(error, words, told, monkeypatch, capsys):
    def fail(args: Any) -> None:
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("the stage failed") from cause

    monkeypatch.setattr(f"rewardedit.cli.{words[0]}.run", fail)
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"rewardedit: {told}")


def test_a_hidden_cause_leaves_the_better_message(monkeypatch, capsys):
    """Of one image, by its size."""

    def fail(args: Any) -> None:
        with out_of_memory_told(Path("photo.jpg"), torch.zeros(1, 3, 48, 64), "give --size"):
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("rewardedit.cli.edit.run", fail)
    assert main(["edit", "photo.jpg", "add a hat"]) == 2
    assert capsys.readouterr().err == "rewardedit: photo.jpg: out of memory at 64 x 48 pixels; give --size\n"


def test_the_help_of_a_recipe_lists_every_setting_with_its_value(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stopped:
        main(["train", "quickstart", "train.lr=1e-3", "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "--dry-run" in out
    lines = {
        line[2:].split()[0].partition("=")[0]: line
        for line in out.partition("set by the recipe")[2].splitlines()[2:]
    }

    _, config = load_recipe("quickstart", [])
    dumped = parse_value(dump(config))
    groups = {
        "data": dumped["data"],
        "relabel": dumped["relabel"],
        "train": dumped["train"],
        "evaluate": dumped["evaluate"],
    }
    names = {*dumped, *(f"{group}.{name}" for group, values in groups.items() for name in values)}
    assert names <= set(lines)
    assert "candidates.num_inference_steps" in lines  # of a group that is null, the defaults
    assert lines["train.lr"].startswith("* train.lr=0.001 ")
    assert lines["train.batch_size"].startswith("* train.batch_size=64 ")
    assert lines["train.seed"].startswith("  train.seed=0 ")
    assert lines["train.optimizer"].endswith("(adamw | adamw8bit | muon)")
    assert lines["train.lora_rank"].endswith("(int or null)")
    said = lines["data.size"].split(maxsplit=1)[1]
    assert said.startswith(
        "image side in pixels, required for training; null: score at each source's own size"
    )
    assert said.endswith("(int or null)")
    assert "null: as lora_rank" in lines["train.lora_alpha"]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_setting_has_a_line_that_says_what_it_is(trainer):
    config = importlib.import_module(TRAINERS[trainer]).Config
    assert [setting.name for setting in settings_of(config) if not setting.help] == []


def test_help_without_a_recipe_and_with_a_wrong_one(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "settings of" not in capsys.readouterr().out
    assert main(["train", "quickstar", "--help"]) == 2
    assert capsys.readouterr().err == "rewardedit: no recipe 'quickstar'; did you mean quickstart?\n"


def test_recipes_are_listed(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "quickstart" in out
    assert "magicbrush-reward-conditioned-lora-24gb" in out


def test_edit_applies_instructions_one_after_another(photo, tiny_editor, tmp_path, capsys):
    out = tmp_path / "out"
    words = [
        "edit",
        photo,
        "make it red",
        "make it blue",
        "--model",
        tiny_editor,
        "--steps",
        "2",
        "--out",
        str(out),
        "--graphs",
    ]
    assert main(words) == 0
    assert Image.open(out / "cat-1.png").size == Image.open(out / "cat-2.png").size == (70, 50)
    record = json.loads((out / "cat.json").read_text())
    assert [turn["instruction"] for turn in record["turns"]] == ["make it red", "make it blue"]
    printed = capsys.readouterr().out
    assert "attention: sdpa" in printed
    assert "graphs: not recorded (no GPU)" in printed


def test_edit_asks_a_reward_conditioned_editor_for_its_best(photo, tiny_editor, tmp_path):
    import shutil

    model = tmp_path / "pipeline"
    shutil.copytree(tiny_editor, model)
    RewardPrompt.adiee().save(model)
    words = [
        "edit",
        photo,
        "make it red",
        "--model",
        str(model),
        "--steps",
        "2",
        "--size",
        "32",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 0
    record = json.loads((tmp_path / "out" / "cat.json").read_text())
    assert record["turns"][0]["prompt"] == "make it red. The image quality is five out of five."


def test_relabel_writes_shards_for_your_own_rows(photo, tmp_path, capsys):
    rows = [{"source": "cat.png", "instruction": f"edit {i}", "target": "cat.png"} for i in range(3)]
    (tmp_path / "other.png").write_bytes((tmp_path / "cat.png").read_bytes())
    Image.open(photo).rotate(90).resize((70, 50)).save(tmp_path / "other.png")
    rows[2]["target"] = "other.png"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "relabel",
        "data.name=table",
        f"data.path={tmp_path}",
        "data.size=64",
        "relabel.scorer=l1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 0
    assert "3 rows, 3 valid" in capsys.readouterr().out
    assert list((tmp_path / "out" / "relabelled").glob("*.parquet"))
    again = [word.replace("scorer=l1", "scorer={l1: {}}") for word in words]
    assert main(again) == 0
    other = [word.replace("scorer=l1", "scorer.l1.against=target") for word in words]
    assert main(other) == 2
    assert 'relabel.scorer: "l1" there, {"l1": {"against": "target"}} here' in capsys.readouterr().err


def test_the_sheet_command(tmp_path):
    assert main(["shapes", "sheet", str(tmp_path / "s.png"), "-n", "2"]) == 0
    assert (tmp_path / "s.png").is_file()


def test_pairs_of_the_offline_world_are_written_as_a_table_that_recipes_read(tmp_path, capsys):
    words = ["shapes", "export", "--out", str(tmp_path / "own"), "-n", "3", "--split", "train"]
    assert main(words) == 0
    rows = open_rows(DataConfig("table", str(tmp_path / "own" / "pairs.csv"), size=64))
    world = Shapes("train").batch(0, 3)
    assert len(rows) == 3
    for i in range(3):
        assert rows[i].instruction == world.instruction[i]
        for name in ("source", "target"):
            read = to_tensor(getattr(rows[i], name), 3)
            assert read.sub(getattr(world, name)[i]).abs().max() <= 0.5 / 255 + 1e-6
    assert main(words) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.usefixtures("unmeasured_memory")
def test_a_small_model_that_meets_a_photograph_is_warned_of(photo, tmp_path, capsys):
    warned = (
        "know only drawn shapes of 64 × 64 pixels; results for other images (here 70 × 50) are meaningless"
    )
    score = ["score", photo, photo, "make it red", "--world", "shapes"]
    assert main([*score, "--scorer", "vifi_clip"]) == 0
    err = capsys.readouterr().err
    assert f"vifi_clip: small models (shapes/vifi-clip) {warned}; for photographs leave --world out" in err
    assert main(["score", photo, photo, "make it red", "--scorer", "l1"]) == 0
    assert "warning" not in capsys.readouterr().err
    words = ["edit", photo, "make it red", "--world", "shapes", "--steps", "1", "--best-of", "2"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    err = capsys.readouterr().err
    assert f"--model: small models (shapes/editor) {warned}" in err
    assert "warning: --scorer: small models (shapes/adiee) know only" in err

    of_the_world = tmp_path / "64.png"
    Image.new("RGB", (64, 64)).save(of_the_world)
    score[1:3] = [str(of_the_world)] * 2
    assert main([*score, "--scorer", "vifi_clip"]) == 0
    assert "warning" not in capsys.readouterr().err
    (tmp_path / "rows.jsonl").write_text(json.dumps({"source": photo, "target": photo, "instruction": "x"}))
    data = f"data={{name: table, path: {tmp_path / 'rows.jsonl'}, size: 64}}"
    main(["train", "shapes/refl", data, "evaluate=null", "--dry-run"])
    err = capsys.readouterr().err
    assert "warning: base, reward.scorer: small models (shapes/adiee, shapes/editor) know only" in err
