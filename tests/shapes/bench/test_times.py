"""Times of scorers in the folder of a comparison."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rewardedit.batch import EditSample
from rewardedit.evaluation.scorer_use import use_scorers
from rewardedit.shapes.bench.compare import time_scorers

pytestmark = pytest.mark.world


def test_another_scorer_leaves_the_times_as_they_are(tmp_path: Path):
    image = torch.rand(3, 32, 32)
    rows: Any = [EditSample(str(number), image, "make it red", image / 2) for number in range(3)]
    first = time_scorers(tmp_path, use_scorers({"l1": "l1"}), rows, 2, {})
    both = time_scorers(tmp_path, use_scorers({"l1": "l1", "l2": "l2"}), rows, 2, {})
    assert both["l1"] == first["l1"] > 0
    assert list(both) == ["l1", "l2"]
    with pytest.raises(ValueError, match="made with other settings: timed"):
        time_scorers(tmp_path, use_scorers({"l1": "l1"}), rows, 3, {})
