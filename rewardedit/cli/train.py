"""`rewardedit train RECIPE key=value …`"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.engine import add_engine_option
from rewardedit.cli.phases import has_phases
from rewardedit.cli.recipes import (
    header,
    is_run,
    load_recipe,
    read_recipe,
    recipe_names,
    require_known,
)
from rewardedit.cli.terminal import quiet
from rewardedit.models import NotOnHub, awaits_download, causes

# Beginnings of a plan's lines, and the lines of headers that they take the place of.
COMPUTED = {"memory, GiB": ": Memory", "training time": ": Time"}
HEADER = (": Hardware:", *COMPUTED.values())


class Help(argparse.Action):
    """`rewardedit train RECIPE --help`: the options, and every setting of that recipe."""

    def __init__(self, option_strings: Any, dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, *_: Any) -> None:
        parser.print_help()
        if args.recipe is not None:
            print_settings(args.recipe, args.settings or [])
        parser.exit()


def add_parser(commands: Any) -> None:
    example = "run a recipe: rewardedit train quickstart train.lr=1e-4"
    p = commands.add_parser("train", help=example, add_help=False)
    p.add_argument("-h", "--help", action=Help, help="show this; after a RECIPE, every setting of it too")
    p.add_argument(
        "recipe",
        help="a name from `rewardedit recipes`, a path to a .yaml file, or with --resume the folder of a run",
    )
    p.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="settings laid over the recipe; dots reach inside groups",
    )
    p.add_argument("--out", help="the run's folder (default: runs/NAME)")
    p.add_argument(
        "--dry-run", action="store_true", help="check everything and print the plan, without computing"
    )
    p.add_argument(
        "--settings",
        action="store_true",
        dest="with_settings",
        help="with --dry-run: print every setting with its value, too",
    )
    earlier = p.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume",
        action="store_true",
        help="go on where an interrupted run stopped; a run's folder in the place of RECIPE has its settings",
    )
    earlier.add_argument(
        "--overwrite", action="store_true", help="take the place of an earlier run in the same folder"
    )
    add_engine_option(p)
    p.set_defaults(run=run, check=check, parser=p, words="settings")


def check(args: argparse.Namespace) -> None:
    """Raises ValueError on a misspelt name, before a library is imported."""
    if args.with_settings and not args.dry_run:
        raise ValueError("--settings: has no effect without --dry-run; add it")
    require_known(args.recipe, args.settings)


def run(args: argparse.Namespace) -> None:
    from huggingface_hub import is_offline_mode

    from rewardedit.cli.announce import announce, announcements, look_on_hub, offline, own_code
    from rewardedit.cli.checks import hub_cache
    from rewardedit.cli.downloads import disk_line
    from rewardedit.cli.needs import missing_requirements, source_of
    from rewardedit.cli.small_models import warn_of_training
    from rewardedit.training.run_folder import holds_something

    folder = None if args.out is None else Path(args.out)
    if is_run(args.recipe):
        folder = folder_to_resume(Path(args.recipe), folder, args.resume)
    if args.out and "://" in args.out:
        raise ValueError(f"--out {args.out}: a training needs a folder of a file system")
    # Third-party code is imported when settings are checked: it is announced before.
    code = announcements({name: {} for name in own_code(read_recipe(args.recipe, args.settings))})
    announce(code)
    module, config = load_recipe(args.recipe, args.settings)
    folder = folder or Path("runs") / config.name
    args.out = str(folder)  # for the message about a full disk

    cache = hub_cache()
    needs = missing_requirements(config, source_of(module, config), cache, recipe_names())
    replaced = folder if args.overwrite and holds_something(folder) else None
    on_hub = look_on_hub(needs)
    lines = announcements(config, needs, replaced, on_hub)
    announce([line for line in lines if line not in code])
    warn_of_training(config)
    refused = {name for name, entry in on_hub.items() if entry.refusal is not None}
    listed = {name: entry.size / 1e9 for name, entry in on_hub.items()}
    fetched = [need for need in needs if need.on_hub and not need.streamed]
    downloads = [need.name for need in fetched if need.name not in refused]
    disk = disk_line(downloads, listed, cache.folder, folder)
    if args.dry_run:
        known = measured(args.recipe, read_recipe(args.recipe, args.settings), args.settings)
        outside = Outside(needs, on_hub, known, disk, not is_offline_mode())
        with offline():  # a plan fetches nothing
            print_plan(module, config, folder, outside, args.with_settings)
        return
    if downloads:
        announce([disk])
    if replaced is not None:
        require_there(needs, on_hub)  # before an earlier run is deleted
    from rewardedit.training.run import report_usage
    from rewardedit.training.run_folder import run_folder

    with run_folder(folder, args.resume, args.overwrite, configs.to_dict(config)), report_usage(folder):
        module.main(config, folder, resume=args.resume)


@dataclass(frozen=True)
class Outside:
    """Facts that a plan does not compute."""

    needs: list[Any]  # everything that is missing; downloads among it are announced already
    on_hub: Mapping[str, Any]  # those that the hub lists or refuses, by name
    known: list[str]  # lines on hardware, memory and time by the recipe's header
    disk: str  # the line on the disk
    can_fetch: bool  # false if the user keeps the libraries from asking the hub

    def fetches(self, incomplete: ValueError) -> bool:
        """True if a plan is incomplete for want of downloads alone, all of which are given."""
        if not self.can_fetch or not_given(self.needs, self.on_hub):
            return False
        # In a repository that is in the cache, a file that is not there is no download to come.
        return awaits_download(incomplete) and bool(self.downloads(incomplete))

    def downloads(self, incomplete: ValueError) -> list[str]:
        """Names of the downloads that an incomplete plan waits for."""
        names = [need.name for need in self.needs if not need.streamed]
        elsewhere = any(isinstance(cause, NotOnHub) for cause in causes(incomplete))
        return [*names, "weights that are not on the hub"] if elsewhere else names

    def rows(self) -> list[str]:
        """Lines on the rows of data sets that are to be fetched."""
        lines = []
        for need in self.needs:
            if need.kind == "data" and need.name in self.on_hub and self.on_hub[need.name].refusal is None:
                splits = [f"{name} {rows:,}" for name, rows in self.on_hub[need.name].rows.items()]
                said = f"{', '.join(splits)}, by its card" if splits else "unknown until it is fetched"
                lines.append(f"rows of {need.name}: {said}")
        return lines


def print_plan(module: Any, config: Any, folder: Path, outside: Outside, with_settings: bool = False) -> None:
    """Prints what the run in a folder will do, what is missing, and its disk.

    Args:
        with_settings: print all settings, too.

    Raises:
        ValueError: if something is missing that is not to be fetched, after printing all that can be said
            without it.
    """
    incomplete = None
    try:
        # Plans of phases name what earlier ones have left in the folder.
        arguments = (config, folder) if hasattr(config, "trainings") else (config,)
        lines = module.plan(*arguments)
    except ValueError as error:
        incomplete = error
        lines = getattr(error, "lines", [])
    needs = outside.needs
    missing = [f"not there: the {need.kind} {need.name}: {need.remedy}" for need in needs if not need.on_hub]
    said = not_computed(outside.known, lines)
    fetches = incomplete is not None and outside.fetches(incomplete)
    if fetches:
        waits = ", ".join(outside.downloads(incomplete))
        missing.append(f"rows, memory and hours that need these are computed once they are fetched: {waits}")
    print("\n".join([*said, *lines, *outside.rows(), *missing, outside.disk]))
    if with_settings:
        print(f"\n{configs.dump(config)}")
    if incomplete is not None and not fetches:
        lacking = not_given(needs, outside.on_hub)
        if lacking and awaits_download(incomplete):
            raise ValueError("; ".join(lacking)) from incomplete
        raise incomplete


def not_computed(known: list[str], lines: list[str]) -> list[str]:
    """The lines of headers, but for memory and time of a recipe, or a phase, whose plan has computed them."""
    phase = ""
    computed: set[tuple[str, str]] = set()
    for line in lines:
        kinds = [kind for start, kind in COMPUTED.items() if line.lstrip().startswith(start)]
        if kinds:
            computed.add((f"{phase}, " if line.startswith(" ") else "", kinds[0]))
        elif not line.startswith(" "):
            phase = line.partition(":")[0]
    return [line for line in known if not any(key in line and kind in line for key, kind in computed)]


def measured(recipe: str, values: dict[str, Any], settings: Sequence[str]) -> list[str]:
    """Hardware, memory and time of a recipe, or of each phase's, as its header says.

    Args:
        settings: given in the command line; the header knows none of them.
    """
    lines = []
    for key, entry in values.get("phases", {}).items():
        if entry["recipe"] in recipe_names():
            lines += [f"{key}, {entry['recipe']} alone: {line}" for line in header(entry["recipe"])]
    if not lines and recipe in recipe_names():
        lines = [f"{recipe}: {line}" for line in header(recipe)]
    lines = [line for line in lines if any(mark in line for mark in HEADER)]
    changed = any(not word.startswith("name=") for word in settings)
    return [f"the recipe as it stands, without your settings: {line}" for line in lines] if changed else lines


def not_given(needs: list[Any], on_hub: Mapping[str, Any]) -> list[str]:
    """Reason or remedy for each need that is neither there nor given by the hub now.

    Args:
        on_hub: the needed repositories that the hub lists or refuses, by name.
    """
    lacking = []
    for need in needs:
        listing = on_hub.get(need.name)
        if listing is None:
            lacking.append(f"{need.kind} {need.name}: {need.remedy}")
        elif listing.refusal is not None:
            lacking.append(listing.refusal)
    return lacking


def require_there(needs: list[Any], on_hub: Mapping[str, Any]) -> None:
    """Raises ValueError, naming all that is missing, if something is neither there nor given by the hub now.

    Args:
        on_hub: the needed repositories that the hub lists or refuses, by name.
    """
    lacking = not_given(needs, on_hub)
    if lacking:
        raise ValueError(f"nothing was removed, as this is not there: {'; '.join(lacking)}")


def how_to_go_on(args: argparse.Namespace) -> str:
    """The command that resumes an interrupted training."""
    out = getattr(args, "out", None)
    if out is None or not is_run(out):
        return "nothing was begun; the same command starts it"
    return f"go on with: rewardedit train {out} --resume"


def folder_to_resume(run: Path, out: Path | None, resume: bool) -> Path:
    """The folder of the run that was given in place of a recipe.

    Raises:
        ValueError: if it is not to be resumed, or `out` is another folder.
    """
    if not resume:
        raise ValueError(f"{run}: is a run; go on with it by --resume, or name a recipe")
    if out is not None and out.resolve() != run.resolve():
        raise ValueError(f"--out {out}: {run} goes on in its own folder; leave --out out")
    return run


def print_settings(recipe: str, words: list[str]) -> None:
    """Lists every setting of a recipe with its value, type and description."""
    from rewardedit.cli.settings import names_in

    quiet()  # its trainer is imported, and with it all libraries
    module, config = load_recipe(recipe, words)
    values = read_recipe(recipe, words)
    if not has_phases(values):
        print_group(f"settings of {recipe}", module.Config, config, names_in(values))
        return
    shown: dict[str, Any] = {}
    for key, phase in config.trainings().items():
        settings = (values.get("phases") or values["parts"])[key]["settings"]
        kind = type(phase.settings)
        title = f"settings of {recipe}, {key}: {phase.settings.name}"
        print_group(title, kind, phase.settings, names_in(settings), f"{key}.", shown.get(phase.trainer))
        shown[phase.trainer] = phase.settings


def print_group(
    title: str, kind: Any, config: Any, changed: set[str], where: str = "", before: Any = None
) -> None:
    """Lists the settings of a training; beside an earlier one of the same kind, those that differ."""
    from rewardedit.cli.settings import describe

    trainer = kind.__module__.rpartition(".")[2]
    rest = "" if before is None else ", others as above"
    print(f"\n{title} (trainer {trainer}); * set by the recipe or here{rest}:\n")
    print(describe(kind, config, changed, where, before))
