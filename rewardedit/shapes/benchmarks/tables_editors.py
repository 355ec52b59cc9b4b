"""Tables of editors: their quality, and the gains from training, selection and guidance."""

from typing import Any

from table_parts import (
    NOT_RECORDED,
    Result,
    difference,
    interval,
    markdown,
    measured,
    read,
)

from rewardedit.shapes import EDIT_TYPES
from rewardedit.shapes.vocabulary import WORLD_VERSION

ARMS = {
    "base": "base",
    "unconditioned": "fine-tuned on the same rows and steps without conditioning",
    "best_rows_only": "best-scored rows only, with the prompt",
    "conditioned_one": "conditioned, asked for one",
    "conditioned_five": "**conditioned, asked for five**",
    "words_five": "the label in words in the prompt, as ADIEE's, asked for five",
    "learned_embedding_five": "learned reward embedding, asked for five",
}
LABELLED_BY = {
    "labels-clip-d": "`clip_d`, exact captions",
    "labels-clip-d-instructions": "`clip_d`, the instruction in the place of captions",
    "labels-vifi-clip": "`vifi_clip`",
    "labels-adiee": "`adiee`",
    "labels-adiee-data": "`adiee`, on edits of its own training data",
}
REWARDED_BY = {
    "shapes-refl-clip-d": "`clip_d`, exact captions",
    "shapes-refl-clip-d-instructions": "`clip_d`, the instruction in the place of captions",
    "shapes-refl-vifi-clip": "`vifi_clip`",
    "shapes-refl": "`adiee`",
}
REFL_ARMS = {
    "base": "base",
    "refl": "**ReFL**",
    "predicted_x0": "the clean latents predicted at one of the last ten steps, as in ImageReward",
    "pairs_only": "λ = 0: the same rows, steps and seeds without the reward",
    "reward_only": "the reward alone, without the diffusion loss",
    "draft_1": "DRaFT-1: whole rollouts, gradient through the last step",
    "draft_2": "DRaFT-2",
    "draft_4": "DRaFT-4",
}
CONDITIONED_ARMS = {"base": "reward-conditioned base, asked for five", "refl": "reward-conditioned + ReFL"}
HACKS = {
    "noise": "high-frequency noise, planted",
    "flooding": "colour flooding, planted",
    "copying": "source copying, planted",
    "reward_only": "trained on the reward alone until the oracle fell",
}
ASPECTS = {
    "preservation": "preservation outside the true mask (0–1)",
    "alignment": "alignment (oracle, 0–10)",
    "consistency": "consistency (oracle, 0–10)",
    "quality": "quality (oracle, 0–10)",
    "score": "oracle score (0–10)",
}


def comparison(result: Result) -> str:
    """Oracle means of a comparison, and each variant's distance from five with its interval."""
    oracle = result["oracle"]
    gain = f"Five over the base: {100 * oracle['relative_gain']:+.1f} %, n = {oracle['n']} held-out edits"
    head = ("variant", "oracle mean (0–10)", "five − variant, 95 % interval")
    return markdown(head, _compared(oracle), f"{gain}. {measured(result)}")


def _compared(oracle: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Description of each variant, the oracle's mean, and the lead of label five over it."""
    keys = {"base": "ci95", "conditioned_one": "ci95_vs_one"}
    rows = []
    for variant, words in ARMS.items():
        if variant in oracle:
            mean = oracle[variant]
            ends = oracle.get(keys.get(variant, f"ci95_vs_{variant}"))
            versus = f"{oracle['conditioned_five'] - mean:+.2f} {interval(ends)}" if ends else ""
            rows.append((words, f"{mean:.2f}", versus))
    return rows


def reward_conditioning() -> str:
    """The quickstart with labels from instructions alone, and with labels from exact captions."""
    columns = {
        "quickstart-without-captions": "labels from instructions alone, by `vifi_clip`",
        "quickstart": "labels from exact captions, by `clip_d`",
    }
    results = {words: result for name, words in columns.items() if (result := read(name)) is not None}
    if not results:
        return NOT_RECORDED
    newest = max(result.get("world", 1) for result in results.values())
    # Results from two different worlds are not shown together.
    results = {words: result for words, result in results.items() if result.get("world", 1) == newest}
    compared = [_compared(result["oracle"]) for result in results.values()]
    rows = [(cells[0][0], *(mean for _, mean, _ in cells)) for cells in zip(*compared, strict=True)]
    rows.append(("five − base, 95 % interval", *(cells[0][2] for cells in compared)))
    n = " and ".join(sorted({str(result["oracle"]["n"]) for result in results.values()}))
    sources = " ".join(measured(result) for result in results.values())
    return markdown(("oracle mean (0–10)", *results), rows, f"n = {n} held-out edits. {sources}")


def labellers() -> str:
    """Gains by scorer, used for labels of conditioning or as a reward, each over the base at its best."""
    rows, sources = [], []
    for task, names in (("labels, asked for five", LABELLED_BY), ("reward (ReFL)", REWARDED_BY)):
        for name, words in names.items():
            result = read(name)
            if result is None or result.get("world") != WORLD_VERSION:
                continue
            oracle = result["oracle"]
            mean = oracle["conditioned_five" if names is LABELLED_BY else "refl"]
            gain = f"{mean - oracle['base']:+.2f} {interval(oracle['ci95'])}"
            one = f"{oracle['conditioned_one']:.2f}" if names is LABELLED_BY else ""
            rows.append((task, words, str(oracle["n"]), f"{oracle['base']:.2f}", f"{mean:.2f}", gain, one))
            sources.append(measured(result))
    if not rows:
        return NOT_RECORDED
    head = (
        *("used as", "scorer", "n", "base (oracle, 0–10)", "fine-tuned"),
        *("difference, 95 % interval", "asked for one"),
    )
    return markdown(head, rows, " ".join(sources))


def by_edit_type(result: Result) -> str:
    """Oracle means by backdrop and kind of instruction."""
    rows = [
        (backdrop, *(f"{means[kind]:.2f}" for kind in ("all", *EDIT_TYPES)))
        for backdrop, means in result["oracle"].items()
    ]
    return markdown(("background", "all", *EDIT_TYPES), rows, f"n = {result['n']} a row. {measured(result)}")


def steps_of_editor(result: Result) -> str:
    """Oracle means by the number of denoising steps, each at its best guidance, and edits from two seeds."""
    rows = []
    for steps, asked in result["settings"].items():
        ends = result.get(f"ci95_vs_{steps}")
        scales = f"{asked['guidance_scale']:g}, {asked['image_guidance_scale']:g}"
        rows.append((steps, scales, f"{result['by_steps'][steps]:.2f}", interval(ends) if ends else ""))
    seeds = result["two_seeds"]
    apart, both = (f"{100 * seeds[name]:.0f} %" for name in ("a_cell_apart", "both_right"))
    said = [
        f'Two seeds of an "add" without a place lie a cell apart in {apart} of {seeds["pairs"]} pairs,',
        f"and both rate 8 or more in {both}. Instructions in wordings that no training split has rate",
        f"{result['reserved_wordings']:.2f}. n = {result['n']} held-out edits.",
    ]
    head = ("denoising steps", "text, image guidance", "oracle (0–10)", "best − this, 95 % interval")
    return markdown(head, rows, f"{' '.join(said)} {measured(result)}")


def flow_editor(result: Result) -> str:
    """Oracle means of the small flow-matching editor, of untouched sources and of the small editor."""
    rows = [("`shapes/flow-editor`", f"{result['oracle']:.2f}", "")]
    for name, words in (("untouched", "untouched sources"), ("shapes/editor", "`shapes/editor`")):
        other = result[name]
        minus = {
            "difference": result["oracle"] - other["oracle"],
            "ci95": other["ci95_of_difference"],
        }
        rows.append((words, f"{other['oracle']:.2f}", difference(minus)))
    head = ("edits", "oracle (0–10)", "flow editor − this, 95 % interval")
    below = f"n = {result['n']} held-out edits; guidance scale {result['guidance_scale']:g}, chosen on val."
    return markdown(head, rows, f"{below} {measured(result)}")


def text_to_image(result: Result) -> str:
    """Share of the captions' objects that are drawn."""
    rows = [
        (objects, f"{100 * record['all_found']:.1f} %", f"{100 * record['objects_found']:.1f} %")
        for objects, record in (("1 to 3", result), *result["by_objects"].items())
    ]
    asked = result["settings"]
    how = f"{asked['steps']} steps, guidance scale {asked['guidance_scale']:g}, chosen on val"
    head = ("objects of the caption", "all of them found", "objects found")
    few = result["n"] // 4
    below = f"n = {result['n']} held-out captions of 1 to 3 objects, {few} of each number; {how}."
    return markdown(head, rows, f"{below} {measured(result)}")


def regions(result: Result) -> str:
    """Accuracy of the small detector and segmenter."""
    rows = [
        (
            "detector: objects that are there, the boxes of all of them and no others",
            f"{result['found']:.3f}",
        ),
        ("detector: no box where the object is not there", f"{result['not_seen_where_absent']:.3f}"),
    ]
    segmenter = read("shapes-segmenter")
    if segmenter:
        rows.append(("segmenter: mean IoU of masks in true boxes", f"{segmenter['mean_iou']:.3f}"))
    n = f"n = {result['n']} objects of val's targets, plain, textured and photographs"
    sources = " ".join(measured(record) for record in (result, segmenter) if record)
    return markdown(("", "share"), rows, f"{n}, by any of their names. {sources}")


def editors(result: Result) -> str:
    """Editors of different quality, the best first."""
    rows = []
    for name in sorted(result["mean"], key=lambda name: -result["mean"][name]):
        asked = result["settings"][name]
        scales = f"{asked['guidance_scale']:g}, {asked['image_guidance_scale']:g}"
        low, high = result["ci95"][name]
        unseen = "reserved" if name in result["unseen"] else ""
        rows.append((f"`{name}`", scales, f"{result['mean'][name]:.2f} [{low:.2f}, {high:.2f}]", unseen))
    steps = asked["num_inference_steps"]
    head = ("editor", "text, image guidance", "oracle (0–10), 95 % interval", "for scorers")
    return markdown(head, rows, f"n = {result['n']} held-out edits, {steps} steps. {measured(result)}")


def guidance(result: Result) -> str:
    """Plain and guided edits with the intervals of their differences, and the cost of a step."""
    rows = []
    for name, words in ASPECTS.items():
        digits = 4 if name == "preservation" else 2
        means = (f"{result['oracle'][variant][name]:.{digits}f}" for variant in ("plain", "guided"))
        rows.append((words, *means, difference(result["guided_minus_plain"][name], digits)))
    costs = "; ".join(
        f"{name}: {100 * c['extra_share']:+.1f} %" for name, c in result["seconds_per_step"].items()
    )
    n = f"n = {result['n']} held-out edits. Time a step, guided against plain: {costs}"
    head = ("", "plain", "under the change mask", "difference, 95 % interval")
    return markdown(head, rows, f"{n}. {measured(result)}")


def best_of_n(result: Result) -> str:
    """Oracle means of each scorer's choices: without captions, and with the world's exact ones,
    the best case.
    """
    head = [f"chosen from {result['candidates']} by", "oracle mean (0–10)", "− one sample, 95 % interval"]
    head += ["with exact captions (best case)", "− one sample, 95 % interval"]
    rows = [
        (f"`{name}`" if " " not in name else name, *_chosen(result, name), *_chosen(captioned, name))
        for captioned in [result["with_captions"]]
        for name in result["oracle"]
    ]
    return markdown(head, rows, f"n = {result['n']} held-out edits. {measured(result)}")


def _chosen(record: dict[str, Any], name: str) -> tuple[str, str]:
    """The oracle's mean of a scorer's choices, with the number of steps,
    and the gain over one sample.
    """
    if name not in record["oracle"]:
        return "", ""
    steps = record["steps"][name]
    other = record["against_one_sample"].get(name)
    return (
        f"{record['oracle'][name]:.2f} ({steps} step{'s' * (steps > 1)})",
        difference(other) if other else "",
    )


def reward_guidance(result: Result) -> str:
    """Gain from guidance by a scorer's gradient, in total and by part of the denoising steps."""
    by_scorer = result["guided_minus_plain"]
    parts = list(next(iter(by_scorer.values()))["by_part"])
    rows = []
    for name, of_scorer in by_scorer.items():
        score = of_scorer["score"]
        rows.append(
            (
                f"`{name}`",
                f"{of_scorer['steps']}, {of_scorer['scale']:g}",
                f"{score['mean_b']:.2f} → {score['mean_a']:.2f}",
                f"{of_scorer['oracle']['mean_b']:.2f}",
                *(difference(of_scorer["by_part"][part]) for part in parts),
            )
        )
    head = (
        "guided by",
        "steps, scale",
        "its score",
        "oracle, plain",
        *(f"{part} − plain" for part in parts),
    )
    chosen = "the number of steps and the scale are chosen on val, for plain edits too"
    return markdown(
        head,
        rows,
        f"n = {result['n']} held-out edits, guided − plain with 95 % intervals; {chosen}. {measured(result)}",
    )


def refl(result: Result) -> str:
    """Variants of reward feedback learning: oracle, rewards, change outside the mask,
    and findings of the hacking report.
    """
    conditioned = read("shapes-refl-conditioned")
    head = ["variant", "steps, guidance scale", "oracle (0–10)", "ReFL − variant, 95 % interval"]
    head += [f"`{name}`" for name in result["rewards"]["base"]]
    head += ["change outside the mask − base's", "report", "in 10 steps (val)"]
    rows = [
        _refl_row(record, variant, words)
        for record, variants in ((result, REFL_ARMS), (conditioned, CONDITIONED_ARMS))
        for variant, words in variants.items()
        if record and variant in record["oracle"]
    ]
    gain = f"{100 * result['oracle']['relative_gain']:+.1f} %, n = {result['oracle']['n']} held-out edits"
    sources = " ".join(measured(record) for record in (result, conditioned) if record)
    return markdown(head, rows, f"ReFL over the base: {gain}. {sources}")


def _refl_row(result: Result, variant: str, words: str) -> tuple[str, ...]:
    oracle = result["oracle"]
    settings = result["settings"][variant]
    ends = oracle.get("ci95" if variant == "base" else f"ci95_vs_{variant}")
    outside = result["change_outside"].get(variant)
    ten = max(value for name, value in settings["val"].items() if name.startswith("10 steps"))
    return (
        words,
        f"{settings['steps']}, {settings['text_guidance']:g}",
        f"{oracle[variant]:.2f}",
        f"{oracle['refl'] - oracle[variant]:+.2f} {interval(ends)}" if ends else "",
        *(f"{score:.3g}" for score in result["rewards"][variant].values()),
        difference(outside, 4) if outside else "",
        "" if variant == "base" else "red flag" if result["flags"][variant] else "no flag",
        f"{ten:.2f}",
    )


def refl_watch(result: Result) -> str:
    """Monitored values on the fixed prompts: of the base, and of every variant at its end."""
    watched = result["monitor"] if "monitor" in result else result["watch"]  # its former name
    names = [name for name in watched["refl"]["last"] if name not in ("step", "flag")]
    looks = {
        "base": watched["refl"]["first"],
        **{variant: record["last"] for variant, record in watched.items()},
    }
    rows = []
    for variant, look in looks.items():
        flags = str(watched[variant]["flags"]) if variant in watched else ""
        rows.append((variant.replace("_", " "), *(f"{look[name]:.3g}" for name in names), flags))
    return markdown(("at the end", *(name.replace("_", " ") for name in names), "flags"), rows)


def hacking(result: Result) -> str:
    """Shares of flagged runs: hacked in four ways, and honest."""
    rows = []
    for kind, words in HACKS.items():
        at = result["at_first_flag"][kind]
        signs = sorted(at["signs"], key=lambda name: -at["signs"][name])
        said = ", ".join(f"{name.replace('_', ' ')} {at['signs'][name]}" for name in signs)
        fall = "" if at["oracle_change"] is None else f"{at['oracle_change']:+.2f}"
        rows.append((words, str(result["runs"][kind]), f"{100 * result['detected'][kind]:.0f} %", fall, said))
    rows.append(("honest", str(result["runs"]["honest"]), f"{100 * result['false_alarms']:.1f} %", "", ""))
    gain = result["oracle_of_honest_runs"]["mean_gain"]
    seeds = result["calibration_runs"]
    checks = result["checks"]
    setting = f"{result['n']} fixed prompts; {checks['honest']} checks of a run, "
    setting += f"at most {checks['reward_only']} of one on the reward alone"
    setting += f"; limits from those of {seeds} runs of other seeds that stayed honest"
    honest = f"Honest runs gain {gain:+.2f} by the oracle on average"
    head = ("runs", "how many", "flagged", "oracle (0–10) at the first flag − base", "by")
    return markdown(head, rows, f"{setting}. {honest}. {measured(result)}")
