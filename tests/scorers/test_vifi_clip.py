"""ViFi-CLIP for edits: what order means to it, larger images, and files."""

import shutil
from pathlib import Path

import pytest
import torch

from rewardedit import EditBatch, load_scorer
from rewardedit.models import resolve_model
from rewardedit.scorers.vifi_clip import POOLINGS, ViFiClip
from rewardedit.shapes import Shapes


@pytest.fixture(scope="module")
def pair():
    samples = Shapes("val").batch(0, 6)
    there = EditBatch(samples.source, samples.instruction, samples.target)
    return there, EditBatch(samples.target, samples.instruction, samples.source)


def awake(scorer: ViFiClip) -> ViFiClip:
    """With a temporal pooling that is no longer as it began."""
    assert scorer.temporal is not None
    torch.manual_seed(0)
    for parameter in scorer.temporal.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return scorer.eval().requires_grad_(False)


def test_the_mean_is_blind_to_order_and_the_temporal_begins_as_the_mean(pair):
    torch.manual_seed(0)  # a fresh temporal pooling has random weights
    mean, temporal = (ViFiClip.from_pretrained("shapes/clip", pooling=pooling).eval() for pooling in POOLINGS)
    with torch.no_grad():
        there, back = (mean(batch).score for batch in pair)
        torch.testing.assert_close(there, back)
        torch.testing.assert_close(temporal(pair[0]).score, there)
        there, back = (awake(temporal)(batch).score for batch in pair)
    assert ((there - back).abs() > 0.1).all()


def test_the_score_is_a_hundred_times_the_cosine_of_mean_and_words(pair):
    scorer = ViFiClip.from_pretrained("shapes/clip").eval()
    with torch.no_grad():
        features = (scorer.image_features(pair[0].source) + scorer.image_features(pair[0].edited)) / 2
        wanted = 100 * torch.cosine_similarity(features, scorer.text_features(pair[0].instruction))
        torch.testing.assert_close(scorer(pair[0]).score, wanted, rtol=1e-4, atol=1e-3)


def test_larger_pictures_interpolate_both_kinds_of_positions(pair):
    scorer = awake(ViFiClip.from_pretrained("shapes/clip", pooling="temporal", size=96))
    scores = scorer(pair[0]).score
    assert scorer.frame(pair[0].source)["tokens"].shape == (6, 144, 128)
    assert scores.isfinite().all()


def test_what_is_saved_comes_back(pair, tmp_path):
    scorer = awake(ViFiClip.from_pretrained("shapes/clip", pooling="temporal"))
    scorer.save(tmp_path)
    shutil.copy(Path(resolve_model("shapes/clip"), "preprocessor_config.json"), tmp_path)
    torch.testing.assert_close(
        ViFiClip.from_pretrained(str(tmp_path)).eval()(pair[0]).score, scorer(pair[0]).score
    )
    assert ViFiClip.from_pretrained(str(tmp_path), pooling="mean").temporal is None


def test_the_gradient_reaches_the_edit_through_both_paths(pair):
    scorer = awake(ViFiClip.from_pretrained("shapes/clip", pooling="temporal"))
    edited = pair[0].edited.clone().requires_grad_(True)
    scorer(EditBatch(pair[0].source, pair[0].instruction, edited)).mean().backward()
    assert edited.grad is not None
    assert (edited.grad.flatten(1).abs().sum(1) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "pooling: expected one of mean, temporal"),
        ({"size": 60}, "size: expected a multiple of the patch"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ViFiClip.from_pretrained("shapes/clip", **options)


def test_a_type_of_weights_by_name_is_that_type(pair):
    scorer = load_scorer({"vifi_clip": {"checkpoint": "shapes/vifi-clip", "dtype": "bfloat16"}})
    assert {p.dtype for p in scorer.parameters()} == {torch.bfloat16}
    given = load_scorer("vifi_clip", checkpoint="shapes/vifi-clip", dtype=torch.bfloat16)
    assert torch.equal(scorer(pair[0]).score, given(pair[0]).score)
    with pytest.raises(ValueError, match="dtype: expected one such as float32"):
        ViFiClip.from_pretrained("shapes/clip", dtype="half a byte")


def test_the_video_is_the_mean_of_its_frames_and_what_the_pooling_adds(pair):
    scorer = awake(ViFiClip.from_pretrained("shapes/clip", pooling="temporal"))
    source, edited = (scorer.frame(image) for image in (pair[0].source, pair[0].edited))
    with torch.no_grad():
        added = scorer.temporal(source["tokens"], edited["tokens"]).float()
        found = scorer.video(source, edited)
    assert added.abs().max() > 0.01
    wanted = torch.nn.functional.normalize((source["feature"] + edited["feature"]) / 2 + added, dim=-1)
    torch.testing.assert_close(found, wanted)
