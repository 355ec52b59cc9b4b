"""BPM's benchmark programs on regions from the truth, where what they are to find is known beforehand."""

import sys

import numpy as np
import pytest
import torch

from rewardedit import Scores, load_editor, load_scorer
from rewardedit.data.worlds import Rating
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.scorers.bpm.bpm import PARTS
from rewardedit.shapes import Shapes, ShapesOracle
from tests.readme import BENCHMARKS, WORLD
from tests.scorers.test_bpm import scorer_of

sys.path[:0] = [str(BENCHMARKS), str(WORLD / "benchmarks")]

pytestmark = pytest.mark.world


@pytest.fixture(scope="module")
def samples():
    return Shapes("val").batch(0, 28)


@pytest.fixture(scope="module")
def strict(samples):
    """Invalid where something is not found."""
    return scorer_of(samples)


@pytest.fixture(scope="module")
def lenient(samples):
    return scorer_of(samples, missing_object="failed")


def test_masks_are_those_of_the_true_edits(samples, strict):
    import bpm_regions

    true = samples.mask[:, 0] > 0
    found = bpm_regions.located(strict.locator, samples, samples.target)
    assert float(bpm_regions.iou(found, true).median()) > 0.8
    missing = torch.tensor([kind == "add" for kind in samples.edit_type])
    untouched = bpm_regions.located(strict.locator, samples, samples.source)
    assert not untouched[missing].any(), "an added object that is not there has no region"


def test_alignment_of_two_editors_beside_the_prior(samples, lenient):
    import bpm
    import bpm_checks
    import rivals

    edits = {"good": samples.target, "bad": samples.source}
    rated = {name: ShapesOracle().rate(samples, images) for name, images in edits.items()}
    ratings = {name: rating.score.numpy() for name, rating in rated.items()}
    scores = {name: rivals.scored(lenient, samples, images) for name, images in edits.items()}
    values = {"bpm": {name: found.score.numpy() for name, found in scores.items()}}
    right = bpm.alignment_table(values, ratings, {"good": 9.0, "bad": 1.0}, samples.id)
    assert right["mean_over_pairs"]["prior"] == right["pooled"]["prior"] == 1.0
    assert right["mean_over_pairs"]["bpm"] == right["pooled"]["bpm"] > 0.75  # CLIP's small stand-in
    assert right["n"] == len(samples)
    wrong = bpm.alignment_table(values, ratings, {"good": 1.0, "bad": 9.0}, samples.id)
    assert wrong["pooled"]["prior"] == 0.0
    assert wrong["ci95_vs_prior"][0] > 0

    parts = {name: {part: found.parts[part] for part in PARTS} for name, found in scores.items()}
    sweep = bpm_checks.alpha_sweep(parts, ratings, lenient.config)
    assert list(sweep) == [f"{alpha:g}" for alpha in bpm_checks.ALPHAS]
    assert sweep["0.7"] == pytest.approx(right["mean_over_pairs"]["bpm"])

    found = {"bpm": scores}
    for rival in ("l2", "clip_t"):
        scorer = load_scorer(rival, **({"checkpoint": "shapes/clip"} if rival == "clip_t" else {}))
        found[rival] = {name: rivals.scored(scorer, samples, images) for name, images in edits.items()}
    on_crop = {name: bpm_checks.plain_similarity(lenient, samples, images) for name, images in edits.items()}
    asked_for = [kind != "remove" for kind in samples.edit_type]
    assert np.isfinite(on_crop["good"]).tolist() == asked_for
    assert (np.abs(on_crop["good"][asked_for]) <= 1).all()
    checks = bpm_checks.component_checks(found, rated, samples, on_crop)
    assert set(checks["alignment"]) == {"modify", "clip_t", "clip_on_crop"}
    assert set(checks["consistency"]) == {"preserve", "l2"}
    assert checks["alignment"]["modify"] > 0.65
    whole = np.ones(len(samples), dtype=bool)
    assert bpm_checks.subset_alignment(values["bpm"], ratings, whole) == right["mean_over_pairs"]["bpm"]


def test_parts_are_compared_where_all_have_something_to_measure(samples):
    """Nothing lies outside an edit of the background, so that `preserve` is 1; removals have no crop."""
    import bpm_checks

    whole = torch.tensor([kind == "background" for kind in samples.edit_type])
    gone = torch.tensor([kind == "remove" for kind in samples.edit_type])
    assert whole.any()
    assert gone.any()
    n = len(samples)
    marks = {"good": 10.0, "bad": 0.0}
    rated = {name: Rating(*(torch.full((n,), mark) for _ in range(4))) for name, mark in marks.items()}
    found: dict[str, dict[str, Scores]] = {"bpm": {}, "l2": {}, "clip_t": {}}
    on_crop = {}
    for name, mark in marks.items():
        part = torch.full((n,), mark / 20)
        parts = {"preserve": torch.where(whole, 1.0, part), "modify": part}
        found["bpm"][name] = Scores.make(part, parts)
        found["l2"][name] = found["clip_t"][name] = Scores.make(-part)
        on_crop[name] = torch.where(gone, torch.nan, part).numpy()
    checks = bpm_checks.component_checks(found, rated, samples, on_crop)
    assert checks["consistency"] == {"preserve": 1.0, "l2": 0.0}
    assert checks["alignment"] == {"modify": 1.0, "clip_t": 0.0, "clip_on_crop": 1.0}


def test_verdicts_on_true_edits_and_on_untouched_sources(samples, lenient):
    import bpm_checks

    found = bpm_checks.verdicts_on_true_edits(lenient, samples)
    assert found["size_right"] > 0.95
    assert found["position_right"] > 0.95
    assert found["size_wrong_where_untouched"] == 1.0
    assert found["position_wrong_where_untouched"] == 1.0


def test_every_way_is_compared_with_the_first_edit(samples, strict):
    import bpm_guidance
    import tables_bpm

    good = dict.fromkeys(("first", "pasted", "pasted_feathered"), samples.target)
    table = bpm_guidance.compare(samples, {**good, "guided": samples.source, "mask": samples.mask}, strict)
    assert table["pasted"]["score"]["difference"] == 0
    assert table["pasted"]["score"]["better_equal_worse"] == [0, 1, 0]
    assert table["guided"]["score"]["ci95"][1] < 0
    assert table["guided"]["score"]["better_equal_worse"] == [0, 0, 1]
    new = sum(kind in ("add", "replace", "recolour") for kind in samples.edit_type)
    assert table["pasted"]["modification"]["n"] == len(samples)
    assert table["guided"]["modification"]["n"] == len(samples) - new, "what was asked is not there"
    assert "mask" not in table
    lost = table["guided"]["modification_or_missing"]
    assert lost["n"] == len(samples)
    assert lost["ci95"][1] < -0.1, "an edit that is destroyed counts"
    assert table["guided"]["located"]["difference"] == pytest.approx(-new / len(samples))
    assert {"size", "position"} <= set(table["guided"])
    made = {"command": "this", "device": "CPU", "date": "today"}
    page = tables_bpm.bpm_guidance({"n": 7, "oracle": table, "mask_share": 0.25, **made})
    assert len(page.splitlines()) == 2 + 4 + 2
    assert "-10.00 [-10.00, -10.00]" in page, "the oracle's fall from true edits to sources"
    assert "cover 25 % of an image" in page


def test_every_way_of_guidance_takes_its_own_scale(lenient, monkeypatch):
    import bpm_guidance

    few = Shapes("val").batch(0, 3)
    editor = load_editor("shapes/editor")
    editor.settings = SamplingConfig(1, 1.0, 1.0)
    monkeypatch.setattr(bpm_guidance, "SCALES", (1.1, 4.0))
    monkeypatch.setattr(bpm_guidance, "BATCH", 2)
    masks = torch.zeros(3, 1, 64, 64)
    masks[:, :, :32] = 1.0
    monkeypatch.setattr(bpm_guidance, "mask_of", lambda *_: masks)
    asked = {"first": (4.0,), "guided": (1.1,), "pasted": (1.1,), "pasted_feathered": (4.0,)}
    with torch.no_grad():
        chosen, on_val = bpm_guidance.best_scales(editor, few, lenient)
        made = bpm_guidance.rounds(editor, few, lenient, asked)
    assert all(on_val[way][scale] == max(on_val[way].values()) for way, scale in chosen.items())
    assert all(set(own) == {1.1, 4.0} for own in on_val.values())
    first, hard, soft = made["first"][4.0], made["pasted"][1.1], made["pasted_feathered"][4.0]
    assert torch.equal(hard[:, :, 40:], few.source[:, :, 40:])
    assert not torch.equal(hard[:, :, :32], first[:, :, :32]), "of edits at its own scale"
    torch.testing.assert_close(soft[:, :, :24], first[:, :, :24])
    torch.testing.assert_close(soft[:, :, 60:], few.source[:, :, 60:])
    assert not torch.equal(made["guided"][1.1], first)


def test_the_worlds_own_instructions_are_parsed(samples):
    import bpm_checks

    assert bpm_checks.templates_parsed(samples) == {"object": 1, "size": 1, "position": 1}
    reserved = bpm_checks.templates_parsed(Shapes("val", wordings="reserved").batch(0, 280))
    assert min(reserved.values()) > 0.9


def test_masks_are_measured_one_by_one_in_every_way(samples, strict, monkeypatch):
    import bpm_regions

    finder = type("Finder", (), {"detector": None})()
    monkeypatch.setattr(bpm_regions, "finder_of", lambda _: finder)
    monkeypatch.setattr(bpm_regions, "ObjectLocator", lambda _: strict.locator)
    monkeypatch.setattr(bpm_regions, "GroundedSam", lambda detector, segmenter: None)
    ious = bpm_regions.mask_ious(samples, samples.target, strict)
    assert {name: len(found) for name, found in ious.items()} == dict.fromkeys(
        ("bpm", "boxes", "change_mask"), len(samples)
    )
    assert bpm_regions.medians({"a": torch.tensor([0.1, 0.2, 0.9])}) == {"a": pytest.approx(0.2)}


def test_a_calibration_comes_from_candidates_of_all_qualities(samples, lenient, monkeypatch):
    import calibrate_bpm

    seen = []
    monkeypatch.setattr(calibrate_bpm, "score_batch", lambda batch, scorers: seen.append(batch) or {"bpm": 1})
    assert calibrate_bpm.measured(lenient, 28) == 1
    assert len(seen[0]) == 28
    assert seen[0].target is None
    assert not torch.equal(seen[0].edited, seen[0].source)


def test_the_tables_of_a_result_show_its_figures():
    import tables_bpm

    shares = {"ground_truth": 0.9, "alignment": 0.81}
    result = {
        "n": 560, "command": "this", "device": "CPU", "date": "today", **shares, "prior": 0.77,
        "rivals": {"l2": {"ground_truth": 0.1, "alignment": 0.95}},
        "alignment_table": {"n": 4321, "pooled": {"bpm": 0.8, "prior": 0.76}},
        "ci95_vs_prior": [0.01, 0.07],
        "two_seeds": {"a": {"share": 0.6}, "b": {"share": 0.7}},
        "by_extent": {"local": 0.82, "global": 0.74},
        "mask_iou": {
            "edits": {"bpm": 0.88, "boxes": 0.56, "change_mask": 0.68},
            "true_edits": {"bpm": 0.93, "boxes": 0.6, "change_mask": 0.97},
            "diffedit": 0.11,
        },
        "parse": {"object": 0.981, "size": 0.99, "position": 0.97},
        "parse_held_out": {"object": 0.861, "size": 0.98, "position": 0.93},
        "parse_templates": {"usual": {"object": 1.0, "size": 0.995, "position": 1.0}},
        "seconds": dict.fromkeys(
            ("parse", "detect", "segment", "clip", "all_in_a_batch", "all_one_by_one"), 0.0123
        ),
        "alpha": {"0": 0.3, "0.7": 0.81},
        "components": {"consistency": {"preserve": 0.7, "l2": 0.6}},
        "verdicts": {
            "size_right": 0.98, "position_right": 0.97,
            "size_wrong_where_untouched": 1.0, "position_wrong_where_untouched": 0.99,
        },
        "parser": {"grammar": 0.81, "truth": 0.82},
        "best_of_8": {
            "one sample": {"mean": 7.0, "ci95_vs_one_sample": [0, 0]},
            "bpm": {"mean": 8.0, "ci95_vs_one_sample": [0.5, 1.5]},
        },
    }  # fmt: skip
    first = tables_bpm.bpm(result)
    assert first.index("| `l2` | 95.0 % | 10.0 % |") < first.index("| **`bpm`** | 81.0 % | 90.0 % |")
    assert "4,321 pairs" in first
    assert "[+0.010, +0.070]" in first
    regions = tables_bpm.bpm_regions(result)
    assert "| boxes and masks (BPM) | 0.88 | 0.93 |" in regions
    assert "| DiffEdit's map, from true captions | 0.11 |  |" in regions
    assert "detector 12.3" in regions
    parts = tables_bpm.bpm_parts(result)
    assert "object 98.1 %, size 99.0 %" in parts
    assert "object 86.1 %" in parts
    assert "usual 99.5 %" in parts
    assert "| `preserve` against the oracle's consistency, all but backgrounds | 70.0 % |" in parts
    assert "| α = 0.7 | 81.0 % |" in parts
    assert "98.0 % and 97.0 % of true edits, and wrong in 100.0 % and 99.0 %" in parts
    assert "| bpm | 8.00 | [+0.50, +1.50] |" in tables_bpm.bpm_best_of(result)
