"""The page of labelled rows."""

import re

import pytest
import torch

from rewardedit.data.labelled import LabelledEdit, encode_png, write_labelled
from rewardedit.synthesis.data_report import write_report
from rewardedit.synthesis.label_rules import Thresholds


def page_of(labels: list[float], folder) -> str:
    image = encode_png(torch.zeros(3, 4, 4))
    rows = [
        LabelledEdit(str(i), image, image, "go", label, "unreached", "a", method="editor")
        for i, label in enumerate(labels)
    ]
    write_labelled(rows, folder / "train-00000.parquet")
    limits = Thresholds(0.2, (0.1, 0.1))
    return write_report(folder / "report.html", "rows", folder, [], limits, 1).read_text()


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        ([0.0, 2.5, 2.5, 10.0], {"0": 1, "2.5": 2, "10": 1}),
        ([i / 4 for i in range(20)], {"0": 3, "1": 3, "5": 1}),
    ],
)
def test_many_labels_are_counted_by_whole_numbers_and_few_as_they_are(labels, columns, tmp_path):
    page = page_of(labels, tmp_path)
    assert ("nearest whole number" in page) is (len(labels) > 16)
    table = page[page.index("Rows by rule and label") : page.index("Rows by method and label")]
    heads, counts = (re.findall(rf"<{tag}[^>]*>\s*([\d.,]+)\s*</{tag}>", table) for tag in ("th", "td"))
    found = dict(zip(heads, map(int, counts), strict=True))
    assert columns.items() <= found.items()
    assert sum(found.values()) == len(labels)
    assert len(found) == (6 if len(labels) > 16 else 3)
