"""`rewardedit data shapes --sheet FILE` or `--out FOLDER`"""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    p = commands.add_parser("data", help="look at the offline world, or write pairs of it")
    p.add_argument("name", choices=("shapes",))
    written = p.add_mutually_exclusive_group(required=True)
    written.add_argument("--sheet", help="where to draw a contact sheet (.png)")
    written.add_argument("--out", help="the folder in which to write pairs.csv and images/")
    p.add_argument("--split", choices=("train", "val", "test"), default="val")
    p.add_argument("--backdrops", nargs="*", choices=("plain", "textured", "photo"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("-n", type=int, default=14, help="how many samples (default: %(default)s)")
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> None:
    from rewardedit.shapes import BACKDROPS, Shapes
    from rewardedit.shapes.sheet import draw_sheet
    from rewardedit.shapes.table import write_table

    world = Shapes(args.split, args.seed, tuple(args.backdrops or BACKDROPS))
    if args.n < 1:
        raise ValueError(f"-n: expected at least 1; got {args.n}")
    if args.out is not None:
        print(write_table(Path(args.out), world, args.n))
        return
    draw_sheet(Path(args.sheet), world, args.n)
    print(args.sheet)
