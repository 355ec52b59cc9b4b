"""Which rows of a data set can be used."""

import json

import pytest
from PIL import Image

from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, bad_rows
from rewardedit.data.bad_rows import usable_rows


class Numbered:
    """As many rows as wanted, of which some have no image that can be read."""

    def __init__(self, n: int, broken: set[int]) -> None:
        self.n = n
        self.broken = broken

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> EditSample:
        if index in self.broken:
            raise ValueError(f"number {index} is broken")
        image = Image.new("RGB", (8, 8))
        return EditSample(str(index), image, "make it red", edited=image)


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_of_every_shard_keep_their_numbers(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(bad_rows, "CHECK_BATCH", 1)  # shards of 16 rows
    monkeypatch.setattr(DataConfig, "workers", lambda self, rows: workers)

    def check(sample: EditSample) -> None:
        if sample.id == "33":
            raise ValueError("it has no label")

    data = DataConfig("table", path="x", size=8)
    usable = usable_rows(Numbered(40, {3, 20}), data, check, tmp_path, 0.1)
    assert usable == [i for i in range(40) if i not in (3, 20, 33)]
    listed = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert [(record["row"], record["reason"]) for record in listed] == [
        (3, "number 3 is broken"),
        (20, "number 20 is broken"),
        (33, "it has no label"),
    ]
    with pytest.raises(
        ValueError, match=r"3 of 40 rows cannot be used.*row 3, unreadable: number 3 is broken"
    ):
        usable_rows(Numbered(40, {3, 20}), data, check, tmp_path, 0.05)
