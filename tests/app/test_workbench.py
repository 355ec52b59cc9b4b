"""Candidates behind the page: their order, scores, masks and heat maps are those of direct calls."""

from dataclasses import replace

import pytest
import torch

from rewardedit import EditBatch, Scorer, load_editor, load_scorer
from rewardedit.app.settings import AppConfig
from rewardedit.app.workbench import EditRequest, Workbench
from rewardedit.batch import Scores
from rewardedit.images import to_pil
from rewardedit.regions.change_map import change_mask
from rewardedit.reports.heatmap import draw_heat, heat_map
from rewardedit.scorers.base import FunctionScorer
from rewardedit.serving.settings import ServeConfig
from rewardedit.shapes import Shapes

SAMPLE = Shapes("val").batch(0, 1)
SOURCE = SAMPLE.source[0]
INSTRUCTION = SAMPLE.instruction[0]


def brightness(batch: EditBatch) -> torch.Tensor:
    return batch.edited.mean((1, 2, 3))


class Particular(Scorer):
    """Cannot score the candidate with the largest value of red."""

    def score(self, batch, prepared):
        red = batch.edited[:, 0].mean((1, 2))
        reasons = ["too red" if is_most else None for is_most in (red == red.max()).tolist()]
        return Scores.make(red, reason=reasons)


@pytest.fixture(scope="module")
def editor():
    editor = load_editor("shapes/editor")
    return replace(editor, settings=replace(editor.settings, num_inference_steps=2))


def workbench(editor, scorers=None, **settings):
    scorers = scorers or {"brightness": FunctionScorer(brightness), "l1": load_scorer("l1")}
    return Workbench("shapes/editor", editor, scorers, "cpu", AppConfig(ServeConfig(), **settings))


def test_candidates_are_ranked_and_explained(editor):
    request = EditRequest(SOURCE, INSTRUCTION, 3, "brightness", ("l1", "brightness"), seed=5)
    ranking = workbench(editor).edit(request)
    images = editor(SOURCE[None].repeat(3, 1, 1, 1), [INSTRUCTION] * 3, 5)
    expected = brightness(EditBatch(SAMPLE.source.repeat(3, 1, 1, 1), [INSTRUCTION] * 3, images))
    order = expected.argsort(descending=True).tolist()
    assert [candidate.seed for candidate in ranking.candidates] == [5 + i for i in order]
    assert ranking.heat_of == "l1"

    l1 = load_scorer("l1")
    for i, candidate in zip(order, ranking.candidates, strict=True):
        batch = EditBatch(SAMPLE.source, [INSTRUCTION], images[[i]])
        assert list(candidate.scores) == ["brightness", "l1"]
        assert candidate.scores["brightness"] == pytest.approx(float(expected[i]), abs=1e-4)
        assert candidate.scores["l1"] == pytest.approx(float(l1(batch).score[0]), abs=1e-4)
        mask = to_pil(change_mask(SAMPLE.source, images[[i]])[0].expand(3, -1, -1))
        assert difference(candidate.changed, mask) < 0.01
        assert difference(candidate.heat, to_pil(draw_heat(images[[i]], heat_map(l1, batch))[0])) < 0.01


def difference(left, right) -> float:
    """Mean absolute difference of two PIL images, in [0, 1]."""
    first, second = (torch.tensor(list(image.tobytes())) / 255 for image in (left, right))
    return float((first - second).abs().mean())


def test_without_a_gradient_there_is_no_heat_map(editor):
    ranking = workbench(editor).edit(EditRequest(SOURCE, INSTRUCTION, 1, "brightness"))
    assert ranking.heat_of is None
    assert ranking.candidates[0].heat is None


def test_a_candidate_without_a_score_comes_last(editor):
    bench = workbench(editor, {"particular": Particular(), "l1": load_scorer("l1")})
    ranking = bench.edit(EditRequest(SOURCE, INSTRUCTION, 3, "particular", ("l1",)))
    last = ranking.candidates[-1]
    assert last.scores["particular"] is None
    assert last.reasons == {"particular": "too red"}
    assert last.scores["l1"] is not None
    assert last.edited is not None


def test_a_large_image_is_scaled_to_the_editor(editor):
    large = torch.rand(3, 150, 100)
    small = torch.rand(3, 40, 40)
    long = torch.rand(3, 70, 280)
    cases = [
        (large, None, (64, 96)),
        (small, None, (40, 40)),
        (small, 48, (48, 48)),
        (long, None, (180, 44)),  # √8 · 64 and √½ · 64 pixels, as near as multiples of 4 come
    ]
    for image, size, expected in cases:
        ranking = workbench(editor, size=size).edit(EditRequest(image, "x", 1, "l1", steps=1))
        assert ranking.candidates[0].edited.size == expected


def test_memory_that_ran_out_is_told_to_users(editor):
    def too_large(batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    whoever = "ask whoever runs this page to give"
    smaller = f"upload a smaller image, or {whoever} --size, such as 512"
    for size, remedy in ((None, smaller), (64, f"{whoever} a --size below 64")):
        bench = workbench(editor, {"large": FunctionScorer(too_large)}, size=size)
        with pytest.raises(ValueError, match=f"^image: out of memory at 64 x 64 pixels; {remedy}$"):
            bench.edit(EditRequest(SOURCE, "x", 1, "large", steps=1))


def test_what_cannot_be_asked_for_is_refused(editor):
    bench = workbench(editor, max_candidates=2)
    faults = [
        (EditRequest(SOURCE, "x", 3, "l1"), "candidates: expected a number from 1 to 2; got 3"),
        (EditRequest(SOURCE, "x", 1, "l1", ("clip_t",)), "scorers: expected some of brightness, l1; got"),
        (EditRequest(torch.rand(3, 9, 80), "x", 1, "l1"), "image: expected a longer side of at most 8 times"),
    ]
    for request, message in faults:
        with pytest.raises(ValueError, match=message):
            bench.edit(request)
    with pytest.raises(ValueError, match="instruction: expected a text; got none"):
        EditRequest(SOURCE, "  ", 1, "l1")
    with pytest.raises(ValueError, match="steps: expected a number from 1 to 200; got 0"):
        EditRequest(SOURCE, "x", 1, "l1", steps=0)
    with pytest.raises(ValueError, match="max_waiting: expected at least 1; got 0"):
        AppConfig(ServeConfig(), max_waiting=0)


def test_fields_of_scorers_are_looked_at(editor):
    captioned = FunctionScorer(brightness, required_fields=("target_caption",))
    bench = workbench(editor, {"captioned": captioned})
    request = EditRequest(SOURCE, INSTRUCTION, 1, "captioned")
    with pytest.raises(ValueError, match="captioned: expected a target caption; got none; write one"):
        bench.edit(request)
    assert (
        bench.edit(replace(request, captions={"target_caption": "a cat"})).candidates[0].scores["captioned"]
    )
    with pytest.raises(ValueError, match="--scorer against: needs target, which an uploaded image"):
        workbench(editor, {"against": load_scorer({"l1": {"against": "target"}})})
