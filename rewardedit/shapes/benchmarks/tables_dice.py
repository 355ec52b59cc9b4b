"""Tables of DICE: differences found, verdicts, CLIP on what it leaves visible, and editors ranked."""

from table_parts import Result, difference, interval, markdown, measured

METRICS = {
    "clip_i": "`clip_i`",
    "clip_t": "`clip_t`",
    "clip_t without captions": "`clip_t`, without captions",
}
ASPECTS = {"clip_i": "consistency", "clip_t": "alignment", "clip_t without captions": "alignment"}
SETS = ("test", "hard", "editor")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def dice_detection(result: Result) -> str:
    """Average precision of each detector by set and command, and its false alarms."""
    rows = []
    for name, tables in result["tables"].items():
        test = tables["test"]
        cells = [test["agnostic"]["ap"], test["aware"]["ap"], test["aware"]["ap50"]]
        cells += [test[command]["ap"] for command in ("ADD", "REMOVE", "EDIT")]
        cells += [tables["hard"]["aware"]["ap"], tables["editor"]["aware"]["ap"]]
        trained = name in result["ci95_aware"]
        rows.append((f"**{name}**" if trained else name, *map(_percent, cells), _alarms(result, name)))
    n = result["n"]
    below = [
        f"n = {n['test']} test pairs, {n['hard']} hard ones, {n['editor']} of the editor's outputs",
        f"({_percent(result['certain_share'])} % are certain), {n['untouched']} untouched images.",
        "AP minus that of the better detector without a model, in [0, 1], with 95 % intervals:",
    ]
    head = ("detector", "AP", "AP by command", "AP50 by command", "ADD", "REMOVE", "EDIT")
    detectors = markdown((*head, "hard", "editor's outputs", "false alarms, %"), rows, " ".join(below))
    return f"{detectors}\n\n{_gains(result)}"


def _gains(result: Result) -> str:
    rows = []
    for name in result["ci95_aware"]:
        for key, classes in (("ci95_aware", "by command"), ("ci95_agnostic", "without classes")):
            gains = [difference(result[key][name][kind], 3) for kind in SETS]
            rows.append((name, classes, *gains))
    return markdown(("detector", "AP", "test", "hard", "editor's outputs"), rows, measured(result))


def _alarms(result: Result, name: str) -> str:
    return _percent(result["false_alarms"][name])


def dice_coherence(result: Result) -> str:
    """Accuracy of each judge on true boxes, and average precision of judged detections."""
    rows = []
    for name, estimate in result["coherence_intervals"].items():
        low, high = estimate["ci95"]
        share = f"{_percent(estimate['accuracy'])} [{_percent(low)}, {_percent(high)}]"
        rows.append((f"**{name}**" if name == "dice" else name, share))
    judged = [
        f"{name}: {_percent(estimate['ap'])}" for name, estimate in result["coherence_of_detections"].items()
    ]
    below = [
        f"n = {result['n']['verdicts']} differences in reserved wordings, half of them coherent.",
        f"AP of detections with the verdict as class, by detector and judge: {'; '.join(judged)}.",
        measured(result),
    ]
    return markdown(("judge", "right verdicts on true boxes, %"), rows, " ".join(below))


def dice_augmented(result: Result) -> str:
    """Correlation of CLIP's metrics with the oracle's aspects, on all of the images and on DICE's part."""
    rows = []
    for name, words in METRICS.items():
        for method in ("pearson", "spearman"):
            correlation = result["augmented"][name][method]
            change = f"{correlation['change']:+.2f} {interval(correlation['ci95'])}"
            values = (f"{correlation['plain']:.2f}", f"{correlation['masked']:.2f}", change)
            n = str(result["augmented"][name]["n"])
            rows.append((words, ASPECTS[name], n, method.capitalize(), *values))
    edits = result["n"]["edits"]
    below = f"n: those of {edits} edits of which DICE leaves at least 1 % visible. {measured(result)}"
    head = ("metric", "oracle's aspect", "n", "correlation", "whole image", "DICE's part")
    head += ("change, 95 % interval",)
    return markdown(head, rows, below)


def dice_editors(result: Result) -> str:
    """DICE's figures of each editor, with its rank beside the oracle's."""
    table = result["editors"]
    rows = []
    for name, figures in sorted(table["editors"].items(), key=lambda item: item[1]["rank_by_rating"]):
        shares = [_percent(figures[key]) for key in ("coherent", "unwanted_area", "unchanged", "invalid")]
        rows.append(
            (name, f"{figures['rating']:.2f}", f"{figures['score']:.2f}", *shares, f"{figures['rank']:.0f}")
        )
    head = ("editor", "oracle (0–10)", "`dice` (0–1)", "coherent, %", "unwanted area, %", "unchanged, %")
    below = f"Spearman's ρ of the two rankings {table['spearman']:.2f}. {measured(result)}"
    return markdown((*head, "invalid, %", "rank by `dice`"), rows, below)


def dice_ablations(result: Result) -> str:
    """AP and right verdicts of each variant."""
    rows = []
    for name, precision in result["ap"].items():
        cells = [precision["agnostic"], precision["aware"], precision["hard"], result["coherence"][name]]
        rows.append((name, *map(_percent, cells), _alarms(result, name)))
    head = ("variant", "AP", "AP by command", "AP by command, hard", "right verdicts, %", "false alarms, %")
    return markdown(head, rows, f"n = {result['n']['test']} pairs of each kind. {measured(result)}")
