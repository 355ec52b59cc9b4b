"""`rewardedit relabel key=value … --out FOLDER`"""

import argparse
from pathlib import Path
from typing import Any

from rewardedit import config as configs

SETTINGS = ("data", "candidates", "relabel")  # of a reward-conditioned recipe, what `relabel` uses


def add_parser(commands: Any) -> None:
    p = commands.add_parser("relabel", help="score a data set into Parquet shards with labels and texts")
    example = "e.g. data.name=table data.path=edits relabel.scorer=clip_d"
    p.add_argument("settings", nargs="*", metavar="key=value", help=example)
    p.add_argument("--out", required=True, help="folder for the shards")
    p.set_defaults(run=run, parser=p, words="settings")


def run(args: argparse.Namespace) -> None:
    from rewardedit.processes import say
    from rewardedit.trainers import reward_conditioned

    values = configs.override({}, args.settings)
    config = configs.build(reward_conditioned.Config, {"name": "relabel", **values})
    unused = [key for key in values if key not in SETTINGS]
    if unused:
        raise ValueError(f"relabel does not use the setting {unused[0]}; it uses those of {', '.join(SETTINGS)}")

    folder = Path(args.out)
    found = reward_conditioned.relabel(config, reward_conditioned.rows_of(config, folder), folder)

    valid = sum(label is not None for label in found.label)
    words = config.relabel.reward_prompt(found.scale).words
    labels = ", ".join(f"{word} {found.label.count(i)}" for i, word in enumerate(words))
    say(f"{len(found.label)} rows, {valid} valid; {labels}\nshards: {folder / 'relabelled'}")
