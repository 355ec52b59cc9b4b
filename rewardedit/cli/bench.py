"""`rewardedit bench NAME [PATH] --scorer NAME …`"""

import argparse
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.cli import bench_editors, bench_magicbrush
from rewardedit.cli.engine import add_engine_option
from rewardedit.cli.score import chosen_scorers, load_scorers, on_device
from rewardedit.cli.score_input import add_world_option, are_settings
from rewardedit.cli.spelling import require_known

# names whose tables have no ratings by people: module with `run(args)` and `ABOUT`
RUNS = {"robustness": "rewardedit.cli.bench_robustness"}
# pages of generated worlds: package and dataclass of the settings
PAGES = {"shapes": ("rewardedit.shapes.bench", "ShapesBench")}
# settings of both: module and dataclass
SETTINGS = {
    "robustness": (RUNS["robustness"], "RobustnessSettings"),
    **{name: (f"{package}.settings", kind) for name, (package, kind) in PAGES.items()},
}


def add_parser(commands: Any) -> None:
    p = commands.add_parser("bench", help="compare scores with people, on published benchmarks")
    p.add_argument(
        "input",
        nargs="*",
        metavar="NAME [PATH]",
        help="the benchmark, and its hub id, folder or file if it is not the published one; without NAME: "
        "list all",
    )

    p.add_argument("--scorer", nargs="+", metavar="NAME", help="scorers, written as for rewardedit score")
    p.add_argument("--checkpoint", help="for the scorers that read one: a hub name or a folder")
    p.add_argument(
        "--from-scores",
        metavar="FILE",
        help="take scores from a .json, .csv or .parquet file with ids instead of scoring; no images needed",
    )

    p.add_argument(
        "--edits",
        nargs="+",
        metavar="EDITOR=FOLDER",
        help="folders of edited images, for benchmarks that publish none",
    )
    p.add_argument(
        "--editors",
        nargs="+",
        metavar="EDITOR",
        help="compare editors on the benchmark's requests instead: models, or folders of edited images",
    )

    p.add_argument("--compat", metavar="PAPER", help="compute as a paper's released code does")
    p.add_argument(
        "--exclude-overlap", action="store_true", help="leave out items that a scorer was trained on"
    )
    p.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="number of edits to read for retrieval, the first ones; they make N² items",
    )

    p.add_argument("--size", type=int, help="bring images to this many pixels a side and score in batches")
    p.add_argument("--seed", type=int, default=0, help="random seed of folds and resamples (default: 0)")
    p.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder for scores, JSON, CSV and a page; the same command goes on where it was interrupted "
        "(default: bench/NAME)",
    )

    add_world_option(p)
    add_engine_option(p)
    p.set_defaults(run=run, check=check, parser=p, words="input")


def check(args: argparse.Namespace) -> None:
    """Raises ValueError on a misspelt setting, before a library is imported."""
    name, *words = args.input or [""]
    if name in SETTINGS:
        is_path = bool(words) and not are_settings(words[:1])
        require_known(*SETTINGS[name], configs.override({}, words[is_path:]))


def run(args: argparse.Namespace) -> None:
    from rewardedit.files import to_path

    if not args.input:
        print("\n".join(listing()))
        return
    if args.input[0] in RUNS:
        import_module(RUNS[args.input[0]]).run(args)
        return
    if args.input[0] in PAGES:
        run_page(args, args.input[0])
        return
    name, path = read_name(args)
    out = to_path(args.out or f"bench/{name}")
    if args.editors and name == bench_magicbrush.NAME:
        args.edits = bench_magicbrush.make_outputs(args, path, out)
    elif args.editors:
        bench_editors.run(args, name, path)
        return
    bench(args, name, path, out)


def run_page(args: argparse.Namespace, name: str) -> None:
    """Compares the scorers of a generated world on a page."""
    from rewardedit.cli.bench_robustness import refuse_options
    from rewardedit.data.worlds import world

    refuse_options(args, name)
    specs = chosen_scorers(args.scorer, world(name)) if args.scorer else {}
    import_module(f"{PAGES[name][0]}.page").run(args, tuple(specs.values()))


def read_name(args: argparse.Namespace) -> tuple[str, str]:
    """Name and path of the benchmark; an empty path without one.

    Raises:
        ValueError: on more words.
    """
    if len(args.input) > 2:
        raise ValueError(f"bench: expected NAME and at most one PATH; got {' '.join(args.input)}")
    return args.input[0], args.input[1] if len(args.input) == 2 else ""


def listing() -> list[str]:
    """All benchmarks, each with paper, size, licence and download."""
    from rewardedit.evaluation.protocols import BENCHMARKS, find_benchmark

    lines = []
    modules = {**RUNS, **{name: f"{package}.page" for name, (package, _) in PAGES.items()}}
    for name in (*BENCHMARKS, *modules):
        about = import_module(modules[name]).ABOUT if name in modules else find_benchmark(name).about
        lines.append(f"{name}: {about.title}. {about.paper}")
        lines.append(f"    {about.size}; licence: {about.licence}")
        lines.append(f"    {about.data}; {about.download}")
        if about.compat:
            lines.append(f"    --compat {', '.join(about.compat)}")
    return lines


def bench(args: argparse.Namespace, name: str, path: str, out: Any) -> None:
    """Scores a benchmark's items, or reads their scores; prints the tables and writes them."""
    from rewardedit.evaluation.bench_report import Results, as_text, write_results
    from rewardedit.evaluation.protocols import find_benchmark
    from rewardedit.evaluation.protocols.protocol import Options, require_compat
    from rewardedit.processes import processes

    options = Options(args.compat, args.seed)
    kind = find_benchmark(name)
    require_compat(options, kind.about)
    if args.limit is not None and (not kind.limited or args.limit < 2):
        raise ValueError(
            f"--limit: expected at least 2, of a benchmark of retrieval; got {name} {args.limit}"
        )
    limit = {} if args.limit is None else {"limit": args.limit}
    benchmark = kind(path, read_edits(args.edits), **limit)
    settings = {"input": args.input, "edits": args.edits, "compat": args.compat, "seed": args.seed}
    notes: list[str] = []
    if args.from_scores:
        scores, made_of = _from_file(args)
    else:
        try:
            scores, made_of = score(args, benchmark, out)
        finally:
            print_usage(out)  # it must be paid for all the same
        scores, notes = without_overlap(scores, benchmark, made_of["scorers"], args.exclude_overlap)
    if not processes().is_main_process:
        return
    tables = benchmark.tables(scores, options)
    results = Results(name, kind.about, tables, {**settings, **made_of}, notes)
    for table in tables:
        print("\n".join(as_text(table)))
    print("\n".join(notes), end="\n" if notes else "")
    write_results(results, out)
    print(f"tables: {out}", file=sys.stderr)


def read_edits(words: list[str] | None) -> dict[str, Path]:
    """Folders by editor.

    Raises:
        ValueError: if a word is not EDITOR=FOLDER, an editor comes twice, or a folder is not there.
    """
    folders: dict[str, Path] = {}
    for word in words or ():
        name, _, folder = word.partition("=")
        if not name or not folder or name in folders:
            raise ValueError(f"--edits: expected EDITOR=FOLDER, each editor once; got {word}")
        if not Path(folder).is_dir():
            raise ValueError(f"--edits {word}: expected a folder of images; there is none")
        folders[name] = Path(folder)
    return folders


def _from_file(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Scores of a file, and its digest."""
    from rewardedit.data.digests import file_digests
    from rewardedit.evaluation.score_files import read_scores

    if args.scorer:
        raise ValueError("--scorer: --from-scores gives the scores; leave one of them out")
    scores = read_scores(Path(args.from_scores))
    return scores, {"from_scores": file_digests({"path": args.from_scores})}


def score(args: argparse.Namespace, benchmark: Any, out: Any) -> tuple[Any, dict[str, Any]]:
    """Scores of all items by each scorer, and what they were made of. Each scorer's are kept in a folder of
    their own: another scorer, or another call, does not make them again.

    Raises:
        ValueError: if no item could be scored by any scorer.
    """
    from rewardedit.cli.announce import announce_models
    from rewardedit.cli.small_models import SCORER, first_size, warn_of_small_models, world_of
    from rewardedit.evaluation.bench import read_item_scores, require_scores, score_items
    from rewardedit.scorers.load import packaged_models
    from rewardedit.stages.lazy import Lazy

    rows = benchmark.rows()
    words = args.scorer or []
    if not words and not benchmark.scorers:
        raise ValueError("--scorer: name at least one, e.g. --scorer bpm clip_d; or give --from-scores FILE")
    options = {"checkpoint": args.checkpoint} if args.checkpoint else {}
    world = world_of(args.world)
    specs = chosen_scorers(words, world, **options) if words else {}
    taken = dict.fromkeys(specs, options)
    specs = {**benchmark.scorers, **specs}
    if benchmark.baseline is not None:
        specs.setdefault(benchmark.baseline, benchmark.baseline)
    models = {name: packaged_models(spec, **taken.get(name, {})) for name, spec in specs.items()}
    warn_of_small_models(models, first_size(rows), SCORER)
    for name, spec in specs.items():
        announce_models({name: spec}, **taken.get(name, {}))

    shards = {}
    made_of = {}
    for name, spec in specs.items():
        fields = taken.get(name, {})
        load = partial(on_device, Lazy(partial(load_scorers, {name: spec}, fields)))
        seen = benchmark.rows_for(name)
        made_of[name] = settings_of(args, seen, name, spec, fields, load)
        shards[name] = score_items(out, name, made_of[name], seen, load, args.size)
    scores = read_item_scores(shards)
    require_scores(scores)
    return scores, {"scorers": made_of}


def print_usage(out: Any) -> None:
    """Prints the usage of endpoints for all scores in the folder, if there is any."""
    from rewardedit.evaluation.bench import SCORES
    from rewardedit.language.usage import format_usage
    from rewardedit.processes import processes
    from rewardedit.stages.stage import usage_in

    used = usage_in(out / SCORES) if (out / SCORES).exists() else {}
    if used and processes().is_main_process:
        print(format_usage(used), file=sys.stderr)


def without_overlap(
    scores: Any, benchmark: Any, scorers: dict[str, dict[str, Any]], exclude: bool
) -> tuple[Any, list[str]]:
    """The scores, without items that a scorer was trained on if they are to be left out; and notes on these.

    Args:
        scorers: what each scorer's scores were made of.
    """
    from rewardedit.evaluation.bench import without_items
    from rewardedit.evaluation.overlap import trained_on

    notes = []
    left_out = {}
    for name, made_of in scorers.items():
        data = trained_on(made_of["scorer"], **made_of["options"])
        items = benchmark.overlap(data) & scores.values[name].keys()
        if items:
            sets = ", ".join(dict.fromkeys(f"{one.name} ({one.split})" for one in data))
            what = "which are left out" if exclude else "--exclude-overlap leaves them out"
            notes.append(f"{name}: trained on {sets}, which holds the sources of {len(items)} items; {what}")
            left_out[name] = items
    return without_items(scores, left_out) if exclude else scores, notes


def settings_of(
    args: argparse.Namespace, rows: Any, name: str, spec: Any, options: dict[str, str], load: Any
) -> dict[str, Any]:
    """Everything that a scorer's scores depend on."""
    from rewardedit.data.digests import file_digests
    from rewardedit.scorers.load import packaged_files, scorer_fingerprints

    path = args.input[1] if len(args.input) == 2 else ""
    folders = [word.partition("=")[2] for word in args.edits or ()]
    inputs = [{"path": value} for value in (path, *folders)]
    settings: dict[str, Any] = {"input": args.input, "edits": args.edits}
    settings |= {"rows": len(rows), "size": args.size}
    settings |= {"scorer": spec, "options": options, "models": packaged_files(spec, **options)}
    if digests := file_digests([inputs, spec, options], pictures=True):
        settings["files"] = digests
    if fingerprints := scorer_fingerprints({name: spec}, load):
        settings["fingerprint"] = fingerprints[name]
    return settings
