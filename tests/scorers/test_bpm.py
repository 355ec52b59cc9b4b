"""BPM whole: its sums by the paper's printed figures, its rows on real, small models."""

import json

import pytest
import torch

from rewardedit.batch import EditBatch, Scores
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.regions.base import EditRegions, GivenMaskLocator, Instances, ObjectLocator
from rewardedit.scorers.bpm.bpm import PAPER, Bpm, BpmConfig, Calibration, combine
from rewardedit.scorers.bpm.checks import JudgeConfig
from rewardedit.scorers.clip import load_clip
from rewardedit.shapes import Shapes
from rewardedit.shapes.objects import NAMES, scene_objects
from tests.region_models import save_detector, save_segmenter

# modify, preserve, size, position, and the sum that is printed: Figure 4 and both halves of Figure 13.
PRINTED = [
    (0.237, 0.917, 0, 0, 1.154),
    (0.236, 0.804, 0, 0, 1.040),
    (0.642, 0.969, 1, 1, 3.611),
    (0.128, 0.865, 1, 1, 2.993),
    (0.110, 0.915, 0, 0, 1.025),
    (0.071, 0.914, 0, 0, 0.985),
    (0.283, 0.964, 1, 1, 3.248),
    (0.274, 0.342, 1, 0, 1.617),
    (0.391, 0.952, 1, 1, 3.343),
    (0.264, 0.482, 1, 1, 2.746),
    (0.525, 0.973, 1, 1, 3.499),
]
SUM = BpmConfig(compat="figure4")


class TrueObjects:
    """Finds what the scenes hold: regions for tests, which no scorer may know."""

    def __init__(self, samples) -> None:
        self.scenes = {
            name: (image, scene_objects(scenes))
            for name, image, scenes in (
                ("before", samples.source, samples.before),
                ("after", samples.target, samples.after),
            )
        }

    def find(self, images, names):
        found = []
        for image, name in zip(images, names, strict=True):
            of_row = Instances.none(image)
            for known, objects in self.scenes.values():
                same = (known == image).flatten(1).all(1).nonzero().flatten()
                if len(same) and name in NAMES:
                    there = (objects.row == same[0]) & objects.names[:, NAMES.index(name)]
                    of_row = Instances.of_masks(objects.masks(there.nonzero().flatten()))
                    break
            found.append(of_row)
        return found


@pytest.fixture(scope="module")
def samples():
    return Shapes("val").batch(0, 28)


def scorer_of(samples, **config) -> Bpm:
    locator = ObjectLocator(TrueObjects(samples))
    clip = load_clip("shapes/clip", torch.float32)
    return Bpm(*clip, parse_all, locator, BpmConfig(**config)).eval().requires_grad_(False)


def batch_of(samples, edited: torch.Tensor) -> EditBatch:
    return EditBatch(samples.source, samples.instruction, edited, mask=samples.mask)


@pytest.mark.parametrize("printed", PRINTED)
def test_the_paper_s_printed_sums_follow_from_its_printed_parts(printed):
    names = ("modify", "preserve", "size", "position")
    parts = {name: torch.tensor([float(value)]) for name, value in zip(names, printed, strict=False)}
    semantic, region, score = combine(parts, SUM)
    assert float(score) == pytest.approx(printed[4], abs=0.002)
    assert float(semantic) == pytest.approx(printed[0] + printed[1])
    assert float(region) == printed[2] + printed[3]


def test_the_score_weighs_what_is_calibrated():
    config = BpmConfig(alpha=0.7, calibration=Calibration((0.0, 0.5), (0.5, 1.0), "a test"))
    parts = {
        "modify": torch.tensor([0.25, 0.75]),
        "preserve": torch.tensor([0.9, 0.2]),
        "size": torch.tensor([1.0, 0.0]),
        "position": torch.tensor([0.5, 1.0]),
    }
    semantic, region, score = combine(parts, config)
    assert semantic.tolist() == pytest.approx([0.5 + 0.8, 1.0])  # the second row's parts end at 1 and at 0
    assert region.tolist() == [1.5, 1.0]
    assert score.tolist() == pytest.approx([0.7 * 1.3 + 0.3 * 1.5, 0.7 + 0.3])


def test_a_true_target_keeps_the_rest_and_has_the_size_and_the_place_that_were_asked(samples):
    scorer = scorer_of(samples, missing_object="failed")
    good = scorer(batch_of(samples, samples.target))
    assert good.valid.all()
    assert good.parts["size"].mean() > 0.95
    assert good.parts["position"].mean() > 0.95
    local = torch.tensor([kind != "background" for kind in samples.edit_type])
    assert good.parts["preserve"][local].min() > 0.99
    still = scorer(batch_of(samples, samples.source))
    for kind in ("add", "move", "resize"):
        rows = torch.tensor([name == kind for name in samples.edit_type])
        assert (good.parts["region"][rows] > still.parts["region"][rows]).all(), kind


def test_a_score_does_not_depend_on_its_neighbours(samples):
    scorer = scorer_of(samples)
    batch = batch_of(samples, samples.target)
    alone = torch.cat([scorer(batch[i : i + 1]).score for i in range(6)])
    torch.testing.assert_close(alone, scorer(batch).score[:6], rtol=1e-4, atol=1e-5)


def test_prepared_sources_serve_all_candidates(samples):
    scorer = scorer_of(samples)
    batch = batch_of(samples, samples.target)[:4]
    prepared = scorer.prepare(batch.source, batch.instruction)
    torch.testing.assert_close(scorer(batch, prepared).score, scorer(batch).score)
    twice = prepared.take([1, 1])
    pair = EditBatch(batch.source[[1, 1]], [batch.instruction[1]] * 2, batch.edited[[1, 1]])
    torch.testing.assert_close(scorer(pair, twice).score, scorer(batch).score[[1, 1]])


def test_what_is_not_found_has_no_score_and_a_reason(samples):
    adds = [i for i, kind in enumerate(samples.edit_type) if kind == "add"]
    batch = EditBatch(samples.source[adds], [samples.instruction[i] for i in adds], samples.source[adds])
    scores = scorer_of(samples)(batch)
    assert not scores.valid.any()
    assert all("was found in the edited image" in str(reason) for reason in scores.reason)
    assert scores.parts["preserve"].isnan().all()
    failed = scorer_of(samples, missing_object="failed")(batch)
    assert failed.valid.all()
    assert failed.parts["modify"].tolist() == [-1] * len(adds)
    assert failed.parts["size"].tolist() == [0] * len(adds)
    assert failed.parts["preserve"].tolist() == [1] * len(adds)


def test_instructions_that_say_nothing_to_find_have_reasons(samples):
    instructions = ["xyzzy", "make it red", "remove the green unicorn"]
    batch = EditBatch(samples.source[:3], instructions, samples.target[:3])
    scores = scorer_of(samples, missing_object="failed")(batch)
    assert not scores.valid.any()
    reasons = [str(reason) for reason in scores.reason]
    assert "no rule fits" in reasons[0]
    assert "does not name" in reasons[1] or "refers to" in reasons[1]
    assert "no 'green unicorn' was found in the source" in reasons[2]


@pytest.mark.parametrize("instruction", ["make it night", "as an oil painting", "convert to a lego scene"])
def test_an_edit_of_the_whole_image_needs_no_object(instruction, samples):
    scores = scorer_of(samples)(EditBatch(samples.source[:2], [instruction] * 2, samples.target[:2]))
    assert scores.reason == [None, None]
    assert scores.parts["preserve"].tolist() == [1, 1], "nothing lies outside"


def test_the_semantic_part_by_hand_where_names_or_crops_are_the_same(samples):
    """An object that keeps its name is like that name; what has not changed is like nothing, however little
    rounding is left of the change.
    """
    scorer = scorer_of(samples)
    image = samples.source[:1]
    whole = [Instances.whole(image[0])]
    regions = [EditRegions(whole[0], whole[0])]
    moved = [ParsedEdit("move", "red circle", "red circle", position="left")]
    after = scorer.crop_features([*samples.target[:1]], whole)
    like = torch.cosine_similarity(after, scorer.name_features(["red circle"]))
    torch.testing.assert_close(scorer.modify(image, samples.target[:1], moved, regions), like)
    changed = [ParsedEdit("recolour", "red circle", "blue circle")]
    assert scorer.modify(image, samples.target[:1], changed, regions).abs() > 0.01
    still = image * (1 + 1e-7)
    assert scorer.modify(image, still, changed, regions).tolist() == [0.0]


def test_the_semantic_part_has_a_gradient_at_the_regions_and_outside(samples):
    scorer = scorer_of(samples, calibration=Calibration((-1.0, 1.0), (0.0, 1.0), "a test"))
    noise = 0.02 * torch.randn(samples.target.shape, generator=torch.Generator().manual_seed(0))
    edited = (samples.target + noise).requires_grad_(True)
    # Regions are those of the clean targets: what is found is not what is tested here.
    batch = EditBatch(samples.source, samples.instruction, edited)
    clean = scorer.locate(batch_of(samples, samples.target))
    found = {}
    scorer.locator.of_edits = lambda *_: clean
    score = scorer(batch).score
    (found["score"],) = torch.autograd.grad(score.sum(), edited)
    del scorer.locator.of_edits
    inside = torch.stack([regions.mask for regions in clean])[:, None]
    assert found["score"].isfinite().all()
    for i, kind in enumerate(samples.edit_type):
        gradient = found["score"][i].abs().sum(0, keepdim=True)
        assert gradient[inside[i]].sum() > 0, "modify"
        if kind != "background":
            assert gradient[~inside[i]].sum() > 0, "preserve"


def test_rows_without_a_score_keep_their_place_in_the_graph(samples):
    scorer = scorer_of(samples)
    edited = samples.target[:3].clone().requires_grad_(True)
    scores = scorer(EditBatch(samples.source[:3], ["xyzzy"] * 3, edited))
    assert not scores.valid.any()
    (gradient,) = torch.autograd.grad(scores.mean(), edited)
    assert gradient.tolist() == torch.zeros_like(edited).tolist()


def test_whatever_locates_it_an_instruction_must_say_what_it_changes(samples):
    clip = load_clip("shapes/clip", torch.float32)
    scorer = Bpm(*clip, parse_all, GivenMaskLocator()).eval()
    scores = scorer(EditBatch(samples.source[:1], ["make it red"], samples.target[:1], mask=samples.mask[:1]))
    assert "does not name" in str(scores.reason[0]) or "refers to" in str(scores.reason[0])


def test_a_given_mask_needs_no_detector(samples):
    clip = load_clip("shapes/clip", torch.float32)
    scorer = Bpm(*clip, parse_all, GivenMaskLocator()).eval()
    scores = scorer(batch_of(samples, samples.target))
    assert scores.valid.all()
    assert scores.parts["size"].tolist() == [1] * 28
    with pytest.raises(ValueError, match="it has none"):
        scorer(EditBatch(samples.source, samples.instruction, samples.target))


def test_every_model_comes_by_name(tmp_path, samples):
    save_detector(str(tmp_path / "d"), "owlv2")
    save_segmenter(str(tmp_path / "s"), "sam2")
    regions = {
        "name": "grounded_sam",
        "detector": str(tmp_path / "d"),
        "segmenter": str(tmp_path / "s"),
        "threshold": 0.0,
    }
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({"modify": [0, 0.5], "preserve": [0.5, 1], "origin": "a test"}))
    scorer = Bpm.from_pretrained("shapes/clip", regions=regions, calibration=str(file), alpha=0.5)
    assert scorer.config.calibration == Calibration((0, 0.5), (0.5, 1), "a test")
    scores = scorer(batch_of(samples, samples.target))
    assert scores.valid.all()
    assert ((scores.score >= 0) & (scores.score <= 2)).all()
    assert sum(1 for _ in scorer.parameters()) > sum(1 for _ in scorer.model.parameters())
    masks = scorer.masks(samples.source, samples.target, samples.instruction)
    assert masks.shape == (28, 1, 64, 64)
    assert set(masks.unique().tolist()) <= {0.0, 1.0}


def test_a_calibration_is_measured_and_kept(tmp_path):
    values = torch.arange(101.0) / 100
    parts = {"modify": values - 0.5, "preserve": values.flip(0)}
    scores = Scores.make(values, parts, ["bad" if i == 100 else None for i in range(101)])
    found = Calibration.of(scores, "a test")
    assert found.modify == pytest.approx((-0.49, 0.48), abs=0.011)
    assert found.preserve == pytest.approx((0.02, 0.99), abs=0.011)
    found.write(tmp_path / "calibration.json")
    assert Calibration.read(tmp_path / "calibration.json") == found
    with pytest.raises(ValueError, match="there are none"):
        Calibration.of(Scores.make(values, parts, ["bad"] * 101), "a test")


def test_a_calibration_says_with_which_options_it_holds(tmp_path):
    regions = {"detector": "shapes/detector", "segmenter": "shapes/segmenter"}
    options = {"regions": {**regions, "threshold": 0.3}, "context": 2.0, "judges": {"smaller": 0.7}}
    file = str(tmp_path / "calibration.json")
    Calibration((0.0, 1.0), (0.0, 1.0), "a test", options=options).write(file)
    own = Bpm.from_pretrained("shapes/detector", calibration=file)
    assert own.locator.finder.detector.threshold == 0.3
    assert (own.config.context, own.config.judges.smaller) == (2.0, 0.7)
    given = Bpm.from_pretrained(
        "shapes/detector", regions, calibration=file, context=1.2, judges={"larger": 3.0}
    )
    assert given.locator.finder.detector.threshold != 0.3
    assert (given.config.context, given.config.judges) == (1.2, JudgeConfig(larger=3.0))
    released = Bpm.from_pretrained("shapes/detector", regions, compat="code").config
    assert (released.context, released.judges) == (1.5, JudgeConfig())
    with pytest.raises(ValueError, match="got \\['contxt'\\]"):
        Calibration((0.0, 1.0), (0.0, 1.0), "a test", options={"contxt": 2.0})


def test_settings_that_make_no_sense_are_refused(tmp_path):
    code = Calibration((0.0, 1.0), (-1.0, 0.0), "a test", "code")
    for wrong in ({"alpha": 1.5}, {"context": 0.5}, {"compat": "papre"}, {"missing_object": "fail"}):
        with pytest.raises((ValueError, TypeError), match=r"expected|Expected"):
            BpmConfig(**wrong)
    with pytest.raises(ValueError, match="was measured with compat='code'"):
        BpmConfig(calibration=code)
    assert BpmConfig(compat="code").effective_calibration.compat == "code"
    with pytest.raises(ValueError, match="rising"):
        Calibration((1.0, 1.0), (0.0, 1.0), "")
    with pytest.raises(ValueError, match="expected a calibration"):
        Calibration.read(tmp_path / "none.json")
    assert PAPER.modify[1] == max(row[0] for row in PRINTED)
    assert PAPER.preserve[0] == min(row[1] for row in PRINTED)
