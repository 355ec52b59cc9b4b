import json
import math
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

from rewardedit import EditBatch, EditSample, RewardPrompt, RewardScale, load_scorer, models
from rewardedit.data import DataConfig, open_rows
from rewardedit.data.worlds import world
from rewardedit.models import fingerprints
from rewardedit.relabel import RelabelConfig, relabel
from rewardedit.reward_prompt import RewardEmbedding, label_rows
from rewardedit.scorer_spec import with_options
from rewardedit.scorers import Scorer, load
from rewardedit.scorers.adiee_head import AdieeSettings
from rewardedit.scorers.load import packaged_files
from rewardedit.scoring import read_columns, score_rows, write_records
from rewardedit.synthesis import candidates
from rewardedit.synthesis.candidates import CandidatesConfig, candidate_rows
from tests.shards import read_shards


@pytest.mark.parametrize(
    ("score", "word"),
    [
        (0, "one"),
        (2, "one"),
        (2.01, "two"),
        (4, "two"),
        (6, "three"),
        (7.1, "four"),
        (8, "four"),
        (8.01, "five"),
        (10, "five"),
    ],
)
def test_adiee_s_wording_and_bins(score, word):
    text = RewardPrompt.adiee().relabel("make the man's pants white", score)
    assert text == f"make the man's pants white. The image quality is {word} out of five."


def test_hive_s_wording():
    assert RewardPrompt.hive().relabel("add a plane", 10) == "add a plane, image quality is five out of five"


@pytest.mark.parametrize("instruction", ["add a plane", "add a plane.", " add a plane. ", "add a plane.."])
def test_no_double_stop_arises(instruction):
    assert RewardPrompt.adiee().best(instruction) == "add a plane. The image quality is five out of five."


def test_scores_outside_the_range_have_no_label():
    for score in (-0.1, 10.1, math.nan):
        with pytest.raises(ValueError, match="expected a number from 0 to 10"):
            RewardPrompt.adiee().label(score)


def test_custom_templates_and_bins_are_checked():
    prompt = RewardPrompt("[{word}] {instruction}", ("bad", "good"), (5.0, 10.0))
    assert prompt.relabel("add a plane", 5.1) == "[good] add a plane"
    for template in (
        "no place for words {instruction}",
        "{instruction} {word} {mood}",
        "{instruction} {word} {}",
        "{word} {instruction",
    ):
        with pytest.raises(ValueError, match="template: expected"):
            RewardPrompt(template)
    with pytest.raises(ValueError, match="words, upper: expected"):
        RewardPrompt("{instruction} {word}", ("a", "b"), (10.0,))


def test_a_prompt_is_saved_and_loaded_whole(tmp_path):
    prompt = RewardPrompt.adiee(RewardScale((-1.0, 0.25, 1.0)))
    prompt.save(tmp_path)
    assert RewardPrompt.load(tmp_path) == prompt
    assert RewardPrompt.load(tmp_path / "nowhere") is None
    (tmp_path / "reward_prompt.json").write_text(json.dumps({"template": 3}))
    with pytest.raises(ValueError, match="not a reward prompt"):
        RewardPrompt.load(tmp_path)


def test_quantiles_give_every_label_its_share():
    values = np.random.default_rng(0).normal(size=1000) ** 3
    scale = RewardScale.from_quantiles([*values, math.nan])
    labels = [RewardPrompt.adiee().label(v) for v in scale(torch.from_numpy(values)).tolist()]
    assert np.bincount(labels, minlength=5).tolist() == pytest.approx([200] * 5, abs=2)


def test_the_scale_is_piecewise_linear_monotone_and_differentiable():
    scale = RewardScale((0.0, 1.0, 3.0))
    value = torch.tensor([-1.0, 0.0, 0.5, 2.0, 3.0, 4.0], dtype=torch.float64, requires_grad=True)
    made = scale(value)
    assert made.tolist() == [0, 0, 2.5, 7.5, 10, 10]  # by hand: 5 points a segment
    inside = torch.tensor([0.5, 2.0, 2.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scale, (inside,))
    assert scale(torch.tensor([math.nan])).isnan().all()


def test_scores_in_half_precision_are_scaled_in_full():
    """Its knots are one number in bf16."""
    scale = RewardScale((2.391, 2.392, 2.393))
    score = torch.tensor([2.390625, 2.40625], dtype=torch.bfloat16, requires_grad=True)
    found = scale(score)
    assert found.dtype == torch.float32
    assert found.tolist() == [0, 10]
    found.sum().backward()
    assert score.grad is not None
    assert score.grad.isfinite().all()


def test_many_equal_scores_still_make_a_scale():
    scale = RewardScale.from_quantiles([0.0] * 90 + [0.1 * i for i in range(10)])
    assert list(scale.knots) == sorted(set(scale.knots))
    with pytest.raises(ValueError, match="two distinct valid scores"):
        RewardScale.from_quantiles([1.0, 1.0, math.nan])


def test_knots_lie_at_quantiles_of_all_rows_where_many_share_a_value():
    """90 zeros and 1 … 10: the quantile 0.9 lies at place 89.1 of 0 … 99, a tenth of the way from 0 to 1."""
    knots = RewardScale.from_quantiles([0.0] * 90 + [float(i) for i in range(1, 11)]).knots
    assert max(knots[:9]) < 1e-3
    assert knots[9:] == pytest.approx((0.1, 10.0))


def test_equal_scores_are_told_from_others_where_a_hair_is_below_their_precision():
    scale = RewardScale.from_quantiles([1e12] * 90 + [1e12 + 1] * 10)
    least, most = scale(torch.tensor([1e12, 1e12 + 1], dtype=torch.float64)).tolist()
    assert least == 0
    assert most > 8  # the best label


def test_rows_that_share_the_greatest_score_get_the_best_label():
    """A quarter of the rows lies at the end of a scorer's range, as a scorer that is clamped gives it."""
    scores = [0.1 * i for i in range(75)] + [10.0] * 25
    scale = RewardScale.from_quantiles(scores)
    least, most = scale(torch.tensor([0.0, 10.0], dtype=torch.float64)).tolist()
    assert (least, most) == (0, 10)
    found = [RewardPrompt.adiee(scale).label(v) for v in scale(torch.tensor(scores)).tolist()]
    assert [found.count(label) for label in range(5)][-1] == 25


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_a_shared_score_has_no_gradient_greater_than_all_others(shared):
    """Without clamping, as in reward feedback learning."""
    others = torch.rand(800, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scale = RewardScale.from_quantiles([shared] * 200 + others.tolist())
    score = torch.tensor([-0.05, 0.0, 0.5, 1.0, 1.05], dtype=torch.float64, requires_grad=True)
    mapped = scale(score, clamp=False)
    mapped.sum().backward()
    assert mapped.diff().min() > 0
    assert score.grad is not None
    assert score.grad.min() > 5
    assert score.grad.max() < 50
    assert mapped[[1, 3]].tolist() == pytest.approx([0, 10], abs=0.05)


def test_a_new_reward_embedding_changes_nothing():
    embedding = RewardEmbedding(5, 8)
    tokens = torch.rand(2, 4, 8)
    assert torch.equal(embedding(tokens, torch.tensor([0, 5])), tokens)


def test_a_scale_by_a_range_that_has_no_bounds_is_refused_before_a_row_is_scored(tmp_path):
    class Rows:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> EditSample:
            raise AssertionError("a row was read")

    config = RelabelConfig("tests.test_relabel:Unbounded", scale="range")
    with pytest.raises(ValueError, match="have no bounds; use scale=quantiles"):
        relabel(config, Rows(), DataConfig("shapes"), tmp_path)


class Unbounded(Scorer):
    """A scorer without a declared range."""

    def score(self, batch, prepared):
        raise AssertionError("something was scored")


def test_labels_are_not_taken_for_those_of_other_weights(tmp_path, monkeypatch):
    data = DataConfig(name="shapes", limit=6, size=16)
    rows = open_rows(data)
    labels = relabel(RelabelConfig({"clip_t": {"checkpoint": "shapes/clip"}}), rows, data, tmp_path).label
    assert (
        relabel(RelabelConfig({"clip_t": {"checkpoint": "shapes/clip"}}), rows, data, tmp_path).label
        == labels
    )
    monkeypatch.setattr(load, "fingerprints", lambda names: {"shapes/clip": "another"})
    with pytest.raises(ValueError, match=r"made with other settings: models\.shapes/clip"):
        relabel(RelabelConfig({"clip_t": {"checkpoint": "shapes/clip"}}), rows, data, tmp_path)


def test_labels_are_not_taken_for_those_of_another_table(tmp_path):
    for name, colour in (("a.png", "black"), ("b.png", "white")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / name)
    table = tmp_path / "rows.jsonl"
    data = DataConfig(name="table", path=str(table), size=8)

    def label(instruction: str) -> list:
        row = {"source": "a.png", "instruction": instruction}
        table.write_text("".join(json.dumps({**row, "target": f"{name}.png"}) + "\n" for name in "ab"))
        return relabel(RelabelConfig("l1"), open_rows(data), data, tmp_path / "labels").label

    labels = label("make it red")
    assert label("make it red") == labels, "the same content, written again"
    with pytest.raises(ValueError, match=r"made with other settings: files\..*rows\.jsonl"):
        label("make it blue")


def test_candidates_are_not_taken_for_those_of_another_table_or_editor(tiny_editor, tmp_path, monkeypatch):
    Image.new("RGB", (32, 32), "black").save(tmp_path / "a.png")
    table = tmp_path / "rows.jsonl"
    data = DataConfig(name="table", path=str(table), size=32)
    config = CandidatesConfig((tiny_editor,), num_inference_steps=1, guidance_scale=1.0)

    def ask(instruction: str, config: CandidatesConfig = config) -> None:
        table.write_text(
            json.dumps({"source": "a.png", "target": "a.png", "instruction": instruction}) + "\n"
        )
        candidate_rows(config, data, tmp_path / "candidates")

    ask("make it red")
    ask("make it red")
    with pytest.raises(ValueError, match=r"made with other settings: files\..*rows\.jsonl"):
        ask("make it blue")
    packaged_models = replace(config, editors=("shapes/editor",))
    shutil.rmtree(tmp_path / "candidates")
    ask("make it red", packaged_models)
    monkeypatch.setattr(candidates, "fingerprints", lambda names: dict.fromkeys(names, "another"))
    with pytest.raises(ValueError, match=r"made with other settings: models\.shapes/editor"):
        ask("make it red", packaged_models)


def test_the_packaged_models_of_a_scorer_are_known(tmp_path):
    digest = fingerprints()
    assert packaged_files("l1") == {}
    assert packaged_files("vifi_clip", checkpoint="shapes/vifi-clip") == {
        "shapes/vifi-clip": digest["shapes/vifi-clip"]
    }
    assert packaged_files(with_options("clip_d:0.7,adiee:0.3", world("shapes").scorers)).keys() == {
        "shapes/clip",
        "shapes/adiee",
    }
    assert packaged_files({"vifi_clip": {"checkpoint": "shapes/clip"}}).keys() == {"shapes/clip"}
    assert packaged_files("vifi_clip", checkpoint="runs/own/scorer") == {}
    adapter = tmp_path / "scorer"
    adapter.mkdir()
    (adapter / "adiee.json").write_text(json.dumps(asdict(AdieeSettings(base="shapes/vlm"))))
    assert packaged_files("adiee", checkpoint=str(adapter)).keys() == {"shapes/vlm"}


DINO = "IDEA-Research/grounding-dino-tiny"
BOTH = {"shapes/detector", "shapes/segmenter"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, set()),
        ({"checkpoint": "shapes/detector"}, BOTH),  # its calibration names the locator
        ({"checkpoint": "shapes/detector", "regions": "change_map"}, {"shapes/detector"}),
        ({"checkpoint": "shapes/detector", "regions": {"detector": DINO}}, {"shapes/detector"}),
        ({"checkpoint": "x/clip", "regions": {"segmenter": "shapes/segmenter"}}, {"shapes/segmenter"}),
        ({"checkpoint": "x/clip", "regions": {"detector": DINO, "segmenter": "x/sam"}}, set()),
    ],
)
def test_what_bpm_finds_its_regions_with_is_known_too(options, expected):
    assert packaged_files({"bpm": options}).keys() == expected


def test_a_packaged_model_is_another_when_its_calibration_is(tmp_path, monkeypatch):
    folder = tmp_path / models.NAMES["shapes/detector"]
    shutil.copytree(models.resolve_model("shapes/detector"), folder)
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    before = fingerprints()
    assert before.keys() == {"shapes/detector"}
    ends = json.loads((folder / "bpm.json").read_text())
    (folder / "bpm.json").write_text(json.dumps({**ends, "modify": [0, 1]}))
    assert fingerprints() != before


def test_rows_are_scored_labelled_and_kept_in_shards(tmp_path):
    source = torch.rand(4, 3, 8, 8)
    batch = EditBatch(
        source, list("abcd"), (source + torch.tensor([0, 0.1, 0.2, 0.3])[:, None, None, None]).clamp(0, 1)
    )
    samples = [EditSample(f"r{i}", source[i], batch.instruction[i], batch.edited[i]) for i in range(4)]
    (rows,) = score_rows(samples, {"l1": load_scorer("l1")}, size=8)
    rows[1] |= {"score": math.nan, "valid": False, "reason": "planted"}
    prompt = RewardPrompt.adiee(RewardScale.from_quantiles([row["score"] for row in rows]))
    labelled = label_rows(rows, prompt)
    shards = [tmp_path / f"part-0000{i}.parquet" for i in range(2)]
    for i, path in enumerate(shards):
        write_records(labelled[2 * i : 2 * i + 2], path)
    assert read_columns(shards, "label", "id") == [
        [4, None, *(row["label"] for row in labelled[2:])],
        ["r0", "r1", "r2", "r3"],
    ]
    back = read_shards(tmp_path)
    assert [row["id"] for row in back] == ["r0", "r1", "r2", "r3"]
    assert back[1]["label"] is None
    assert back[1]["text"] is None
    assert back[1]["reason"] == "planted"
    assert back[0]["label"] == 4
    assert back[0]["text"] == prompt.relabel("a", 10)  # to the byte what inference asks with
