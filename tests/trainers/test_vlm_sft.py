"""LoRAs of vision-language models through TRL's trainer, on tiny models: a captioner's, and DICE's."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rewardedit import EditBatch
from rewardedit.cli import main
from rewardedit.data import DataConfig, open_rows
from rewardedit.data.bad_rows import usable_rows
from rewardedit.images import to_pil
from rewardedit.language.vlm import load_vlm
from rewardedit.scorers.dice_models import load_dice
from rewardedit.scorers.dice_text import DiceFormat
from rewardedit.scorers.dice_vlm import VlmDetector
from rewardedit.synthesis.captions import caption_pairs
from rewardedit.trainers.vlm_sft import Config, open_task, plan
from rewardedit.training.conversations import caption_examples, check_captions
from rewardedit.training.sft import SftConfig, newest_checkpoint
from tests.data.test_dice_d import record
from tests.forks import launch
from tests.models import save_vlm


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    """Four rows with captions, of which the model can learn one pair by heart."""
    folder = tmp_path_factory.mktemp("table")
    records = []
    for i in range(4):
        image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(i))
        to_pil(image).save(folder / f"{i}.png")
        captions = {"source_caption": "red circle", "target_caption": "blue star"}
        records.append({"source": f"{i}.png", "target": f"{i}.png", "instruction": "recolour it", **captions})
    (folder / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


@pytest.mark.slow  # as test_both_tasks_are_learned_and_loaded, by models for photographs
@pytest.mark.parametrize("kind", ["llava_next", "qwen2_5_vl"])
def test_a_lora_learns_to_caption(kind, table, tmp_path: Path):
    save_vlm(str(tmp_path / "model"), kind)
    words = [
        "train",
        "captioner",
        f"data.captions.path={table}",
        "data.captions.size=64",
        f"model={tmp_path / 'model'}",
        "train.epochs=30",
        "train.batch_size=4",
        "train.micro_batch_size=2",
        "train.lr=3e-2",
    ]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    lora = load_file(tmp_path / "run" / "lora" / "adapter_model.safetensors")
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in lora}
    kinds = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert layers == kinds, "all linear layers of the language model"
    assert not any("vis" in name for name in lora)
    assert not any("vision" in name or "visual" in name for name in lora)
    state = json.loads(next((tmp_path / "run" / "checkpoints").glob("*/trainer_state.json")).read_text())
    losses = [line["loss"] for line in state["log_history"] if "loss" in line]
    assert losses[-1] < losses[0] - 0.1  # a random head is not trained, so that it stays high
    images = torch.rand(1, 3, 64, 64)
    plain, trained = (
        load_vlm(str(tmp_path / "model"), adapter=adapter)
        for adapter in (None, str(tmp_path / "run" / "lora"))
    )
    before, after = (caption_pairs(vlm, images, ["recolour it"], 3) for vlm in (plain, trained))
    assert before != after
    file = tmp_path / "run" / "lora" / "adapter_model.safetensors"
    save_file({f"x.{name}": weight for name, weight in lora.items()}, file)
    with pytest.raises(ValueError, match=r"adapter .*lora' does not fit"):
        load_vlm(str(tmp_path / "model"), adapter=str(file.parent))


def test_both_answers_are_learned_the_second_after_the_first(table):
    data = DataConfig(name="table", path=table, size=32)
    task = open_task("captions", data, Config("x", {"captions": data}))
    assert len(task) == 8
    first, second = task[0], task[1]
    assert first["completion"][0]["content"][0]["text"] == "red circle"
    assert second["prompt"][1]["content"][0]["text"] == "red circle"
    assert second["completion"][0]["content"][0]["text"] == "blue star"
    assert [image.size for image in (*first["images"], *second["images"])] == [(32, 32)] * 2


def test_a_text_that_steers_the_model_is_not_learned(table):
    data = DataConfig(name="table", path=table, size=32)
    instruction = open_rows(data)[0].instruction
    for example in caption_examples(open_rows(data)[0], data, ["red", instruction]):
        said = [part["text"] for turn in example["prompt"] for part in turn["content"] if "text" in part]
        assert not any(instruction in text or "red" in text.split() for text in said)


def test_rows_without_captions_are_refused(tmp_path, capsys):
    folder = tmp_path / "table"
    folder.mkdir()
    to_pil(torch.zeros(3, 8, 8)).save(folder / "0.png")
    (folder / "rows.jsonl").write_text(json.dumps({"source": "0.png", "target": "0.png", "instruction": "x"}))
    assert main(["train", "captioner", f"data.captions.path={folder}", "--out", str(tmp_path / "run")]) == 2
    assert "expected source_caption and target_caption" in capsys.readouterr().err


def test_a_row_without_captions_is_left_out_and_listed(table, tmp_path):
    folder = tmp_path / "table"
    shutil.copytree(table, folder)
    bare = json.dumps({"source": "0.png", "target": "0.png", "instruction": "x"}) + "\n"
    with (folder / "rows.jsonl").open("a") as file:
        file.write(bare)
    data = DataConfig(name="table", path=str(folder), size=32)
    usable = usable_rows(open_rows(data), data, check_captions, tmp_path, limit=0.2)
    assert usable == [0, 1, 2, 3]
    (record,) = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert record["row"] == 4
    assert "expected source_caption and target_caption" in record["reason"]


def test_the_plan_counts_both_answers_of_a_row_and_reads_no_weights(table, tmp_path):
    save_vlm(str(tmp_path), "llava_next")
    (tmp_path / "model.safetensors").unlink()
    settings = SftConfig(epochs=3.0, batch_size=4)
    own = Config("x", {"captions": DataConfig("table", table, size=64)}, model=str(tmp_path), train=settings)
    assert plan(own)[:2] == ["captions: 8 examples", "training: 6 updates"]
    with pytest.raises(ValueError, match="expected a multiple of micro_batch_size, 3"):
        SftConfig(batch_size=8, micro_batch_size=3)
    with pytest.raises(ValueError, match="model 'nowhere'"):
        plan(replace(own, model="nowhere"))


def test_a_checkpoint_that_was_half_written_is_passed_over(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    for step, whole in ((9, True), (10, True), (11, False)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if whole:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


DICE = [
    "train",
    "shapes/dice",
    "first_phase=3",
    "phase-3.adapter=null",
    "lora_rank=4",
    "data.differences.limit=280",
    "data.coherence.limit=200",
    "data.differences.shapes.quality_mix={one: 1.0}",
    "data.differences.shapes.backdrops=[plain]",
    "train.max_steps=4",
    "train.batch_size=4",
    "train.micro_batch_size=2",
    "train.checkpoint_every=2",
    "train.mixed_precision=no",
]


def test_both_tasks_are_learned_and_loaded(tmp_path):
    run = tmp_path / "run"
    assert main([*DICE, "--out", str(run)]) == 0
    folder = run / "phase-3" / "dice"
    dice = load_dice(str(folder))
    assert dice.format == DiceFormat("short", 2, False, base="shapes/vlm")
    tokenizer = dice.vlm.processor.tokenizer
    assert len(tokenizer("[0.25, 1.00]", add_special_tokens=False).input_ids) == 5, "a token a number"
    ids = tokenizer("a light-blue [x]", add_special_tokens=False).input_ids
    assert tokenizer.eos_token_id not in ids, "unknown characters do not end the text"
    weights = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert any("embed_tokens" in name for name in weights)
    assert sum(value.numel() for value in weights.values()) < 2**20
    assert "/root" not in (folder / "adapter" / "adapter_config.json").read_text()
    images = torch.rand(2, 3, 64, 64)
    detections = VlmDetector(dice, max_new_tokens=8).detect(EditBatch(images, ["x"] * 2, images))
    assert len(detections) == 2


@pytest.mark.slow
def test_a_resumed_run_equals_an_unbroken_one(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*DICE, "--out", str(whole)]) == 0
    shutil.copytree(whole, broken)
    own = broken / "phase-3"
    shutil.rmtree(own / "dice")
    shutil.rmtree(own / "checkpoints" / "checkpoint-4")
    (own / "made_of.json").unlink()
    assert main([*DICE, "--out", str(broken), "--resume"]) == 0
    first, second = (
        load_file(run / "phase-3" / "dice" / "adapter" / "adapter_model.safetensors")
        for run in (whole, broken)
    )
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0)


@pytest.mark.slow
def test_a_later_phase_trains_the_same_lora_further(tmp_path):
    words = [word for word in DICE if word not in ("first_phase=3", "phase-3.adapter=null")]
    words[words.index("train.max_steps=4")] = "train.max_steps=1"
    run = tmp_path / "run"
    assert main([*words, "phase-2.train.lr=0.0", "phase-3.train.lr=0.0", "--out", str(run)]) == 0
    first, second = (
        load_file(run / phase / "dice" / "adapter" / "adapter_model.safetensors")
        for phase in ("phase-1", "phase-3")
    )
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0)


def test_the_plan_counts_verdicts_without_a_reason(tmp_path):
    judged = [record(coherent=True), record(coherent=False, reason="no cup was asked for.")]
    (tmp_path / "judged.json").write_text(json.dumps(judged))
    save_vlm(str(tmp_path / "model"), "llava_next")
    data = {"coherence": DataConfig("dice_d", str(tmp_path), split="test")}
    own = Config("x", data, model=str(tmp_path / "model"))
    assert plan(own)[0] == "coherence: 2 examples, 1 without a reason"
    (tmp_path / "judged.json").write_text(json.dumps(judged[:1]))
    with pytest.raises(ValueError, match=r"set answers\.rationale=false"):
        plan(own)
    assert plan(replace(own, answers=DiceFormat(rationale=False)))[0] == "coherence: 1 examples"


def test_shares_must_name_every_task(table):
    data = {"captions": DataConfig("table", table, size=64)}
    with pytest.raises(ValueError, match="shares: expected one of each task"):
        Config("x", data, shares={"differences": 1.0})
    with pytest.raises(ValueError, match="data: expected rows of some of captions, differences, coherence"):
        Config("x", {"pictures": DataConfig("table", table, size=64)})


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "from rewardedit.cli import main\n"
        "torch.set_num_threads(1)\n"
        "raise SystemExit(main(sys.argv[1:]))\n"
    )
    words = [word.replace("micro_batch_size=2", "micro_batch_size=1") for word in DICE]
    weights = []
    for number in (1, 2):
        out = tmp_path / str(number)
        launch(script, number, *words, "--out", str(out))
        weights.append(load_file(out / "phase-3" / "dice" / "adapter" / "adapter_model.safetensors"))
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-3, atol=1e-4)
