"""The page of a comparison: the result in words, differences with their intervals, and a wall of edits."""

import shlex
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rewardedit.evaluation.comparison_metrics import differences, paired
from rewardedit.evaluation.comparison_wall import Compared, finite, wall_of
from rewardedit.evaluation.held_out import HeldOut
from rewardedit.files import read_log
from rewardedit.reports.card_samples import keep_samples
from rewardedit.reports.charts import Interval, Intervals, curves, histogram
from rewardedit.reports.plain_names import (
    decimals,
    decimals_of_widths,
    fixed,
    sign_name,
    signed,
    variant_name,
)
from rewardedit.reports.report import Headline, Report

CONFIG = "config.yaml"  # in a run's folder


def write_page(metrics: dict[str, Any], of: Compared, test: HeldOut, folder: Path) -> Path:
    """Writes report.html, and its images beside it; returns its path."""
    report = Report(f"{folder.name}: base and result on held-out edits")
    report.headline(_headline(metrics, of, test))
    wall = wall_of(of, test)
    report.glance(wall)
    for name, text in metrics["flags"].items():
        if text:
            report.flag(f"{variant_name(name)}: signs of reward hacking: {text}")
    report.commands("What to do next", _commands(of, folder))
    report.panels(
        "Difference of the result to each of the others",
        [*_scorer_panels(metrics, of), *_kind_panels(of, test)],
    )
    report.panels("Signs of reward hacking, difference to the base", _sign_panels(of, test))
    report.panels("Distribution and training", [_histogram(of), _losses(of.main, folder)])
    for title, rows in _tables(metrics).items():
        report.table(title, rows, folded=True)
    report.wall("Edits", wall)
    path = report.save(folder / "report.html")
    keep_samples(folder, wall)
    return path


def _headline(metrics: dict[str, Any], of: Compared, test: HeldOut) -> Headline:
    means = paired(of.values[of.main], of.values["base"], test)
    if means is None:
        sentence = f"{of.judge_name} has scores of fewer than two source images for both editors."
        return Headline("Base and result cannot be compared", sentence)

    low, high = means["ci95"]
    verdict, tone = "No clear difference from the base", ""
    if low > 0:
        verdict, tone = "Better than the base", "better"
    elif high < 0:
        verdict, tone = "Worse than the base", "worse"
    digits = _digits([means], decimals([means["mean_a"], means["mean_b"]]))
    sentence = (
        f"{of.judge_name}: {variant_name(of.main)} {fixed(means['mean_a'], digits)} against "
        f"{fixed(means['mean_b'], digits)}, {_difference(means, digits)}, {means['n']} edits of "
        f"{means['clusters']} source images."
    )
    ties = means["n"] - means["wins"] - means["losses"]
    counts = {"wins": means["wins"], "ties": ties, "losses": means["losses"]}
    return Headline(verdict, sentence, tone, counts, _notes(metrics, of))


def _notes(metrics: dict[str, Any], of: Compared) -> list[str]:
    """Explanations below the headline."""
    notes = [
        f"{of.names[of.judge].says} In brackets: the 95 % interval of the difference, over source images."
    ]
    if of.judge == of.reward:
        notes.append(
            f"{of.judge_name} also trained the editor, so that a gain by it alone proves little; see "
            "the other scorers below."
        )
    if any(settings["val"] for settings in metrics["settings"].values()):
        notes.append(f"It chose each editor's sampling settings on {metrics['val_n']} other edits.")
    return notes


def _digits(figures: Iterable[dict[str, Any] | None], least: int) -> int:
    """Decimal places that show the narrowest of these differences' intervals."""
    return decimals_of_widths((one["ci95"][1] - one["ci95"][0] for one in figures if one), least)


def _difference(difference: dict[str, Any], digits: int) -> str:
    low, high = difference["ci95"]
    return f"{signed(difference['difference'], digits)} [{signed(low, digits)}, {signed(high, digits)}]"


def _commands(of: Compared, folder: Path) -> list[tuple[str, str]]:
    """Commands that continue from the result."""
    result = shlex.quote(str(of.result))
    edit = f'rewardedit edit photo.jpg "make the sky red" --model {result} --out edits'
    commands = [("Edit an image of your own", edit)]
    run = of.result.parent
    if (run / CONFIG).is_file():
        commands.append(("Write the model card", f"rewardedit push {shlex.quote(str(run))}"))
        upload = f"rewardedit push {shlex.quote(str(run))} me/{shlex.quote(run.name)}"
        commands.append(("Publish it with its card", upload))
    if (folder / CONFIG).is_file():
        longer = f"rewardedit train {shlex.quote(str(folder))} --resume train.max_steps=N"
        commands.append(("Train it for longer, up to N steps", longer))
    return commands


def _interval(name: str, figure: dict[str, Any] | None, higher_is: int, digits: int) -> Interval:
    if figure is None:
        return Interval(name, "too few scores")
    low, high = figure["ci95"]
    return Interval(name, _difference(figure, digits), figure["difference"], low, high, higher_is)


def _scorer_panels(metrics: dict[str, Any], of: Compared) -> list[Intervals]:
    """A panel for each scorer: the main variant against every other one."""
    panels = []
    for scorer, by_variant in metrics["differences"].items():
        plain = of.names[scorer]
        means = {name: values[scorer] for name, values in metrics["rewards"].items()}
        digits = _digits(by_variant.values(), decimals(means.values()))
        says = plain.says + (" It trained the editor." if scorer == of.reward else "")
        says += f" In brackets: means of {variant_name(of.main)} and of the other, over edits that both have."
        rows = []
        for name, figures in by_variant.items():
            label = variant_name(name)
            if figures is not None:
                label += f" ({fixed(figures['mean_a'], digits)} − {fixed(figures['mean_b'], digits)}"
                label += f", {figures['n']} edits)" if figures["n"] < metrics["n"] else ")"
            rows.append(_interval(label, figures, 1, digits))
        panels.append(Intervals(plain.name, says, rows))
    return panels


def _kind_panels(of: Compared, test: HeldOut) -> list[Intervals]:
    """The judge's difference to the base for each kind of edit."""
    types = test.edit_type or []
    kinds = sorted(set(types))
    if len(kinds) < 2:
        return []
    values = (of.values[of.main], of.values["base"])
    panels = {}
    for kind in kinds:
        is_kind = torch.tensor([name == kind for name in types])
        panels[f"{kind} ({int(is_kind.sum())})"] = paired(*values, test, is_kind)
    digits = _digits(panels.values(), decimals(finite(values)))
    rows = [_interval(name, one, 1, digits) for name, one in panels.items()]
    says = f"Difference to the base; in brackets the number of edits. {of.names[of.judge].says}"
    return [Intervals(f"{of.judge_name} by kind of edit", says, rows)]


def _sign_panels(of: Compared, test: HeldOut) -> list[Intervals]:
    """A panel for each sign of reward hacking: every variant against the base."""
    by_variant = {}
    for name, values in of.signs.items():
        if name != "base":
            by_variant[name] = differences({"base": of.signs["base"], name: values}, test, name)

    panels = []
    for sign in of.signs["base"]:
        plain = sign_name(sign)
        digits = _digits((by_sign[sign]["base"] for by_sign in by_variant.values()), 3)
        rows = []
        for name, by_sign in by_variant.items():
            rows.append(_interval(variant_name(name), by_sign[sign]["base"], plain.higher_is, digits))
        panels.append(Intervals(plain.name, plain.says, rows))
    return panels


def _histogram(of: Compared) -> Any:
    values = {variant_name(name): v[v.isfinite()].tolist() for name, v in of.values.items()}
    everything = finite(of.values.values())
    if not everything:
        return None
    low = min(everything)
    return histogram(
        of.judge_name,
        values,
        low,
        max(*everything, low + 1e-6),
        "Share of edits, with 95 % intervals.",
        "score",
    )


def _losses(main: str, folder: Path) -> Any:
    folders = {main: folder}
    for path in sorted(folder.glob("variants/*")):
        folders[path.name] = path

    points = {}
    for name, path in folders.items():
        log = read_log(path)
        if log:
            points[variant_name(name)] = [(line["step"], line["loss"]) for line in log]
    return curves("Training loss", points, "Lower is better, but says little about the edits.")


def _tables(metrics: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """All means by title, and the sampling settings."""
    scale = "0 to 10, higher is better"
    titles = {
        "kinds": f"Exact rating by kind of edit, {scale}",
        "aspects": f"Aspects of the exact rating, {scale}",
        "rewards": "Means of the scorers, each over all edits it has, higher is better",
    }
    tables = {title: _rounded(metrics[name]) for name, title in titles.items() if name in metrics}
    return {**tables, "Sampling settings": _settings(metrics)}


def _rounded(table: dict[str, dict[str, float | None]]) -> dict[str, dict[str, str]]:
    """The table's numbers with the same number of decimals."""
    digits = decimals(chain.from_iterable(row.values() for row in table.values()))
    rounded = {}
    for name, row in table.items():
        rounded[variant_name(name)] = {key: fixed(value, digits) for key, value in row.items()}
    return rounded


def _settings(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    table = {}
    for name, settings in metrics["settings"].items():
        table[variant_name(name)] = {
            "steps": settings["steps"],
            "text guidance": settings["text_guidance"],
            "image guidance": settings["image_guidance"],
        }
    return table
