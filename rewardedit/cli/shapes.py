"""`rewardedit shapes export --out FOLDER` and `rewardedit shapes sheet FILE`"""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    p = commands.add_parser("shapes", help="write pairs or a contact sheet of drawn shapes")
    kinds = p.add_subparsers(required=True, metavar="WHAT")
    export = kinds.add_parser("export", help="write pairs.csv and images/, to try the other commands with")
    export.add_argument("--out", required=True, help="folder to write them in")
    export.set_defaults(run=write_pairs, parser=export, words=None)
    sheet = kinds.add_parser("sheet", help="draw a contact sheet")
    sheet.add_argument("file", metavar="FILE", help="image to draw (.png)")
    sheet.set_defaults(run=draw, parser=sheet, words=None)
    for kind, backdrops in ((export, ["plain"]), (sheet, ["plain", "textured", "photo"])):
        kind.add_argument(
            "--split", choices=("train", "val", "test"), default="val", help="part of the world"
        )
        kind.add_argument(
            "--backdrops",
            nargs="*",
            choices=("plain", "textured", "photo"),
            default=backdrops,
            help="kinds of backgrounds, taken in turn (default: %(default)s)",
        )
        kind.add_argument("--seed", type=int, default=0, help="random seed of the scenes")
        kind.add_argument("-n", type=int, default=14, help="number of samples (default: %(default)s)")


def write_pairs(args: argparse.Namespace) -> None:
    from rewardedit.shapes.table import write_table

    print(write_table(Path(args.out), _world(args), args.n))


def draw(args: argparse.Namespace) -> None:
    from rewardedit.shapes.sheet import draw_sheet

    draw_sheet(Path(args.file), _world(args), args.n)
    print(args.file)


def _world(args: argparse.Namespace) -> Any:
    from rewardedit.shapes import Shapes

    if args.n < 1:
        raise ValueError(f"-n: expected at least 1; got {args.n}")
    return Shapes(args.split, args.seed, tuple(args.backdrops))
