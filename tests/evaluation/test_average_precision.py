"""Average precision, beside pycocotools."""

import contextlib
import io
from typing import Any

import numpy as np
import pytest

from rewardedit.evaluation.average_precision import (
    average_precision,
    match,
    mean_precision,
    precision_difference,
)
from rewardedit.regions.differences import COMMANDS, Difference

Rows = list[list[Difference]]


def command_of(one: Difference) -> str:
    return one.command


def random_rows(seed: int, images: int = 30) -> tuple[Rows, Rows]:
    """True boxes, and found ones that are near them, elsewhere, doubled or missing."""
    rng = np.random.default_rng(seed)
    truth: Rows = []
    found: Rows = []
    for _ in range(images):
        own: list[Difference] = []
        near: list[Difference] = []
        for _ in range(rng.integers(0, 4)):
            x, y = rng.random(2) * 0.6
            w, h = 0.1 + rng.random(2) * 0.3
            command = COMMANDS[rng.integers(3)]
            own.append(Difference(command, "a", (x, y, x + w, y + h)))
            for _ in range(rng.integers(0, 3)):
                a, b, c, d = np.array([x, y, x + w, y + h]) + rng.normal(0, 0.02, 4)
                said = command if rng.random() < 0.8 else COMMANDS[rng.integers(3)]
                near.append(Difference(said, "a", (a, b, max(c, a + 0.01), max(d, b + 0.01)), rng.random()))
        if rng.random() < 0.3:
            near.append(Difference("ADD", "a", (0.1, 0.1, 0.3, 0.4), rng.random()))
        truth.append(own)
        found.append(near)
    return found, truth


def by_coco(found: Rows, truth: Rows, aware: bool) -> tuple[float, float]:
    """AP and AP50 by pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def record(image: int, one: Difference) -> dict[str, Any]:
        x0, y0, x1, y1 = one.box
        kind = COMMANDS.index(one.command) + 1 if aware else 1
        box = [x0, y0, x1 - x0, y1 - y0]
        return {"image_id": image, "category_id": kind, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        true = [record(i, one) for i, row in enumerate(truth) for one in row]
        coco.dataset = {
            "images": [{"id": i} for i in range(len(truth))],
            "categories": [{"id": i} for i in ((1, 2, 3) if aware else (1,))],
            "annotations": [{**one, "id": i + 1} for i, one in enumerate(true)],
        }
        coco.createIndex()
        detections = []
        for i, row in enumerate(found):
            detections += [{**record(i, one), "score": one.confidence} for one in row]
        evaluation = COCOeval(coco, coco.loadRes(detections), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_values_are_those_of_pycocotools(seed, aware):
    pytest.importorskip("pycocotools")
    found, truth = random_rows(seed)
    kind = command_of if aware else (lambda one: "")
    estimate, at_50 = average_precision(found, truth, kind, resamples=2)
    assert (estimate.value, at_50) == pytest.approx(by_coco(found, truth, aware), abs=1e-9)


def test_a_box_is_taken_once_and_the_most_confident_takes_it():
    box = (0.2, 0.2, 0.6, 0.6)
    truth = [[Difference("ADD", "a", box)]]
    twice = [[Difference("ADD", "a", box, 0.4), Difference("ADD", "a", box, 0.9)]]
    (matches,) = match(twice, truth)
    assert matches.hit.tolist() == [[True, False]] * 10
    assert average_precision(twice, truth)[0].value == 1.0
    late = [[Difference("ADD", "a", (0.7, 0.7, 0.9, 0.9), 0.9), Difference("ADD", "a", box, 0.4)]]
    assert average_precision(late, truth)[0].value == pytest.approx(0.5)
    wrong = [[Difference("EDIT", "a", box)]]
    assert average_precision(wrong, truth, command_of)[0].value == 0.0
    assert average_precision(wrong, truth)[0].value == 1.0


def test_weights_count_as_repeated_images():
    found, truth = random_rows(4, 8)
    weight = np.array([2, 1, 0, 3, 1, 0, 1, 1])
    repeated = np.repeat(np.arange(8), weight)
    expected = mean_precision(
        match([found[i] for i in repeated], [truth[i] for i in repeated], command_of), np.ones(len(repeated))
    )
    assert mean_precision(match(found, truth, command_of), weight.astype(float)) == pytest.approx(expected)


def test_a_difference_has_an_interval_around_it():
    found, truth = random_rows(5)
    nothing: Rows = [[] for _ in truth]
    better = precision_difference(found, nothing, truth, resamples=50)
    assert 0 < better.ci95[0] < better.difference < better.ci95[1]
    same = precision_difference(found, found, truth, resamples=10)
    assert (same.difference, same.ci95) == (0.0, (0.0, 0.0))
    estimate, _ = average_precision(nothing, nothing, resamples=5)
    assert np.isnan(estimate.value)
    with pytest.raises(ValueError, match="expected boxes of 30 images; got 1"):
        match(found[:1], truth)
