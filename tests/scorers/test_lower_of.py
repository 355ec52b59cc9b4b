"""The lower of several scorers: by hand, by name, and what it is made of."""

import re

import pytest
import torch

from rewardedit import EditBatch, load_scorer
from rewardedit.cli.announce import own_code
from rewardedit.scorer_spec import all_terms, read_spec, resolve_spec, spec_name
from rewardedit.scorers.base import FunctionScorer, WeightedSum
from rewardedit.scorers.load import families, packaged_files
from rewardedit.scorers.lower_of import CENTRES, LowerOf
from tests.readme import recorded

ADIEE = {"adiee": {"checkpoint": "shapes/adiee"}}
BPM = {"bpm": {"checkpoint": "shapes/detector", "missing_object": "failed"}}
SPEC = {"lower_of": [ADIEE, BPM]}


def red(batch: EditBatch) -> torch.Tensor:
    return batch.edited[:, 0].mean((1, 2))


def green(batch: EditBatch) -> torch.Tensor:
    """Cannot say of an edit that is black."""
    mean = batch.edited[:, 1].mean((1, 2))
    return torch.where(mean > 0, mean, torch.nan)


def both() -> LowerOf:
    scorers = {
        function.__name__: FunctionScorer(function, (0.0, 1.0), differentiable=True, family=function.__name__)
        for function in (red, green)
    }
    return LowerOf(scorers, {"red": (0.5, 0.1), "green": (0.2, 0.4)})


def batch_of(*colours: tuple[float, float]) -> EditBatch:
    edited = torch.stack([torch.tensor([r, g, 0.0])[:, None, None].expand(3, 4, 4) for r, g in colours])
    return EditBatch(torch.zeros_like(edited), ["edit"] * len(colours), edited.clone().requires_grad_(True))


def test_the_lower_and_its_gradient_by_hand():
    batch = batch_of((0.6, 0.4), (0.9, 0.4), (0.5, 0.0))
    scores = both()(batch)
    # (0.6 − 0.5) / 0.1 = 1 and (0.4 − 0.2) / 0.4 = 0.5; 4 and 0.5; none
    torch.testing.assert_close(scores.score[:2], torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(scores.parts["red"][:2], torch.tensor([1.0, 4.0]))
    assert scores.reason == [None, None, "green: the score is not finite"]
    scores.mean().backward()
    assert batch.edited.grad is not None
    by_channel = batch.edited.grad.abs().sum((2, 3))
    assert by_channel[:, 0].tolist() == [0, 0, 0], "the higher one has no part in it"
    assert (by_channel[:2, 1] > 0).all()
    assert both().range == pytest.approx((-5.0, 2.0))  # of red's −5 to 5 and green's −0.5 to 2
    assert both().family == "green+red"


@pytest.mark.parametrize("kind", [LowerOf, WeightedSum])
def test_recomputed_scores_and_gradients_are_the_same(kind):
    scorer = both() if kind is LowerOf else WeightedSum(dict(both().named()), {"red": 1.0, "green": -2.0})
    found = []
    for score in (scorer, scorer.checkpointed):
        batch = batch_of((0.6, 0.4), (0.9, 0.4), (0.5, 0.0))
        scores = score(batch)
        scores.mean().backward()
        assert batch.edited.grad is not None
        assert (batch.edited.grad[2] == 0).all(), "it is invalid by one of the two"
        found.append((scores, batch.edited.grad))
    (plain, gradient), (again, same) = found
    assert torch.equal(plain.score[:2], again.score[:2])
    assert plain.reason == again.reason
    assert torch.equal(gradient, same)
    assert not scorer.recomputes


def test_it_stands_in_specs_in_one_way():
    whole = {"lower_of": {"scorers": SPEC["lower_of"]}}
    assert resolve_spec(SPEC) == resolve_spec(whole) == whole
    assert read_spec(SPEC) == read_spec(resolve_spec(SPEC))
    assert spec_name(SPEC) == "lower_of"
    assert [name for name, _ in all_terms(SPEC)] == ["adiee", "bpm"]
    assert families(SPEC) == {"adiee", "bpm"}
    assert packaged_files(SPEC) == packaged_files(ADIEE) | packaged_files(BPM)
    weighted = {"lower_of": ["clip_d:0.7,l1:0.3", {"vifi_clip": {}}]}
    assert families(weighted) == {"clip", "pixel"}
    assert own_code({"scorer": {"lower_of": ["l1", "mine.module:Mine"]}}) == ["mine.module:Mine"]


def test_each_scorer_has_its_median_or_one_is_asked_for():
    with pytest.raises(
        ValueError, match=r"expected a median and a spread of l1, ssim\(region=outside\), .* "
    ):
        load_scorer({"lower_of": [ADIEE, "l1", {"ssim": {"region": "outside"}}]})
    with pytest.raises(ValueError, match="each scorer once"):
        load_scorer({"lower_of": ["l1", "l1"]})
    with pytest.raises(ValueError, match="l1: expected a median and a spread above 0"):
        load_scorer({"lower_of": {"scorers": ["l1", "ssim"], "centres": {"l1": [1, 0], "ssim": [0, 1]}}})
    given = {"scorers": ["l1", "ssim"], "centres": {"l1": [0.5, 0.1], "ssim": [0.2, 0.4]}}
    found = load_scorer({"lower_of": given})
    assert isinstance(found, LowerOf)
    assert found.centres == {"l1": (0.5, 0.1), "ssim": (0.2, 0.4)}
    assert found.differentiable


def test_the_package_s_medians_are_those_that_were_measured():
    measured = recorded("centres")["centres"]
    for name, (median, spread) in CENTRES.items():
        short = re.sub(r"\(checkpoint=[\w/-]+\)|checkpoint=[\w/-]+, ", "", name)
        found = measured[short.replace("missing_object", "undetected")]  # its former name
        assert (median, spread) == pytest.approx((found["median"], found["spread"]), rel=1e-3)
