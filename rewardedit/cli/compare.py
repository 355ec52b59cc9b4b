"""`rewardedit compare A B …`"""

import argparse
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit.cli.compare_page import write_comparison_page
from rewardedit.cli.engine import add_engine_option
from rewardedit.cli.score import (
    EXAMPLES,
    JUDGE,
    load_scorers,
    on_device,
    read_scorer,
    read_scorers,
    tell,
)
from rewardedit.cli.score_input import (
    add_columns_option,
    add_world_option,
    read_asked,
    read_columns_option,
)
from rewardedit.scorer_spec import ScorerSpec


def add_parser(commands: Any) -> None:
    p = commands.add_parser("compare", help="compare editors by their edits of the same images")
    p.add_argument(
        "input",
        nargs="+",
        metavar="EDITS",
        help="one for each editor: a folder of edited images, with --sources; a folder of rewardedit edit; "
        "or a table with the columns source, edited and instruction",
    )
    p.add_argument("--sources", metavar="FOLDER", help="the source images, by the names of the edits")
    p.add_argument(
        "--instructions", metavar="FILE", help="of folders: a table with the columns name and instruction"
    )
    p.add_argument("--instruction", metavar="TEXT", help="of folders: what was asked of all images")
    p.add_argument("--scorer", nargs="+", metavar="NAME", help=f"{EXAMPLES} (default: {JUDGE})")
    add_world_option(p)
    add_columns_option(p)
    p.add_argument(
        "--kind", metavar="COLUMN", help="column with the kind of edit (default: edit_type or kind)"
    )
    p.add_argument(
        "--size", type=int, help="bring images to this many pixels a side (cutting) and score in batches"
    )
    p.add_argument(
        "--tie", type=float, default=0.0, metavar="X", help="scores that differ by at most X are a tie"
    )
    p.add_argument(
        "--out",
        metavar="FOLDER",
        help="keep scores.parquet, scores.csv, comparison.json and a page, report.html; the same command "
        "with another editor or scorer scores only what is new",
    )
    p.add_argument(
        "--draw",
        nargs="+",
        metavar="N",
        help="on the page, draw heat maps, or what bpm found: for N requests with the largest differences, "
        "or for requests by name",
    )
    p.add_argument(
        "--against",
        metavar="FILE",
        help="scores.parquet of an earlier comparison: exit with 1 if a mean fell by more than --max-drop",
    )
    p.add_argument(
        "--max-drop",
        nargs="+",
        metavar="X",
        help="greatest drop of a mean in the scorer's units, for all or for one: 0.02 adiee=0.2 (default: 0)",
    )
    add_engine_option(p)
    p.set_defaults(run=run, parser=p, words="input")


def run(args: argparse.Namespace) -> int:
    from rewardedit.cli.announce import announce_models, announce_scorers
    from rewardedit.cli.small_models import SCORER, first_size, in_world, warn_of_small_models, world_of
    from rewardedit.evaluation.score_guard import read_baseline
    from rewardedit.processes import processes
    from rewardedit.scorers.load import packaged_models

    _refuse_options(args)
    max_drops = read_max_drops(args.max_drop)
    baseline = read_baseline(Path(args.against)) if args.against else None
    rows = read_edits(args)
    own = world_of(args.world)
    words = args.scorer or [own.judge if own else JUDGE]
    announce_scorers(map(read_scorer, words))  # before one is imported
    specs = {name: in_world(spec, own) for name, spec in read_scorers(words).items()}
    models = {name: packaged_models(spec) for name, spec in specs.items()}
    warn_of_small_models(models, first_size(rows), SCORER)
    announce_models(specs)

    with _folder(args.out) as folder:
        records = score_editors(args, rows, specs, folder / "scores")
        if not processes().is_main_process:
            return 0
        compare(args, rows, specs, records, folder)
    return 0 if baseline is None else guard(records, baseline, *max_drops)


def _refuse_options(args: argparse.Namespace) -> None:
    """Raises ValueError for options that go with others, or numbers out of range."""
    with_sources = {"--instructions": args.instructions, "--instruction": args.instruction}
    for option, value in with_sources.items():
        if value is not None and args.sources is None:
            raise ValueError(f"{option} goes with folders of edits and --sources FOLDER")
    if args.max_drop and not args.against:
        raise ValueError("--max-drop goes with --against FILE, the scores of an earlier comparison")
    if args.draw and not args.out:
        raise ValueError("--draw goes with --out FOLDER, which holds the page")
    if args.size is not None and args.size < 1:
        raise ValueError(f"--size: expected at least 1; got {args.size}")
    if not 0 <= args.tie < math.inf:
        raise ValueError(f"--tie: expected a number of at least 0; got {args.tie:g}")


def read_max_drops(words: list[str] | None) -> tuple[float, dict[str, float]]:
    """The greatest drop for all scorers, and those of single ones, as `--max-drop` gives them.

    Raises:
        ValueError: if one is no number of at least 0, or is given twice.
    """
    of_all: list[float] = []
    single: dict[str, float] = {}
    for word in words or []:
        name, equals, text = word.rpartition("=")
        try:
            drop = float(text)
        except ValueError:
            drop = math.nan
        if not 0 <= drop < math.inf or name in single or (not equals and of_all):
            raise ValueError(
                f"--max-drop: expected one number of at least 0, or NAME=NUMBER of a scorer; got {word}"
            )
        if equals:
            single[name] = drop
        else:
            of_all.append(drop)
    return (of_all or [0.0])[0], single


def read_edits(args: argparse.Namespace) -> Any:
    """The rows of all editors.

    Raises:
        ValueError: if an input cannot be read, or folders come without exactly one source of instructions.
    """
    from rewardedit.data.editor_rows import open_editors

    asked = None if args.sources is None else read_asked(args)
    return open_editors(args.input, args.sources, asked, read_columns_option(args.columns))


@contextmanager
def _folder(name: str | None) -> Iterator[Path]:
    """The folder of the results; a temporary one if none is named."""
    if name is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        yield Path(name)


def score_editors(
    args: argparse.Namespace, rows: Any, specs: dict[str, ScorerSpec], folder: Path
) -> list[dict[str, Any]]:
    """Records of all rows by all scorers; each scorer's scores of each editor are a stage of their own, so
    that another editor or scorer leaves the others' as they are.
    """
    from rewardedit.processes import processes
    from rewardedit.scoring import read_records, score_shards
    from rewardedit.stages.lazy import Lazy
    from rewardedit.stages.stage import usage_in
    from rewardedit.untrusted import file_name

    records: list[dict[str, Any]] = []
    try:
        for name, spec in specs.items():
            loaded = Lazy(partial(load_scorers, {name: spec}, {}))
            for editor, path in zip(rows.editors, args.input, strict=True):
                made_of = _made_of(args, path, rows.of(editor), name, spec, loaded)
                place = folder / file_name(name) / file_name(editor)
                load = partial(on_device, loaded)
                shards = score_shards(place, made_of, rows.of(editor), load=load, size=args.size)
                if processes().is_main_process:
                    for shard in shards:
                        records += read_records(shard)
    finally:
        if processes().is_main_process:
            tell(None, usage_in(folder))
    if processes().is_main_process and not any(record["valid"] for record in records):
        raise ValueError(f"nothing could be scored; {records[0]['id']}: {records[0]['reason']}")
    return records


def _made_of(
    args: argparse.Namespace, path: str, rows: Any, name: str, spec: ScorerSpec, loaded: Any
) -> dict[str, Any]:
    """Everything that the scores of an editor by a scorer depend on."""
    from rewardedit.data.digests import file_digests
    from rewardedit.scorers.load import packaged_files, scorer_fingerprints

    asked = {name: getattr(args, name) for name in ("sources", "instructions", "instruction", "columns")}
    files = {"path": [path, *(asked[name] for name in ("sources", "instructions") if asked[name])]}
    return {
        "input": path,
        "rows": len(rows),
        **{name: value for name, value in asked.items() if value is not None},
        "scorers": {name: spec},
        "models": packaged_files(spec),
        "size": args.size,
        "files": file_digests([files, spec]),
        "fingerprints": scorer_fingerprints({name: spec}, loaded),
    }


def compare(
    args: argparse.Namespace,
    rows: Any,
    specs: dict[str, ScorerSpec],
    records: list[dict[str, Any]],
    folder: Path,
) -> None:
    """Prints the result in words and as a table; with --out, also writes it."""
    from rewardedit.evaluation.editor_records import requests_of
    from rewardedit.evaluation.editor_words import NOTE, sentences, table, text_table
    from rewardedit.evaluation.editors import compare_editors
    from rewardedit.files import write_json
    from rewardedit.reports.plain_names import scorer_name
    from rewardedit.scoring import write_lines, write_records

    requests = requests_of(records, args.kind)
    found = compare_editors(requests.scores, args.tie)
    print("\n".join(sentences(found)))
    for scorer, one in found.scorers.items():
        print("\n".join(["", *text_table(table(one), scorer_name(scorer).name)]))
    print(f"\n{NOTE}")
    if args.out is None:
        return
    write_records(records, folder / "scores.parquet")
    write_lines(records, folder / "scores.csv")
    write_json(folder / "comparison.json", found.as_dict())
    page = write_comparison_page(args, rows, specs, records, requests, found, folder)
    print(f"page: {page}")


def guard(
    records: list[dict[str, Any]], baseline: list[Any], max_drop: float, max_drops: dict[str, float]
) -> int:
    """Prints each mean's change from the baseline; returns 1 if one fell by more than allowed, else 0.

    Raises:
        ValueError: if a scorer that `--max-drop` names is not there, or nothing can be compared.
    """
    from rewardedit.evaluation.editor_words import interval
    from rewardedit.evaluation.score_guard import changes
    from rewardedit.reports.plain_names import decimals, signed

    found = changes(records, baseline, max_drop, max_drops)
    unknown = set(max_drops) - {change.scorer for change in found}
    if unknown:
        raise ValueError(f"--max-drop: no scores by {', '.join(sorted(unknown))} in both; leave it out")
    failed = 0
    for change in found:
        digits = decimals([change.change.value, change.allowed])
        line = (
            f"{change.editor}, {change.scorer}: {interval(change.change, digits, signed)} since the baseline"
        )
        failed += bool(change.failure)
        print(f"{'FAILED' if change.failure else 'ok'}  {line}{change.failure and f'; {change.failure}'}")
    return 1 if failed else 0
