"""Measurements that the rules use."""

from dataclasses import replace

from rewardedit.data import DataConfig, open_rows
from rewardedit.synthesis.measured import MeasureConfig, measure_edits
from rewardedit.synthesis.outputs import read_parquet


class WithoutCaptions:
    """Rows of which the first alone has captions."""

    def __init__(self) -> None:
        self.rows = open_rows(DataConfig("shapes", limit=3, size=32))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int):
        sample = self.rows[index]
        return sample if index == 0 else replace(sample, source_caption=None, target_caption=None)


def test_an_instruction_is_not_taken_for_a_caption(tmp_path):
    clip_d = {"clip_d": {"checkpoint": "shapes/clip"}}
    config = MeasureConfig(
        clip_d, similarity=({"l1": {"against": "target"}}, {"ssim": {"against": "target"}})
    )
    (path,) = measure_edits(
        config, WithoutCaptions(), DataConfig("shapes", limit=3, size=32), {}, {}, tmp_path / "measured"
    )
    records = list(read_parquet(path))
    assert [(record["row"], record["image"]) for record in records] == [
        (row, image) for row in range(3) for image in ("source", "target")
    ]
    assert [record["clip_d"] is None for record in records] == [False, False, True, True, True, True]
    assert all(record["similarity_1"] is not None for record in records)
    assert all(record["similarity_1"] == 1 for record in records if record["image"] == "target")
