"""Held-out rows of photographs, and editors that are compared on them."""

import json

import pytest
import torch
from PIL import Image

from rewardedit import load_editor, load_scorer
from rewardedit.cli import load_recipe, main
from rewardedit.data import DataConfig, open_rows, source_ids
from rewardedit.data.sources import hold_out
from rewardedit.diffusion.saving import save_editor
from rewardedit.evaluation.compare import compare, judge_of
from rewardedit.evaluation.evaluate_config import EvaluateConfig
from rewardedit.evaluation.held_out import (
    comparison_data,
    comparison_plan,
    comparison_rows,
    held_out,
    require_comparison,
    split_by_source,
)

SIDE = 32
OWN = "data={name: table, path: pairs.csv, size: 256}"


def photographs(folder, sources: int = 12, turns: int = 2) -> DataConfig:
    """A table of source images, each with some edits."""
    folder.mkdir()
    lines = []
    for i in range(sources * turns):
        source = i // turns
        for side, seed in (("source", source), ("target", 100 + i)):
            noise = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
            image = torch.nn.functional.interpolate(noise, (SIDE, SIDE), mode="bilinear")[0]
            name = f"{source if side == 'source' else i}-{side}.png"
            Image.fromarray((image * 255).byte().permute(1, 2, 0).numpy()).save(folder / name)
        row = {"source": f"{source}-source.png", "target": f"{i}-target.png", "instruction": f"make it {i}"}
        lines.append(json.dumps(row))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return DataConfig("table", str(folder), size=SIDE)


def test_val_and_test_have_no_source_image_in_common():
    sources = [f"{i // 3}" for i in range(60)]
    for seed in range(5):
        val, test = split_by_source(sources, 13, 40, seed)
        assert (len(val), len(test)) == (13, 40)
        assert not {sources[i] for i in val} & {sources[i] for i in test}
    assert split_by_source(sources, 12, 40, 0) != split_by_source(sources, 12, 40, 1)
    val, test = split_by_source(sources, 140, 512, 0)
    assert 12 <= len(val) <= 15, "both are smaller in the same proportion"
    assert len(val) + len(test) == 60
    val, test = split_by_source(["a", "b", "c"], 140, 512, 0)
    assert (len(val), len(test)) == (1, 2)


def test_rows_of_the_comparison_are_not_trained_on(tmp_path):
    data = photographs(tmp_path / "data", sources=40)
    evaluate = EvaluateConfig(n=4, val_n=2)
    left = comparison_data(evaluate, data)
    val, test = held_out(evaluate, left)
    trained = set(source_ids(open_rows(left)))
    assert trained
    assert not trained & {*val.source_id, *test.source_id}
    assert comparison_data(None, data) == data

    with pytest.raises(ValueError, match=r"evaluate\.data: 40 of its source images are trained on"):
        comparison_data(EvaluateConfig(data=data), data)
    other = photographs(tmp_path / "other", sources=3)
    (tmp_path / "other" / "0-source.png").write_bytes((tmp_path / "data" / "0-source.png").read_bytes())
    assert comparison_data(EvaluateConfig(data=other), DataConfig("shapes")) == DataConfig("shapes")


def test_a_plan_counts_the_rows_that_are_compared(tmp_path):
    """A tenth of 40 source images, and rows of which the training has others."""
    data = photographs(tmp_path / "data", sources=40, turns=1)
    evaluate = EvaluateConfig(n=450, val_n=70)
    left = comparison_data(evaluate, data)
    assert comparison_rows(evaluate, left) == require_comparison(evaluate, left) == (1, 3)
    assert comparison_plan(evaluate, (1, 3)) == [
        "comparison: settings on 1 rows, test on 3, held out of the data"
    ]
    assert comparison_rows(evaluate, DataConfig("shapes")) == (70, 450), "a world makes as many"
    assert comparison_rows(None, data) == require_comparison(None, data) == (0, 0)
    assert comparison_plan(None, (0, 0)) == []


def test_too_few_source_images_are_refused_with_the_least_number(tmp_path):
    evaluate = EvaluateConfig(n=450, val_n=70)
    data = photographs(tmp_path / "data", sources=29, turns=1)
    message = (
        r"data: expected at least 30 source images, as the comparison needs 3 and at most one in 10 is held "
        r"out for it; got 29; add rows, name others for it by evaluate\.data, or leave it out by "
        "evaluate=null"
    )
    for refused in (comparison_rows, require_comparison):
        with pytest.raises(ValueError, match=message):
            refused(evaluate, comparison_data(evaluate, data))
    thirty = [f"{i}" for i in range(30)]
    _, held_out_of_thirty = hold_out(thirty, 520, 0)
    assert len(split_by_source([thirty[i] for i in held_out_of_thirty], 70, 450, 0)[1]) == 2

    two = photographs(tmp_path / "two", sources=2)
    with pytest.raises(
        ValueError, match=r"evaluate\.data: expected at least 3 source images; got 2; name other"
    ):
        comparison_rows(EvaluateConfig(data=two), data)


def test_what_the_rows_lack_is_said_before_a_training(tmp_path):
    data = photographs(tmp_path / "data")
    inside = {"l1": {"region": "inside"}}
    with pytest.raises(ValueError, match=r"evaluate\.scorers: l1 needs mask, which the held-out rows lack"):
        require_comparison(EvaluateConfig(data=data, scorers=(inside,)), data)
    require_comparison(EvaluateConfig(data=data, scorers=({"ssim": {"against": "target"}},)), data)
    for path in (tmp_path / "data").glob("*-source.png"):
        path.write_bytes(path.name.encode())
    with pytest.raises(ValueError, match=r"evaluate: none of \d+ rows can be read; the first: "):
        require_comparison(EvaluateConfig(data=data), data)


def test_editors_are_compared_on_photographs(tiny_editor, tmp_path):
    data = photographs(tmp_path / "data")
    save_editor(load_editor(tiny_editor), tmp_path / "pipeline")
    evaluate = EvaluateConfig(
        n=16,
        val_n=6,
        data=data,
        scorers=({"ssim": {"against": "target"}},),
        num_inference_steps=(1, 2),
        guidance_scale=(1.5,),
        autocast=False,
    )
    rewards = {"l1": load_scorer("l1")}
    metrics = compare(
        evaluate, tiny_editor, {"tuned": tmp_path / "pipeline"}, rewards, tmp_path / "run", data
    )
    assert metrics is not None
    assert (metrics["n"], metrics["val_n"], metrics["chosen_by"]) == (16, 6, "ssim")
    assert "oracle" not in metrics
    grid = metrics["settings"]["base"]["val"]
    assert len(grid) == 2
    one, two = grid.values()
    assert metrics["settings"]["base"]["steps"] == (1 if one >= two else 2)
    for scorer in ("l1", "ssim"):
        found = metrics["differences"][scorer]["base"]
        assert found["difference"] == pytest.approx(0, abs=1e-5), "the same editor"
        assert (found["n"], found["clusters"], found["wins"], found["losses"]) == (16, 8, 0, 0)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "ssim" in page
    assert "Oracle" not in page
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["n"] == 16


@pytest.mark.usefixtures("unmeasured_memory")
def test_a_training_on_photographs_ends_with_a_comparison(tiny_editor, tmp_path, capsys):
    data = photographs(tmp_path / "data", sources=40, turns=1)
    words = [
        "train",
        "shapes/reward-conditioned",
        f"data={{name: table, path: {data.path}, size: {SIDE}}}",
        f"base={tiny_editor}",
        "variants=[conditioned]",
        "relabel={scorer: l1, scale: range, prompt: hive}",
        "evaluate={n: 4, val_n: 2, num_inference_steps: [1], guidance_scale: [1.5], autocast: false}",
        "train={max_steps: 1, batch_size: 2, tracker: none, validate_every: 0, mixed_precision: 'no'}",
    ]
    assert main([*words, "--dry-run"]) == 0
    assert "comparison: settings on 1 rows, test on 3, held out of the data" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "held-out edits; mean, conditioned_five − variant with its 95 % interval over source images" in out
    assert (tmp_path / "run" / "report.html").is_file()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(metrics["rewards"]) == {"base", "conditioned_five", "conditioned_one"}

    assert main([*words, "evaluate.choose_by=dino", "--dry-run"]) == 2
    assert "evaluate.choose_by: expected one of l1; got 'dino'" in capsys.readouterr().err


def test_settings_are_chosen_by_no_scorer_that_prefers_an_unchanged_source(tmp_path):
    data = photographs(tmp_path / "data")
    _, rows = held_out(EvaluateConfig(data=data), data)
    trained, kept = load_scorer({"l2": {"against": "target"}}), load_scorer("l1")
    near = load_scorer({"ssim": {"against": "target"}})
    rewards = {"l2": trained, "l1": kept}
    assert judge_of(EvaluateConfig(), rows, rewards, {**rewards, "ssim": near}).name == "ssim"
    assert judge_of(EvaluateConfig(), rows, rewards, rewards).name == "l2", "the training's own"
    assert judge_of(EvaluateConfig(choose_by="l1"), rows, rewards, rewards).name == "l1"


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ([OWN], None),
        (["data.name=table", "data.path=pairs.csv"], None),
        ([], "magicbrush"),
        (["data.limit=8"], "magicbrush"),
        (["data={name: table, path: pairs.csv, size: 64, stream: true}"], "magicbrush"),
        ([OWN, "evaluate.data={name: magicbrush, path: /other}"], "magicbrush"),
        ([OWN, "evaluate=null"], None),
    ],
)
def test_own_data_is_compared_on_rows_held_out_of_it(words, rows):
    _, config = load_recipe("magicbrush-refl-24gb", words)
    own = config.evaluate and config.evaluate.data
    assert (own and own.name) == rows


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ([OWN], (None, None)),
        ([], ("magicbrush", "magicbrush")),
        ([OWN, "monitor.n=8"], (None, None)),
        ([OWN, "monitor.data={name: magicbrush, path: /other}"], ("magicbrush", None)),
        ([OWN, "monitor.data.path=/other", "evaluate=null"], ("magicbrush", None)),
        ([OWN, "evaluate.data.path=/other"], (None, "magicbrush")),
    ],
)
def test_own_data_is_watched_on_rows_held_out_of_it(words, rows):
    _, config = load_recipe("instruct-pix2pix-dpo", words)
    groups = (config.monitor, config.evaluate)
    assert tuple(group and group.data and group.data.name for group in groups) == rows


def test_own_data_of_a_phase_is_compared_on_its_rows():
    _, config = load_recipe("magicbrush-adiee", [f"phase-4.{OWN}"])
    assert config.phases["phase-4"].settings.evaluate.data is None
    assert config.phases["phase-3"].settings.evaluate.data.name == "magicbrush"
