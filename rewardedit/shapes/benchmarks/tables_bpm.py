"""Tables of BPM: its agreement with the oracle, its regions, and guidance by its masks."""

from table_parts import Result, difference, interval, markdown, measured

WAYS = {
    "bpm": "boxes and masks (BPM)",
    "boxes": "boxes alone",
    "change_mask": "`change_mask`",
    "diffedit": "DiffEdit's map, from true captions",
}
GUIDED = {
    "first": "the first edit",
    "guided": "the second, under its mask",
    "pasted": "the first, source pasted outside",
    "pasted_feathered": "the same with a soft rim",
}
MEASURES = ("score", "preservation", "modification", "quality")


def bpm(result: Result) -> str:
    """Alignment and the ground-truth test of BPM and its rivals."""
    of_all = {"bpm": {key: result[key] for key in ("ground_truth", "alignment")}, **result["rivals"]}
    rows = [
        (
            f"**`{name}`**" if name == "bpm" else f"`{name}`",
            f"{100 * record['alignment']:.1f} %",
            f"{100 * record['ground_truth']:.1f} %",
        )
        for name, record in sorted(of_all.items(), key=lambda item: -item[1]["alignment"])
    ]
    rows.append(("always the editor that is better on val", f"{100 * result['prior']:.1f} %", ""))
    pairs = result["alignment_table"]
    seeds = [record["share"] for record in result["two_seeds"].values()]
    extent = result["by_extent"]
    below = [
        f"n = {result['n']} test samples; {pairs['n']:,} pairs whose ratings differ by 1 at least.",
        f"All pairs together: BPM {100 * pairs['pooled']['bpm']:.1f} %, the prior",
        f"{100 * pairs['pooled']['prior']:.1f} %, 95 % interval of the difference",
        f"{interval(result['ci95_vs_prior'], 3)}.",
        f"Two seeds of one editor: {100 * min(seeds):.0f} to {100 * max(seeds):.0f} %.",
        f"Edits of objects {100 * extent['local']:.1f} %, of the background {100 * extent['global']:.1f} %.",
        measured(result),
    ]
    return markdown(("scorer", "alignment", "prefers the true edit"), rows, " ".join(below))


def bpm_regions(result: Result) -> str:
    """Median IoU of masks with the true regions, by how they are located."""
    ious = result["mask_iou"]
    edits, true = ious["edits"] | {"diffedit": ious["diffedit"]}, ious["true_edits"]
    rows = [
        (words, *(f"{of[way]:.2f}" if way in of else "" for of in (edits, true)))
        for way, words in WAYS.items()
    ]
    spent = {step: f"{1000 * value:.1f}" for step, value in result["seconds"].items()}
    below = [
        f"ms an edit: detector {spent['detect']}, segmenter {spent['segment']}, CLIP {spent['clip']};",
        f"all {spent['all_in_a_batch']} in a batch, {spent['all_one_by_one']} one by one. {measured(result)}",
    ]
    return markdown(("masks", "edits by editors", "true edits"), rows, " ".join(below))


def bpm_parts(result: Result) -> str:
    """Ablations of BPM's parts, by alignment."""
    of_alpha = result["alpha"]
    components = result["components"]
    verdicts = result["verdicts"]
    alpha = [(f"α = {value}", f"{100 * share:.1f} %") for value, share in of_alpha.items()]
    parser = [
        (f"parsed by {words}", f"{100 * result['parser'][name]:.1f} %")
        for name, words in (("grammar", "the grammar"), ("truth", "the world itself"))
    ]
    of = {"consistency": "all but backgrounds", "alignment": "all but removals"}
    against = [
        (f"`{component}` against the oracle's {aspect}, {of[aspect]}", f"{100 * share:.1f} %")
        for aspect, shares in components.items()
        for component, share in shares.items()
    ]
    right, wrong = (
        [f"{100 * verdicts[f'{attribute}_{state}']:.1f} %" for attribute in ("size", "position")]
        for state in ("right", "wrong_where_untouched")
    )
    plain = result["parse_templates"]
    familiar, others = (
        ", ".join(f"{field} {100 * share:.1f} %" for field, share in result[kind].items())
        for kind in ("parse", "parse_held_out")
    )
    own_wordings = ", ".join(
        f"{wordings} {min(100 * share for share in shares.values()):.1f} %"
        for wordings, shares in plain.items()
    )
    below = [
        "Alignment, mean over pairs of editors. The judges find size and position right in",
        f"{' and '.join(right)} of true edits, and wrong in {' and '.join(wrong)} of sources that another",
        "one was asked of. The grammar parses wordings beside which its rules were made:",
        f"{familiar}; freer ones by another hand, which have been looked at since: {others};",
        f"the world's own, the least of the three: {own_wordings}. {measured(result)}",
    ]
    return markdown(("BPM with", "alignment"), [*alpha, *parser, *against], " ".join(below))


def bpm_guidance(result: Result) -> str:
    """Means of every method of preserving the area outside a mask."""
    table = result["oracle"]
    rows = [
        (words, *(f"{table[way]['mean'][name]:.3f}" for name in MEASURES), *_gains(table[way]))
        for way, words in GUIDED.items()
    ]
    versus = table["guided_minus_pasted_quality"]
    below = (
        f"n = {result['n']}. Guided over pasted with a soft rim, quality: {difference(versus, 3)}. "
        f"The masks cover {100 * result['mask_share']:.0f} % of an image. {measured(result)}"
    )
    head = (
        "way",
        "oracle",
        "preservation",
        "modification",
        "quality",
        "oracle over the first",
        "preservation over it",
    )
    return markdown(head, rows, below)


def _gains(record: Result) -> tuple[str, str]:
    if "score" not in record:
        return "", ""
    return difference(record["score"]), difference(record["preservation"], 4)


def bpm_best_of(result: Result) -> str:
    """The oracle's mean of each scorer's choices among eight candidates."""
    rows = [
        (
            name,
            f"{record['mean']:.2f}",
            "" if name == "one sample" else interval(record["ci95_vs_one_sample"]),
        )
        for name, record in result["best_of_8"].items()
    ]
    return markdown(("chosen by", "oracle", "over one sample"), rows, measured(result))
