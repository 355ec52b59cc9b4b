"""The page of `rewardedit bench shapes`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rewardedit import config as configs
from rewardedit.evaluation.bench_report import Results, as_text, write_results
from rewardedit.evaluation.protocols.protocol import About
from rewardedit.files import to_path
from rewardedit.processes import processes
from rewardedit.scorer_spec import ScorerSpec
from rewardedit.shapes.bench.compare import compare_scorers
from rewardedit.shapes.bench.settings import ShapesBench

ABOUT = About(
    "The offline world",
    "rendered scenes whose edits are rated exactly",
    "105 sources, eight editors of unlike quality",
    "Apache-2.0",
    "rendered",
    "none; about an hour on two CPU cores",
    heading="Scorers of the offline world beside exact ratings",
)


def run(args: argparse.Namespace, scorers: Sequence[ScorerSpec]) -> None:
    """Compares the scorers, prints the tables and writes them.

    Args:
        scorers: the scorers of the command line, with the world's models; empty: all.

    Raises:
        ValueError: on a setting that is unknown, --checkpoint or --size.
    """
    if args.checkpoint or args.size:
        raise ValueError("bench shapes: has models and images of its own; leave --checkpoint and --size out")
    values: dict[str, Any] = configs.override({}, args.input[1:])
    if scorers:
        attack = {"stepped": 32, "combinations": []}
        values = configs.override({"attack": attack, **values, "scorers": list(scorers)}, [])
    bench = configs.build(ShapesBench, values)

    out = to_path(args.out or "bench/shapes")
    tables, made_of = compare_scorers(out, bench)
    if not processes().is_main_process:
        return
    for table in tables:
        print("\n".join(as_text(table)))
    settings = {"settings": configs.to_dict(bench), "scorers": made_of}
    write_results(Results("shapes", ABOUT, tables, settings), out)
    print(f"tables: {out}", file=sys.stderr)
