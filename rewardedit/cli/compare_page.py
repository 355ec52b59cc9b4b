"""The page of `rewardedit compare`, and what it draws."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from rewardedit.cli.score import load_scorers, read_batch
from rewardedit.scorer_spec import ScorerSpec, all_terms


def write_comparison_page(
    args: argparse.Namespace,
    rows: Any,
    specs: dict[str, ScorerSpec],
    records: list[dict[str, Any]],
    requests: Any,
    found: Any,
    folder: Path,
) -> Path:
    """Writes report.html, and returns its path."""
    from rewardedit.evaluation.editor_page import write_page
    from rewardedit.evaluation.editor_wall import Shown

    reasons = {}
    for record in records:
        if not record["valid"]:
            details = record["row"]
            reasons[record["scorer"], details["editor"], details["request"]] = record["reason"]
    drawn, draw = frozenset(), None
    if args.draw:
        drawn, draw = read_draw(args.draw, requests), drawing(args, rows, specs)
    of = Shown(rows, requests, reasons, drawing_commands(specs), draw, drawn)
    return write_page(found, of, folder)


def read_draw(words: list[str], requests: Any) -> frozenset[str]:
    """The requests that `--draw` names, or so many with the largest differences.

    Raises:
        ValueError: if a name is none of a request.
    """
    from rewardedit.evaluation.editor_wall import largest, spreads

    if len(words) == 1 and words[0].isdecimal() and words[0] not in requests.names:
        spread, _ = spreads(requests.scores.scores)
        return frozenset(requests.ids[i] for i in largest(spread)[: int(words[0])])
    chosen = set()
    for word in words:
        own = [requests.ids[i] for i, name in enumerate(requests.names) if name == word]
        if not own:
            raise ValueError(f"--draw: expected a number, or names such as {requests.names[0]}; got {word}")
        chosen.update(own)
    return frozenset(chosen)


def drawable(specs: dict[str, ScorerSpec]) -> tuple[str, ScorerSpec] | None:
    """The first scorer whose view of an edit can be drawn; its option of `rewardedit score`."""
    from rewardedit.scorers.load import find_scorer

    for spec in specs.values():
        names = [name for name, _ in all_terms(spec)]
        if names == ["bpm"]:
            return "--explain", spec
        if all(find_scorer(name).differentiable for name in names):
            return "--heatmap", spec
    return None


def drawing_commands(specs: dict[str, ScorerSpec]) -> dict[str, str]:
    """Options of `rewardedit score` that draw an edit, without the file, by what they draw."""
    from rewardedit.files import to_json

    found = drawable(specs)
    if found is None:
        return {}
    option, spec = found
    word = shlex.quote(spec if isinstance(spec, str) else to_json(spec))
    what = "what bpm found" if option == "--explain" else "heat map"
    return {what: f"--scorer {word} {option}"}


def drawing(args: argparse.Namespace, rows: Any, specs: dict[str, ScorerSpec]) -> Any:
    """A function that draws a row.

    Raises:
        ValueError: if no scorer's view of an edit can be drawn.
    """
    from rewardedit import devices
    from rewardedit.images import to_pil
    from rewardedit.reports.explain import explain
    from rewardedit.reports.heatmap import draw_heat, heat_map

    found = drawable(specs)
    if found is None:
        raise ValueError(f"--draw: expected bpm or a differentiable scorer; got {', '.join(specs)}")
    option, spec = found
    scorer = load_scorers({"": spec}, {})[""].to(devices.default_device())

    def draw(row: int) -> tuple[str, Any]:
        batch = read_batch(rows[row], args.size, "crop").to(devices.default_device())
        if option == "--explain":
            return "what bpm found", explain(scorer, batch)
        return "heat map", to_pil(draw_heat(batch.edited, heat_map(scorer, batch))[0])

    return draw
