"""The ADIEE scorer's training, with small random models and labelled rows."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from rewardedit import EditBatch, EditSample
from rewardedit.config import to_dict
from rewardedit.data import DataConfig, open_named, open_rows
from rewardedit.files import read_log, remove
from rewardedit.language.vlm import load_vlm
from rewardedit.scorers.adiee import ADAPTER, Adiee
from rewardedit.scorers.adiee_text import ANSWER, add_token
from rewardedit.shapes import Shapes
from rewardedit.trainers import adiee_scorer as trainer
from rewardedit.trainers.adiee_scorer import Config, TrainConfig
from rewardedit.training import timing
from rewardedit.training.estimate import PlanIncomplete
from rewardedit.training.score_token import answer_loss, losses, score_loss
from tests.data.layouts import write_labelled_shapes
from tests.forks import launch
from tests.models import save_vlm

FEW_BITS = {"4bit": "Linear4bit", "8bit": "Linear8bitLt"}  # layers


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> str:
    return write_labelled_shapes(tmp_path_factory.mktemp("labelled"), axes=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("vlm"))
    save_vlm(folder, "llava_next")
    return folder


def config(rows: str, model: str, steps: int = 3, **more) -> Config:
    train = TrainConfig(
        max_steps=steps,
        batch_size=4,
        lr=1e-3,
        mixed_precision="no",
        tracker="none",
        checkpoint_every=2,
        log_every=1,
        micro_batch_size=2,
    )
    data = DataConfig(name="labelled", path=rows, size=64)
    return Config("x", {"labelled": data}, model, **{"side": 64, "train": train, **more})


@pytest.mark.parametrize(("embeddings", "words"), [("token", False), ("all", True)])
def test_an_adapter_holds_all_that_was_trained(rows, model, tmp_path, embeddings, words):
    held_out = DataConfig("labelled", path=rows, size=64, limit=8)
    asked = config(rows, model, embeddings=embeddings, held_out=held_out, add_question_tokens=words)
    with pytest.warns(UserWarning, match="source images are trained on"):
        out = trainer.train(asked, tmp_path / "run")
    assert {path.name for path in (out / ADAPTER).iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    names = set(load_file(out / ADAPTER / "adapter_model.safetensors"))
    assert any("lora" in name and "q_proj" in name for name in names)
    assert not any("vision" in name for name in names)
    assert any("embed_tokens" in name for name in names)
    assert any(name.endswith("lm_head.weight") for name in names) == (embeddings == "all")
    assert any("lm_head" in name for name in names)
    lora = json.loads((out / ADAPTER / "adapter_config.json").read_text())
    assert lora["lora_alpha"] == 2 * lora["r"]
    assert lora["lora_dropout"] == 0.05
    scorer = Adiee.from_pretrained(str(out))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["held_out"]
    assert metrics["n"] == 8
    measured = trainer.evaluate_scorer(scorer, open_rows(asked.held_out), asked.held_out)["held_out"]
    assert measured["error"] == pytest.approx(metrics["error"], abs=1e-3)
    lines = read_log(tmp_path / "run")
    for line in lines:
        assert line["loss"] == pytest.approx(line["text_loss"] + 10 * line["score_loss"], rel=1e-3)


def test_an_adapter_without_the_token_is_refused(rows, model, tmp_path):
    from safetensors.torch import save_file

    out = trainer.train(config(rows, model, steps=1, embeddings="token"), tmp_path / "run")
    file = out / ADAPTER / "adapter_model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if "lora" in name}
    save_file(kept, file)
    with pytest.raises(ValueError, match="does not hold the embedding"):
        Adiee.from_pretrained(str(out))


@pytest.mark.parametrize(
    ("weights", "muon_lr", "settings"),
    [
        ("model.safetensors", 1e-2, {"lora_rank": None, "layout": "concat", "head": "classes"}),
        pytest.param(
            f"{ADAPTER}/adapter_model.safetensors", None, {"embeddings": "all"}, marks=pytest.mark.slow
        ),
        (f"{ADAPTER}/adapter_model.safetensors", None, {"embeddings": "token"}),
    ],
)
def test_a_training_resumes(rows, model, tmp_path, weights, muon_lr, settings):
    """For a whole model, and for a LoRA with its dropout; all that steps 3 and 4 have left is lost."""
    asked = config(rows, model, 4, **settings)
    asked = replace(asked, train=replace(asked.train, muon_lr=muon_lr))
    whole = trainer.train(asked, tmp_path / "whole")
    cut = shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for name in ("scorer", "metrics.json", "made_of.json", "checkpoints/step-000004"):
        remove(cut / name)
    log = (cut / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_text("".join(log[:2]))
    again = trainer.train(asked, cut, resume=True)
    for name in ("head.safetensors", weights):
        a, b = (load_file(out / name) for out in (whole, again))
        assert all(torch.allclose(a[key].float(), b[key].float(), atol=2e-4) for key in a), name
    # Two steps of the first call and two of the second: nothing was done again.
    assert len((cut / "metrics.jsonl").read_text().splitlines()) == 4
    assert [line["step"] for line in read_log(cut)] == [1, 2, 3, 4]


def test_a_trained_scorer_goes_on_with_its_token_and_head(rows, model, tmp_path):
    settings = {"lora_rank": None, "head": "classes", "init_token_like": "red"}
    first = str(trainer.train(config(rows, model, steps=1, **settings), tmp_path / "run"))
    scorer, _ = trainer.make_scorer(config(rows, first, **settings))
    trained = Adiee.from_pretrained(first)
    for name, value in trained.state_dict().items():
        assert torch.equal(scorer.state_dict()[name], value), name
    with pytest.raises(ValueError, match=r"expected a scorer with .*scalar"):
        trainer.make_scorer(config(rows, first, lora_rank=None))


def test_a_trained_scorer_goes_on_with_a_lora_and_its_head(rows, model, tmp_path):
    first = str(trainer.train(config(rows, model, steps=1, lora_rank=None), tmp_path / "run"))
    scorer, adapter = trainer.make_scorer(config(rows, first))
    assert adapter is not None
    trained = Adiee.from_pretrained(first)
    for name, value in trained.head.state_dict().items():
        assert torch.equal(scorer.head.state_dict()[name], value), name
    again = trainer.train(config(rows, first, steps=1), tmp_path / "again")
    assert Adiee.from_pretrained(str(again)).settings.base == first


def test_the_base_of_an_adapter_is_found_from_elsewhere(rows, model, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(model).parent)
    (Path(model).parent / "shapes/vlm").mkdir(
        parents=True
    )  # one of the package's own is no folder, whatever is here
    assert trainer.make_scorer(config(rows, "shapes/vlm"))[0].settings.base == "shapes/vlm"
    asked = config(rows, Path(model).name, steps=1)
    scorer = trainer.train(asked, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert Adiee.from_pretrained(str(scorer)).settings.base == str(Path(model).resolve())


def test_the_token_begins_as_the_recipe_says(rows, model):
    scorer, _ = trainer.make_scorer(config(rows, model, init_token_like="red"))
    embeddings = scorer.model.get_input_embeddings().weight
    (like,) = scorer.vlm.processor.tokenizer("red", add_special_tokens=False).input_ids
    assert torch.equal(embeddings[scorer.token], embeddings[like])
    plain, _ = trainer.make_scorer(config(rows, model))
    embeddings = plain.model.get_input_embeddings().weight
    assert not torch.equal(embeddings[plain.token], embeddings[like])


def test_muon_has_the_language_model_s_matrices_and_not_the_head(rows, model, tmp_path):
    asked = config(rows, model, lora_rank=None)
    asked = replace(asked, train=replace(asked.train, muon_lr=1e-2, head_lr=1e-4))
    scorer, _ = trainer.make_scorer(asked)
    loop = trainer.make_loop(asked, scorer, tmp_path, resume=False)
    groups = {group["initial_lr"]: group for group in loop.optimizer.param_groups}
    assert {rate: group["muon"] for rate, group in groups.items()} == {1e-3: False, 1e-2: True, 1e-4: False}
    assert {group["betas"] for group in loop.optimizer.param_groups} == {(0.9, asked.train.beta2)}
    assert asked.train.beta2 != 0.999, "torch's own"
    assert all(p.ndim > 1 for p in groups[1e-2]["params"])
    assert all(p.ndim == 1 for p in groups[1e-3]["params"])
    assert {id(p) for p in groups[1e-4]["params"]} == {id(p) for p in scorer.head.parameters()}
    trained = [p for p in scorer.parameters() if p.requires_grad]
    assert len(trained) == sum(len(group["params"]) for group in groups.values())


@pytest.mark.parametrize("quantize", [None, "4bit", "8bit"])
def test_an_adapter_is_what_was_trained(rows, tmp_path, quantize):
    """A loaded scorer gives the trained one's scores, row by row, and others without the LoRA."""

    model = str(tmp_path / "vlm")
    save_vlm(model, "llava_next", width=64)  # bitsandbytes packs rows of 32
    asked = config(rows, model, steps=1, embeddings="token", quantize=quantize)
    scorer, adapter = trainer.make_scorer(asked)
    few_bits = {
        n: type(m).__name__ for n, m in scorer.model.named_modules() if type(m).__name__ in FEW_BITS.values()
    }
    assert set(few_bits.values()) == ({FEW_BITS[quantize]} if quantize else set())
    assert all("language_model" in name for name in few_bits), "images come in as they did"
    for name, parameter in scorer.model.named_parameters():
        if "lora_B" in name:  # a LoRA begins as nothing
            torch.nn.init.normal_(parameter, std=0.5)
    samples = Shapes("train").batch(0, 4)
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    scorer.eval()
    with torch.no_grad():
        before = scorer(batch).parts["raw"]
    (tmp_path / "scorer").mkdir()
    scorer.save(tmp_path / "scorer", adapter)
    again = Adiee.from_pretrained(str(tmp_path / "scorer"), share_prefix=False)
    after = again(batch).parts["raw"]
    assert (after - before).abs().max() < 1e-3 * (before - before.mean()).abs().max()
    plain = load_vlm(model)
    add_token(plain.model, plain.processor)
    bare = Adiee(plain, again.head, again.settings, share_prefix=False)(batch).parts["raw"]
    assert (bare - before).abs().max() > 1e-2 * (before - before.mean()).abs().max()


@pytest.mark.slow
def test_further_axes_are_learned_from_the_rows_that_have_labels_of_them(rows, model, tmp_path):
    """The error of an axis counts no row without its label."""
    asked = config(rows, model, steps=14, lora_rank=None, axes=("quality",), head="classes")
    asked = replace(asked, train=replace(asked.train, head_lr=2e-2, batch_size=8))
    scorer = Adiee.from_pretrained(str(trainer.train(asked, tmp_path / "run")))
    assert scorer.settings.axes == ("overall", "quality")
    samples = Shapes("train").batch(0, 14)
    with torch.no_grad():
        scores = scorer(EditBatch(samples.source, samples.instruction, samples.target))
    assert scores.parts["quality"].mean() == pytest.approx(1, abs=0.7)
    assert scores.score.mean() == pytest.approx(5, abs=2)  # half of the rows are labelled 0, half 10


def test_the_rows_of_a_step_bring_the_labels_that_they_have(rows, model):
    asked = config(rows, model, axes=("quality", "style"))
    found = open_named(asked.data)
    parts = trainer.read_step(asked, found, list(range(len(found))), 0)
    labels = torch.cat([part[1] for part in parts])
    ids = [name for part in parts for name in part[2]]
    for name, (overall, quality, style) in zip(ids, labels.tolist(), strict=True):
        has_quality = int(name.split("-")[1]) % 2 == 1
        assert overall == (10 if name.startswith("target") else 0)
        assert quality == 1 if has_quality else math.isnan(quality)
        assert math.isnan(style)


TWO = """
import json, sys
from pathlib import Path
from rewardedit.config import build
from rewardedit.trainers import adiee_scorer

config = build(adiee_scorer.Config, json.loads(sys.argv[1]))
adiee_scorer.train(config, Path(sys.argv[2]))
"""


def test_two_processes_train_what_one_does(rows, model, tmp_path):
    asked = config(rows, model, steps=3, lora_rank=None)
    one = trainer.train(asked, tmp_path / "one")
    script = tmp_path / "two.py"
    script.write_text(TWO)
    launch(script, 2, json.dumps(to_dict(asked)), str(tmp_path / "two"))
    for name in ("head.safetensors", "model.safetensors"):
        a, b = (load_file(out / name) for out in (one, tmp_path / "two" / "scorer"))
        assert all(torch.allclose(a[key].float(), b[key].float(), atol=1e-3) for key in a), name
    losses = [[line["loss"] for line in read_log(tmp_path / run)] for run in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("per_edit", [1, 2])
def test_the_score_in_training_is_that_in_use(rows, model, per_edit):
    """Also of an instruction that is cut, and where rows in turn share their images."""
    asked = config(rows, model, lora_rank=None)
    scorer, _ = trainer.make_scorer(replace(asked, train=replace(asked.train, gradient_checkpointing=False)))
    torch.nn.init.constant_(scorer.head.layers[-1].bias, 5.0)
    samples = Shapes("train").batch(0, 4)
    images = torch.arange(4) // per_edit * per_edit
    instructions = [*samples.instruction[:3], "make the red circle a little larger " * 60]
    batch = EditBatch(samples.source[images], instructions, samples.target[images])
    text = scorer.model.config.get_text_config()
    text.max_position_embeddings = scorer._length("", 0, batch) + 30
    scorer.questions = range(1)
    with torch.no_grad():
        used = scorer(batch).parts["raw"]
        for row, value in enumerate(used):
            labels = torch.full((4, 1), math.nan)
            labels[row] = 0.0  # an error of one row alone: the score itself
            _, loss = losses(scorer, batch, labels, [0] * 4, per_edit=per_edit)
            assert float(4 * loss) == pytest.approx(abs(float(value)), rel=1e-5)


def test_the_loss_falls(rows, model, tmp_path):
    trainer.train(config(rows, model, steps=12, lora_rank=None), tmp_path / "run")
    losses = [line["text_loss"] for line in read_log(tmp_path / "run")]
    assert sum(losses[-3:]) < sum(losses[:3])


def test_rows_that_cannot_be_used_are_left_out_and_listed(rows, model, tmp_path):
    """One without a label that is a number, one with a broken image; no step draws either."""
    folder = tmp_path / "rows"
    folder.mkdir()
    made = pq.read_table(Path(rows) / "train-00000.parquet").to_pylist()
    made[3]["label"] = None
    made[7]["edited"] = b"no image"
    del made[8:]
    pq.write_table(pa.Table.from_pylist(made), folder / "train-00000.parquet")
    asked = config(str(folder), model, bad_rows=0.25)
    trainer.train(asked, tmp_path / "run")
    skipped = [json.loads(line) for line in (tmp_path / "run" / "skipped.jsonl").read_text().splitlines()]
    assert [record["row"] for record in skipped] == [3, 7]
    assert "expected a label" in skipped[0]["reason"]
    found = open_named(asked.data)
    usable = [0, 1, 2, 4, 5, 6]
    drawn = {
        name
        for step in range(9)
        for part in trainer.read_step(asked, found, usable, step)
        for name in part[2]
    }
    assert drawn == {found[i].id for i in usable}
    with pytest.raises(ValueError, match=r"2 of 8 rows cannot be used, more than bad_rows=0\.1 allows"):
        trainer.train(replace(asked, bad_rows=0.1), tmp_path / "strict")


def test_what_was_read_of_other_rows_is_not_taken_for_these(rows, tmp_path):
    data = DataConfig(name="labelled", path=rows, size=64)
    found = open_rows(data)

    def usable(path: str) -> list[int]:
        named = {"labelled": replace(data, path=path)}
        return trainer.usable_rows(found, data, trainer.require_label, tmp_path, 0.0, named)

    assert len(usable(rows)) == len(found)
    with pytest.raises(ValueError, match=r"other settings: data\.labelled\.path"):
        usable("elsewhere")


def test_an_axis_that_no_row_has_is_refused(rows, model, tmp_path):
    with pytest.raises(ValueError, match=r"axes: no row has a label of qualty"):
        trainer.train(config(rows, model, axes=("quality", "qualty")), tmp_path / "run")


@pytest.mark.parametrize(
    ("label", "axes"), [(67.0, {}), (-1.0, {}), (5.0, {"quality": 11.0}), (math.nan, {})]
)
def test_labels_outside_the_scale_are_refused(label, axes):
    sample = EditSample("a", torch.zeros(3, 8, 8), "x", label=label, axes=axes)
    with pytest.raises(ValueError, match="expected 0 to 10"):
        trainer.require_label(sample)
    assert trainer.require_label(replace(sample, label=10.0, axes={"quality": 0.0})) == 10


def test_rows_without_labels_are_refused(model, tmp_path):
    asked = Config("x", {"shapes": DataConfig("shapes", limit=7)}, model, side=64)
    with pytest.raises(ValueError, match="expected a label"):
        trainer.train(asked, tmp_path / "run")


def test_a_label_between_classes_belongs_to_both():
    raw = torch.tensor([[0.0, 0.0, 0.0]])
    log = torch.tensor([0.2, 0.3, 0.5]).log()[None]
    assert float(score_loss(log, torch.tensor([10.0]))) == pytest.approx(-float(torch.tensor(0.5).log()))
    third = score_loss(log, torch.tensor([10 / 3]))
    assert float(third) == pytest.approx(-float((log[0, 0] + 2 * log[0, 1]) / 3), rel=1e-5)
    cut = score_loss(log, torch.tensor([10 / 3]), compat="code")
    assert float(cut) == pytest.approx(-float(log[0, 0]))
    assert float(score_loss(raw, torch.tensor([5.0]))) == pytest.approx(float(torch.tensor(3.0).log()))
    assert float(score_loss(torch.tensor([[7.0], [1.0]]), torch.tensor([10.0, 0.0]))) == pytest.approx(2)


def test_errors_of_upper_labels_weigh_what_the_recipe_says():
    numbers, labels = torch.tensor([[7.0], [4.0], [1.0]]), torch.tensor([10.0, 5.0, 0.0])
    assert float(score_loss(numbers, labels)) == pytest.approx((3 + 1 + 1) / 3)
    assert float(score_loss(numbers, labels, positive_weight=3.0)) == pytest.approx((9 + 3 + 1) / 3)
    classes = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 2.0]])
    each = [float(score_loss(classes[:1], torch.tensor([label]))) for label in (10.0, 0.0)]
    found = score_loss(classes, torch.tensor([10.0, 0.0]), positive_weight=3.0)
    assert float(found) == pytest.approx((3 * each[0] + each[1]) / 2)


def test_the_weight_of_upper_labels_reaches_the_loss(rows, model):
    scorer, _ = trainer.make_scorer(config(rows, model, lora_rank=None))
    samples = Shapes("train").batch(0, 2)
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    for label, times in ((10.0, 3), (0.0, 1)):
        labels = torch.full((2, 1), label)
        plain, weighed = (
            float(losses(scorer, batch, labels, [0, 1], positive_weight=weight)[1]) for weight in (1.0, 3.0)
        )
        assert weighed == pytest.approx(times * plain, rel=1e-4)


def test_a_label_weighs_alike_however_a_batch_is_divided(rows, model):
    scorer, _ = trainer.make_scorer(config(rows, model, lora_rank=None, axes=("alignment", "quality")))
    samples = Shapes("train").batch(0, 2)
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    labels = torch.tensor([[10.0, 0.0, 5.0], [0.0, math.nan, math.nan]])
    with torch.no_grad():
        whole = losses(scorer, batch, labels, [0, 1])[1]
        parts = [losses(scorer, batch[i : i + 1], labels[i : i + 1], [i])[1] for i in range(2)]
    assert float(whole) == pytest.approx(float(sum(parts)) / 2, rel=1e-4)


def test_a_batch_that_does_not_part_is_told_before_anything_is_loaded(rows, model, tmp_path):
    asked = config(rows, model)
    asked = replace(asked, train=replace(asked.train, batch_size=5, micro_batch_size=2))
    for stage in (trainer.plan, lambda config: trainer.train(config, tmp_path / "run")):
        with pytest.raises(ValueError, match="batch_size: expected 5 to part into micro-batches of 2"):
            stage(asked)
    assert not (tmp_path / "run").exists()


def test_a_plan_times_all_passes_over_the_rows(rows, model, monkeypatch):
    """While the rows are not there, a step's time is told, and memory too."""
    monkeypatch.setattr(timing, "_rate", lambda precision: 1e4)
    asked = config(rows, model)
    number = len(open_rows(asked.data["labelled"]))

    def hours(epochs: float | None, steps: int, where: str) -> float:
        train = replace(asked.train, epochs=epochs, max_steps=steps)
        data = {"labelled": replace(asked.data["labelled"], path=where)}
        try:
            lines = trainer.plan(replace(asked, train=train, data=data))
        except PlanIncomplete as incomplete:
            lines = incomplete.lines
        assert any(line.startswith("memory, GiB: step") for line in lines)
        (line,) = [line for line in lines if " time on this machine" in line]
        (said,) = re.findall(r"([\d,]+)(?:\.\d)? hours", line)
        assert line.startswith("training time" if where == rows else "a step's 4 rows: time")
        return int(said.replace(",", ""))

    passes = hours(2.0, 7, rows)
    assert passes == pytest.approx(hours(None, number // 2, rows), abs=1)
    assert passes == pytest.approx(hours(2.0, 7, f"{rows}-missing") * number // 2, rel=0.02)


def test_words_of_the_questions_are_trained_as_tokens(rows, model):
    scorer, _ = trainer.make_scorer(config(rows, model, lora_rank=None, add_question_tokens=True))
    assert len(scorer.vlm.processor.tokenizer("somebody", add_special_tokens=False).input_ids) == 1
    assert scorer.model.get_input_embeddings().num_embeddings == len(scorer.vlm.processor.tokenizer)
    with pytest.raises(ValueError, match=r"add_question_tokens: .*set embeddings=all"):
        config(rows, model, add_question_tokens=True, embeddings="token")


def test_only_the_answer_s_tokens_count(rows, model):
    asked = config(rows, model, lora_rank=None)
    scorer, _ = trainer.make_scorer(asked)
    samples = Shapes("train").batch(0, 2)
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    texts = [scorer.prompt(text, 0) + ANSWER for text in batch.instruction]
    inputs = scorer.inputs(texts, batch.source, batch.edited)
    hidden = scorer.model.model(**inputs, use_cache=False).last_hidden_state
    found = answer_loss(scorer, hidden, inputs["input_ids"])
    answer = scorer.vlm.processor.tokenizer(ANSWER, add_special_tokens=False).input_ids
    expected = []
    for row, ids in enumerate(inputs["input_ids"].tolist()):
        end = len(ids) - ids[::-1].index(answer[-1])
        start = end - len(answer)
        assert ids[start:end] == answer
        logits = scorer.model.lm_head(hidden[row, start - 1 : end - 1])
        expected.append(torch.nn.functional.cross_entropy(logits, torch.tensor(answer)))
    assert float(found) == pytest.approx(float(torch.stack(expected).mean()), rel=1e-5)


def test_batches_that_do_not_part_are_refused():
    train = TrainConfig(batch_size=6, micro_batch_size=4)
    with pytest.raises(ValueError, match="expected 6 to part"):
        train.shares()


def test_a_lora_is_trained_beside_weights_of_few_bits(rows, tmp_path):
    model = str(tmp_path / "vlm")
    save_vlm(model, "llava_next", width=64)
    asked = config(rows, model, quantize="4bit", embeddings="token")
    out = trainer.train(asked, tmp_path / "run")
    assert Adiee.from_pretrained(str(out)).settings.quantize == "4bit"
    assert all(math.isfinite(line["loss"]) for line in read_log(tmp_path / "run"))
    with pytest.raises(ValueError, match="quantised weights cannot be trained"):
        config(rows, model, quantize="4bit", lora_rank=None)
