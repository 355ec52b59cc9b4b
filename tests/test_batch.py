import pytest
import torch
from PIL import Image

from rewardedit import EditBatch, EditSample, Scores, collate
from rewardedit.batch import split_by_fields


def picture(value: float = 0.5, side: int = 8) -> torch.Tensor:
    return torch.full((3, side, side), value)


def test_a_batch_refuses_fields_that_do_not_fit():
    source = torch.zeros(2, 3, 8, 8)
    batch = EditBatch(source, ["a", "b"], source)
    # Put in behind the back of the type checker that the suite runs under and users do not.
    object.__setattr__(batch, "edited", torch.zeros(2, 3, 4, 4))
    with pytest.raises(
        ValueError,
        match=r"edited: expected \(2, 3, 8, 8\) to fit source; got \(2, 3, 4, 4\); give "
        r"rewardedit.images.resize\(edited, source.shape\[-2:\]\)",
    ):
        batch.__post_init__()
    with pytest.raises(ValueError, match="instruction: expected a list of 2 strings, one a row; got 1"):
        EditBatch(source, ["a"], source)


def test_slicing_keeps_rows_together():
    batch = EditBatch(
        torch.rand(3, 3, 8, 8), ["a", "b", "c"], torch.rand(3, 3, 8, 8), target_caption=["x", "y", "z"]
    )
    part = batch[1:]
    assert part.instruction == ["b", "c"]
    assert part.target_caption == ["y", "z"]
    assert torch.equal(part.edited, batch.edited[1:])


def test_invalid_rows_are_nan_and_leave_no_gradient():
    raw = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    scores = Scores.make(raw, reason=[None, "why", None])
    assert scores.valid.tolist() == [True, False, True]
    assert scores.score.isnan().tolist() == [False, True, False]
    scores.mean().backward()
    assert raw.grad is not None
    assert raw.grad.tolist() == [0.5, 0.0, 0.5]


def test_the_mean_of_no_valid_row_is_zero_without_nan():
    raw = torch.tensor([1.0], requires_grad=True)
    mean = Scores.make(raw, reason=["why"]).mean()
    mean.backward()
    assert mean.item() == 0
    assert raw.grad is not None
    assert raw.grad.tolist() == [0.0]


def test_no_edits_have_no_scores():
    scores = Scores.make(torch.zeros(0), reason=[])
    assert scores.valid.dtype == torch.bool
    assert len(scores.score) == len(scores.reason) == 0


def test_collate_brings_pictures_to_one_size():
    rows = [
        EditSample("0", Image.new("RGB", (20, 10), "red"), "a", target=Image.new("RGB", (20, 10), "blue")),
        EditSample("1", picture(), "b", edited=picture(1.0), target=picture()),
    ]
    batch = collate(rows, size=8)
    assert batch.source.shape == (2, 3, 8, 8)
    # its target, for want of an edit
    assert batch.edited[0, :, 4, 4].tolist() == pytest.approx([0, 0, 1], abs=1e-4)
    assert batch.edited[1].min() == 1
    with pytest.raises(ValueError, match="source: rows differ in size"):
        collate(rows)


def test_collate_refuses_rows_without_an_edit():
    with pytest.raises(ValueError, match="row 7: expected an edited image or a target"):
        collate([EditSample("7", picture(), "a")])
    with pytest.raises(ValueError, match="at least one row"):
        collate([])


def test_collate_refuses_rows_of_which_some_lack_a_field():
    rows = [
        EditSample(str(i), picture(), "a", target=picture(), target_caption=c)
        for i, c in enumerate(("x", None, "z", None))
    ]
    with pytest.raises(ValueError, match="rows 1, 3 have no target_caption, but others do"):
        collate(rows)
    assert [[row.id for row in part] for part in split_by_fields(rows)] == [["0"], ["1"], ["2"], ["3"]]
    assert [[row.id for row in part] for part in split_by_fields(rows[:1] + rows[2:])] == [["0", "2"], ["3"]]
    assert collate(rows[::2]).target_caption == ["x", "z"]
    assert collate(rows, fields=("target",)).target_caption is None
    with pytest.raises(
        ValueError, match="expected fields among target, mask, source_caption, target_caption; got edited"
    ):
        collate(rows, fields=("edited",))


def test_collate_leaves_alone_what_is_not_asked_for():
    row = EditSample(
        "0", picture(), "a", edited=picture(1.0), target=Image.new("RGB", (8, 8)), mask=Image.new("L", (3, 5))
    )
    batch = collate([row], fields=())
    assert batch.target is None
    assert batch.mask is None
    assert batch.edited.min() == 1
