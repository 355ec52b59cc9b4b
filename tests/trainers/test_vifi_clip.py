"""Retrieval fine-tuning: what the loss counts as a negative, and runs that resume,
spread over processes and load again.
"""

import json
from dataclasses import replace

import pytest
import torch

from rewardedit import EditBatch, load_scorer
from rewardedit.cli import main as command
from rewardedit.data import DataConfig, open_rows
from rewardedit.data.worlds import WorldConfig
from rewardedit.files import read_log
from rewardedit.images import to_pil
from rewardedit.scorers.vifi_clip import ViFiClip
from rewardedit.shapes import Shapes
from rewardedit.trainers.vifi_clip import (
    Config,
    TrainConfig,
    contrast,
    info_nce,
    make_trainable,
    read_pairs,
    train,
)
from tests.forks import launch, run_here

DATA = DataConfig("shapes", limit=24, shapes=WorldConfig(quality_mix={"right": 1.0}, edits_per_source=2))
FAST = {
    "max_steps": 4,
    "batch_size": 8,
    "lr_warmup_steps": 1,
    "lr": 1e-3,
    "mixed_precision": "no",
    "log_every": 1,
    "checkpoint_every": 2,
}


def unit(*rows):
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float32), dim=-1)


def test_an_instruction_that_comes_again_is_no_negative():
    videos = unit([1, 0, 0], [0, 1, 0])
    words = unit([1, 0, 0], [0, 1, 0])
    apart = info_nce(videos, words, torch.tensor([0, 1]), 2, torch.tensor(0.0))
    alike = info_nce(videos, words, torch.tensor([0, 0]), 2, torch.tensor(0.0))
    assert apart > 0.1
    assert alike == pytest.approx(0)
    with_another = torch.cat([words, unit([0, 0, 1], [1, 0, 0])])
    unknown = info_nce(videos, with_another, torch.tensor([0, 1, 2, 3]), 2, torch.tensor(0.0))
    own_again = info_nce(videos, with_another, torch.tensor([0, 1, 2, 0]), 2, torch.tensor(0.0))
    assert unknown > own_again > apart


def test_reversed_and_identity_pairs_are_negatives_of_words():
    videos = unit([1, 0], [0, 1])
    words = unit([1, 0], [0, 1])
    text = torch.tensor([0, 1])
    plain = info_nce(videos, words, text, 2, torch.tensor(1.0))
    assert info_nce(torch.cat([videos, unit([1, 0], [0, 1])]), words, text, 2, torch.tensor(1.0)) > plain


def test_the_reversed_edit_is_a_negative(tmp_path):
    """The loss of the first step from the scorer's own scores: a word's candidates are all edits,
    and all edits reversed.
    """
    scorer = ViFiClip.from_pretrained("shapes/vifi-clip").eval().requires_grad_(False)
    data = DataConfig("shapes", limit=6, shapes=WorldConfig(quality_mix={"right": 1.0}))
    rows = open_rows(data)
    pairs = read_pairs(rows, data, scorer, tmp_path)
    config = Config(
        "x", data, "shapes/clip", negatives=("reversed",), train=TrainConfig(**FAST | {"batch_size": 6})
    )
    found = contrast(config, scorer, pairs, 0, torch.Generator().manual_seed(0))

    samples = Shapes("train").batch(0, 6)
    scale = scorer.model.logit_scale.exp().clamp(max=100) / 100  # scores are a hundred times the cosine

    def scores(first, second) -> torch.Tensor:  # (edit, instruction)
        columns = [EditBatch(first, [text] * 6, second) for text in samples.instruction]
        return scale * torch.stack([scorer(batch).score for batch in columns], dim=1)

    there = scores(samples.source, samples.target)
    back = scores(samples.target, samples.source)
    own = torch.arange(6)
    by_words = torch.cat([there, back]).T
    assert (there.diagonal() - back.diagonal()).abs().max() > 1
    wanted = [torch.nn.functional.cross_entropy(logits, own) for logits in (there, by_words)]
    assert found.item() == pytest.approx(torch.stack(wanted).mean().item(), rel=0.02)


def test_rows_that_share_a_source_know_each_others_instructions(tmp_path):
    scorer = ViFiClip.from_pretrained("shapes/clip")
    pairs = read_pairs(open_rows(DATA), DATA, scorer, tmp_path)
    assert pairs.pictures.shape == (24, 2, 3, 64, 64)
    assert all(pairs.another(i, 0.5) == int(pairs.text[i ^ 1]) for i in range(24))
    with pytest.raises(ValueError, match=r"data\.limit: 24 there, 8 here"):
        read_pairs(open_rows(DataConfig("shapes", limit=8)), DataConfig("shapes", limit=8), scorer, tmp_path)


def test_all_but_token_embeddings_or_a_lora_is_trained(tmp_path):
    whole = ViFiClip.from_pretrained("shapes/clip", "temporal")
    make_trainable(whole, None)
    assert [n for n, p in whole.named_parameters() if not p.requires_grad] == [
        "model.text_model.embeddings.token_embedding.weight"
    ]
    lora = ViFiClip.from_pretrained("shapes/clip", "temporal")
    make_trainable(lora, 2)
    trained = [n for n, p in lora.named_parameters() if p.requires_grad]
    assert all("lora" in n or "logit_scale" in n or n.startswith("temporal") for n in trained)
    pairs = read_pairs(open_rows(DATA), DATA, lora, tmp_path)
    config = Config("x", DATA, "shapes/clip", pooling="temporal", train=TrainConfig(**FAST))
    contrast(config, lora, pairs, 0, torch.Generator().manual_seed(0)).backward()
    assert all(p.grad is not None for n, p in lora.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("rank", [None, 2])
def test_a_run_learns_is_resumed_and_loads(tmp_path, rank):
    config = Config(
        "x",
        data=DATA,
        checkpoint="shapes/clip",
        held_out=DataConfig("shapes", split="val", limit=12, shapes=WorldConfig(quality_mix={"right": 1.0})),
        lora_rank=rank,
        train=TrainConfig(**FAST),
    )
    saved = train(config, tmp_path / "whole")
    scorer = load_scorer("vifi_clip", checkpoint=str(saved))
    samples = Shapes("val").batch(0, 4)
    there = scorer(EditBatch(samples.source, samples.instruction, samples.target)).score
    back = scorer(EditBatch(samples.target, samples.instruction, samples.source)).score
    assert (there != back).all()
    assert json.loads((tmp_path / "whole" / "metrics.json").read_text())["retrieval"]["n"] == 12
    if rank is None:
        half = Config(
            "x", DATA, "shapes/clip", train=TrainConfig(**{**FAST, "max_steps": 2, "schedule_steps": 4})
        )
        log = read_log(tmp_path / "whole")
        train(half, tmp_path / "again")
        whole = replace(half, train=replace(half.train, max_steps=4))
        train(whole, tmp_path / "again", resume=True)
        again = read_log(tmp_path / "again")
        assert len(again) == 4
        assert [line["loss"] for line in again] == pytest.approx([line["loss"] for line in log], rel=1e-3)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from rewardedit.data import DataConfig\n"
        "from rewardedit.data.worlds import WorldConfig\n"
        "from rewardedit.trainers.vifi_clip import Config, TrainConfig, train\n"
        "torch.set_num_threads(1)\n"
        "settings = dict(max_steps=4, lr_warmup_steps=1, lr=1e-3, mixed_precision='no', log_every=1)\n"
        "own = WorldConfig(quality_mix={'right': 1.0}, edits_per_source=2)\n"
        "data = DataConfig('shapes', limit=24, shapes=own)\n"
        "settings = TrainConfig(batch_size=int(sys.argv[2]), **settings)\n"
        "train(Config('x', data, 'shapes/clip', train=settings), Path(sys.argv[1]))\n"
    )
    run_here(script, str(tmp_path / "one"), "8")
    launch(script, 2, str(tmp_path / "two"), "4")
    one, two = ([line["loss"] for line in read_log(tmp_path / name)] for name in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-4)


def test_the_recipe_is_planned(capsys):
    assert command(["train", "shapes/vifi-clip", "--dry-run"]) == 0
    assert "temporal pooling" in capsys.readouterr().out
    assert command(["train", "shapes/vifi-clip", "pooling=max", "--dry-run"]) == 2


def test_the_humanedit_recipe_runs_on_a_folder_of_its_columns(tmp_path):
    samples = Shapes("train").batch(0, 6)
    lines = []
    for i in range(6):
        for name, image in (
            ("in", samples.source),
            ("out", samples.target),
            ("mask", samples.mask.expand(-1, 3, -1, -1)),
        ):
            to_pil(image[i]).save(tmp_path / f"{name}{i}.png")
        record = {
            "IMAGE_ID": i,
            "EDITING_TYPE": samples.edit_type[i],
            "EDITING_INSTRUCTION": samples.instruction[i],
        }
        record |= {"INPUT_IMG": f"in{i}.png", "OUTPUT_IMG": f"out{i}.png", "MASK_IMG": f"mask{i}.png"}
        captions = {"INPUT_CAPTION_BY_LLAMA": "a scene", "OUTPUT_CAPTION_BY_LLAMA": "a scene"}
        lines.append(json.dumps({**record, **captions}))
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    out = tmp_path / "run"
    at = f"path={tmp_path}"
    words = [
        "checkpoint=shapes/clip",
        f"data.{at}",
        "data.holdout_sources=2",
        "train.max_steps=1",
    ]
    assert command(["train", "humanedit-vifi-clip", *words, "train.batch_size=4", "--out", str(out)]) == 0
    assert json.loads((out / "metrics.json").read_text())["retrieval"]["n"] == 2
