"""The page of a training's monitor: curves and images of the fixed prompts, written at every check."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from rewardedit.reports.charts import Drawing, curves
from rewardedit.reports.plain_names import decimals, fixed, sign_name
from rewardedit.reports.report import Headline, Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage, save_image

PAGE = "monitor.html"
IMAGES = "monitor-prompts"  # folder of the images of the fixed prompts
SHOWN = 8  # prompts whose images are kept
RELOAD = 60  # seconds between two readings of an open page, while the training goes on
BEFORE = "before"


def save_prompts(folder: Path, source: Tensor, edited: Tensor, rows: Sequence[int], step: int) -> None:
    """Keeps the edits of the first prompts at a step, and at first their sources; rows count from 0."""
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    for i, row in enumerate(rows):
        if row < SHOWN:
            save_image(edited[i], folder / IMAGES / _stem(row, f"step-{step:06d}"))
            if not _file(folder, row, BEFORE):
                save_image(source[i], folder / IMAGES / _stem(row, BEFORE))


def write_monitor_page(
    folder: Path,
    checks: Sequence[dict[str, Any]],
    instruction: Sequence[str],
    scorers: Mapping[str, str],
    sweep: Sequence[dict[str, Any]] | None,
) -> Path:
    """Writes the page and returns its path.

    Args:
        checks: means of every check, as the log has them.
        scorers: the two rewards, each with a sentence on its part in the training.
        sweep: means by share of the change; None while the training goes on.
    """
    report = Report(f"{folder.name}: fixed prompts during the training", RELOAD if sweep is None else None)
    report.headline(_headline(checks, scorers, is_running=sweep is None))
    for row in sweep or []:
        if row["flag"]:
            report.flag(f"{row['scale']:g} of the change: {row['flag']}")
    for check in checks:
        if check["flag"]:
            report.flag(f"step {check['step']}: {check['flag']}")
    report.panels("Curves", _curves(checks, scorers))
    report.wall("Fixed prompts by step", _wall(folder, checks, instruction))
    if sweep:
        title = "By share of the change, from the base (0) to the result (1)"
        report.table(title, _table(sweep, "scale"))
    report.table("Means by step", _table(checks, "step"))
    return report.save(folder / PAGE)


def _headline(checks: Sequence[dict[str, Any]], scorers: Mapping[str, str], is_running: bool) -> Headline:
    """The last check against the first."""
    flags = sum(check["flag"] is not None for check in checks)
    verdict = "No warning" if not flags else f"Warnings at {flags} of {len(checks)} checks"
    is_first = len(checks) == 1
    said = []
    for name in scorers:
        first, last = checks[0][name], checks[-1][name]
        if first is not None and last is not None:
            digits = decimals([first, last])
            against = "" if is_first else f" against {fixed(first, digits)}"
            said.append(f"{sign_name(name).name} {fixed(last, digits)}{against}")
    checked = (
        "The base, before the first update" if is_first else f"Step {checks[-1]['step']} against the base"
    )
    sentence = f"{checked}: {', '.join(said) or 'no scores'}."
    notes = [f"This page reads itself again every {RELOAD} seconds."] if is_running else []
    return Headline(
        f"{verdict} so far" if is_running else verdict, sentence, "worse" if flags else "", notes=notes
    )


def _curves(checks: Sequence[dict[str, Any]], scorers: Mapping[str, str]) -> list[Drawing | None]:
    """A curve of every value, the rewards first."""
    drawings = []
    for name in dict.fromkeys(chain(scorers, *checks)):
        if name not in ("step", "flag"):
            plain = sign_name(name)
            says = f"{scorers.get(name, '')} {plain.says}".strip()
            points = [(check["step"], check[name]) for check in checks if check.get(name) is not None]
            drawings.append(curves(plain.name, {plain.name: points}, says))
    return drawings


def _wall(folder: Path, checks: Sequence[dict[str, Any]], instruction: Sequence[str]) -> Wall:
    """The first prompts: the source and the edit at the first and the last check, and all others below."""
    numbers = [check["step"] for check in checks]
    wall = Wall(
        left=f"step {numbers[0]}",
        right=f"step {numbers[-1]}",
        note="The same prompts with the same noise at every check; step 0 is the base.",
    )
    for row, text in enumerate(instruction[:SHOWN]):
        steps = []
        for number in dict.fromkeys(numbers):
            file = _file(folder, row, f"step-{number:06d}")
            if file:
                steps.append(WallImage(f"step {number}", file=file))

        before = _file(folder, row, BEFORE)
        if steps and before:
            large = [WallImage(BEFORE, file=before), steps[0], *steps[1:][-1:]]
            wall.add(WallEdit(text, large, strip=steps[1:-1], facts=[("seed", str(row))]))
    return wall


def _table(rows: Sequence[dict[str, Any]], key: str) -> dict[str, dict[str, str]]:
    """Means of every value, rounded alike within a column."""
    table: dict[str, dict[str, str]] = {f"{row[key]:g}": {} for row in rows}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        if name not in ("flag", key):
            digits = decimals(row.get(name) for row in rows)
            for row in rows:
                table[f"{row[key]:g}"][sign_name(name).name] = fixed(row.get(name), digits)
    return table


def _stem(row: int, name: str) -> str:
    return f"{row:02d}-{name}"


def _file(folder: Path, row: int, name: str) -> str:
    """Path of an image relative to the page; "" if there is none."""
    stem = _stem(row, name)
    for file in (f"{stem}.png", f"{stem}.jpg"):
        if (folder / IMAGES / file).is_file():
            return f"{IMAGES}/{file}"
    return ""
