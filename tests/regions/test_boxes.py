"""Boxes and masks worked out by hand."""

import pytest
import torch

from rewardedit.regions.boxes import (
    areas,
    around,
    components,
    corners,
    enclosing,
    filled,
    numbered_components,
    pairwise_iou,
    suppress,
)


def test_iou_of_every_pair():
    a = torch.tensor([[0.0, 0, 4, 4], [0, 0, 0, 0]])
    b = torch.tensor([[2.0, 0, 6, 4], [0, 0, 4, 4], [5, 5, 6, 6]])
    assert pairwise_iou(a, b).tolist() == [pytest.approx([8 / 24, 1, 0]), [0, 0, 0]]
    assert areas(b).tolist() == [16, 16, 1]


def test_of_boxes_on_one_another_the_surest_stays():
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10], [0, 0, 10, 5]])
    confidence = torch.tensor([0.5, 0.9, 0.3, 0.4])
    assert suppress(boxes, confidence, 0.5).tolist() == [1, 3, 2]  # IoUs with the surest: 9/11, 0, 4.5/10.5
    assert suppress(boxes, confidence, 0.4).tolist() == [1, 2]
    assert suppress(boxes[:0], confidence[:0], 0.5).tolist() == []


def test_corners_and_the_box_around_several():
    assert corners(torch.tensor([[5.0, 6, 4, 2]])).tolist() == [[3, 5, 7, 7]]
    assert enclosing(torch.tensor([[1.0, 5, 2, 6], [0, 7, 1, 9]])).tolist() == [0, 5, 2, 9]


def test_masks_and_boxes():
    boxes = torch.tensor([[1.0, 0, 3, 2], [0, 0, 0, 0]])
    masks = filled(boxes, (3, 4))
    assert masks[0].int().tolist() == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert masks[1].nonzero().tolist() == [[0, 0]]  # a box that holds no pixel's middle marks one pixel
    assert filled(torch.tensor([[3.6, 2.6, 3.9, 2.9]]), (3, 4))[0].nonzero().tolist() == [[2, 3]]
    assert around(masks[0]).tolist() == [1, 0, 3, 2]
    assert around(torch.zeros(3, 4, dtype=torch.bool)).tolist() == [0, 0, 0, 0]


def test_parts_that_touch_at_a_corner_are_one():
    mask = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1]]).bool()
    parts = components(mask)
    numbers, places = numbered_components(mask)
    assert numbers.tolist() == [[1, 0, 0, 0], [0, 1, 0, 2], [0, 0, 0, 2]]
    assert places == [(slice(0, 2), slice(0, 2)), (slice(1, 3), slice(3, 4))]
    assert [part.sum().item() for part in parts] == [2, 2]
    assert torch.equal(parts.any(0), mask)
    assert len(components(torch.zeros(3, 3, dtype=torch.bool))) == 0
