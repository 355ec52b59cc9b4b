"""Recorded results, and the bounds that the pages promise of them."""

import json
import math
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardedit.evaluation.hacking import LIMITS, Limit
from rewardedit.models import resolve_model
from rewardedit.scorers.load import BUILT_IN
from tests.readme import ROOT, WORLD, recorded


def has(value: Any, names: str) -> bool:
    """True if all names are keys, items or parts of the value."""
    return all(name in value for name in names.split("; "))


def near(value: float, other: float) -> bool:
    return math.isclose(value, other, abs_tol=0.01)


OPERATORS = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "≈": near,
    "has": has,
}
# File, path in its JSON ("*" is any key) and bound: an operator and a number, null, names, or FILE:PATH.
BOUNDS = [
    ("quickstart", "oracle/ci95/0", "> 0"),
    ("quickstart", "oracle/ci95_vs_one/0", "> 0"),
    ("quickstart", "oracle/n", ">= 256"),
    ("quickstart-without-captions", "oracle/ci95/0", "> 0"),
    ("quickstart-without-captions", "oracle/ci95_vs_one/0", "> 0"),
    ("quickstart-without-captions", "oracle/n", "== quickstart:oracle/n"),
    ("quickstart-without-captions", "oracle/base", "≈ quickstart:oracle/base"),
    ("shapes-reward-conditioned", "oracle/n", ">= 512"),
    ("shapes-reward-conditioned", "oracle/ci95/0", "> 0"),
    ("shapes-reward-conditioned", "oracle/ci95_vs_one/0", "> 0"),
    ("shapes-reward-conditioned", "oracle/ci95_vs_unconditioned/0", "> 0"),
    ("shapes-reward-conditioned", "oracle/relative_gain", ">= 0.15"),
    ("shapes-reward-conditioned", "flags/conditioned_five", "== null"),
    ("shapes-reward-conditioned", "change_outside/conditioned_five/ci95/0", "<= 0"),
    # The base is at its best too.
    (
        "shapes-reward-conditioned",
        "settings/base/text_guidance",
        "== shapes-editor:settings/10/guidance_scale",
    ),
    # One editor, one grid, one test.
    *(
        (name, path, bound)
        for name in ("labels-adiee", "labels-vifi-clip")
        for path, bound in (
            ("oracle/n", ">= 560"),
            ("oracle/base", "≈ labels-clip-d:oracle/base"),
            ("oracle/ci95/0", "> 0"),
            ("oracle/ci95_vs_one/0", "> 0"),
            ("flags/conditioned_five", "== null"),
            ("change_outside/conditioned_five/ci95/0", "<= 0"),
            ("settings/base/text_guidance", "== shapes-editor:settings/10/guidance_scale"),
        )
    ),
    # The page says that these labels say nothing.
    ("labels-clip-d-instructions", "oracle/ci95_vs_one/0", "< 0"),
    ("labels-clip-d-instructions", "oracle/ci95_vs_one/1", "> 0"),
    ("labels-clip-d-instructions", "oracle/base", "≈ labels-clip-d:oracle/base"),
    ("labels-adiee-data", "oracle/ci95/0", "< 0"),
    ("labels-adiee-data", "oracle/ci95/1", "> 0"),
    ("labels-adiee-data", "oracle/ci95_vs_one/0", "> 0"),
    ("labels-adiee-data", "oracle/base", "≈ labels-clip-d:oracle/base"),
    ("labels-adiee-data", "change_outside/conditioned_five/ci95/1", "< 0"),
    ("dice", "n/test", ">= 560"),
    ("dice", "n/untouched", ">= 560"),
    ("dice", "false_alarms/dice", "<= 0.05"),
    ("dice", "false_alarms/dice, both orders", "<= 0.05"),
    ("dice", "ci95_aware/dice, both orders/test/ci95/0", "> 0"),
    ("dice", "ci95_aware/dice, both orders/hard/ci95/0", "> 0"),
    ("dice", "ci95_agnostic/dice, both orders/test/difference", ">= 0"),
    ("dice-ablations", "ap/both stages/aware", "> dice-ablations:ap/no stage 1/aware"),
    ("dice-ablations", "n/test", ">= 560"),
    ("dice", "coherence", "has always yes; rules; untrained; dice"),
    ("dice", "ap", "has change; change with detector; dice; dice, fixed confidence"),
    ("shapes-refl", "oracle/n", ">= 1024"),
    ("shapes-refl", "world", "== 2"),
    ("shapes-refl", "oracle/relative_gain", ">= 0.07"),
    ("shapes-refl", "oracle/ci95/0", "> 0"),
    ("shapes-refl", "oracle/ci95_vs_pairs_only/0", "> 0"),
    ("shapes-refl", "change_outside/refl/ci95/0", "<= 0"),
    ("shapes-refl", "settings/refl/steps", ">= 8"),
    ("shapes-refl", "oracle", "has predicted_x0; reward_only; draft_2; draft_4"),
    *(
        (name, path, bound)
        for name in ("shapes-refl-vifi-clip", "shapes-refl-clip-d")
        for path, bound in (
            ("oracle/n", "== shapes-refl:oracle/n"),
            ("oracle/base", "≈ shapes-refl:oracle/base"),
            ("oracle/ci95/0", "> 0"),
            ("oracle/refl", "< shapes-refl:oracle/refl"),
        )
    ),
    ("shapes-refl-vifi-clip", "flags/refl", "has change_outside"),
    ("shapes-refl-vifi-clip", "change_outside/refl/ci95/0", "> 0"),
    ("shapes-refl-clip-d", "flags/refl", "== null"),
    ("shapes-refl-clip-d-instructions", "oracle/n", "== shapes-refl:oracle/n"),
    ("shapes-refl-clip-d-instructions", "oracle/base", "≈ shapes-refl:oracle/base"),
    ("shapes-refl-clip-d-instructions", "oracle/ci95/1", "< 0"),
    ("shapes-refl-clip-d-instructions", "flags/base", "== null"),
    ("shapes-refl-clip-d-instructions", "flags/refl", "has change_outside"),
    ("reward-scale", "oracle/ci95_vs_quantiles/1", "< 0"),  # none − quantiles
    ("reward-scale", "settings/*/text_guidance", "> 1.25"),  # not at an end of the grid
    ("reward-scale", "settings/*/text_guidance", "< 2"),
    ("guidance", "n", ">= 1024"),
    ("guidance", "guided_minus_plain/preservation/ci95/0", "> 0"),
    ("guidance", "guided_minus_plain/alignment/difference", ">= -0.2"),
    ("guidance", "seconds_per_step/small, CPU, batch 8/extra_share", "<= 0.05"),
    ("reward-guidance", "guided_minus_plain", "has adiee; vifi_clip; clip_d"),
    ("reward-guidance", "guided_minus_plain/*/score/ci95/0", "> 0"),
    ("reward-guidance", "guided_minus_plain/*/oracle/ci95/0", "> 0"),
    (
        "reward-guidance",
        "guided_minus_plain/*/by_part/all steps",
        "== reward-guidance:guided_minus_plain/*/oracle",
    ),
    ("reward-guidance", "guided_minus_plain/*/by_part/second half/ci95/0", "> 0"),
    ("reward-guidance", "guided_minus_plain/*/by_part/first half/difference", "> -0.05"),
    ("reward-guidance", "guided_minus_plain/*/by_part/first half/difference", "< 0.05"),
    ("best-of-n", "against_one_sample/bpm/ci95/0", "> 0"),
    ("best-of-n", "against_one_sample/adiee/ci95/0", "> 0"),
    ("best-of-n", "against_one_sample/adiee:0.1,bpm:0.5/ci95/0", "> 0"),
    ("best-of-n", "oracle/*", "<= best-of-n:oracle/oracle's choice"),
    # The editor samples: one step is not enough.
    ("shapes-editor", "n", ">= 560"),
    ("shapes-editor", "best_steps", ">= 8"),
    ("shapes-editor", "ci95_vs_1/0", "> 0"),
    ("shapes-editor", "ci95_vs_2/0", "> 0"),
    ("shapes-editor", "oracle/plain/all", ">= 4.0"),
    ("shapes-editor", "oracle/plain/add", ">= 3.0"),
    ("shapes-editor", "oracle/plain/move", ">= 1.5"),
    ("shapes-editor", "oracle/textured/all", "> 2.06"),
    ("shapes-editor", "oracle/photo/all", "> 1.13"),
    ("shapes-editor", "two_seeds/pairs", ">= 140"),
    ("shapes-editor", "two_seeds/a_cell_apart", ">= 0.25"),
    ("shapes-editor", "two_seeds/both_right", ">= 0.08"),
    ("shapes-editors", "n", ">= 280"),
    ("shapes-editors", "mean/*", ">= 1.0"),
    ("shapes-editors", "mean/shapes-editor-right-only", ">= 7.0"),
    ("shapes-editors", "mean/shapes-editor-wrong-object", "<= 5.5"),
    ("shapes-editors", "unseen", "has shapes-editor-right-only; shapes-editor-wrong-object"),
    ("flow-editor", "n", ">= 560"),
    ("flow-editor", "read_right", ">= 0.95"),
    ("flow-editor", "untouched/ci95_of_difference/0", ">= 2"),
    ("shapes-text-to-image", "n", ">= 560"),
    ("shapes-text-to-image", "all_found", ">= 0.6"),
    ("shapes-text-to-image", "by_objects", "has 1; 2; 3; 4; 5"),
    ("shapes-text-to-image", "by_objects/1/all_found", ">= 0.85"),
    ("retrieval", "test/temporal/n", ">= 1000"),
    ("retrieval", "recall@1_temporal_minus_mean/ci95/0", "> 0"),
    ("retrieval", "test/temporal/recall@1", ">= 0.2"),
    ("retrieval", "test/mean/recall@1", "<= 0.1"),
    ("retrieval", "test/temporal/swap", ">= 0.95"),
    ("heat", "n", ">= 256"),
    ("heat", "scorers/*/times", ">= 3"),
    ("throughput", "milliseconds_per_edit", f"has {'; '.join(BUILT_IN)}"),
    ("agreement", "rho", "has source, edited, instruction; captions; target or true mask"),
    ("bpm", "n", ">= 560"),
    ("bpm", "mask_iou_median", ">= 0.7"),
    ("bpm", "ground_truth_by_noise/bpm", "has 5; 15; 50"),
    ("bpm", "ground_truth_by_noise/bpm/*/ground_truth", ">= bpm:ground_truth"),
    ("bpm", "ground_truth", ">= 0.87"),
    ("bpm", "alignment", ">= 0.80"),
    ("bpm", "alignment", "> bpm:prior"),
    ("bpm", "ci95_vs_prior/0", "> 0"),
    *(
        ("bpm", f"rivals/{name}/ground_truth", "< bpm:ground_truth")
        for name in ("clip_t", "clip_d", "l2", "lpips", "vifi_clip")
    ),
    *(
        ("bpm-parts", f"parse/{name}", f">= {share}")
        for name, share in (("object", 0.97), ("size", 0.99), ("position", 0.97))
    ),
    ("bpm-parts", "parse_held_out", "has object; size; position"),
    ("bpm-guidance", "n", ">= 1120"),
    ("bpm-guidance", "oracle/guided/preservation/ci95/0", "> 0"),
    ("bpm-guidance", "oracle/guided/score/ci95/0", "> 0"),
    ("bpm-guidance", "oracle/guided/modification/difference", ">= -0.01"),
    ("bpm-guidance", "oracle/guided/modification_or_missing/difference", ">= -0.01"),
    # The page says that guidance does not beat pasting.
    ("bpm-guidance", "oracle/guided_minus_pasted_quality/ci95/0", "< 0"),
    ("bpm-guidance", "best_of_8/bpm/ci95_vs_one_sample/0", "> 0"),
    ("bpm-guidance", "best_of_8/bpm/mean", "< bpm-guidance:best_of_8/oracle's choice/mean"),
    ("adiee", "n", ">= 2240"),
    ("adiee", "spearman/adiee", ">= 0.6"),
    *(
        ("adiee", f"{group}ci95_vs/{name}/0", "> 0")
        for group in ("", "seen/")
        for name in ("bpm", "vifi_clip", "clip_d", "ssim", "shapes-vlm", "prior")
    ),
    ("adiee", "ci95_vs_best_rival/0", "> 0"),
    ("adiee", "seen/ci95_vs_best_rival/0", "> 0"),
    ("adiee", "spearman", "has same_labels"),
    ("adiee", "pairwise", "has random; always a tie"),
    ("adiee", "own_margins/pairwise/adiee", "> adiee:pairwise/adiee"),
    ("adiee", "checks/true_edits", "> 6"),
    ("adiee", "checks/untouched_sources", "< 2"),
    ("adiee", "checks/source_and_edit_exchanged", "< 1"),
    ("adiee", "checks/other_instructions", "< 1"),
    ("adiee", "checks/spread_of_questions", "< 1"),
    # The page says four fifths of the way from `vifi_clip` to `adiee`.
    ("model-or-data", "n", ">= 2240"),
    ("model-or-data", "adiee_above/same_labels/0", "> 0"),
    ("model-or-data", "spearman/adiee/rho", "≈ 0.72"),
    ("model-or-data", "spearman/same_labels/rho", "≈ 0.69"),
    ("model-or-data", "spearman/vifi_clip/rho", "≈ 0.59"),
    ("adiee-data", "rows", ">= 30000"),
    ("adiee-data", "minutes", "<= 60"),
    *(
        ("adiee-data", f"methods/{name}/kept", ">= 1000")
        for name in ("shapes-editor", "half-done", "over-done", "sdedit", "diffedit")
    ),
    ("adiee-data", "ci95_5_over_0/0", "> 0"),
    ("adiee-data", "ci95_10_over_5/0", "> 0"),
    ("adiee-data", "shuffled/ci95_5_over_0/0", "< adiee-data:ci95_5_over_0/0"),
    ("adiee-data", "shuffled/ci95_10_over_5/0", "< adiee-data:ci95_10_over_5/0"),
    ("adiee-data", "turns_spearman/rho", "> 0.9"),
    (
        "adiee-data",
        "probe/with_reconstruction/accuracy",
        "< adiee-data:probe/without_reconstruction/accuracy",
    ),
    *(
        ("adiee-data", f"rules/{rule}/agree", "> 0.9")
        for rule in ("source", "target", "turns_none", "turns_some", "turns_all")
    ),
    ("hacking", "detected/noise", ">= 0.8"),
    ("hacking", "detected/flooding", ">= 0.8"),
    ("hacking", "detected/copying", ">= 0.8"),
    pytest.param(
        *("hacking", "detected/reward_only", ">= 0.8"),
        marks=pytest.mark.xfail(reason="not reached: 19 of 24 are flagged", strict=True),
    ),
    ("hacking", "false_alarms", "<= 0.05"),
    ("hacking", "runs/*", ">= 20"),
    ("hacking", "runs/honest", ">= 60"),
    ("hacking", "limits", "== hacking:limits_of_calibration"),
    ("prefix", "small, CPU/8/speedup", ">= 1.4"),
    ("prefix", "small, CPU/gradient/memory_share", "< 1"),
    (
        "refl-step",
        "steps/small editor, CPU, batch 16, 10 steps/ours/samples_per_second",
        "> refl-step:steps/small editor, CPU, batch 16, 10 steps/papers/samples_per_second",
    ),
    ("startup", "cpu_seconds/after/import rewardedit", "< 0.3"),
    ("startup", "cpu_seconds/after/rewardedit --help", "< 0.3"),
    ("scale", "peak_gib/200000", "<= 1.43"),  # 1.1 times that of 10,000 rows
    ("scale", "rows_per_s/*", ">= 2700"),
    ("scale", "workers/0/waiting", ">= 0.1"),
    ("scale", "workers/1/waiting", "<= 0.05"),
    ("scale", "processes/two_vs_one", "<= 0.65"),
    ("same-weights", "runs/*/now", "== same-weights:runs/*/before"),
    ("same-weights-house", "runs/*/now", "== same-weights-house:runs/*/before"),
    ("speed-cpu", "paths/refl update, micro-batches of 2 in 8 rows/ratio", "> 1.5"),
    ("speed-cpu", "paths/best of 8, 2 steps/ratio", ">= 1"),
    ("speed-cpu", "paths/best of 8, 10 steps/ratio", "> 0.9"),
    ("speed-cpu", "paths/reading two JPEG of 512 px to 256/ratio", "> 1.5"),
    ("speed-cpu", "paths/ssim against the five blurs one by one/ratio", "> 1"),
    ("speed-cpu", "paths/ssim against torchmetrics/ratio", ">= 1"),
    ("same-weights", "runs", "has shapes-refl, refl, 50 steps, fp32"),
    ("same-weights", "runs/*/now", "has losses and rewards"),
    ("code-metrics", "after/unresolved imports", "== 0"),
    ("code-metrics", "after/places that score rows", "== 1"),
    ("code-metrics", "after/places that say that a stage is done", "== 1"),
    ("code-metrics", "after/places that compute predicted x0", "== 1"),
    ("code-metrics", "after/places that concatenate source channels", "== 1"),
    *(
        ("coverage", f"coverage/{name}/*", bound)
        for name in ("spearman", "fisher average of three editors", "mean difference", "ICC(2,1), complete")
        for bound in (">= 0.93", "<= 0.97")
    ),
    ("serving", "scorers/*/ratio", ">= 0.9"),
    ("online-rl", "n", ">= 560"),
    ("online-rl", "trainings/nft/last/adiee", "> online-rl:trainings/nft/first/adiee"),
    ("online-rl", "trainings/nft/last/oracle", "> online-rl:trainings/nft/first/oracle"),
    *(
        ("online-rl", f"trainings/{arm}/flags", "== 0")
        for arm in ("nft", "pairs", "nft_masked", "refl", "dpo", "flow_grpo")
    ),
    ("online-rl", "trainings/dpo/last/oracle", "> online-rl:trainings/dpo/first/oracle"),
    ("online-rl", "trainings/flow_grpo/last/oracle", "> online-rl:trainings/flow_grpo/first/oracle"),
    *(("online-rl", f"trainings/{arm}/minutes", "<= 30") for arm in ("nft_masked", "flow_grpo")),
    ("online-rl", "means", "has base; nft; nft_masked; pairs; refl; dpo; flow_grpo"),
    *(("online-rl", f"differences/base/{arm}/oracle/ci95/0", "> 0") for arm in ("pairs", "refl")),
    ("online-rl", "differences/pairs/refl/adiee/ci95/0", "> 0"),
    ("bench", "n", ">= 105"),
    # The tables' rows: scorers of the world in their order, editors.
    *(
        ("bench", f"tables/{table}/rows/{row}/cells/ρ within an editor/ci95/0", "> 0")
        for table, row in ((0, 0), (0, 1), (0, 3), (1, 0), (1, 1))
    ),
    *(
        ("bench", f"tables/{table}/rows/{row}/cells/own instruction first/ci95/0", "> 0.125")
        for table in (0, 1)
        for row in (0, 1, 3)
    ),
    ("bench", "tables/0/rows/2/name", "has bpm(missing_object=failed)"),
    ("bench", "tables/0/rows/10/cells", "has own instruction first; ground truth best"),
    ("bench", "tables/2/rows/0/cells/rating/value", "> bench:tables/2/rows/3/cells/rating/value"),
    ("bench", "tables/2/rows/7/cells/rating/value", "< 1"),
    ("coverage", "coverage/ICC(2,1), complete, McGraw and Wong/560", "< 0.85"),
    ("coverage", "rejected_equal_scorers/*", "<= 0.07"),
    ("coverage", "cpu_seconds/*", "<= 10"),
    ("suite", "seconds", "<= 480"),
    ("suite", "faults/red", "== suite:faults/planted"),
]


def values(value: Any, keys: list[str]) -> Iterator[Any]:
    """Values at a path, of which "*" stands for any key."""
    if not keys:
        yield value
        return
    first, *rest = keys
    if first == "*":
        for inner in value.values():
            yield from values(inner, rest)
        return
    yield from values(value[int(first)] if isinstance(value, list) else value[first], rest)


def at(name: str, path: str) -> list[Any]:
    return list(values(recorded(name), path.split("/")))


def limits_of(text: str, n: int) -> list[Any]:
    """The other side of a bound, for each of n values."""
    name, colon, path = text.partition(":")
    if colon:
        others = at(name, path)
        return others if len(others) == n else others * n
    try:
        return [json.loads(text)] * n
    except json.JSONDecodeError:
        return [text] * n


def holds(name: str, path: str, bound: str) -> bool:
    sign, text = bound.split(" ", 1)
    found = at(name, path)
    if sign == "has":
        return all(has(value, text) for value in found)
    limits = limits_of(text, len(found))
    return bool(found) and all(
        OPERATORS[sign](value, limit) for value, limit in zip(found, limits, strict=True)
    )


@pytest.mark.parametrize(("name", "path", "bound"), BOUNDS)
def test_a_recorded_result_is_within_its_bound(name, path, bound):
    assert holds(name, path, bound), f"{name}: {path} is {at(name, path)}, expected {bound}"


@pytest.mark.parametrize(
    ("path", "bound"),
    [
        ("oracle/ci95/0", "> 5"),
        ("oracle/n", "== heat:scorers/l1/times"),
        ("oracle/n", "== null"),
        ("oracle", "has base; no such key"),
        ("oracle/base", "≈ 7.6"),
    ],
)
def test_a_bound_that_does_not_hold_is_told(path, bound):
    assert not holds("quickstart", path, bound)


def test_the_editor_asks_for_the_number_of_steps_that_is_best():
    kept = json.loads((Path(resolve_model("shapes/editor")) / "sampling.json").read_text())
    assert kept["num_inference_steps"] == recorded("shapes-editor")["best_steps"]


def test_the_monitor_has_the_limits_that_were_calibrated():
    found = recorded("hacking")
    assert found["limits"] == {_name(limit): limit.most for limit in LIMITS}
    assert found["seeds"].keys() == {"calibration", "honest", "reward_only"}
    seeds = [seed for group in found["seeds"].values() for seed in group]
    assert len(set(seeds)) == len(seeds)


def _name(limit: Limit) -> str:
    """As hacking.py writes it."""
    return f"{limit.name} {'+' if limit.direction > 0 else '-'}"


def test_the_page_has_the_figures_of_the_reward_s_scales():
    found = recorded("reward-scale")
    oracle = found["oracle"]
    low, high = oracle["ci95_vs_quantiles"]
    for name in ("base", "none", "quantiles"):
        grid = found["settings"][name]["val"]
        chosen = found["settings"][name]["text_guidance"]
        assert grid[f"6 steps, text {chosen:g}, image 1.2"] == max(grid.values()), "chosen on val"
    page = " ".join((WORLD / "README.md").read_text().split())
    assert (
        f"base {oracle['base']:.2f}, `none` {oracle['none']:.2f}, `quantiles` {oracle['quantiles']:.2f} "
        f"(n = {found['n']})"
    ) in page
    assert f"{oracle['quantiles'] - oracle['none']:+.2f} [{-high:+.2f}, {-low:+.2f}]" in page


def test_every_fault_that_is_kept_was_seen_red():
    planted = len(list((ROOT / "tests" / "faults").glob("*.patch")))
    assert recorded("suite")["faults"]["planted"] == planted
