import pytest
import torch

from rewardedit.prepared import Broadcast, Prepared


def test_rows_are_taken_of_tensors_lists_and_what_is_inside_and_shared_values_are_passed_on():
    prefix = object()
    inputs = {"image": torch.tensor([[1.0], [2.0]]), "words": ["a", "b"], "prefix": Broadcast(prefix)}
    found = Prepared({**inputs, "part": Prepared({"box": [(0, 1), (2, 3)]})}).take([1, 1, 0])
    assert found.inputs["image"].flatten().tolist() == [2, 2, 1]
    assert found.inputs["words"] == ["b", "b", "a"]
    assert found.inputs["prefix"].value is prefix
    assert found.inputs["part"].inputs["box"] == [(2, 3), (2, 3), (0, 1)]
    assert len(found) == 3


def test_the_number_of_rows_is_that_of_the_first_input_that_has_rows():
    assert len(Prepared({"prefix": Broadcast("x" * 9), "nothing": Prepared({}), "words": ["a", "b"]})) == 2
    with pytest.raises(ValueError, match="no input has rows"):
        len(Prepared({"prefix": Broadcast("x" * 9)}))
