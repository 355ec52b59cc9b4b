"""The `rewardedit` command: its parser, the reporting of errors, and one file per command."""

import argparse
import sys
import traceback
from collections.abc import Sequence

from rewardedit import __version__
from rewardedit.cli import (
    app,
    bench,
    compare,
    doctor,
    edit,
    push,
    recipes,
    relabel,
    score,
    serve,
    shapes,
    train,
)
from rewardedit.cli.engine import stages_made_by
from rewardedit.cli.recipes import load_recipe, recipe_names, recipe_path
from rewardedit.cli.terminal import disk_full_message, first_line, out_of_memory_message, quiet

__all__ = ["load_recipe", "main", "parse", "quiet", "recipe_names", "recipe_path"]

COMMANDS = (train, relabel, edit, score, compare, bench, serve, app, recipes, doctor, push, shapes)


def parser() -> argparse.ArgumentParser:
    """Builds the parser of all commands. `rewardedit --help` imports no library:
    each command imports its own when it runs.
    """
    top = argparse.ArgumentParser(
        prog="rewardedit", description="Reward models for instruction-guided image editing."
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return top


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; settings and instructions may stand before, between and after options.

    argparse accepts the words of a list in one place only. The remaining ones are added here, to the list
    that the command names as `words`.
    """
    args, left = parser().parse_known_args(argv)
    if left and (args.words is None or any(word.startswith("-") for word in left)):
        args.parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        setattr(args, args.words, [*getattr(args, args.words), *left])
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit codes: 0 done, 1 failed while running, 2 for the user to correct,
    130 interrupted, 143 ended by SIGTERM.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]  # it may stand anywhere
    args = argparse.Namespace()

    try:
        args = parse(words)
        if hasattr(args, "check"):
            args.check(args)  # imports no library
        # These need no library, or examine them.
        if args.run not in (recipes.run, doctor.run, push.run):
            # l1 needs neither transformers nor diffusers
            quiet(imported=args.run in (score.run, compare.run, serve.run))
        with stages_made_by(getattr(args, "engine", None)):
            code = args.run(args)
    except KeyboardInterrupt as error:
        print(f"{str(error) or 'interrupted'}; {_how_to_go_on(words, args)}", file=sys.stderr)
        return getattr(error, "status", 130)
    except Exception as error:
        if debug:
            traceback.print_exc()
        full = disk_full_message(error, getattr(args, "out", None))
        full = full or out_of_memory_message(error, words[0] if words else "")
        if full is not None:
            print(f"rewardedit: {full}", file=sys.stderr)
            return 2
        if isinstance(error, ValueError | OSError):
            print(f"rewardedit: {first_line(error)}", file=sys.stderr)
            return 2
        print(
            f"rewardedit: {type(error).__name__}: {first_line(error)} (--debug shows where)", file=sys.stderr
        )
        return 1
    return code or 0


def _how_to_go_on(words: Sequence[str], args: argparse.Namespace) -> str:
    """The remedy for a command that was interrupted."""
    out = getattr(args, "out", None)
    if "train" in words[:2]:
        return train.how_to_go_on(args)
    if "score" in words[:1] and not str(out).endswith(".parquet"):
        return "only an --out FILE.parquet keeps what was scored"
    if "compare" in words[:1] and out is None:
        return "only an --out FOLDER keeps what was scored"
    return "the same command goes on"
