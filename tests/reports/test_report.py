import html
import re
import shutil
import subprocess
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image

from rewardedit.reports import report as report_module
from rewardedit.reports.curves import Curve, draw_plain, draw_with_matplotlib, share_bands, ticks
from rewardedit.reports.report import Gallery, Report

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture
def page(tmp_path):
    report = Report("a <title>")
    report.text("a table of\nnumbers & words")
    report.flag("the held-out reward falls")
    report.table("Ratings", {"base": {"add": 1.0}, "ours": {"add": 2.0, "move": 3.0}})
    gallery = Gallery(["source", "edited"])
    for i in range(4):
        gallery.row(f"instruction {i}", [(torch.rand(3, 64, 64), ""), (torch.rand(3, 64, 64), "7.0")])
    report.gallery("Edits", gallery)
    report.histogram("Scores", {"base": [1.0, 2.0, float("nan")], "ours": [9.0]}, 0, 10)
    report.lines("Loss", {"run": [(1, 0.5), (2, 0.25)], "empty": []})
    return report.save(tmp_path / "report.html")


def test_counts_are_shown_to_the_last_digit(tmp_path):
    report = Report("counts")
    report.table("Rows", {"rule": {"0": 7347, "mean": 1234.5678, "none": None, "share": 0.123456}})
    page = report.save(tmp_path / "report.html").read_text()
    cells = [part.split("</td>")[0] for part in page.split("<td>")[1:]]
    assert cells == ["rule", "7,347", "1.23e+03", "", "0.123"]


def test_the_page_is_one_file_without_scripts_or_links(page):
    text = page.read_text()
    assert "a &lt;title&gt;" in text
    assert text.count("data:image/png;base64,") == 8
    for outside in ("http:", "https:", "<script", "<link"):
        assert outside not in text


@pytest.fixture(params=["plain", "matplotlib"])
def drawn_by(request, monkeypatch):
    """Curves are drawn without matplotlib, and with it where it is installed."""
    if request.param == "matplotlib":
        pytest.importorskip("matplotlib")
    else:
        monkeypatch.setattr("rewardedit.reports.curves.find_spec", lambda name: None)
    return request.param


def test_what_is_told_is_shown_as_it_is_wherever_it_stands(tmp_path, drawn_by):
    places = (
        "page",
        "text",
        "flag",
        "table",
        "row",
        "column",
        "gallery",
        "head",
        "name",
        "caption",
        "plot",
        "series",
        "x",
        "y",
    )
    told = {place: f"<x-{place}> & 'words' {{{{ 7 * 6 }}}}" for place in places}
    report = Report(told["page"])
    report.text(told["text"])
    report.flag(told["flag"])
    report.table(told["table"], {told["row"]: {told["column"]: 1.0}})
    gallery = Gallery([told["head"]])
    gallery.row(told["name"], [(torch.zeros(3, 4, 4), told["caption"])])
    report.gallery(told["gallery"], gallery)
    report.lines(told["plot"], {told["series"]: [(1, 0.5), (2, 0.25)]}, told["x"], told["y"])
    page = report.save(tmp_path / "report.html").read_text()
    for place, text in told.items():
        assert f"<x-{place}>" not in page, place
        # the page's title is a heading too
        assert page.count(escape(text)) == (2 if place == "page" else 1), place


CURVES = [
    Curve(
        "a $ and a <b>",
        [(100 * i, 0.2 + 0.05 * i) for i in range(1, 9)],
        [(0.1 * i, 0.1 * i + 0.3) for i in range(1, 9)],
    ),
    Curve("flat", [(200, 1.0), (600, 1.0)]),
]


def drawing(how):
    """The curves' image as XML, and all that is written in it or told about it."""
    if how == "plain":
        text = str(draw_plain(CURVES, "training step", "held-out reward"))
        root = ElementTree.fromstring(text)
        return root, {element.text for element in root.iter("text")}
    svg = draw_with_matplotlib(CURVES, "training step", "held-out reward")
    assert draw_with_matplotlib(CURVES, "training step", "held-out reward") == svg
    # Letters are drawn; what they spell stands in a comment.
    return ElementTree.fromstring(svg), {
        html.unescape(found) for found in re.findall(r"<!-- (.*?) -->", svg.decode())
    }


def test_curves_have_ticks_units_a_legend_and_bands(drawn_by):
    root, words = drawing(drawn_by)
    assert {"training step", "held-out reward", "a $ and a <b>", "flat", "200", "400", "600", "800"} <= words
    assert len([word for word in words if re.fullmatch(r"[0-9.]+", word)]) >= 8
    assert [("fill-opacity" in str(element.attrib)) for element in root.iter()].count(True) == 1


def test_ticks_are_round_numbers_in_the_range():
    assert ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.13, 0.41) == pytest.approx([0.2, 0.3, 0.4])
    assert ticks(-3e-5, 3e-5) == pytest.approx([-2e-5, 0, 2e-5])
    assert ticks(1, 2000) == [500, 1000, 1500, 2000]


def test_a_curve_may_be_flat_or_a_point_and_hold_values_that_are_none(drawn_by):
    report = Report("r")
    report.lines("one", {"a": [(0, 3.0)], "b": [(0, float("nan"))]})
    report.lines("none", {"b": [(0, float("nan"))]})
    assert [part["title"] for _, part in report.parts] == ["one"]
    assert "nan" not in report.parts[0][1]["drawing"].split("base64")[0]


def test_the_band_of_a_share_is_its_95_percent_interval():
    """A quarter of 300 rows: 0.25 ± 1.96 √(0.25 · 0.75 / 300) = 0.25 ± 0.049."""
    assert share_bands(np.array([0.25, 0.0]), 300) == [pytest.approx((0.201, 0.299), abs=5e-4), (0, 0)]


def test_rows_of_a_gallery_are_checked():
    with pytest.raises(ValueError, match="expected 2 images a row; got 1"):
        Gallery(["a", "b"]).row("x", [(torch.rand(3, 4, 4), "")])


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_it(page, tmp_path):
    shot = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1240,1400"]
    quiet = [
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    subprocess.run(
        [str(BROWSER), *flags, *quiet, profile, f"--screenshot={shot}", page.as_uri()],
        check=True,
        timeout=90,
        capture_output=True,
    )
    image = Image.open(shot).convert("RGB")
    assert image.size == (1240, 1400)
    assert len(image.getcolors(2**24) or []) > 1000  # images, curves and words, no blank page


def test_values_beyond_a_histogram_stand_in_its_last_bins(monkeypatch):
    drawn = []
    monkeypatch.setattr(report_module, "draw", lambda curves, *_: drawn.extend(curves) or "")
    Report("x").histogram("Scores", {"ours": [-5.0, 0.5, 99.0]}, 0, 1)
    shares = [share for _, share in drawn[0].points]
    assert sum(shares) == pytest.approx(1)
    assert (shares[0], shares[-1]) == pytest.approx((1 / 3, 1 / 3))
