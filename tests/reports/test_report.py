"""Report pages as text: content, escaping, charts and the files beside them."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image

from rewardedit.reports.charts import (
    Curve,
    Interval,
    Intervals,
    curves,
    draw,
    histogram,
    share_bands,
    ticks,
)
from rewardedit.reports.plain_names import decimals, decimals_of_widths, fixed, scorer_name, signed
from rewardedit.reports.report import Headline, Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage, tone
from rewardedit.scorers import load_scorer


def image(side: int = 64) -> torch.Tensor:
    return torch.rand(3, side, side, generator=torch.Generator().manual_seed(side))


def wall(n: int = 4, side: int = 64) -> Wall:
    """Edits whose gain falls and whose disagreement rises."""
    edits = Wall(left="base", right="result", note="a note")
    for i in range(n):
        images = [WallImage(name, image(side)) for name in ("before", "base", "result")]
        edits.add(
            WallEdit(
                f"make number {i} red",
                images,
                hidden=[WallImage("other", image(side))],
                kind=("recolour", "add")[i % 2],
                gain=-float(i),
                change=f"−{i}",
                disagreement=float(i),
                facts=[("seed", str(i))],
                columns=["base", "result"],
                scores=[("CLIP-I", ["0.1", "0.2"])],
            )
        )
    return edits


def page_of(folder) -> Report:
    report = Report("a <title>")
    report.headline(Headline("Better", "7.75 against 7.51", "better", {"wins": 5, "ties": 3, "losses": 2}))
    report.flag("the held-out reward falls")
    report.commands("What to do next", [("Edit an image", 'rewardedit edit a.jpg "red & blue"')])
    report.text("a table of\nnumbers & words")
    report.table("Ratings", {"base": {"add": 1.0}, "ours": {"add": 2.0, "move": 3.0}})
    report.panels(
        "Differences", [Intervals("CLIP-I", "Higher is better.", [Interval("base", "+1", 1.0, 0.5, 2)])]
    )
    scores = histogram("Scores", {"base": [1.0, 2.0, float("nan")], "ours": [9.0]}, 0, 10)
    report.panels("Curves", [scores, curves("Loss", {"run": [(1, 0.5), (2, 0.25)], "empty": []})])
    report.wall("Edits", wall())
    report.save(folder / "report.html")
    return report


@pytest.fixture
def page(tmp_path):
    page_of(tmp_path)
    return tmp_path / "report.html"


def test_counts_are_shown_to_the_last_digit(tmp_path):
    report = Report("counts")
    report.table("Rows", {"rule": {"0": 7347, "mean": 1234.5678, "none": None, "share": 0.123456}})
    text = report.save(tmp_path / "report.html").read_text()
    cells = [part.split("</td>")[0] for part in text.split("<td>")[1:]]
    assert cells == ["rule", "7,347", "1.23e+03", "", "0.123"]


def test_a_page_needs_nothing_but_the_images_beside_it(page):
    text = page.read_text()
    assert "a &lt;title&gt;" in text
    for outside in ("http:", "https:", "<link", "@import"):
        assert outside not in text
    assert text.count("<script") == 1
    files = {source.removeprefix("./") for source in re.findall(r'(?:src|href)="(\./[^"]+)"', text)}
    assert len(files) == 16
    assert all((page.parent / file).is_file() for file in files)
    # A page that is written again leaves no image of the one before.
    Report("empty").save(page)
    assert not (page.parent / "report-images").exists()


def test_small_images_are_saved_without_loss_and_large_ones_as_jpeg(tmp_path):
    shown = Wall([])
    shown.add(WallEdit("x", [WallImage("small", image(16)), WallImage("large", image(200))]))
    shown.add(WallEdit("y", [WallImage("linked", file="a b#1?.png")]))
    report = Report("r")
    report.wall("w", shown)
    text = report.save(tmp_path / "p.html").read_text()
    small = Image.open(tmp_path / "p-images" / "1-small.png")
    assert torch.equal(
        torch.from_numpy(np.array(small)).permute(2, 0, 1), (image(16) * 255).round().to(torch.uint8)
    )
    assert Image.open(tmp_path / "p-images" / "1-large.jpg").format == "JPEG"
    assert 'src="./a%20b%231%3F.png"' in text


def test_content_is_shown_as_it_is_wherever_it_stands(tmp_path):
    places = "title verdict sentence note flag purpose command text output table row column cell panel says "
    places += "name value plot series x wall heading instruction kind change label caption fact detail score "
    told = {place: f"<x-{place}> & 'words' {{{{ 7 * 6 }}}}" for place in places.split()}
    report = Report(told["title"])
    report.headline(Headline(told["verdict"], told["sentence"], notes=[told["note"]]))
    report.flag(told["flag"])
    report.commands("next", [(told["purpose"], told["command"])])
    report.text(told["text"])
    report.output(told["output"])
    report.table(told["table"], {told["row"]: {told["column"]: told["cell"]}})
    panel = Intervals(told["panel"], told["says"], [Interval(told["name"], told["value"])])
    drawing = draw([Curve(told["series"], [(0, 1)]), Curve("b", [(0, 1)])], told["plot"], "", told["x"])
    report.panels("p", [panel, drawing])
    shown = Wall(note=told["wall"])
    shown.add(
        WallEdit(
            told["instruction"],
            [WallImage(told["label"], image(), note=told["caption"])],
            kind=told["kind"],
            change=told["change"],
            facts=[(told["fact"], told["detail"])],
            columns=["c"],
            scores=[(told["score"], ["1"])],
        )
    )
    report.wall(told["heading"], shown)
    page = report.save(tmp_path / "report.html").read_text()
    for place, text in told.items():
        assert f"<x-{place}>" not in page, place
        assert escape(text) in page, place


CURVES = [
    Curve(
        "a $ and a <b>",
        [(100 * i, 0.2 + 0.05 * i) for i in range(1, 9)],
        [(0.1 * i, 0.1 * i + 0.3) for i in range(1, 9)],
    ),
    Curve("flat", [(200, 1.0), (600, 1.0)]),
]


def test_curves_have_ticks_units_a_legend_and_bands():
    drawing = draw(CURVES, "title", "says", "training step")
    root = ElementTree.fromstring(str(drawing.drawing))
    words = {element.text for element in root.iter("text")}
    assert {"training step", "200", "400", "600", "800"} <= words
    assert len([word for word in words if re.fullmatch(r"[0-9.]+", word or "")]) >= 8
    assert [element.tag for element in root.iter()].count("polygon") == 1
    assert drawing.legend == ["a $ and a <b>", "flat"]


def test_ticks_are_round_numbers_in_the_range():
    assert ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.13, 0.41) == pytest.approx([0.2, 0.3, 0.4])
    assert ticks(-3e-5, 3e-5) == pytest.approx([-2e-5, 0, 2e-5])
    assert ticks(1, 2000) == [500, 1000, 1500, 2000]


def test_a_curve_may_be_flat_or_a_point_and_hold_values_that_are_none():
    drawing = curves("one", {"a": [(0, 3.0)], "b": [(0, float("nan"))], "c": [(1, None)]})
    assert drawing is not None
    assert "nan" not in drawing.drawing
    assert drawing.legend == ["a"]
    assert ">-" not in drawing.drawing, "a step that does not exist"
    assert curves("none", {"b": [(0, float("nan"))]}) is None
    report = Report("r")
    report.panels("none", [None])
    assert report.parts == []


def test_an_interval_is_coloured_where_it_lies_on_one_side_of_zero():
    rows = Intervals(
        "t",
        "s",
        [
            Interval("better", "", 1.0, 0.5, 1.5),
            Interval("unclear", "", 0.2, -0.1, 0.5),
            Interval("lower is better", "", 1.0, 0.5, 1.5, -1),
            Interval("neither", "", 1.0, 0.5, 1.5, 0),
            Interval("none", ""),
        ],
    )
    assert [row.tone for row in rows.rows] == ["better", "", "worse", "", ""]
    first = rows.rows[0]
    assert first.mark is not None
    # Half of the way from 0 to 1.0 is 0.5, and 1.5 is the end of the range.
    assert (first.low - rows.zero) * 2 == pytest.approx(first.mark - rows.zero, abs=0.05)
    assert first.high == pytest.approx(100 * 1.68 / 1.76, abs=0.1)
    assert rows.rows[-1].mark is None


def test_the_band_of_a_share_is_its_95_percent_interval():
    """A quarter of 300 rows: 0.25 ± 1.96 √(0.25 · 0.75 / 300) = 0.25 ± 0.049."""
    assert share_bands(np.array([0.25, 0.0]), 300) == [pytest.approx((0.201, 0.299), abs=5e-4), (0, 0)]


def test_values_beyond_a_histogram_stand_in_its_last_bins():
    drawing = histogram("Scores", {"ours": [-5.0, 0.5, 99.0]}, 0, 1, bins=3, marks={"limit": 0.5})
    assert drawing is not None
    assert drawing.legend == ["ours", "limit"]
    line = ElementTree.fromstring(str(drawing.drawing)).find("g/polyline")
    assert line is not None
    heights = [point.split(",")[1] for point in line.attrib["points"].split()]
    assert heights[0] == heights[1] == heights[2], "a third in each of the three bins"


def test_the_bar_shows_the_shares_of_wins_ties_and_losses():
    bars = Headline("v", "s", counts={"wins": 6, "ties": 1, "losses": 3}).bars
    assert [(bar["start"], bar["width"], bar["kind"]) for bar in bars] == [
        (0, 60, "better"),
        (60, 10, "even"),
        (70, 30, "worse"),
    ]


def test_numbers_have_one_form():
    assert (signed(0.237, 2), signed(-0.1, 3), signed(-0.0001, 3)) == ("+0.24", "−0.100", "0.000")
    assert (fixed(None, 2), fixed(-1.5, 2)) == ("–", "−1.50")
    assert (decimals([0.1, 0.99]), decimals([7.5]), decimals([])) == (3, 2, 3)


def test_names_of_scorers_say_what_they_measure_and_which_direction_is_better():
    assert scorer_name("ssim", load_scorer("ssim", against="target")).says == (
        "Similarity of structure. Compared with the target. Higher is better."
    )
    outside = load_scorer({"l1": {"region": "outside"}})
    assert "Only outside the mask." in scorer_name("l1", outside).says
    assert scorer_name("a:0.5,b:0.5").says == "Higher is better."


def test_narrow_intervals_get_more_digits():
    assert decimals_of_widths([0.5, 0.04], 2) == 3
    assert decimals_of_widths([0.00004], 3) == 6
    assert decimals_of_widths([3.0], 2) == 2
    assert decimals_of_widths([0.0, 1e-12], 3) == 6
    assert decimals_of_widths([], 3) == 3


def test_one_loss_is_no_losses():
    bars = Headline("", "", counts={"wins": 5, "ties": 0, "losses": 1}).bars
    assert [bar["name"] for bar in bars] == ["wins", "ties", "loss"]


def test_a_glance_shows_greatest_gain_and_loss(tmp_path):
    shown = Wall()
    for gain in (0.5, -2.0, 3.0, float("nan"), 0.0):
        shown.add(WallEdit(f"gain {gain}", [WallImage("base", image())], gain=gain, tone=tone(gain)))
    assert [(name, edit.title) for name, edit in shown.extremes()] == [
        ("greatest gain", "gain 3.0"),
        ("greatest loss", "gain -2.0"),
    ]
    report = Report("r")
    report.glance(shown)
    report.wall("Edits", shown)
    text = report.save(tmp_path / "r.html").read_text()
    first = text[: text.index('<section class="wall"')]
    assert 'src="./r-images/3-base.png"' in first
    assert 'href="#edit-3"' in first
    assert 'id="edit-3"' in text
    alone = Wall([])
    alone.add(WallEdit("without", []))
    assert [edit.title for _, edit in alone.extremes()] == ["without"]
