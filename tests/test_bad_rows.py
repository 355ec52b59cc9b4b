"""Usable and unusable rows of a data set."""

import json

import pytest
import torch
from PIL import Image

from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, bad_rows, reading
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


def test_rows_that_were_mended_are_read_anew(tmp_path):
    data = DataConfig("table", path="x", size=8)
    rows = Numbered(10, {1, 4, 7})
    with pytest.raises(ValueError, match="3 of 10 rows cannot be used"):
        usable_rows(rows, data, lambda sample: None, tmp_path, 0.05)
    rows.broken.clear()
    assert usable_rows(rows, data, lambda sample: None, tmp_path, 0.05) == list(range(10))


def test_images_of_a_batch_come_from_another_process_in_few_files(monkeypatch):
    """A tensor that a process sends holds a file open; a process may often have 1,024."""
    sent = []
    real = reading.Packed.pack
    monkeypatch.setattr(reading.Packed, "pack", lambda rows: sent.append(real(rows)) or sent[-1])
    image = Image.new("RGB", (8, 8), "red")
    mask = Image.new("L", (8, 8), 255)
    rows = [
        EditSample(f"{i}", image, "make it red", target=image, mask=mask if i % 2 else None) for i in range(5)
    ]

    class Some(Numbered):
        def __getitem__(self, index: int) -> EditSample:
            super().__getitem__(index)
            return rows[index]

    found = list(reading.read_batches(Some(5, {2}), 8, "crop", 5))
    (packed,) = sent
    assert {name: len(images) for name, (_, images) in packed.images.items()} == {
        **dict.fromkeys(("source", "edited", "target"), 4),
        "mask": 2,
    }
    assert not any(isinstance(value, torch.Tensor) for row in packed.rows for value in vars_of(row).values())
    assert [number for part in found for number in part.numbers] == [0, 1, 3, 4]
    assert [part.batch.mask is not None for part in found if part.batch] == [False, True, False]
    assert {number: why for part in found for number, why in part.unreadable.items()} == {
        2: "number 2 is broken"
    }


def vars_of(row: object) -> dict:
    return row if isinstance(row, dict) else vars(row)
