"""Images that are read once for several questions: losses and gradients are as of questions asked alone."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rewardedit import EditBatch
from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, open_named
from rewardedit.files import read_log
from rewardedit.images import to_pil
from rewardedit.shapes import Shapes
from rewardedit.trainers import adiee_scorer as trainer
from rewardedit.trainers.adiee_scorer import Config, TrainConfig
from rewardedit.training.shared_images import (
    group_by_edit,
    images_key,
    require_clean_parts,
    require_shared_images,
    rows_of_same_edit,
)
from tests.data.layouts import write_labelled_shapes
from tests.models import save_vlm


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> str:
    """Labelled rows, of which three in turn show one edit."""
    folder = tmp_path_factory.mktemp("labelled")
    file = Path(write_labelled_shapes(folder)) / "train-00000.parquet"
    made = pq.read_table(file).to_pylist()
    for number, row in enumerate(made):
        row["source"], row["edited"] = (made[number - number % 3][name] for name in ("source", "edited"))
    pq.write_table(pa.Table.from_pylist(made), file)
    return str(folder)


def config(rows: str, folder: Path, kind: str = "llava_next", **more) -> Config:
    save_vlm(str(folder), kind)
    train = TrainConfig(
        max_steps=2,
        batch_size=6,
        lr=1e-3,
        mixed_precision="no",
        tracker="none",
        log_every=1,
        gradient_checkpointing=False,
        questions_per_edit=3,
    )
    data = {"labelled": DataConfig(name="labelled", path=rows, size=64)}
    return Config("x", data, str(folder), **{"side": 64, "train": train, "lora_rank": None, **more})


@pytest.mark.parametrize("layout", ["pair", "concat"])
@pytest.mark.parametrize("kind", ["llava_next", "idefics3"])
def test_losses_and_gradients_are_those_of_questions_asked_alone(rows, tmp_path, kind, layout):
    scorer, _ = trainer.make_scorer(config(rows, tmp_path, kind, layout=layout))
    require_shared_images(kind, gradient_checkpointing=False)
    require_clean_parts(scorer)
    samples = Shapes("train").batch(0, 2)
    twice = [0, 0, 0, 1, 1, 1]
    instructions = ["make it red", samples.instruction[0], "move the small circle to the left of the square"]
    instructions += [samples.instruction[1], "remove it", "make it red"]
    batch = EditBatch(samples.source[twice], instructions, samples.target[twice])
    labels = torch.tensor([[10.0], [0.0], [5.0], [0.0], [10.0], [2.5]])
    found = []
    for per_edit in (1, 3):
        scorer.zero_grad()
        text, score = trainer.losses(scorer, batch, labels, [0, 1, 2, 3, 0, 1], per_edit=per_edit)
        (text + 10 * score).backward()
        gradients = {name: p.grad.clone() for name, p in scorer.named_parameters() if p.grad is not None}
        found.append((text.detach(), score.detach(), gradients))
    alone, once = found
    assert torch.allclose(alone[0], once[0], rtol=1e-4)
    assert torch.allclose(alone[1], once[1], rtol=1e-4)
    assert alone[2].keys() == once[2].keys()
    for name, gradient in alone[2].items():
        assert (once[2][name] - gradient).norm() <= 1e-3 * gradient.norm() + 1e-6, name


def test_edits_of_one_source_are_not_one_edit():
    source, first, second = (to_pil(torch.full((3, 4, 4), value)) for value in (0.0, 0.5, 1.0))
    shown = [(source, first), (source, second), (source, first), (first, first)]
    found = [EditSample(str(i), before, "edit", after) for i, (before, after) in enumerate(shown)]
    assert group_by_edit(found, [0, 1, 2, 3]) == [[0, 2], [1], [0, 2], [3]]


def test_rows_of_a_step_in_turn_show_one_edit(rows, tmp_path):
    asked = config(rows, tmp_path)
    found = open_named(asked.data)
    usable = [number for number in range(len(found)) if number != 4]
    same = group_by_edit(found, usable)
    assert [usable[place] for place in same[0]] == [0, 1, 2]
    assert [usable[place] for place in same[3]] == [3, 5]
    ids = {sample.id: images_key(sample) for sample in (found[number] for number in range(len(found)))}
    drawn = []
    for step in range(40):
        ((batch, labels, names, questions),) = trainer.read_step(asked, found, usable, step, same)
        assert len(batch) == len(labels) == len(questions) == 6
        for first in (0, 3):
            assert len({ids[name] for name in names[first : first + 3]}) == 1
            assert torch.equal(batch.images["edited"][first], batch.images["edited"][first + 2])
        drawn += names
    assert set(drawn) == {found[number].id for number in usable}, "every row is asked about"


def test_of_an_edit_so_many_rows_are_drawn_without_repetition():
    generator = torch.Generator().manual_seed(0)
    draws = [rows_of_same_edit(2, [0, 1, 2, 3, 4], 3, generator) for _ in range(60)]
    assert all(len(set(draw)) == 3 and draw[0] == 2 for draw in draws)
    assert {place for draw in draws for place in draw} == {0, 1, 2, 3, 4}
    assert sorted(rows_of_same_edit(2, [1, 2], 5, generator)) == [1, 1, 2, 2, 2]
    assert rows_of_same_edit(2, [2], 3, generator) == [2, 2, 2]


def test_parts_of_a_batch_train_what_the_whole_does(rows, tmp_path):
    asked = config(rows, tmp_path / "vlm")
    trainer.train(asked, tmp_path / "whole")
    part = replace(asked, train=replace(asked.train, micro_batch_size=3))
    trainer.train(part, tmp_path / "parts")
    whole, parts = ([line["loss"] for line in read_log(tmp_path / run)] for run in ("whole", "parts"))
    assert whole == pytest.approx(parts, rel=1e-3)


def test_what_cannot_be_read_once_is_refused(rows, tmp_path):
    asked = config(rows, tmp_path / "llava")
    checkpointing = replace(asked, train=replace(asked.train, gradient_checkpointing=True))
    for refused, message in (
        (checkpointing, "gradient_checkpointing=false"),
        (config(rows, tmp_path / "qwen", "qwen2_5_vl"), "questions_per_edit: expected a model of llava_next"),
    ):
        for call in (trainer.plan, lambda one: trainer.train(one, tmp_path / "run")):
            with pytest.raises(ValueError, match=message):
                call(refused)
        assert not (tmp_path / "run").exists(), "before anything is read or written"
    uneven = replace(asked, train=replace(asked.train, questions_per_edit=4))
    with pytest.raises(ValueError, match="into 4 questions an edit"):
        uneven.train.shares()
