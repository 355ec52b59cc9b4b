"""Report pages in a browser: they fit a phone, their script works, and nothing of their data is executed."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from rewardedit.reports.report import Headline, Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage
from tests.reports.test_report import image, page_of, wall

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=2000",
)
TELL = """<script>
setTimeout(() => parent.postMessage([document.documentElement.scrollWidth, innerWidth], "*"), 300);
</script>"""
FRAME = """<!doctype html><iframe src="inner.html{}" style="width:390px;height:844px;border:0"></iframe>
<script>addEventListener("message", (event) => (document.title = "width " + event.data));</script>"""

pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")


def browse(page: Path, *flags: str, address: str = "") -> str:
    """Opens a page and returns what the browser prints."""
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [BROWSER, *FLAGS, *flags, profile, page.as_uri() + address],
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    return done.stdout


GATHER = """<script>
const pages = () => [...document.querySelectorAll("iframe")].map(
  (frame) => frame.contentDocument.documentElement.outerHTML);
addEventListener("load", () => setTimeout(() => (document.body.textContent = JSON.stringify(pages())), 300));
</script>"""


def browse_frames(*addresses: tuple[Path, str]) -> list[str]:
    """Opens pages of one folder in frames of one page, as a browser takes a second to start; returns what it
    prints of each. The frames' content can be read by the page, and no other way.
    """
    sources = [html.escape(f"{page.name}{address}") for page, address in addresses]
    frames = [f'<iframe src="{source}" style="width:1240px;height:900px"></iframe>' for source in sources]
    outer = addresses[0][0].with_name("frames.html")
    outer.write_text(f"<!doctype html><body>{''.join(frames)}{GATHER}</body>")
    dom = browse(outer, "--dump-dom", "--allow-file-access-from-files")
    (text,) = re.findall("<body>(.*)</body>", dom, re.DOTALL)
    return json.loads(html.unescape(text))


def edits_of(dom: str) -> list[tuple[str, bool]]:
    """The edits of a wall in order, and whether each is hidden."""
    tags = re.findall(r"<article ([^>]*)>", dom)
    return [(re.findall(r'id="([^"]+)"', tag)[0], 'hidden=""' in tag) for tag in tags]


def test_a_browser_shows_it(tmp_path):
    page_of(tmp_path)
    shot = tmp_path / "page.png"
    browse(tmp_path / "report.html", "--window-size=1240,1800", f"--screenshot={shot}")
    shown = Image.open(shot).convert("RGB")
    assert shown.size == (1240, 1800)
    assert len(shown.getcolors(2**24) or []) > 1000  # images, curves and words, no blank page


@pytest.mark.parametrize("address", ["", "#open=edit-2"])
def test_a_phone_scrolls_down_alone(address, tmp_path):
    """The page stands in a frame of 390 pixels, to which it tells its width."""
    long = Wall(left="before", right="edited")
    words = "let the rocket launch at sunset over the supercalifragilisticexpialidocious_" + "x" * 80
    for _ in range(2):
        strip = [WallImage(f"seed {i}", image()) for i in range(12)]
        long.add(WallEdit(words, [WallImage("before", image()), WallImage("edited", image())], strip=strip))
    report = page_of(tmp_path)
    report.headline(Headline("x" * 60, "y" * 80, "better", {"wins": 10**6, "ties": 10**6, "losses": 10**6}))
    report.commands("Next", [("Edit", "rewardedit edit " + "z" * 200)])
    report.table("Wide", {"row": {f"column {i}": 1.0 for i in range(20)}})
    report.wall("Candidates", long)
    page = report.save(tmp_path / "report.html")
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    (tmp_path / "inner.html").write_text(text.replace("</body>", f"{TELL}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(address))
    dom = browse(frame, "--dump-dom", "--window-size=800,900")
    assert "<title>width 390,390</title>" in dom


def test_the_wall_is_sorted_filtered_and_opened_by_the_address(tmp_path):
    report = Report("page")
    report.wall("Edits", wall(4))
    page = report.save(tmp_path / "report.html")
    ids = [f"edit-{i}" for i in (1, 2, 3, 4)]
    addresses = ("", "#sort=loss&kind=add", "#text=NUMBER%202&open=edit-3")
    plain, by_loss, opened = browse_frames(*((page, address) for address in addresses))
    assert edits_of(plain) == [(name, False) for name in ids]
    assert [name for name, hidden in edits_of(by_loss) if not hidden] == ["edit-4", "edit-2"]
    assert "2 of 4" in by_loss
    assert [name for name, hidden in edits_of(opened) if not hidden] == ["edit-3"]
    viewer = opened[opened.index("<dialog") :]
    assert re.match(r'<dialog[^>]* open=""', viewer)
    assert re.search(r'class="over[^"]*" alt="" src="[^"]*3-base.png"', viewer)
    assert re.search(r'class="under[^"]*" alt="" src="[^"]*3-result.png"', viewer)
    assert viewer.count("<option") == 8, "before, base, result and the other one, on both sides"
    assert "<dd>2</dd>" in viewer, "the seed"


KEYS = """
const press = (key) => (document.activeElement ?? document.body).dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const source = (name) => document.querySelector(name).src.split("/").pop();
const seen = [];
const viewed = document.querySelector("dialog");
const note = () => seen.push([viewed.open, viewed.querySelector("h2").textContent,
  source("dialog .over"), source("dialog .under")].join(" "));
document.querySelector("#edit-1").focus();
press(" ");
seen.push(source("#edit-1 figure:last-child img"));
press(" ");
seen.push(source("#edit-1 figure:last-child img"));
press("ArrowDown");
seen.push(document.activeElement.id);
press("Enter"); note();
press("ArrowRight"); note();
press(" "); note();
press(" "); note();
press("ArrowLeft"); press("ArrowLeft"); press("ArrowLeft"); note();
viewed.close();
document.title = seen.join("|");
"""


def test_keys_move_open_and_flick(tmp_path):
    report = Report("page")
    report.wall("Edits", wall(3))
    page = report.save(tmp_path / "report.html")
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    page.write_text(text.replace("</body>", f"<script>{KEYS}</script></body>"))
    dom = browse(page, "--dump-dom")
    title = re.findall("<title>(.*)</title>", dom)[0].split("|")
    assert title == [
        "1-base.png",
        "1-result.png",
        "edit-2",
        "true make number 1 red 2-base.png 2-result.png",
        "true make number 2 red 3-base.png 3-result.png",
        "true make number 2 red 3-base.png 3-base.png",
        "true make number 2 red 3-base.png 3-result.png",
        "true make number 0 red 1-base.png 1-result.png",
    ]


EVIL = (
    "<img src=x onerror=\"document.title='run'\">",
    "</script><script>document.title='run'</script>",
    '" onload="document.title=\'run\'" x="',
    "'><svg onload=document.title='run'>",
)


def test_nothing_of_data_is_executed(tmp_path):
    address = "#open=edit-1&text=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
    pages = []
    for i, text in enumerate(EVIL):
        report = Report("page")
        report.headline(Headline(text, text, text, notes=[text]))
        report.flag(text)
        report.commands(text, [(text, text)])
        shown = Wall(left=text, right=text)
        for _ in range(2):
            links = [WallImage(text, file="javascript:document.title='run'"), WallImage(text, file=text)]
            shown.add(WallEdit(text, links, kind=text, facts=[(text, text)], gain=1.0, change=text))
        report.wall(text, shown)
        pages.append((report.save(tmp_path / f"{i}.html"), address))

    for text, dom in zip(EVIL, browse_frames(*pages), strict=True):
        assert "<title>page</title>" in dom, text
        assert "javascript:" not in re.sub("<(h3|h2|dd|b|td)>[^<]*", "", dom).replace("./javascript", "")


def test_a_script_that_got_into_a_page_is_not_executed(tmp_path):
    page_of(tmp_path)
    page = tmp_path / "report.html"
    evil = "<script>document.title='run'</script><img src=nowhere onerror=\"document.title='run'\">"
    page.write_text(page.read_text().replace("</main>", f"{evil}</main>"))
    assert "<title>a &lt;title&gt;</title>" in browse(page, "--dump-dom")
