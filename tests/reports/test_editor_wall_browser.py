"""The wall of several editors in a browser: filters by score, orders, keys, slider, and many edits."""

import json
import re

import pytest

from rewardedit.reports.report import Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage
from tests.reports.test_report import image
from tests.reports.test_report_browser import BROWSER, FRAME, TELL, browse, browse_frames, edits_of

pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")

EDITORS = ["A", "B", "C"]
# scores by two scorers of the editors' edits of five requests
VALUES = [
    [[1.0, 2.0, 3.0], [0.1, 0.2, 0.9]],
    [[5.0, 4.0, 1.0], [0.9, 0.1, 0.2]],
    [[2.0, 2.0, None], [0.5, 0.6, None]],
    [[9.0, 0.0, 1.0], [0.1, 0.3, 0.2]],
    [[None, None, None], [None, None, None]],
]


def page_of(folder, values=VALUES):
    wall = Wall(left="before", right="A", editors=EDITORS, scorers=["x", "y"])
    for i, scores in enumerate(values):
        images = [WallImage(name, image(32)) for name in ("before", *EDITORS)]
        if scores[0][2] is None:
            images[3] = WallImage("C")
        kind = ("add", "remove")[i % 2]
        wall.add(WallEdit(f"make number {i} red", images, kind=kind, values=scores, disagreement=float(i)))
    report = Report("page")
    report.wall("Edits", wall)
    return report.save(folder / "report.html")


def shown(dom: str) -> str:
    """The numbers of the edits that are shown, in order."""
    return "".join(name.removeprefix("edit-") for name, hidden in edits_of(dom) if not hidden)


SHOWN = {
    "#from=4": "24",  # of any editor
    "#from=4&editor=1": "2",
    "#to=0.15&scorer=1&editor=0": "14",
    "#from=2&to=3&kind=add": "13",
    "#split=1": "4",  # x prefers A, y prefers B; a tie of x in the third prefers none
    "#sort=high": "42135",
    "#sort=low&editor=2": "24135",
    "#sort=ahead": "42135",  # of the best editor over the worst
    "#sort=ahead&editor=2": "12435",  # of C over the better one of A and B
    "#sort=behind&editor=0&scorer=1": "14325",
    "#sort=disagreement&text=NUMBER%203": "4",
}


def test_scores_filter_and_order_the_wall(tmp_path):
    page = page_of(tmp_path)
    doms = browse_frames(*((page, address) for address in SHOWN))
    assert dict(zip(SHOWN, map(shown, doms), strict=True)) == SHOWN


def test_the_best_edit_by_the_chosen_scorer_is_marked(tmp_path):
    page = page_of(tmp_path)
    for dom, best in zip(
        browse_frames((page, ""), (page, "#scorer=1")), (["C", "A", "A"], ["C", "A", "B", "B"]), strict=True
    ):
        assert re.findall(r'<figure [^>]*data-label="(.)" class="best"', dom) == best


ACT = """
const viewed = document.querySelector("dialog");
const source = (name) => viewed.querySelector(name).src.split("-").pop();
const key = (name) => new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true });
const press = (name) => viewed.dispatchEvent(key(name));
const seen = [];
document.querySelector("#edit-3 figure.absent").click();
seen.push(viewed.open);
document.querySelector("#edit-2 figure:last-child").click();
seen.push(source(".over"), source(".under"));
press("1"); seen.push(source(".under"));
press("2"); seen.push(source(".under"));
press("7"); seen.push(source(".under"));
const slider = viewed.querySelector("input[type=range]");
slider.value = 25;
slider.dispatchEvent(new Event("input", { bubbles: true }));
seen.push(viewed.querySelector(".compare").style.getPropertyValue("--at"));
press("ArrowRight");
seen.push(viewed.querySelector("h2").textContent, viewed.querySelectorAll("[name=right] option").length);
document.title = JSON.stringify(seen);
"""


def test_numbers_choose_an_editor_and_the_slider_moves(tmp_path):
    page = page_of(tmp_path)
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    page.write_text(text.replace("</body>", f"<script>{ACT}</script></body>"))
    (title,) = re.findall("<title>(.*)</title>", browse(page, "--dump-dom"))
    files = ["before.png", "C.png", "A.png", "B.png", "B.png"]
    assert json.loads(title) == [False, *files, "25%", "make number 2 red", 3]


LATER = """
const wall = document.querySelector(".wall");
const count = () => wall.querySelectorAll(".edit:not([hidden])").length;
const seen = [count(), wall.querySelector("output").textContent];
for (let i = 0; i < 120; i++) {
  const at = document.activeElement.closest(".edit") ?? wall.querySelector(".edit:not([hidden])");
  at.focus();
  at.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true, cancelable: true }));
}
seen.push(count(), document.activeElement.id);
document.title = JSON.stringify(seen);
"""


def test_of_many_edits_the_first_are_shown_at_once(tmp_path):
    many = [[[float(i), 0.0, 1.0], [0.0, 1.0, 2.0]] for i in range(130)]
    page = page_of(tmp_path, many)
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    page.write_text(text.replace("</body>", f"<script>{LATER}</script></body>"))
    (title,) = re.findall("<title>(.*)</title>", browse(page, "--dump-dom"))
    before, counted, after, focused = json.loads(title)
    assert (before, counted, after) == (100, "130 of 130", 130)
    assert focused == "edit-121"


def test_a_phone_shows_all_controls(tmp_path):
    page = page_of(tmp_path)
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    (tmp_path / "inner.html").write_text(text.replace("</body>", f"{TELL}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(""))
    assert "<title>width 390,390</title>" in browse(frame, "--dump-dom", "--window-size=800,900")
