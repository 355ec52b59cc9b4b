import html
import shutil
import subprocess

import pytest
import torch
from PIL import Image

from rewardedit.report import Gallery, Report

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


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


def test_the_page_is_one_file_without_scripts_or_links(page):
    text = page.read_text()
    assert "a &lt;title&gt;" in text
    assert text.count("data:image/png;base64,") == 8
    for outside in ("http:", "https:", "<script", "<link"):
        assert outside not in text


def test_what_is_told_is_shown_as_it_is_wherever_it_stands(tmp_path):
    places = ("page", "text", "flag", "table", "row", "column", "gallery", "head", "name", "caption", "plot", "series")
    told = {place: f"<x-{place}> & 'words'" for place in places}
    report = Report(told["page"])
    report.text(told["text"])
    report.flag(told["flag"])
    report.table(told["table"], {told["row"]: {told["column"]: 1.0}})
    gallery = Gallery([told["head"]])
    gallery.row(told["name"], [(torch.zeros(3, 4, 4), told["caption"])])
    report.gallery(told["gallery"], gallery)
    report.lines(told["plot"], {told["series"]: [(1, 0.5), (2, 0.25)]})
    page = report.save(tmp_path / "report.html").read_text()
    for place, text in told.items():
        assert f"<x-{place}>" not in page, place
        assert page.count(html.escape(text)) == (2 if place == "page" else 1), place  # the page's title is a heading too


def test_rows_of_a_gallery_are_checked():
    with pytest.raises(ValueError, match="expected 2 pictures a row; got 1"):
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
    picture = Image.open(shot).convert("RGB")
    assert picture.size == (1240, 1400)
    assert len(picture.getcolors(2**24) or []) > 1000  # pictures, curves and words, no blank page
