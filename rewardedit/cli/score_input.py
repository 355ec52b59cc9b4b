"""Input of `rewardedit score`: one edit, a table, folders of edits, or a data set by its settings."""

import argparse
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.models import WORLDS

EXPECTED = (
    'expected SOURCE EDITED "INSTRUCTION", a table, folders of edits with --sources FOLDER, or settings such '
    "as name=magicbrush path=…"
)
COLUMNS = "of a table: the columns that hold source, edited, instruction and so on, e.g. '{source: photo}'"
MASK = "of a pair: where change is wanted transparent, or white in a file without transparency"


def add_input_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "input",
        nargs="+",
        metavar="INPUT",
        help='SOURCE EDITED "INSTRUCTION"; or a table with these columns; or folders of edits, with '
        "--sources; or a data set, e.g. name=magicbrush path=FOLDER",
    )
    p.add_argument(
        "--sources",
        metavar="FOLDER",
        help="folder of the source images of a folder of edits, by the same names",
    )
    p.add_argument(
        "--instructions",
        metavar="FILE",
        help="table of a folder's instructions, with the columns name and instruction",
    )
    p.add_argument("--instruction", metavar="TEXT", help="one instruction for all images of a folder")
    p.add_argument("--source-caption", help="caption of the source image, for one pair")
    p.add_argument("--target-caption", help="caption of the target image, for one pair")
    p.add_argument("--target", metavar="FILE", help="ground-truth edit of one pair")
    p.add_argument("--mask", metavar="FILE", help=MASK)
    add_columns_option(p)


def add_columns_option(p: argparse.ArgumentParser) -> None:
    """The option `--columns`, of commands that read tables."""
    p.add_argument("--columns", metavar="MAPPING", help=COLUMNS)


def add_world_option(p: argparse.ArgumentParser) -> None:
    """The option `--world`, of commands that load scorers or an editor."""
    p.add_argument(
        "--world",
        choices=sorted(WORLDS),
        help="take the small models that come with the package, which know only drawn shapes",
    )


def read_columns_option(text: str | None) -> dict[str, str]:
    """Fields and the columns that hold them, as `--columns` gives them.

    Raises:
        ValueError: if it is no mapping of names.
    """
    columns = {} if text is None else configs.parse_value(text)
    if not isinstance(columns, dict) or not all(isinstance(name, str) for name in columns.values()):
        raise ValueError(f"--columns: expected a mapping such as '{{source: photo}}'; got {text}")
    return columns


def read_input(args: argparse.Namespace) -> tuple[Any, int | None, str]:
    """The rows that the command line names, and the size and policy by which their images are brought to one
    size.

    Raises:
        ValueError: if INPUT is not a pair, a table, folders or a data set, or if an option goes with another
            kind.
    """
    from rewardedit.data import DataConfig
    from rewardedit.data.stream import read_or_stream
    from rewardedit.data.table import Table

    kind = _kind(args)
    _refuse_options(args, kind)
    if args.size is not None and args.size < 1:
        raise ValueError(f"--size: expected at least 1; got {args.size}")
    if kind == "settings":
        data = configs.build(DataConfig, configs.override({}, args.input))
        return read_or_stream(data), args.size or data.size, data.resize
    if kind == "folders":
        return read_folders(args), args.size, "crop"
    if kind == "pair":
        return [read_pair(args)], args.size, "crop"
    if kind == "table":
        return Table(args.input[0], read_columns_option(args.columns)), args.size, "crop"
    raise ValueError(EXPECTED)


def _kind(args: argparse.Namespace) -> str | None:
    if are_settings(args.input):
        return "settings"
    if args.sources is not None:
        return "folders"
    return {1: "table", 3: "pair"}.get(len(args.input))


def _refuse_options(args: argparse.Namespace, kind: str | None) -> None:
    """Raises ValueError if an option goes with another kind of input."""
    goes_with = {
        "--source-caption": (args.source_caption, "pair"),
        "--target-caption": (args.target_caption, "pair"),
        "--target": (args.target, "pair"),
        "--mask": (args.mask, "pair"),
        "--sources": (args.sources, "folders"),
        "--instructions": (args.instructions, "folders"),
        "--instruction": (args.instruction, "folders"),
        "--columns": (args.columns, "table"),
    }
    with_kind = {
        "pair": "SOURCE EDITED INSTRUCTION; rows of a table or data set have their own",
        "folders": "folders of edits and --sources FOLDER",
        "table": "a table; a data set takes columns= among its settings",
    }
    for option, (value, wanted) in goes_with.items():
        if value is not None and kind != wanted:
            raise ValueError(f"{option} goes with {with_kind[wanted]}")


def read_folders(args: argparse.Namespace) -> Any:
    """The edits of `FOLDER … --sources FOLDER`."""
    from rewardedit.data.edited_folders import EditedFolders

    return EditedFolders(args.input, args.sources, read_asked(args))


def read_asked(args: argparse.Namespace) -> str | Path:
    """The instruction of all images of folders, or the table with theirs.

    Raises:
        ValueError: if there is not exactly one source of instructions.
    """
    from rewardedit.batch import text_or_none
    from rewardedit.data.table import table_in

    file = args.instructions
    if file is None and args.instruction is None and Path(args.sources).is_dir():
        file = table_in(Path(args.sources))
    if (file is None) == (args.instruction is None):
        raise ValueError(
            "say what was asked: --instructions FILE, a table with the columns name and instruction, or "
            '--instruction "…" for all images'
        )
    if file is not None:
        return Path(file)
    if text_or_none(args.instruction) is None:
        raise ValueError("--instruction: the instruction is empty; say what was to change")
    return args.instruction


def read_pair(args: argparse.Namespace) -> Any:
    """The one edit of `SOURCE EDITED INSTRUCTION`."""
    from rewardedit.batch import EditSample
    from rewardedit.images import load_image, load_mask

    source, edited, instruction = args.input
    if not instruction.strip():
        raise ValueError("the instruction is empty; say what was to change")
    return EditSample(
        Path(edited).stem,
        load_image(source),
        instruction,
        load_image(edited),
        source_caption=args.source_caption,
        target_caption=args.target_caption,
        target=load_image(args.target) if args.target else None,
        mask=load_mask(args.mask) if args.mask else None,
    )


def are_settings(words: list[str]) -> bool:
    """True if words name a data set by its settings; a table's path may contain an equals sign too."""
    return all("=" in word for word in words) and not (len(words) == 1 and Path(words[0]).exists())


def named(args: argparse.Namespace) -> Any:
    """The settings that the command line names; for a table or folders, their paths."""
    if are_settings(args.input):
        return configs.override({}, args.input)
    if args.sources is not None:
        files = [] if args.instructions is None else [args.instructions]
        return {"path": [*args.input, args.sources, *files]}
    return {"path": args.input[0]} if len(args.input) == 1 else args.input


def as_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Options other than INPUT that determine the rows."""
    options = {
        "sources": args.sources,
        "instructions": args.instructions,
        "instruction": args.instruction,
        "columns": args.columns,
    }
    return {name: value for name, value in options.items() if value is not None}
