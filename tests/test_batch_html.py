"""Edits and scores as notebooks show them."""

import base64
import io
import re
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from rewardedit import EditBatch
from rewardedit.batch import Scores
from rewardedit.batch.html import MOST_ROWS, SIDE
from rewardedit.selection import Selection

EVIL = '<script>alert("1")</script>'


def make(b: int = 2, size: tuple[int, int] = (8, 8), **fields: object) -> EditBatch:
    images = torch.rand(b, 3, *size, generator=torch.Generator().manual_seed(0))
    return EditBatch(images, [f"{EVIL} {i}" for i in range(b)], 1 - images, **fields)


def scores(b: int = 2) -> Scores:
    return Scores.make(torch.arange(b) + 0.5, {EVIL: torch.ones(b)}, [None] * (b - 1) + [EVIL])


def images_in(html: str) -> list[Image.Image]:
    found = re.findall(r"data:image/jpeg;base64,([\w+/=]+)", html)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


class Balanced(HTMLParser):
    """Fails if tags are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(html: str | None) -> str:
    assert html is not None
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "<script" not in html
    return html


def test_a_batch_shows_its_images_and_escaped_texts():
    html = check(make(mask=torch.ones(2, 1, 8, 8), target_caption=[EVIL, "b"])._repr_html_())
    shown = images_in(html)
    assert [image.size for image in shown] == [(8, 8)] * 6
    assert html.count("&lt;script&gt;") == 3
    assert ">target caption<" in html
    source = make().source[0].mean().item()
    assert sum(shown[0].convert("L").get_flattened_data()) / 64 / 255 == pytest.approx(source, abs=0.05)


def test_large_images_are_small_and_overflows_are_gray():
    batch = make(1, (600, 300))
    shown = images_in(check(batch._repr_html_()))
    assert shown[0].size == (SIDE // 2, SIDE)
    overflow = batch.with_edited(batch.edited * torch.nan)
    assert images_in(check(overflow._repr_html_()))[1].getpixel((0, 0)) == pytest.approx((128,) * 3, abs=1)


def test_scores_have_parts_and_reasons():
    html = check(scores()._repr_html_())
    assert "<b>0.5</b>" in html
    assert "<b>–</b>" in html
    assert html.count("&lt;script&gt;") == 2, "the part's name and the reason"
    valid = Scores.make(torch.ones(2))
    assert "invalid because" not in check(valid._repr_html_())


def test_edits_are_shown_beside_their_scores():
    html = check(make().show(scores())._repr_html_())
    assert len(images_in(html)) == 4
    assert html.index("instruction") < html.index("<b>0.5</b>")
    with pytest.raises(ValueError, match="scores: expected 2, one an edit; got 3"):
        make().show(scores(3))


def test_of_many_rows_the_first_are_shown():
    html = check(make(MOST_ROWS + 5).show(scores(MOST_ROWS + 5))._repr_html_())
    assert len(images_in(html)) == 2 * MOST_ROWS
    assert "5 more rows are not shown" in html


def test_candidates_are_shown_from_the_best():
    batch = make(3)
    found = Scores.make(torch.tensor([1.0, torch.nan, 3.0]), reason=[None, EVIL, None])
    html = check(Selection(batch.edited, found, [7, 8, 9])._repr_html_())
    assert re.findall(r"seed (\d): (\S)", html) == [("9", "3"), ("7", "1"), ("8", "–")]
    assert html.count("outline") == 1
    assert html.index("outline") < html.index("seed 9")
    assert html.count("&lt;script&gt;") == 1
    kept = check(Selection(batch.edited[:1], found, [7, 8, 9], [0])._repr_html_())
    assert len(images_in(kept)) == 1
    assert "2 more candidates are not shown" in kept


def test_without_values_there_is_nothing_to_show():
    meta = torch.ones(1, 3, 8, 8, device="meta")
    assert EditBatch.unchecked(source=meta, instruction=["a"], edited=meta)._repr_html_() is None
    score = torch.ones(1, device="meta")
    assert Scores(score, {}, score > 0, [None])._repr_html_() is None
