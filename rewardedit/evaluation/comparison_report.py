"""The comparison of editors as text and as a page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rewardedit.evaluation.comparison_metrics import VERSUS
from rewardedit.evaluation.held_out import HeldOut
from rewardedit.files import read_log
from rewardedit.reports.report import Gallery, Report


@dataclass(frozen=True)
class Shown:
    """The values that the report shows with each edit."""

    name: str
    values: dict[str, Tensor]  # (n,) by variant


def table(metrics: dict[str, Any], main: str) -> str:
    """The comparison as text: by the exact rating of a world, or by every scorer."""
    return _exact_table(metrics, main) if "oracle" in metrics else _scorer_table(metrics, main)


def _scorer_table(metrics: dict[str, Any], main: str) -> str:
    means = metrics["rewards"]
    lines = [
        f"{metrics['n']} held-out edits; mean, {main} − variant with its 95 % interval over source images, "
        f"{main}'s wins and losses"
    ]
    for scorer, differences in metrics["differences"].items():
        chosen = " (chose the settings)" if scorer == metrics["chosen_by"] else ""
        lines.append(f"  {scorer}{chosen}")
        for name, values in means.items():
            mean = values[scorer]
            line = f"    {name:<24}" + ("      –" if mean is None else f"{mean:7.3f}")
            found = differences.get(name)
            if found is not None:
                low, high = found["ci95"]
                line += f"  {found['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
                line += f"  {found['wins']} : {found['losses']}"
            lines.append(line)
    return "\n".join(lines)


def _exact_table(metrics: dict[str, Any], main: str) -> str:
    oracle = metrics["oracle"]
    lines = [
        f"oracle mean (0–10) on {oracle['n']} held-out edits; difference of {main} − variant, 95 % interval"
    ]
    for name in metrics["kinds"]:
        interval = oracle.get(VERSUS.get(name, f"ci95_vs_{name}"))
        versus = ""
        if interval is not None:
            versus = f"  {oracle[main] - oracle[name]:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]"
        lines.append(f"  {name:<24}{oracle[name]:6.2f}{versus}")
    # A share of nothing says nothing.
    gain = f"{100 * oracle['relative_gain']:+.1f} %" if oracle["base"] >= 0.05 else "–"
    return "\n".join([*lines, f"  gain over the base: {gain}"])


def save_report(
    metrics: dict[str, Any],
    shown: Shown,
    edited: dict[str, Tensor],
    test: HeldOut,
    main: str,
    folder: Path,
) -> Path:
    report = Report(f"rewardedit: {folder.name}")
    report.text(table(metrics, main))
    for name, found in metrics["flags"].items():
        if found:
            report.flag(f"{name}: {found}")
    if "oracle" in metrics:
        report.table("Oracle rating by edit type", metrics["kinds"])
        report.table("Aspects", metrics["aspects"])
    report.table("Means of the scorers", metrics["rewards"])
    report.table("Signs of reward hacking", metrics["health"])
    target = test.batch.target
    gallery = Gallery(["source", *edited, *([] if target is None else ["target"])])
    for i in range(min(35, len(test))):
        cells = [(test.source[i], "")]
        cells += [(p[i].nan_to_num(0.5), _value(shown.values[name][i])) for name, p in edited.items()]
        gallery.row(test.instruction[i], [*cells, *([] if target is None else [(target[i], "")])])
    report.gallery(f"Held-out edits, with {shown.name}", gallery)
    values = {name: found[found.isfinite()].tolist() for name, found in shown.values.items()}
    everything = [value for found in values.values() for value in found]
    if everything:
        low, high = (0.0, 10.0) if "oracle" in metrics else (min(everything), max(everything))
        report.histogram(shown.name, values, low, max(high, low + 1e-6), x=shown.name)
    logs = {
        name: read_log(path)
        for name, path in {main: folder, **{p.name: p for p in sorted(folder.glob("variants/*"))}}.items()
    }
    report.lines(
        "Training loss",
        {name: [(line["step"], line["loss"]) for line in log] for name, log in logs.items() if log},
    )
    return report.save(folder / "report.html")


def _value(value: Tensor) -> str:
    return f"{value:.3g}" if value.isfinite() else "no score"
