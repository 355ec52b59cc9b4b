"""`rewardedit bench shapes`: every scorer of the offline world on one page."""

import argparse
import sys
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.bench_robustness import refuse_options
from rewardedit.evaluation.bench_report import Results, as_text, write_results
from rewardedit.evaluation.protocols.protocol import About
from rewardedit.files import to_path
from rewardedit.processes import processes
from rewardedit.shapes.bench.compare import compare_scorers
from rewardedit.shapes.bench.settings import ShapesBench

NAME = "shapes"
ABOUT = About(
    "The offline world",
    "rendered scenes whose edits are rated exactly",
    "105 sources, eight editors of unlike quality",
    "Apache-2.0",
    "rendered",
    "none; about an hour on two CPU cores",
    heading="Scorers of the offline world beside exact ratings",
)


def run(args: argparse.Namespace) -> None:
    """Compares the scorers, prints the tables and writes them."""
    from rewardedit.cli.score import read_scorers
    from rewardedit.cli.small_models import in_world
    from rewardedit.data.worlds import world

    refuse_options(args, NAME)
    if args.checkpoint or args.size:
        raise ValueError("bench shapes: has models and images of its own; leave --checkpoint and --size out")
    values: dict[str, Any] = configs.override({}, args.input[1:])
    if args.scorer:
        specs = read_scorers(args.scorer).values()
        values = {**values, "scorers": [in_world(spec, world(NAME)) for spec in specs]}
        values = configs.override({"attack": {"stepped": 32, "combinations": []}, **values}, [])
    bench = configs.build(ShapesBench, values)

    out = to_path(args.out or f"bench/{NAME}")
    tables, scorers = compare_scorers(out, bench)
    if not processes().is_main_process:
        return
    for table in tables:
        print("\n".join(as_text(table)))
    settings = {"settings": configs.to_dict(bench), "scorers": scorers}
    write_results(Results(NAME, ABOUT, tables, settings), out)
    print(f"tables: {out}", file=sys.stderr)
