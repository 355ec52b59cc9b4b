"""Mistakes that users make, from the shell and from Python, each with the sentence that answers it: what was
expected, what came, and the remedy.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image

from rewardedit import EditBatch, EditSample, RewardPrompt, SamplingConfig, collate, load_editor, load_image
from rewardedit.cli import main
from rewardedit.scorers import load_scorer
from rewardedit.selection import best_of_n

WORLD = ("--world", "shapes")
PLAN = ("train", "shapes/refl", "--dry-run")
OWN = "data={name: table, path: pairs.csv, size: 64"
IMAGE = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SCORERS = (
    "clip_d, clip_t, clip_i, l1, l2, psnr, ssim, lpips, dino_i, vifi_clip, bpm, adiee, lower_of, dice, "
    "dice_clip_i, dice_clip_t, vlm_judge, or one of your own as file.py:function or package.module:Class"
)
TABLES = "rows.jsonl, rows.csv, rows.tsv, rows.parquet, metadata.jsonl, metadata.csv, metadata.tsv, "
TABLES += "metadata.parquet"

# kind of mistake, words of the command line, the sentence
SHELL: list[tuple[str, tuple[str, ...], str]] = [
    ("value", (*PLAN, "train.lr=0"), "train.lr: expected above 0 and finite, or nothing is trained; got 0"),
    ("value", (*PLAN, "train.lr=fast"), "train.lr: expected a number; got 'fast'"),
    ("value", (*PLAN, "train.max_steps=1.5"), "train.max_steps: expected a whole number; got 1.5"),
    ("value", (*PLAN, "train.batch_size=0"), "train.batch_size: expected at least 1; got 0"),
    ("value", (*PLAN, "train.lora_rank=0"), "train.lora_rank: expected at least 1; got 0"),
    ("value", (*PLAN, "train.validate_every=-1"), "train.validate_every: expected at least 0; got -1"),
    ("value", (*PLAN, "train.lr_warmup_steps=-2"), "train.lr_warmup_steps: expected at least 0; got -2"),
    ("value", (*PLAN, "train.ema=1.5"), "train.ema: expected at least 0 and below 1; got 1.5"),
    ("value", (*PLAN, "train.weight_decay=-1"), "train.weight_decay: expected at least 0; got -1"),
    (
        "value",
        (*PLAN, "train.lr=.inf"),
        "train.lr: expected above 0 and finite, or nothing is trained; got inf",
    ),
    ("value", (*PLAN, "data.size=-64"), "data.size: expected at least 1; got -64"),
    ("value", (*PLAN, "data.limit=-3"), "data.limit: expected at least 1; got -3"),
    ("value", (*PLAN, "data.fraction=2"), "data.fraction: expected above 0 and at most 1; got 2.0"),
    ("value", (*PLAN, "monitor.n=1"), "monitor.n: expected at least 2; got 1"),
    ("value", (*PLAN, "bad_rows=3"), "bad_rows: expected a share from 0 to 1; got 3.0"),
    (
        "value",
        (*PLAN, "reward.num_inference_steps=[0]"),
        "reward.num_inference_steps, stop_before_end: expected at least one step to be taken; got "
        "[0] and [0, 0]",
    ),
    (
        "value",
        ("edit", "photo.jpg", "x", "--out", "new", "--guidance-scale", "-3", *WORLD),
        "guidance_scale: expected at least 0; got -3",
    ),
    (
        "value",
        ("edit", "photo.jpg", "x", "--out", "new", "--size", "0", *WORLD),
        "size: expected at least 1; got 0",
    ),
    (
        "value",
        ("edit", "photo.jpg", "x", "--out", "new", "--best-of", "0", *WORLD),
        "best-of: expected at least 1; got 0",
    ),
    (
        "without effect",
        (*PLAN, "data.path=pairs.csv"),
        "data.path: has no effect on rows of the world shapes, which has splits and shapes.seed; leave it "
        "out, or name another data set, e.g. name: table",
    ),
    (
        "without effect",
        (*PLAN, f"{OWN}, shapes: {{edits_per_source: 3}}}}"),
        "data.shapes: has no effect on table rows; leave it out, or give the group anew: data={name: table, "
        "path: …}",
    ),
    (
        "without effect",
        (*PLAN, "train.lora_alpha=8"),
        "train.lora_alpha: has no effect without lora_rank; give that too",
    ),
    (
        "without effect",
        (*PLAN, "reward.preset=draft", "reward.hinge=3"),
        "reward.hinge: has no effect with loss: linear; leave it out, or take loss: hinge",
    ),
    (
        "without effect",
        (*PLAN, "reward.image_guidance_scale=2"),
        "reward.image_guidance_scale: has no effect without guidance_scale; give that too",
    ),
    (
        "without effect",
        (*PLAN, "monitor.stop=true", "train.validate_every=0"),
        "monitor.stop: has no effect without train.validate_every; give updates between two checks",
    ),
    (
        "without effect",
        ("relabel", "--out", "new", "train.lr=1"),
        "relabel does not use the setting train; it uses those of data, candidates, relabel",
    ),
    (
        "without effect",
        ("relabel", "--out", "new", "data.name=shapes", "relabel.scorer=l1", "candidates.guidance_scale=3"),
        "candidates.guidance_scale: has no effect without editors; name some, or leave it out",
    ),
    (
        "without effect",
        ("relabel", "--out", "new", "data.name=shapes", "relabel.scorer=l1", "relabel.template=x"),
        "relabel.template: required by prompt=custom, and allowed with no other prompt",
    ),
    (
        "without effect",
        ("score", "pairs.csv", "--mask", "photo.jpg"),
        "--mask goes with SOURCE EDITED INSTRUCTION; rows of a table or data set have their own",
    ),
    (
        "without effect",
        ("score", "photo.jpg", "edited.png", "x", "--engine", "ray"),
        "--engine ray: goes with --out FILE.parquet, which is made in shards",
    ),
    (
        "without effect",
        ("score", "photo.jpg", "edited.png", "x", "--scorer", "l1", "--checkpoint", "a/b"),
        "scorer l1: expected options among against, region; got checkpoint",
    ),
    (
        "without effect",
        ("edit", "photo.jpg", "x", "--out", "new", "--target-score", "3", "--size", "32", *WORLD),
        "--target-score has no effect on shapes/editor, which is not reward-conditioned; leave it out, or "
        "--model a "
        "run of reward conditioning",
    ),
    (
        "files",
        ("edit", "texts", "x", "--out", "new", *WORLD),
        f"texts: holds no images that can be read, and no table ({TABLES})",
    ),
    ("files", ("edit", "gone.jpg", "x", "--out", "new", *WORLD), "gone.jpg: no such file"),
    (
        "files",
        ("edit", "pairs.csv", "x", "--out", "new", *WORLD),
        "pairs.csv: the table has its own instructions; leave out those on the command line",
    ),
    (
        "files",
        ("edit", "photo.jpg", " ", "--out", "new", *WORLD),
        'say what to change: rewardedit edit INPUT "make the man\'s pants white" --out DIR',
    ),
    ("files", ("score", "gone.csv"), "gone.csv: no such file"),
    (
        "files",
        ("score", "photo.jpg"),
        "photo.jpg: expected a table that ends in .jsonl, .csv, .tsv, .parquet",
    ),
    (
        "files",
        ("score", "photo.jpg", "edited.png"),
        'expected SOURCE EDITED "INSTRUCTION", a table, folders of edits with --sources FOLDER, or settings '
        "such as name=magicbrush path=…",
    ),
    ("files", ("score", "photo.jpg", "edited.png", " "), "the instruction is empty; say what was to change"),
    (
        "files",
        ("score", "photo.jpg", "words.txt", "x"),
        "words.txt: not an image that can be read (cannot identify image file 'words.txt')",
    ),
    (
        "files",
        ("score", "pairs.csv", "--out", "x.txt"),
        "--out x.txt: expected a name that ends in .parquet, .json, .jsonl, .csv",
    ),
    (
        "files",
        ("score", "misspelt.csv"),
        "misspelt.csv: unknown column 'instructon'; did you mean instruction? Rename it, or say "
        "columns={instruction: instructon}",
    ),
    (
        "files",
        ("score", "outside.csv", "--scorer", "l1"),
        "outside.csv: row 1: source: expected a file inside of .; got ../secret.jpg, which lies "
        "outside; data.root=FOLDER names another folder of images",
    ),
    (
        "twice",
        ("edit", "photo.jpg", "x", "--out", ".", *WORLD),
        "1 of 1 not edited; photo: .: holds the image itself, which its edit could overwrite; choose "
        "another --out",
    ),
    (
        "twice",
        ("edit", "photo.jpg", "make it blue", "--out", "edits", *WORLD),
        'edits/photo: made with other settings (instructions: ["make it red"] there, ["make it blue"] here); '
        "use another --out, or --overwrite",
    ),
    (
        "twice",
        ("edit", "photo.jpg", "make it red", "--seed", "4", "--out", "edits", *WORLD),
        "edits/photo: made with other settings (seed: 0 there, 4 here); use another --out, or --overwrite",
    ),
    (
        "twice",
        ("edit", "twins", "make it red", "--out", "new", *WORLD),
        "twins: 'a-0' and 'a' would both write a-0.png; rename one, or give other ids",
    ),
    (
        "twice",
        ("train", "shapes/refl", "--out", "run"),
        "run holds an earlier run; go on with --resume, start again with --overwrite, or name=…",
    ),
    (
        "twice",
        ("train", "shapes/refl", "--out", "photos", "--overwrite"),
        "photos: --overwrite removes runs alone, and it has no config.yaml and environment.json of a run; "
        "take another folder",
    ),
    (
        "twice",
        ("train", "shapes/refl", "--out", "gone", "--resume"),
        "gone: there is no run to go on with; leave --resume out to start one",
    ),
    (
        "twice",
        ("train", "shapes/refl", "name=../photos"),
        "name: expected a plain name of one folder or file; got '../photos'",
    ),
    ("twice", ("score", "pairs.csv", "--scorer", "l1", "l1"), "--scorer: expected each once; got l1 l1"),
    (
        "twice",
        ("score", "pairs.csv", "--scorer", "l1", "--out", "run/config.yaml"),
        "--out run/config.yaml: expected a name that ends in .parquet, .json, .jsonl, .csv",
    ),
    ("name", ("train", "shape-refl"), "no recipe 'shape-refl'; did you mean shapes/refl?"),
    ("name", ("train", "nowhere.yaml"), "nowhere.yaml: cannot be read (No such file or directory)"),
    ("name", ("train", "shapes/refl", "train.lr"), "'train.lr': expected key=value, e.g. train.lr=1e-4"),
    (
        "name",
        ("train", "shapes/refl", "train.max_stesp=3"),
        "unknown setting train.max_stesp; did you mean train.max_steps?",
    ),
    (
        "name",
        (*PLAN, "train.tracker=wandb"),
        "train.tracker: wandb is not installed; pip install 'wandb', or take tracker: none",
    ),
    (
        "name",
        (*PLAN, "train.mixed_precision=fp8"),
        "train.mixed_precision: expected one of no, bf16, fp16; got 'fp8'",
    ),
    (
        "name",
        ("score", "pairs.csv", "--scorer", "clip"),
        f"no scorer named 'clip'; expected one of {SCORERS}; did you mean clip_d, clip_t or clip_i?",
    ),
    (
        "name",
        ("score", "pairs.csv", "--scorer", "own.py:f"),
        "scorer 'own.py:f' cannot be imported: own.py: no such file",
    ),
    (
        "name",
        ("score", "pairs.csv", "--scorer", "{l1: {regoin: inside}}"),
        "scorer l1: expected options among against, region; got regoin; did you mean region?",
    ),
    (
        "name",
        ("score", "pairs.csv", "--scorer", "{l1: {region: nowhere}}"),
        "region: expected one of all, inside, outside; got 'nowhere'",
    ),
    (
        "name",
        ("relabel", "--out", "new", "relabel.prompt=adie"),
        "relabel.prompt: expected one of adiee, hive, learned, custom; got 'adie'; did you mean adiee?",
    ),
    (
        "name",
        ("relabel", "data.name=shapes", "relabel.scorer=l1", "--out", "new", "--shard", "4/3"),
        "--shard: expected K/N with K from 1 to N, such as 3/16; got '4/3'",
    ),
]

# kind of mistake, the call, the sentence
PYTHON: list[tuple[str, Callable[[], Any], str]] = [
    (
        "type",
        lambda: EditBatch((IMAGE * 255).byte(), ["x"], IMAGE),
        "source: expected floating-point values in [0, 1]; got uint8 0…254; divide by 255",
    ),
    (
        "type",
        lambda: EditBatch(IMAGE * 2 - 1, ["x"], IMAGE),
        "source: expected floating-point values in [0, 1]; got −0.9975…0.9997; map them by (x + 1) / 2",
    ),
    (
        "type",
        lambda: EditBatch(IMAGE / 0, ["x"], IMAGE),
        "source: expected finite values in [0, 1]; got NaN or infinity; leave such images out",
    ),
    (
        "type",
        lambda: EditBatch(IMAGE.numpy(), ["x"], IMAGE),
        "source: expected a tensor; got ndarray; collate makes batches of images",
    ),
    (
        "type",
        lambda: EditBatch(Image.new("RGB", (8, 8)), ["x"], IMAGE),
        "source: expected a tensor; got Image; collate makes batches of images",
    ),
    (
        "type",
        lambda: EditBatch(IMAGE[0], ["x"], IMAGE[0]),
        "source: expected at least one image, (b, 3, h, w); got (3, 16, 16)",
    ),
    (
        "type",
        lambda: EditBatch(IMAGE, "x", IMAGE),
        "instruction: expected a list of 1 strings, one a row; got a single string",
    ),
    ("type", lambda: EditBatch(IMAGE, [None], IMAGE), "instruction: expected text; got NoneType"),
    (
        "type",
        lambda: EditBatch(IMAGE, ["x"], IMAGE[..., :8, :8]),
        "edited: expected (1, 3, 16, 16) to fit source; got (1, 3, 8, 8); give "
        "rewardedit.images.resize(edited, source.shape[-2:])",
    ),
    ("type", lambda: load_scorer(3), "scorer: expected a name, a mapping or a function; got int"),
    ("type", lambda: load_scorer("l1")({"edited": IMAGE}), "L1: expected an EditBatch; got dict"),
    ("type", lambda: load_image("gone.png"), "gone.png: no such file"),
    ("type", lambda: load_editor(None), "editor: expected a name, a folder or a pipeline; got NoneType"),
    (
        "type",
        lambda: load_editor("shapes/editor", dtype="float99"),
        "dtype: expected one such as float32 or bfloat16; got 'float99'",
    ),
    ("type", lambda: SamplingConfig("10"), "num_inference_steps: expected a whole number; got '10'"),
    ("type", lambda: best_of_n(None, load_scorer("l1"), IMAGE, "x", n=0), "n: expected at least 1; got 0"),
    (
        "type",
        lambda: RewardPrompt("{instruction} {word}", words=()),
        "words, upper: expected a rising upper bound for each word, the last 10; got 0 words and 2, "
        "4, 6, 8, 10",
    ),
    ("type", lambda: collate([]), "collate: expected at least one row; got none"),
    (
        "type",
        lambda: collate([EditSample("a", IMAGE[0], "x")]),
        "row a: expected an edited image or a target; it has neither",
    ),
    ("value", lambda: SamplingConfig(0), "num_inference_steps: expected at least 1; got 0"),
    ("value", lambda: load_scorer("l1:0"), "l1: expected a finite weight other than 0; got 0.0"),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with an earlier edit and an earlier run."""
    folder = tmp_path_factory.mktemp("desk")
    Image.new("RGB", (64, 48), "red").save(folder / "photo.jpg")
    Image.new("RGB", (64, 48), "blue").save(folder / "edited.png")
    Image.new("RGB", (64, 48), "blue").save(folder.parent / "secret.jpg")
    for name in ("twins/a-0.png", "twins/a.png", "photos/a.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / name)
    (folder / "texts").mkdir()
    (folder / "texts" / "readme.txt").write_text("x")
    (folder / "words.txt").write_text("x")
    (folder / "pairs.csv").write_text("source,target,instruction\nphoto.jpg,edited.png,make it blue\n")
    (folder / "outside.csv").write_text("source,target,instruction\n../secret.jpg,edited.png,make it blue\n")
    (folder / "misspelt.csv").write_text("source,target,instructon\nphoto.jpg,edited.png,make it blue\n")
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("name: run\n")
    (folder / "run" / "environment.json").write_text('{"trainer": "refl"}')
    return folder


@pytest.fixture(scope="module")
def edited(desk: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        words = ["edit", "photo.jpg", "make it red", "--out", "edits", "--steps", "1", "--size", "32"]
        assert main([*words, "--model", "shapes/editor"]) == 0
    return desk


@pytest.mark.parametrize(("kind", "words", "sentence"), SHELL)
def test_a_mistake_in_the_shell_is_answered_in_a_sentence(kind, words, sentence, edited, monkeypatch, capsys):
    monkeypatch.chdir(edited)

    def files() -> list[Path]:
        return sorted(path for path in edited.rglob("*") if "new" not in path.parts)

    before = files()
    if "edits" in words:
        words = (*words, "--steps", "1", "--size", "32")
    assert main(words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1] == f"rewardedit: {sentence}"
    assert not [line for line in said if "Traceback" in line]
    assert files() == before


def test_a_mistake_in_python_is_answered_in_a_sentence(monkeypatch):
    """Without the suite's type checks, as in a user's process."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    answers = [answer(call) for _, call, _ in PYTHON]
    assert answers == [("ValueError", sentence) for _, _, sentence in PYTHON]


def test_there_are_ten_mistakes_of_each_kind():
    counts = Counter(kind for kind, *_ in [*SHELL, *PYTHON])
    assert len(counts) == 6
    assert min(counts.values()) >= 10


def answer(call: Callable[[], Any]) -> tuple[str, str]:
    """The kind of error that a call raises, and its text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""
