"""`rewardedit push RUN [REPO]`"""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    p = commands.add_parser("push", help="write a run's model card, and upload its result to the hub")
    p.add_argument("folder", metavar="RUN", help="a run's folder, such as runs/quickstart")
    p.add_argument("repo", metavar="REPO", nargs="?", help="upload to this repository, e.g. me/my-editor")
    p.add_argument("--license", default="other", help="for the card, e.g. apache-2.0 (default: not stated)")
    p.add_argument("--private", action="store_true", help="nobody else sees the repository")
    p.add_argument(
        "--samples",
        action=argparse.BooleanOptionalAction,
        help="show four held-out edits in the card, and upload them (default: only if all data are public)",
    )
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> None:
    from rewardedit.reports.model_card import push, write_card

    folder = Path(args.folder)
    if args.private and args.repo is None:
        raise ValueError("--private: goes with REPO, as nothing is uploaded without one")
    if args.repo is None:
        print(f"model card: {write_card(folder, None, args.license, args.samples)}")
        return
    print(push(folder, args.repo, args.license, args.private, args.samples))
