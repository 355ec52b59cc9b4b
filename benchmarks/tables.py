"""Writes the tables of the README and of benchmarks/README.md from the recorded results:
python benchmarks/tables.py
"""

import json
import re
from pathlib import Path
from typing import Any

from rewardedit.scorers.load import BUILT_IN, find_scorer

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")
ARMS = {
    "base": "base",
    "unconditioned": "fine-tuned on the same rows and steps without conditioning",
    "best_rows_only": "best-scored rows only, with the prompt",
    "conditioned_one": "conditioned, asked for one",
    "conditioned_five": "**conditioned, asked for five**",
    "learned_embedding_five": "learned reward embedding, asked for five",
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
WITHOUT_CAPTIONS = "source, edited, instruction"  # the group of scorers in `agreement` that see nothing else
ASPECTS_OF_RATING = {
    "overall": "score",
    "alignment": "alignment",
    "consistency": "consistency",
    "quality": "quality",
}
KILLED = {
    "candidates": "candidates",
    "relabelled": "scores and labels (relabel)",
    "cache": "latents (cache)",
    "pipeline": "training",
    "relabel": "`rewardedit relabel`",
    "score": "`rewardedit score`",
}
EDIT_TYPES = ("add", "remove", "replace", "recolour", "resize", "move", "background")


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def comparison(name: str) -> str:
    """Oracle means of a comparison, and each variant's distance from five with its interval."""
    result = read(name)
    if result is None:
        return "Not recorded yet."
    oracle = result["oracle"]
    lines = ["| variant | oracle mean (0–10) | five − variant, 95 % interval |", "|---|---|---|"]
    lines += [f"| {' | '.join(cells)} |" for cells in _compared(oracle)]
    gain = f"Five over the base: {100 * oracle['relative_gain']:+.1f} %, n = {oracle['n']} held-out edits"
    return "\n".join([*lines, "", f"{gain}. {where(result)}"])


def _compared(oracle: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Of each variant its description, the oracle's mean, and how far five is above it."""
    keys = {"base": "ci95", "conditioned_one": "ci95_vs_one"}
    rows = []
    for variant, words in ARMS.items():
        if variant in oracle:
            mean = oracle[variant]
            interval = oracle.get(keys.get(variant, f"ci95_vs_{variant}"))
            difference = f"{oracle['conditioned_five'] - mean:+.2f}"
            versus = f"{difference} [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else ""
            rows.append((words, f"{mean:.2f}", versus))
    return rows


def reward_conditioning() -> str:
    """The quickstart with labels from instructions alone, and beside it from exact captions,
    the best case.
    """
    columns = {
        "quickstart-without-captions": "labels from instructions alone, by `vifi_clip`",
        "quickstart": "labels from exact captions, by `clip_d` (best case)",
    }
    results = {words: result for name, words in columns.items() if (result := read(name)) is not None}
    if len(results) < len(columns):
        return "Not recorded yet."
    compared = [_compared(result["oracle"]) for result in results.values()]
    lines = [f"| oracle mean (0–10) | {' | '.join(results)} |", "|---" * (len(results) + 1) + "|"]
    lines += [
        f"| {cells[0][0]} | {' | '.join(mean for _, mean, _ in cells)} |"
        for cells in zip(*compared, strict=True)
    ]
    lines.append(f"| five − base, 95 % interval | {' | '.join(rows[0][2] for rows in compared)} |")
    n = " and ".join(sorted({str(result["oracle"]["n"]) for result in results.values()}))
    sources = " ".join(where(result) for result in results.values())
    return "\n".join([*lines, "", f"n = {n} held-out edits. {sources}"])


def kinds(name: str) -> str:
    """Oracle means by backdrop and kind of instruction."""
    result = read(name)
    if result is None:
        return "Not recorded yet."
    lines = [f"| background | all | {' | '.join(EDIT_TYPES)} |", "|---" * (len(EDIT_TYPES) + 2) + "|"]
    for backdrop, means in result["oracle"].items():
        lines.append(f"| {backdrop} | {' | '.join(f'{means[k]:.2f}' for k in ('all', *EDIT_TYPES))} |")
    return "\n".join([*lines, "", f"n = {result['n']} a row. {where(result)}"])


def steps_of_editor() -> str:
    """Oracle means by the number of denoising steps, each at its best guidance, and what two seeds do."""
    result = read("shapes-editor")
    if result is None:
        return "Not recorded yet."
    head = ["denoising steps", "text, image guidance", "oracle (0–10)", "best − this, 95 % interval"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for steps, asked in result["settings"].items():
        interval = result.get(f"ci95_vs_{steps}")
        versus = f"[{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else ""
        scales = f"{asked['guidance_scale']:g}, {asked['image_guidance_scale']:g}"
        lines.append(f"| {steps} | {scales} | {result['by_steps'][steps]:.2f} | {versus} |")
    seeds = result["two_seeds"]
    apart, both = (f"{100 * seeds[name]:.0f} %" for name in ("a_cell_apart", "both_right"))
    said = [
        f'Two seeds of an "add" without a place lie a cell apart in {apart} of {seeds["pairs"]} pairs,',
        f"and both rate 8 or more in {both}. Instructions in wordings that no training split has rate",
        f"{result['reserved_wordings']:.2f}. n = {result['n']} held-out edits.",
    ]
    return "\n".join([*lines, "", f"{' '.join(said)} {where(result)}"])


def guidance() -> str:
    """Plain and guided edits with the intervals of their differences, and what a step costs."""
    result = read("guidance")
    if result is None:
        return "Not recorded yet."
    lines = ["| | plain | under the change mask | difference, 95 % interval |", "|---|---|---|---|"]
    for name, words in ASPECTS.items():
        found = result["guided_minus_plain"][name]
        plain, guided = (result["oracle"][variant][name] for variant in ("plain", "guided"))
        low, high = found["ci95"]
        digits = 3 if name == "preservation" else 2
        difference = f"{found['difference']:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
        lines.append(f"| {words} | {plain:.{digits}f} | {guided:.{digits}f} | {difference} |")
    costs = "; ".join(
        f"{name}: {100 * c['extra_share']:+.1f} %" for name, c in result["seconds_per_step"].items()
    )
    return "\n".join(
        [
            *lines,
            "",
            f"n = {result['n']} held-out edits. Time a step, guided against plain: {costs}. {where(result)}",
        ]
    )


def best_of_n() -> str:
    """Oracle means of what each scorer chooses: without captions, and with the world's exact ones,
    the best case.
    """
    result = read("best-of-n")
    if result is None:
        return "Not recorded yet."
    head = [f"chosen from {result['candidates']} by", "oracle mean (0–10)", "− one sample, 95 % interval"]
    head += ["with exact captions (best case)", "− one sample, 95 % interval"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in result["oracle"]:
        scorer = f"`{name}`" if " " not in name else name
        lines.append(
            f"| {' | '.join([scorer, *_chosen(result, name), *_chosen(result['with_captions'], name)])} |"
        )
    return "\n".join([*lines, "", f"n = {result['n']} held-out edits. {where(result)}"])


def _chosen(found: dict[str, Any], name: str) -> tuple[str, str]:
    """The oracle's mean of what a scorer chooses, with the number of steps,
    and how far it is above one sample.
    """
    if name not in found["oracle"]:
        return "", ""
    steps = found["steps"][name]
    other = found["against_one_sample"].get(name)
    versus = f"{other['difference']:+.2f} [{other['ci95'][0]:+.2f}, {other['ci95'][1]:+.2f}]" if other else ""
    return f"{found['oracle'][name]:.2f} ({steps} step{'s' * (steps > 1)})", versus


def reward_guidance() -> str:
    """What following a scorer's gradient brings."""
    result = read("reward-guidance")
    if result is None:
        return "Not recorded yet."
    lines = [
        "| guided by | scale | its score | oracle, plain | oracle, guided | difference, 95 % interval |",
        "|---" * 6 + "|",
    ]
    for name, found in result["guided_minus_plain"].items():
        score = found["score"]
        oracle = found["oracle"]
        low, high = oracle["ci95"]
        own = f"{score['mean_b']:.2f} → {score['mean_a']:.2f}"
        line = f"| `{name}` | {found['scale']:g} | {own} | {oracle['mean_b']:.2f}"
        lines.append(
            f"{line} | {oracle['mean_a']:.2f} | {oracle['difference']:+.2f} [{low:+.2f}, {high:+.2f}] |"
        )
    n = f"n = {result['n']} held-out edits, each scale chosen on val"
    return "\n".join([*lines, "", f"{n}. {where(result)}"])


def refl() -> str:
    """Variants of reward feedback learning: oracle, rewards, change outside the mask,
    and what the hacking report says.
    """
    result = read("shapes-refl")
    conditioned = read("shapes-refl-conditioned")
    if result is None:
        return "Not recorded yet."
    rewards = list(result["rewards"]["base"])
    head = [
        "variant",
        "steps, guidance scale",
        "oracle (0–10)",
        "ReFL − variant, 95 % interval",
        *(f"`{name}`" for name in rewards),
    ]
    head += ["change outside the mask − base's", "report", "in 10 steps (val)"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for found, variants in ((result, REFL_ARMS), (conditioned, CONDITIONED_ARMS)):
        lines += [
            _refl_row(found, variant, words)
            for variant, words in variants.items()
            if found and variant in found["oracle"]
        ]
    gain = f"{100 * result['oracle']['relative_gain']:+.1f} %, n = {result['oracle']['n']} held-out edits"
    sources = " ".join(where(found) for found in (result, conditioned) if found)
    return "\n".join([*lines, "", f"ReFL over the base: {gain}. {sources}"])


def _refl_row(result: dict[str, Any], variant: str, words: str) -> str:
    oracle = result["oracle"]
    settings = result["settings"][variant]
    interval = oracle.get("ci95" if variant == "base" else f"ci95_vs_{variant}")
    versus = (
        f"{oracle['refl'] - oracle[variant]:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]"
        if interval
        else ""
    )
    outside = result["change_outside"].get(variant)
    moved = (
        f"{outside['difference']:+.4f} [{outside['ci95'][0]:+.4f}, {outside['ci95'][1]:+.4f}]"
        if outside
        else ""
    )
    scores = [f"{score:.3g}" for score in result["rewards"][variant].values()]
    report = "" if variant == "base" else "red flag" if result["flags"][variant] else "no flag"
    chosen = f"{settings['steps']}, {settings['text_guidance']:g}"
    ten = max(value for name, value in settings["val"].items() if name.startswith("10 steps"))
    cells = [words, chosen, f"{oracle[variant]:.2f}", versus, *scores, moved, report, f"{ten:.2f}"]
    return f"| {' | '.join(cells)} |"


def refl_watch() -> str:
    """What watching saw on the fixed prompts: the base, and every variant at its end."""
    result = read("shapes-refl")
    if result is None:
        return "Not recorded yet."
    names = [name for name in result["watch"]["refl"]["last"] if name not in ("step", "flag")]
    looks = {
        "base": result["watch"]["refl"]["first"],
        **{variant: found["last"] for variant, found in result["watch"].items()},
    }
    lines = [
        f"| at the end | {' | '.join(name.replace('_', ' ') for name in names)} | flags |",
        "|---" * (len(names) + 2) + "|",
    ]
    for variant, look in looks.items():
        flags = str(result["watch"][variant]["flags"]) if variant in result["watch"] else ""
        lines.append(
            f"| {variant.replace('_', ' ')} | {' | '.join(f'{look[name]:.3g}' for name in names)} | {flags} |"
        )
    return "\n".join(lines)


def hacking() -> str:
    """Shares of runs that are flagged: hacked in four ways, and honest."""
    result = read("hacking")
    if result is None:
        return "Not recorded yet."
    lines = ["| runs | how many | flagged | oracle (0–10) at the first flag − base | by |", "|---" * 5 + "|"]
    for kind, words in HACKS.items():
        at = result["at_first_flag"][kind]
        share = result["detected"][kind]
        signs = sorted(at["signs"], key=lambda name: -at["signs"][name])
        said = ", ".join(f"{name.replace('_', ' ')} {at['signs'][name]}" for name in signs)
        fall = "" if at["oracle_change"] is None else f"{at['oracle_change']:+.2f}"
        lines.append(f"| {words} | {result['runs'][kind]} | {100 * share:.0f} % | {fall} | {said} |")
    lines.append(f"| honest | {result['runs']['honest']} | {100 * result['false_alarms']:.1f} % | | |")
    gain = result["oracle_of_honest_runs"]["mean_gain"]
    seeds = len(result["seeds"]["calibration"])
    setting = f"{result['n']} fixed prompts and {result['checks']} checks a run"
    setting += f"; limits from those of {seeds} runs of other seeds that stayed honest"
    return "\n".join(
        [*lines, "", f"{setting}. Honest runs gain {gain:+.2f} by the oracle on average. {where(result)}"]
    )


def refl_step() -> str:
    """What a step costs beside a plain restatement of the papers' loop."""
    result = read("refl-step")
    if result is None:
        return "Not recorded yet."
    parts = list(next(iter(result["steps"].values()))["ours"]["milliseconds"])
    head = ["", "samples/s", "peak GiB", *(f"{part}, ms" for part in parts)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for size, ways in result["steps"].items():
        for way, found in ways.items():
            spent = [f"{found['milliseconds'][part]:.0f}" for part in parts]
            first = [f"{size}: {way}", f"{found['samples_per_second']:.1f}", f"{found['peak_gib']:.2f}"]
            lines.append(f"| {' | '.join([*first, *spent])} |")
    return "\n".join([*lines, "", where(result)])


def scorers() -> str:
    """Every built-in scorer: what its class says of itself, what it costs,
    and how well it agrees with the oracle.
    """
    costs = (read("throughput") or {"milliseconds_per_edit": {}})["milliseconds_per_edit"]
    agreements = (read("agreement") or {"rho": {WITHOUT_CAPTIONS: {}}})["rho"][WITHOUT_CAPTIONS]
    head = ["name", "range", "needs", "differentiable", "paper", "ms an edit", "ρ without captions"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in BUILT_IN:
        scorer = find_scorer(name)
        low, high = (f"{end:g}".replace("-", "−").replace("inf", "∞") for end in scorer.range)
        cost = costs.get(name)
        spent = f"{cost['batched']:.2f}" if cost else ""
        needs = ", ".join(sorted(scorer.needs)) or "–"
        gradient = "yes" if scorer.differentiable else "no"
        rho = f"{agreements[name]['all']['score']['rho']:.2f}" if name in agreements else ""
        cells = [f"`{name}`", f"{low} to {high}", needs, gradient, scorer.paper, spent, rho]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def throughput() -> str:
    """Milliseconds an edit: one by one, in batches, and candidates with and without `prepare`."""
    result = read("throughput")
    if result is None:
        return "Not recorded yet."
    ways = [
        way for way in next(iter(result["milliseconds_per_edit"].values())) if way not in ("pixels", "batch")
    ]
    lines = [f"| ms an edit | pixels | {' | '.join(ways)} |", "|---" * (len(ways) + 2) + "|"]
    for name, cost in result["milliseconds_per_edit"].items():
        lines.append(f"| `{name}` | {cost['pixels']} | {' | '.join(f'{cost[way]:.2f}' for way in ways)} |")
    return "\n".join([*lines, "", where(result)])


def retrieval() -> str:
    """Mean against temporal pooling."""
    result = read("retrieval")
    if result is None:
        return "Not recorded yet."
    rows = {
        "recall@1": "recall@1",
        "recall@5": "recall@5",
        "recall@10": "recall@10",
        "recall@50": "recall@50",
    }
    rows |= {
        "median_rank": "median rank",
        "mean_rank": "mean rank",
        "swap": "swap test won",
        "identity": "identity test won",
    }
    test = result["test"]
    lines = [f"| | {' | '.join(f'{pooling} pooling' for pooling in test)} |", "|---" * (len(test) + 1) + "|"]
    for key, words in rows.items():
        shown = [
            f"{found[key]:.1f}" if "rank" in key else f"{100 * found[key]:.1f} %" for found in test.values()
        ]
        lines.append(f"| {words} | {' | '.join(shown)} |")
    found = result["recall@1_temporal_minus_mean"]
    low, high = found["ci95"]
    times = found["mean_a"] / max(found["mean_b"], 1e-9)
    line = (
        f"Recall@1, temporal − mean: {found['difference']:+.3f} [{low:+.3f}, {high:+.3f}], {times:.1f} times"
    )
    by_kind = [f"{kind} {100 * r['recall@1']:.0f} %" for kind, r in test["temporal"].get("kinds", {}).items()]
    kinds = f"Temporal recall@1 by kind: {', '.join(by_kind)}."
    return "\n".join(
        [
            *lines,
            "",
            f"{line}; n = {found['n']} held-out edits, all instructions distinct. {kinds} {where(result)}",
        ]
    )


def agreement() -> str:
    """Spearman's ρ of every scorer with the oracle, by what a scorer may look at."""
    result = read("agreement")
    if result is None:
        return "Not recorded yet."
    head = ["may look at", "scorer", *ASPECTS_OF_RATING, "extremes"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for group, name, row in _by_rho(result):
        shown = [_interval(row["all"][aspect]) for aspect in ASPECTS_OF_RATING.values()]
        lines.append(f"| {group} | {name} | {' | '.join(shown)} | {_interval(row['extremes']['score'])} |")
    of = f"n = {result['n']} edits of {result['sources']} held-out sources,"
    of = f"{of} {result['extremes']} of them extremes"
    return "\n".join([*lines, "", f"{of} (rated at most 1, or at least 9). {where(result)}"])


def agreement_by_kind() -> str:
    """The same with the overall rating, for each kind of instruction."""
    result = read("agreement")
    if result is None:
        return "Not recorded yet."
    lines = [f"| may look at | scorer | {' | '.join(EDIT_TYPES)} |", "|---" * (len(EDIT_TYPES) + 2) + "|"]
    for group, name, row in _by_rho(result):
        shown = [f"{row['kinds'][kind]['rho']:.2f}" for kind in EDIT_TYPES]
        lines.append(f"| {group} | {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _by_rho(result: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Group, scorer and row; in each group the best first."""
    return [
        (group, name, row)
        for group, rows in result["rho"].items()
        for name, row in sorted(rows.items(), key=lambda item: -item[1]["all"]["score"]["rho"])
    ]


def _interval(found: dict[str, Any]) -> str:
    return f"{found['rho']:.2f} [{found['ci95'][0]:.2f}, {found['ci95'][1]:.2f}]"


def heat() -> str:
    """How often a heat map's strongest pixels lie in a planted defect."""
    result = read("heat")
    if result is None:
        return "Not recorded yet."
    lines = [
        "| scorer | share of the strongest 5 % in the defect | area of the defect | times |",
        "|---|---|---|---|",
    ]
    for name, found in result["scorers"].items():
        lines.append(
            f"| `{name}` | {100 * found['share']:.1f} % | {100 * found['area']:.1f} % | "
            f"{found['times']:.1f} |"
        )
    return "\n".join([*lines, "", f"n = {result['n']} held-out edits. {where(result)}"])


def startup() -> str:
    """CPU seconds of commands that do little, before and after."""
    result = read("startup")
    if result is None:
        return "Not recorded yet."
    seconds = result["cpu_seconds"]
    columns = {name: words for name, words in (("before", "before"), ("after", "now")) if name in seconds}
    lines = [f"| command | {', CPU s | '.join(columns.values())}, CPU s |", "|---" * (len(columns) + 1) + "|"]
    for command in seconds["after"]:
        lines.append(f"| `{command}` | {' | '.join(f'{seconds[name][command]:.2f}' for name in columns)} |")
    earlier = f"Before is commit {result['before'][:7]}. " if "before" in seconds else ""
    medians = f"Medians of {result['n']} runs, the training's of one."
    return "\n".join([*lines, "", f"{medians} {earlier}{where(result)}"])


def kills() -> str:
    """Of runs that were killed and resumed, how many made what an unbroken run makes."""
    result = read("kills")
    if result is None:
        return "Not recorded yet."
    lines = ["| stage | kills | between | equal to the unbroken run |", "|---|---|---|---|"]
    for stage, found in result["stages"].items():
        moments = found["moments"]
        between = f"{min(moments):.2f} and {max(moments):.2f} s after its start"
        lines.append(
            f"| {KILLED[stage]} | {found['killed_in_it']} | {between} | {found['equal']} of {len(moments)} |"
        )
    return "\n".join([*lines, "", where(result)])


def where(result: dict[str, Any]) -> str:
    return f"`{result['command']}`, {result['device']}, {result['date']}."


def code_metrics() -> str:
    """The code before and after it was put in order."""
    result = read("code-metrics")
    if result is None:
        return "Not recorded yet."
    lines = ["| | before | after |", "|---|---|---|"]
    for name, before in result["before"].items():
        if name != "places":
            lines.append(f"| {name} | {before:g} | {result['after'][name]:g} |")
    return "\n".join([*lines, "", where(result)])


def suite() -> str:
    """How long `make test` and `make faults` take, and what they give."""
    result = read("suite")
    if result is None:
        return "Not recorded yet."
    faults = result["faults"]
    passed = f"{result['n']} tests pass in {result['seconds']:.0f} s ({result['cpu_seconds']:.0f} CPU s)"
    before = f"at {result['commit_before']} it took {result['seconds_before']:.0f} s"
    red = f"{faults['red']} of {faults['planted']} planted faults turn their tests red"
    return (
        f"`make test`: {passed} on two idle cores; {before}.\n"
        f"`make faults`: {red}, in {faults['seconds']:.0f} s. {result['device']}, {result['date']}."
    )


TABLES = {
    "reward-conditioning": reward_conditioning,
    "quickstart": lambda: comparison("quickstart"),
    "quickstart-without-captions": lambda: comparison("quickstart-without-captions"),
    "shapes-reward-conditioned": lambda: comparison("shapes-reward-conditioned"),
    "shapes-editor": lambda: kinds("shapes-editor"),
    "steps-of-editor": steps_of_editor,
    "guidance": guidance,
    "best-of-n": best_of_n,
    "reward-guidance": reward_guidance,
    "refl": refl,
    "refl-watch": refl_watch,
    "hacking": hacking,
    "refl-step": refl_step,
    "scorers": scorers,
    "throughput": throughput,
    "retrieval": retrieval,
    "agreement": agreement,
    "agreement-by-kind": agreement_by_kind,
    "heat": heat,
    "startup": startup,
    "kills": kills,
    "code-metrics": code_metrics,
    "suite": suite,
}


def fill(text: str) -> str:
    """A page with every table made anew."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", text, flags=re.S)
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text()))
