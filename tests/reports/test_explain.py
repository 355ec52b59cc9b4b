"""The picture of how BPM judges an edit, and the command that draws it."""

import json

import pytest
import torch
from PIL import Image, ImageFont

from rewardedit import load_scorer
from rewardedit.batch import EditBatch
from rewardedit.cli import main
from rewardedit.cli.drawing import Explained, drawable
from rewardedit.images import to_pil
from rewardedit.reports.captioned import GAP, TEXT, captioned, wrap
from rewardedit.reports.explain import COLOURS, explain
from rewardedit.reports.marked import SIDE
from rewardedit.reports.verdict import verdict
from rewardedit.shapes import Shapes
from tests.region_models import save_detector, save_segmenter
from tests.scorers.test_bpm import scorer_of


@pytest.fixture(scope="module")
def samples():
    return Shapes("val").batch(0, 28)


def one(samples, i: int, edited: torch.Tensor) -> EditBatch:
    return EditBatch(samples.source[i : i + 1], [samples.instruction[i]], edited[i : i + 1])


def test_boxes_are_drawn_where_the_objects_are(samples):
    i = samples.edit_type.index("replace")
    page = explain(scorer_of(samples), one(samples, i, samples.target)).image()
    assert page.width == 3 * SIDE + 4 * GAP
    scale = SIDE / 64
    top = TEXT + 2 * GAP
    for panel, kind in ((0, "source"), (1, "target")):
        x0, _, x1, y1 = samples.boxes[i, panel].tolist()
        left = GAP + panel * (SIDE + GAP)
        # The middle of the lower edge: the label stands above, or below at another height.
        at = (round(left + scale * (x0 + x1) / 2), round(top + scale * y1) - 2)
        assert page.getpixel(at) == COLOURS[kind], kind


def test_what_may_change_lies_under_a_veil(samples):
    i = samples.edit_type.index("remove")
    page = explain(scorer_of(samples), one(samples, i, samples.target)).image()
    left = 3 * GAP + 2 * SIDE
    top = TEXT + 2 * GAP
    x0, y0, x1, y1 = samples.boxes[i, 0].tolist()
    middle = (round(left + SIDE / 64 * (x0 + x1) / 2), round(top + SIDE / 64 * (y0 + y1) / 2))
    red, green, _ = page.getpixel(middle)
    assert red > green + 60
    plain = to_pil(samples.target[i]).getpixel((0, 0))
    corner = page.getpixel((left + 1, top + 1))
    assert max(abs(a - b) for a, b in zip(corner, plain, strict=True)) <= 2


def test_an_edit_without_a_score_is_drawn_too(samples):
    i = samples.edit_type.index("add")
    page = explain(scorer_of(samples), one(samples, i, samples.source)).image()
    assert page.height > SIDE
    batch = EditBatch(samples.source[:1], ["xyzzy"], samples.target[:1])
    assert explain(scorer_of(samples), batch).image().size[0] == page.size[0]
    with pytest.raises(ValueError, match="expected one edit; got 2"):
        explain(scorer_of(samples), EditBatch(samples.source[:2], ["a", "b"], samples.target[:2]))


def test_the_verdict_is_one_sentence(samples):
    scorer = scorer_of(samples)
    (low, high), (least, most) = (
        scorer.config.effective_calibration.modify,
        scorer.config.effective_calibration.preserve,
    )
    good = {"modify": high, "preserve": most, "size": 1.0, "position": 1.0}
    assert verdict(scorer, 2.0, good, None) == (
        "Well done (BPM 2.00 of 2): the change is there, the rest is kept, size and position are right."
    )
    middle = {"modify": (low + high) / 2, "preserve": least, "size": 0.0, "position": 1.0}
    assert verdict(scorer, 0.9, middle, None) == (
        "Partly done (BPM 0.90 of 2): the change is partly there, the rest is not kept, "
        "size is wrong and position right."
    )
    assert verdict(scorer, float("nan"), {}, "no object is found") == "No score: no object is found."


def test_long_lines_are_wrapped_inside_the_image():
    font = ImageFont.load_default(TEXT)
    lines = wrap("let the rocket launch at sunset over the sea", 120, font)
    assert len(lines) > 2
    assert max(font.getlength(line) for line in lines) <= 120
    assert " ".join(lines) == "let the rocket launch at sunset over the sea"
    panel = Image.new("RGB", (100, 50))
    one, two = (captioned([("a", panel)], [text]).height for text in ("x", "x " * 40))
    assert two > one


@pytest.fixture(scope="module")
def bpm(tmp_path_factory) -> str:
    """BPM with small random models, as the command line names it."""
    folder = tmp_path_factory.mktemp("bpm")
    save_detector(str(folder / "d"), "owlvit")
    save_segmenter(str(folder / "s"), "sam")
    regions = {"name": "grounded_sam", "detector": str(folder / "d"), "segmenter": str(folder / "s")}
    options = {"checkpoint": "shapes/clip", "regions": {**regions, "threshold": 0.0, "single": True}}
    return json.dumps({"bpm": options})


def test_the_command_draws_one_edit(samples, bpm, tmp_path, capsys):
    for name, image in (("a.png", samples.source[0]), ("b.png", samples.target[0])):
        to_pil(image).save(tmp_path / name)
    pair = [str(tmp_path / "a.png"), str(tmp_path / "b.png"), samples.instruction[0]]
    out = tmp_path / "why.png"
    assert main(["score", *pair, "--scorer", bpm, "--explain", str(out)]) == 0
    assert Image.open(out).width == 3 * SIDE + 4 * GAP
    assert "modify" in capsys.readouterr().out
    assert main(["score", *pair, "--scorer", "l1", "--explain", str(out)]) == 2
    assert "expected the scorer bpm or dice; got L1" in capsys.readouterr().err
    assert main(["score", *pair, "--scorer", "l1", "l2", "--explain", str(out)]) == 2
    assert "--explain: expected one edit and one scorer" in capsys.readouterr().err


def test_an_edit_can_be_restricted_to_what_bpm_locates(samples, bpm, tiny_editor, tmp_path, capsys):
    to_pil(samples.source[0]).save(tmp_path / "a.png")
    words = [str(tmp_path / "a.png"), "remove the red circle", "--out", str(tmp_path / "out")]
    asked = [*words, "--model", str(tiny_editor), "--steps", "2"]
    assert main(["edit", *asked, "--mask", bpm]) == 0
    record = json.loads((tmp_path / "out" / "a.json").read_text())
    assert record["turns"][0]["mask"] == "a-mask.png"
    mask = Image.open(tmp_path / "out" / "a-mask.png").convert("L")
    assert set(mask.getdata()) == {0, 255}  # a place was found, and it is not the whole image
    assert main(["edit", *asked, "--mask", "{l1: {}}", "--overwrite"]) == 2
    assert "expected auto, bpm with its options, or a mask file" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["bpm", "dice"])
def test_an_explained_edit_is_analysed_once(kind, samples, changed, tmp_path):
    calls = []
    if kind == "bpm":
        scorer, edit, part = scorer_of(samples), one(samples, 0, samples.target), "locator"
        method = "of_edits"
    else:
        scorer, edit, part = load_scorer("dice", detector="change", coherence="rules"), changed, "detector"
        method = "detect"
    plain = scorer(edit)
    original = getattr(getattr(scorer, part), method)
    setattr(getattr(scorer, part), method, lambda *args: calls.append(args) or original(*args))
    scores = Explained(scorer, tmp_path / "why.json")(edit)
    assert len(calls) == 1
    assert scores.score.tolist() == plain.score.tolist()
    assert scores.parts.keys() == plain.parts.keys()
    with pytest.raises(ValueError, match="--explain: expected the scorer bpm or dice; got L1"):
        Explained(load_scorer("l1"), tmp_path / "why.json")


def test_dice_is_drawn_as_bpm_is():
    dice = {"dice": {"detector": "change", "coherence": "rules"}}
    assert drawable({"dice": dice}) == ("--explain", dice, "what dice found")
    assert drawable({"bpm": "bpm"}) == ("--explain", "bpm", "what bpm found")
    assert drawable({"l1": "l1"}) == ("--heatmap", "l1", "heat map")
    assert drawable({"x": "bpm:0.5,dice:0.5"}) is None


@pytest.fixture
def changed() -> EditBatch:
    """An added square that is asked for, and a removed one that is not."""
    source = torch.full((1, 3, 64, 96), 0.5)
    edited = source.clone()
    edited[:, 0, 8:24, 64:80] = 1.0
    source[:, 2, 40:56, 8:24] = 1.0
    return EditBatch(source, ["add a red square"], edited)


def test_dice_draws_differences_in_three_colours(changed):
    scorer = load_scorer("dice", detector="change", coherence="rules")
    explanation = explain(scorer, changed)
    page = explanation.image()
    scale = SIDE / 96
    top = TEXT + 2 * GAP
    (added, removed) = sorted(explanation.record["differences"], key=lambda one: one["command"])
    for number, one_found, colour in ((1, added, (255, 0, 0)), (0, removed, (0, 0, 255))):
        x0, _, x1, y1 = one_found["box"]
        left = GAP + number * (SIDE + GAP)
        at = (round(left + scale * 96 * (x0 + x1) / 2), round(top + scale * 64 * y1) - 2)
        assert page.getpixel(at) == colour
    veil = (round(3 * GAP + 2 * SIDE + scale * 16), round(top + scale * 48))
    red, green, _ = page.getpixel(veil)
    assert red > green + 60
    assert explanation.lines[0].startswith("2 differences, 1 asked for (DICE 0.")
    assert any("not asked for: the instruction asks for ADD" in line for line in explanation.details)
    same = explain(scorer, EditBatch(changed.source, ["add a cup"], changed.source))
    assert same.lines == ["Nothing changed (DICE 0.00 of 1)."]
    unread = explain(scorer, EditBatch(changed.source, ["xyzzy"], changed.edited))
    assert unread.lines[0].startswith("No score: coherence: instruction 'xyzzy'")


def test_an_explanation_is_a_page_or_json_too(changed, tmp_path, capsys):
    for name, image in (("a.png", changed.source[0]), ("b.png", changed.edited[0])):
        to_pil(image).save(tmp_path / name)
    pair = [str(tmp_path / "a.png"), str(tmp_path / "b.png"), "add a <b>red</b> square"]
    dice = "{dice: {detector: change, coherence: rules}}"
    for name in ("why.html", "why.json"):
        assert main(["score", *pair, "--scorer", dice, "--explain", str(tmp_path / name)]) == 0
    page = (tmp_path / "why.html").read_text()
    assert "not asked for" in page
    assert "&lt;b&gt;" in page
    assert "<b>red" not in page
    assert (tmp_path / "why-images").is_dir()
    assert capsys.readouterr().out.count("unwanted_area") == 2
    record = json.loads((tmp_path / "why.json").read_text())
    assert [one["command"] for one in record["differences"]] == ["ADD", "REMOVE"]
    assert main(["score", *pair, "--scorer", dice, "--explain", str(tmp_path / "why.txt")]) == 2
    assert "expected a name that ends in .png, .html, .json" in capsys.readouterr().err
