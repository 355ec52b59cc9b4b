"""`rewardedit relabel key=value … --out FOLDER`"""

import argparse
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.engine import add_engine_option
from rewardedit.cli.recipes import TRAINERS
from rewardedit.cli.spelling import require_known

SETTINGS = ("data", "candidates", "relabel")  # groups of a reward-conditioned recipe that `relabel` uses


def add_parser(commands: Any) -> None:
    p = commands.add_parser("relabel", help="score a data set into Parquet shards with labels and texts")
    example = "e.g. data.name=table data.path=edits data.size=256 relabel.scorer=vifi_clip"
    p.add_argument("settings", nargs="*", metavar="key=value", help=example)
    p.add_argument("--out", required=True, help="folder for the shards, here or in an object store (s3://…)")
    p.add_argument(
        "--shard",
        metavar="K/N",
        help="make this share of the candidates and scores alone, e.g. 3/16; "
        "when all are there, run it once without",
    )
    add_engine_option(p)
    p.set_defaults(run=run, check=read_settings, parser=p, words="settings")


def run(args: argparse.Namespace) -> None:
    from rewardedit.cli.announce import announce, announcements
    from rewardedit.cli.small_models import warn_of_training
    from rewardedit.files import to_path
    from rewardedit.language.usage import add_up, format_usage
    from rewardedit.processes import print_on_main
    from rewardedit.relabel import relabel as score_and_label
    from rewardedit.stages.stage import StageUnfinished, usage_in
    from rewardedit.synthesis.candidates import candidate_rows
    from rewardedit.trainers import reward_conditioned

    values = read_settings(args)
    announce(announcements(values))  # before third-party code is imported
    config = configs.build(reward_conditioned.Config, {"name": "relabel", **values})
    warn_of_training(config)

    folder = to_path(args.out)
    share = read_share(args.shard)
    try:
        rows = candidate_rows(config.candidates, config.data, folder / "candidates", share)
        result = score_and_label(
            config.relabel, rows, config.data, folder / "relabelled", config.candidates, share
        )
    except StageUnfinished as unfinished:
        print_on_main(str(unfinished))
        return
    finally:
        if used := add_up(usage_in(folder / stage) for stage in ("candidates", "relabelled")):
            print_on_main(format_usage(used))

    valid = sum(label is not None for label in result.label)
    words = config.relabel.reward_prompt(result.scale).words
    labels = ", ".join(f"{word} {result.label.count(i)}" for i, word in enumerate(words))
    print_on_main(f"{len(result.label)} rows, {valid} valid; {labels}\nshards: {folder / 'relabelled'}")


def read_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings on the command line, as nested values; no library is imported.

    Raises:
        ValueError: on a name that is no setting, or none that `relabel` uses.
    """
    values = configs.override({}, args.settings)
    unused = [key for key in values if key not in SETTINGS]
    if unused:
        raise ValueError(
            f"relabel does not use the setting {unused[0]}; it uses those of {', '.join(SETTINGS)}"
        )
    require_known(TRAINERS["reward_conditioned"], "Config", values)
    return values


def read_share(text: str | None) -> tuple[int, int] | None:
    """ "3/16" as (3, 16).

    Raises:
        ValueError: on anything else than K/N with K from 1 to N.
    """
    if text is None:
        return None
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--shard: expected K/N with K from 1 to N, such as 3/16; got {text!r}")
    return int(number), int(count)
