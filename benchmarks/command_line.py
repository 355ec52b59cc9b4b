"""Command lines of the benchmarks: words, and --write, without which no tracked file changes."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import ROOT, keep

WRITE = "write the tracked files (default: print what would be written)"


@dataclass(frozen=True)
class CommandLine:
    """A program's words, and whether it may write tracked files."""

    program: Path
    words: list[str]
    write: bool

    @property
    def command(self) -> str:
        """Command as recorded in results."""
        return " ".join(["python", str(self.program.resolve().relative_to(ROOT)), *self.words])

    def keep(self, name: str, figures: dict[str, Any], command: str | None = None) -> None:
        """Writes results/NAME.json beside the program, or prints the figures."""
        if self.write:
            keep(name, command or self.command, figures, self.program.resolve().parent / "results")
            return
        print(json.dumps(figures, indent=2))
        print("not kept; --write keeps it", file=sys.stderr)


def read_command_line(description: str | None, words: str = "", many: bool = True) -> CommandLine:
    """Reads the command line of the program that runs.

    Args:
        description: docstring of the program.
        words: names of its words in the help; "" if it takes none.
        many: whether it takes any number of words, rather than at most one.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if words:
        parser.add_argument("words", nargs="*" if many else "?", metavar=words)
    parser.add_argument("--write", action="store_true", help=WRITE)
    args = parser.parse_intermixed_args()
    given = getattr(args, "words", None) or []
    return CommandLine(Path(sys.argv[0]), [given] if isinstance(given, str) else given, args.write)
