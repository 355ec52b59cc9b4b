"""`rewardedit data shapes --sheet FILE`"""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    p = commands.add_parser("data", help="look at a data set")
    p.add_argument("name", choices=("shapes",))
    p.add_argument("--sheet", required=True, help="where to draw the contact sheet (.png)")
    p.add_argument("--split", choices=("train", "val", "test"), default="val")
    p.add_argument("--backdrops", nargs="*", choices=("plain", "textured", "photo"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("-n", type=int, default=14, help="how many samples (default: %(default)s)")
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> None:
    from rewardedit.data.shapes import BACKDROPS, Shapes
    from rewardedit.data.shapes.sheet import draw_sheet

    world = Shapes(args.split, args.seed, tuple(args.backdrops or BACKDROPS))
    if args.n < 1:
        raise ValueError(f"-n: expected at least 1; got {args.n}")
    draw_sheet(Path(args.sheet), world, args.n)
    print(args.sheet)
