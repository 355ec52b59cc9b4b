"""Scorers of one's own: functions and classes, of files and of modules in the working folder."""

from pathlib import Path

import pytest
import torch

import rewardedit
from rewardedit.cli import main
from rewardedit.data import DataConfig
from rewardedit.files import read_log
from rewardedit.scorers import load_scorer
from rewardedit.scorers.load import families, find_scorer, scorer_fingerprints
from rewardedit.trainers import refl
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import RewardConfig

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_reward.py") + ":warmth"
PLAIN = "def darkness(batch):\n    return 1 - batch.edited.flatten(1).mean(1)\n"


@pytest.fixture
def batch() -> rewardedit.EditBatch:
    source = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    edited = source.clone()
    edited[0, 0] = 1.0
    return rewardedit.EditBatch(source, ["make it warmer", "leave it"], edited)


def test_a_function_is_a_scorer_with_what_it_declares(batch):
    warmth = load_scorer(EXAMPLE)
    expected = (1 - batch.source[0, 0]).mean() / 2
    torch.testing.assert_close(warmth(batch).score, torch.stack([expected, torch.zeros(())]))
    assert (warmth.range, warmth.differentiable, warmth.family) == ((-1, 1), True, "colour")
    assert find_scorer(EXAMPLE).differentiable, "known before it is loaded"
    assert families({EXAMPLE: {"weight": 2}, "l1": {"weight": 1}}) == {"colour", "pixel"}
    torch.testing.assert_close(load_scorer(f"{EXAMPLE}:2,l1:0.5")(batch).parts[EXAMPLE], warmth(batch).score)


def test_a_function_without_declaration_is_named_where_a_gradient_is_asked_of_it(batch, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLAIN)
    scorer = load_scorer(f"{file}:darkness")
    edited = batch.edited.requires_grad_()
    with pytest.raises(
        ValueError, match=r"darkness has no gradient .*; if the function has one, put @rewardedit.scorer"
    ):
        scorer(rewardedit.EditBatch(batch.source, batch.instruction, edited))
    with pytest.raises(ValueError, match=r"reward.scorer: .*mine.py:darkness has no gradient"):
        refl.Config(
            "x", DataConfig("shapes"), RewardConfig(f"{file}:darkness"), monitor=MonitorConfig(held_out="l1")
        )


def test_a_module_of_the_working_folder_is_found(batch, tmp_path, monkeypatch):
    (tmp_path / "own_module_of_a_user.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    score = load_scorer("own_module_of_a_user:darkness")(batch).score
    torch.testing.assert_close(score, 1 - batch.edited.flatten(1).mean(1))


def test_another_content_of_the_file_is_another_scorer(batch, tmp_path):
    file = tmp_path / "mine.py"
    told = []
    for body in ("batch.edited", "batch.source"):
        file.write_text(f"def own(batch):\n    return {body}.flatten(1).mean(1)\n")
        specs = {"own": f"{file}:own"}
        scorer = load_scorer(f"{file}:own")
        told.append((scorer_fingerprints(specs, lambda: {"own": scorer}), scorer(batch).score))  # noqa: B023
    assert told[0][0] != told[1][0]
    assert not torch.equal(told[0][1], told[1][1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.py:f", "scorer 'gone.py:f' cannot be imported: gone.py: no such file"),
        ("broken.py:f", "scorer 'broken.py:f' cannot be imported: division by zero"),
        ("mine.py:f", "cannot be imported: module .* has no attribute 'f'"),
        ("mine.py:number", r"a function \(EditBatch\) -> \(b,\); got a value of int"),
        ("mine.py:Class", r"a function \(EditBatch\) -> \(b,\); got the class Class"),
    ],
)
def test_others_are_refused_in_a_sentence(name, message, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "mine.py").write_text("number = 3\n\nclass Class:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_scorer(name)


def test_a_function_trains_an_editor_and_is_announced(tiny_editor, tmp_path, capsys):
    settings = [
        f"reward.scorer={EXAMPLE}",
        "reward.scale=range",
        "reward.num_inference_steps=[2]",
        "reward.stop_before_end=[0, 0]",
        "monitor={n: 2, num_inference_steps: 1, held_out: l1}",
        "variants=[refl]",
        "evaluate=null",
        f"base={tiny_editor}",
        "data={name: shapes, limit: 4, size: 32}",
        "train={max_steps: 1, batch_size: 2, lr_warmup_steps: 1, log_every: 1, ema: null, tracker: none}",
    ]
    assert main(["train", "shapes/refl", *settings, "--out", str(tmp_path / "run")]) == 0
    assert f"runs code that is not rewardedit's: {EXAMPLE}" in capsys.readouterr().err
    (line,) = read_log(tmp_path / "run")
    assert -1 <= line["reward"] <= 1
