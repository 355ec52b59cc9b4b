"""`rewardedit edit` over images, folders and tables."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from skimage import data

from rewardedit import SamplingConfig, editing, load_editor, load_scorer
from rewardedit.cli import main
from rewardedit.data.edit_jobs import read_jobs
from rewardedit.data.worlds import world
from rewardedit.diffusion.sizes import trained_side
from rewardedit.scorers import load
from rewardedit.untrusted import file_name
from tests.editors import tiny_kontext
from tests.readme import recorded


@pytest.fixture
def folder(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for name, photo in (("cat.png", data.chelsea()), ("coffee.jpg", data.coffee())):
        Image.fromarray(photo).resize((48, 32)).save(images / name)
    return images


def edit(*words, model) -> int:
    return main(["edit", *map(str, words), "--model", model, "--steps", "2", "--size", "32"])


def test_a_folder_is_edited_and_a_second_run_does_nothing_again(folder, tiny_editor, tmp_path):
    out = tmp_path / "out"
    assert edit(folder, "make it red", "--out", out, model=tiny_editor) == 0
    assert Image.open(out / "cat.png").size == (48, 32)
    assert "make it red" in (out / "gallery.html").read_text()
    (out / "coffee.json").unlink()
    (out / "cat.png").write_bytes((out / "coffee.png").read_bytes())
    made = {name: (out / name).stat().st_mtime_ns for name in ("cat.png", "coffee.png")}
    assert edit(folder, "make it red", "--out", out, model=tiny_editor) == 0
    assert (out / "cat.png").stat().st_mtime_ns == made["cat.png"]  # its record is there
    assert (out / "coffee.png").stat().st_mtime_ns > made["coffee.png"]
    (out / "cat.png").unlink()
    assert edit(folder, "make it red", "--out", out, model=tiny_editor) == 0
    assert (out / "cat.png").is_file(), "what was removed is made again"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["make it blue"], 'instructions: ["make it red"] there, ["make it blue"] here'),
        (["make it red", "--seed", "7"], "seed: 0 there, 7 here"),
        (["make it red", "--best-of", "2", "--scorer", "l1"], "best_of: 1 there, 2 here"),
    ],
)
def test_an_edit_by_another_request_is_not_overwritten_unless_that_is_asked_for(
    folder, tiny_editor, tmp_path, words, said, capsys
):
    out = tmp_path / "out"
    assert edit(folder / "cat.png", "make it red", "--out", out, model=tiny_editor) == 0
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert edit(folder, *words, "--out", out, model=tiny_editor) == 2
    err = capsys.readouterr().err
    assert f"{out / 'cat'}: made with other settings ({said}); use another --out, or --overwrite" in err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files, "no other image was edited"
    assert edit(folder, *words, "--out", out, "--overwrite", model=tiny_editor) == 0
    assert json.loads((out / "cat.json").read_text())["turns"][0]["instruction"] == words[0]
    (out / "cat.json").write_text("[" * 100_000)  # a record that cannot be read says nothing
    assert edit(folder, *words, "--out", out, model=tiny_editor) == 0


def test_options_without_effect_are_refused(folder, tiny_editor, tmp_path, capsys):
    words = [folder / "cat.png", "make it red", "--out", tmp_path / "out", "--target-score", "3"]
    assert edit(*words, model=tiny_editor) == 2
    assert "--target-score has no effect on" in capsys.readouterr().err


def test_an_edit_is_made_again_where_its_files_are_others(folder, tiny_editor, tmp_path):
    model, mask, out = tmp_path / "model", tmp_path / "mask.png", tmp_path / "out"
    shutil.copytree(tiny_editor, model)
    Image.new("L", (48, 32), 255).save(mask)
    changes = {
        "nothing": lambda: None,
        "photo": lambda: Image.fromarray(data.coffee()).resize((48, 32)).save(folder / "cat.png"),
        "model": lambda: (model / "unet" / "config.json").touch(),
        "mask": lambda: Image.new("L", (48, 32), 128).save(mask),
    }
    before = None
    for name, change in changes.items():
        change()
        words = [folder / "cat.png", "make it red", "--mask", mask, "--out", out]
        assert edit(*words, model=str(model)) == 0
        made = (out / "cat.png").stat().st_mtime_ns
        assert (made == before) == (name == "nothing" and before is not None), name
        before = made
    assert edit(*words, model=str(model)) == 0
    assert (out / "cat.png").stat().st_mtime_ns == before


def test_pictures_of_an_interrupted_request_are_not_taken_for_those_of_the_one_before(
    folder, tiny_editor, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    words = [folder / "cat.png", "make it red", "make it blue", "--out", out, "--seed"]
    assert edit(*words, 1, model=tiny_editor) == 0
    before = (out / "cat-1.png").read_bytes()
    real = editing._turn

    def cut(editor, scorer, source, instruction, *more):
        if instruction == "make it blue":
            raise KeyboardInterrupt
        return real(editor, scorer, source, instruction, *more)

    with monkeypatch.context() as patch:
        patch.setattr(editing, "_turn", cut)
        assert edit(*words, 9, "--overwrite", model=tiny_editor) == 130
    assert (out / "cat-1.png").read_bytes() != before
    assert edit(*words, 1, model=tiny_editor) == 0
    assert (out / "cat-1.png").read_bytes() == before


def test_the_gallery_of_many_edits_shows_the_first(folder, tiny_editor, tmp_path, monkeypatch):
    monkeypatch.setattr("rewardedit.reports.edit_gallery.MOST_SHOWN", 1)
    out = tmp_path / "out"
    assert edit(folder, "make it red", "--out", out, model=tiny_editor) == 0
    page = (out / "gallery.html").read_text()
    assert "The first 1 of 2 edits" in page
    assert page.count("<figure") == 2


def test_a_size_of_nothing_is_refused(folder, tiny_editor, tmp_path, capsys):
    words = ["edit", str(folder), "x", "--model", tiny_editor, "--size", "-5", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "size: expected at least 1; got -5" in capsys.readouterr().err


def test_an_edit_is_made_again_where_its_judge_is_another(folder, tiny_editor, tmp_path, monkeypatch):
    judge = ["--best-of", "2", "--scorer", "{clip_t: {checkpoint: shapes/clip}}"]
    words = [folder / "cat.png", "make it red", *judge, "--out", tmp_path / "out"]
    made = []
    for digest in ("one", "one", "another"):
        monkeypatch.setattr(load, "fingerprints", lambda _, digest=digest: {"shapes/clip": digest})
        assert edit(*words, model=tiny_editor) == 0
        made.append((tmp_path / "out" / "cat.png").stat().st_mtime_ns)
    assert made[0] == made[1] < made[2]


def test_a_broken_picture_does_not_keep_the_others_from_being_done(folder, tiny_editor, tmp_path, capsys):
    (folder / "broken.png").write_bytes(b"not an image")
    assert edit(folder, "make it red", "--out", tmp_path / "out", model=tiny_editor) == 2
    assert "1 of 3 not edited; broken" in capsys.readouterr().err
    assert (tmp_path / "out" / "coffee.png").is_file()


def test_a_table_carries_its_own_instructions(folder, tiny_editor, tmp_path, capsys):
    rows = [
        {"id": "first", "source": "cat.png", "instruction": ["make it red", "add a hat"]},
        {"source": "coffee.jpg", "instruction": "make it blue"},
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert edit(folder, "--out", tmp_path / "out", model=tiny_editor) == 0
    names = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert {"first-1.png", "first-2.png", "0002-coffee.png"} <= names
    first = json.loads((tmp_path / "out" / "first.json").read_text())
    assert first["turns"][1]["source"] == "first-1.png"
    assert edit(folder, "make it red", "--out", tmp_path / "out", model=tiny_editor) == 2
    assert "has its own instructions" in capsys.readouterr().err
    ids = ["../x", "i" * 300]
    rows = [{"id": id, "source": "cat.png", "instruction": "a"} for id in ids]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert edit(folder, "--out", tmp_path / "out", model=tiny_editor) == 0
    assert all((tmp_path / "out" / f"{file_name(id)}.png").is_file() for id in ids)
    (folder / "rows.jsonl").write_text(json.dumps({"source": "cat.png", "instruction": ["make it red", ""]}))
    assert edit(folder, "--out", tmp_path / "out", model=tiny_editor) == 2
    assert "row 1 has no instruction" in capsys.readouterr().err


def test_best_of_n_with_scores_and_a_mask(folder, tiny_editor, tmp_path):
    out = tmp_path / "out"
    words = [
        folder / "cat.png",
        "make it red",
        "--best-of",
        "3",
        "--scorer",
        "l1",
        "--mask",
        "auto",
        "--out",
        out,
    ]
    assert edit(*words, model=tiny_editor) == 0
    turn = json.loads((out / "cat.json").read_text())["turns"][0]
    assert len(turn["scores"]) == 3
    by_seed = {record["seed"]: record for record in turn["candidates"]}
    assert {seed: record["score"] for seed, record in by_seed.items()} == dict(enumerate(turn["scores"]))
    assert turn["candidates"][0]["seed"] == turn["seed"], "the best first"
    assert all(Image.open(out / record["image"]).size == (48, 32) for record in turn["candidates"])
    assert turn["seed"] == max(range(3), key=lambda i: turn["scores"][i])
    assert isinstance(turn["score"], float)
    assert Image.open(out / turn["mask"]).size == (48, 32)
    page = (out / "gallery.html").read_text()
    assert "l1 0." in page
    best = re.findall(r'<figure data-role="strip" data-label="([^"]*)" class="best">', page)
    assert best == [f"seed {turn['seed']}"]
    assert page.count('data-role="strip"') == 3
    assert f'href="./{by_seed[2]["image"]}"' in page


def test_the_seed_that_is_asked_for_is_the_one_that_is_taken(folder, tiny_editor, tmp_path):
    def edited(name: str, *words) -> tuple[np.ndarray, dict]:
        assert (
            edit(folder / "cat.png", "make it red", "--out", tmp_path / name, *words, model=tiny_editor) == 0
        )
        turn = json.loads((tmp_path / name / "cat.json").read_text())["turns"][0]
        return np.asarray(Image.open(tmp_path / name / "cat.png")).astype(int), turn

    best, turn = edited("best", "--seed", 5, "--best-of", 2, "--scorer", "l1")
    assert turn["seed"] in (5, 6)
    alone, again = edited("alone", "--seed", turn["seed"])
    assert again["seed"] == turn["seed"]
    assert abs(alone - best).max() <= 1
    other, _ = edited("other")
    assert abs(alone - other).max() > 1


def test_no_job_writes_what_another_writes(folder, tiny_editor, tmp_path, capsys):
    (folder / "cat-0.png").write_bytes((folder / "cat.png").read_bytes())
    assert edit(folder, "make it red", "--out", tmp_path / "out", model=tiny_editor) == 2
    assert "'cat-0' and 'cat' would both write cat-0.png" in capsys.readouterr().err
    (folder / "rows.jsonl").write_text(
        json.dumps({"id": "a", "source": "cat.png", "instruction": "b"})
        + "\n"
        + json.dumps({"id": "a", "source": "coffee.jpg", "instruction": "b"})
    )
    assert edit(folder, "--out", tmp_path / "out", model=tiny_editor) == 2
    assert "would both write a.json" in capsys.readouterr().err


def test_a_mask_of_one_s_own(folder, tiny_editor, tmp_path, capsys):
    mask = tmp_path / "mask.png"
    plain = tmp_path / "plain"
    out = tmp_path / "out"
    Image.new("L", (90, 60), 255).save(mask)
    assert edit(folder / "cat.png", "make it red", "--out", plain, model=tiny_editor) == 0
    assert edit(folder / "cat.png", "make it red", "--mask", mask, "--out", out, model=tiny_editor) == 0
    assert (out / "cat.png").read_bytes() == (plain / "cat.png").read_bytes()
    brushed = Image.new("RGBA", (90, 60), (0, 0, 0, 255))
    brushed.putalpha(0)
    brushed.save(mask)
    assert (
        edit(
            folder / "cat.png",
            "make it red",
            "--mask",
            mask,
            "--out",
            tmp_path / "brushed",
            model=tiny_editor,
        )
        == 0
    )
    assert (tmp_path / "brushed" / "cat.png").read_bytes() == (plain / "cat.png").read_bytes()
    assert (
        edit(folder / "cat.png", "make it red", "--mask", "nowhere.png", "--out", out, model=tiny_editor) == 2
    )
    assert "nowhere.png: no such file" in capsys.readouterr().err


def test_a_mask_of_another_shape_is_told_of_once(folder, tiny_editor, tmp_path, capsys):
    for size, is_told in (((92, 60), False), ((60, 90), True)):
        mask = tmp_path / "mask.png"
        Image.new("L", size, 255).save(mask)
        words = [folder, "make it red", "--mask", mask, "--overwrite", "--out", tmp_path / "out"]
        assert edit(*words, model=tiny_editor) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "mask" in line]
        assert len(told) == is_told
    assert (
        "source and mask images differ in shape, such as 48 x 32 and 60 x 90 pixels: each mask im" in told[0]
    )


@pytest.fixture(scope="module")
def kontext(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("kontext")
    tiny_kontext().save_pretrained(folder)
    return str(folder)


def test_a_mask_that_an_editor_cannot_follow_is_refused_first(folder, kontext, tmp_path, capsys):
    out = tmp_path / "out"
    assert edit(folder, "make it red", "--mask", "auto", "--out", out, model=kontext) == 2
    err = capsys.readouterr().err
    assert "mask guidance needs classifier-free guidance" in err
    assert 'two_round_edit(editor, source, instruction, true_cfg_scale=2.0, negative_prompt=" ")' in err
    assert not out.exists(), "nothing was edited"


def test_an_editor_in_4_bits(folder, kontext, tiny_editor, tmp_path, capsys):
    out = tmp_path / "out"
    words = [folder / "cat.png", "make it red", "--out", out]
    assert edit(*words, model=kontext) == 0
    whole = np.asarray(Image.open(out / "cat.png")).astype(int)
    assert edit(*words, "--quantize", "4bit", model=kontext) == 2
    assert 'made with other settings (quantize: null there, "4bit" here)' in capsys.readouterr().err
    assert edit(*words, "--quantize", "4bit", "--overwrite", model=kontext) == 0
    difference = abs(np.asarray(Image.open(out / "cat.png")).astype(int) - whole)
    assert 0 < difference.mean() < 30
    assert edit(*words, "--quantize", "4bit", model=tiny_editor) == 2
    assert "quantize: expected an editor by flow matching" in capsys.readouterr().err


def test_the_second_round_is_of_the_chosen_seed(tiny_editor, monkeypatch):
    """A judge that likes the third of three."""
    asked = []
    rounds = editing.two_round_edit
    monkeypatch.setattr(editing, "two_round_edit", lambda *a, **k: asked.append(k["seed"]) or rounds(*a, **k))
    editor = load_editor(tiny_editor)
    source = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    settings = SamplingConfig(1)
    third = editor(source, ["make it red"], [9], settings=settings)
    judge = load_scorer(lambda batch: -(batch.edited - third).abs().mean((1, 2, 3)))
    config = editing.EditRunConfig("x", settings, seed=7, best_of=3, mask="auto")
    editing._turn(editor, judge, source, "make it red", config, editing.open_masks("auto", "cpu"))
    assert asked == [9]


def test_a_parquet_table_is_one(folder, tmp_path):
    row = {"source": str(folder / "cat.png"), "instruction": "make it red"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    for at in (tmp_path, tmp_path / "rows.parquet"):
        (job,) = read_jobs(str(at), [])
        assert job.instructions == ("make it red",)


def test_a_world_s_judge_is_the_best_of_those_that_score_any_instruction():
    result = recorded("best-of-n")
    others = ("one sample", "random choice", "oracle's choice")
    # BPM scores no instruction that it cannot parse, and no object that it does not find.
    means = {n: mean for n, mean in result["oracle"].items() if n not in others and "bpm" not in n}
    assert world("shapes").judge == max(means, key=lambda name: means[name])


def test_the_input_is_never_overwritten(folder, tiny_editor, capsys):
    before = (folder / "cat.png").read_bytes()
    assert edit(folder / "cat.png", "make it red", "--out", folder, model=tiny_editor) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert (folder / "cat.png").read_bytes() == before


def test_a_photograph_at_its_own_size_is_told_the_option_once(folder, tiny_editor, tmp_path, capsys):
    side = trained_side(load_editor(tiny_editor))
    for name in ("cat.png", "coffee.jpg"):
        Image.fromarray(data.coffee()).resize((4 * side, 2 * side)).save(folder / name)
    words = ["make it red", "--model", tiny_editor, "--steps", "1", "--out", tmp_path / "out"]
    assert main(["edit", *map(str, [folder, *words])]) == 0
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if "--size" in line]
    assert (
        f"is edited at its own {4 * side} x {2 * side} pixels, which takes at least 4 times the time" in hint
    )
    assert f"--size {side}" in hint


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: 17 bytes"
        ),
        MemoryError(),
    ],
)
def test_memory_that_runs_out_is_told_with_the_remedy(
    error, folder, tiny_editor, tmp_path, monkeypatch, capsys
):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(editing.Editor, "sample", fail)
    words = ["make it red", "--model", tiny_editor, "--out", tmp_path / "out"]
    assert main(["edit", *map(str, [folder / "cat.png", *words])]) == 2
    assert "cat.png: out of memory at 48 x 32 pixels; give --size, such as 512" in capsys.readouterr().err
    assert edit(folder / "cat.png", *words[:1], "--out", tmp_path / "two", model=tiny_editor) == 2
    assert "out of memory at 48 x 32 pixels; give a --size below 32" in capsys.readouterr().err


def test_bad_requests(folder, tmp_path, tiny_editor, capsys):
    (tmp_path / "empty").mkdir()
    for name in ("clip.mp4", "notes.txt"):
        (tmp_path / name).write_bytes(b"not an image")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"source": "gone.png", "instruction": "make it red"}))
    for words, message in (
        ([tmp_path / "empty", "make it red"], "holds no images"),
        ([folder / "dog.png", "make it red"], "dog.png: no such file"),
        ([tmp_path / "notes.txt", "make it red"], "notes.txt: not an image that can be read"),
        ([tmp_path / "clip.mp4", "make it red"], "videos are not edited"),
        ([tmp_path / "rows.jsonl"], "gone.png: no such file"),
        ([folder / "cat.png", "make it red", "--mask", tmp_path / "none.png"], "none.png: no such file"),
        ([folder / "cat.png", "make it red", "--best-of", "0"], "best-of: expected at least 1"),
        (
            [folder / "cat.png", "make it red", "--target-score", "11"],
            "target-score: expected a number from 0 to 10",
        ),
        ([folder / "cat.png", "make it red", "--scorer", "nonsense"], "no scorer named 'nonsense'"),
    ):
        # It is told before the editor, of which there is none, is loaded.
        assert edit(*words, "--out", tmp_path / "out", model="no/editor") == 2
        assert message in capsys.readouterr().err


def test_a_photograph_by_stable_diffusion_1_5_s_architecture(narrow_sd15, tmp_path):
    photo = tmp_path / "astronaut.png"
    out = tmp_path / "out"
    Image.fromarray(data.astronaut()).save(photo)
    words = [
        "edit",
        photo,
        "make the suit white",
        "--size",
        "256",
        "--steps",
        "3",
        "--best-of",
        "2",
        "--mask",
        "auto",
    ]
    assert (
        main(
            [
                *map(str, words),
                "--scorer",
                "clip_d:0.7,l1:0.3",
                "--world",
                "shapes",
                "--model",
                narrow_sd15,
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert Image.open(out / "astronaut.png").size == Image.open(out / "astronaut-mask.png").size == (256, 256)
    turn = json.loads((out / "astronaut.json").read_text())["turns"][0]
    assert len(turn["scores"]) == 2
