"""`rewardedit compare A B …`"""

import argparse
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rewardedit.cli.comparison import PAIRS, RESULT, SCORES, Comparison, show, show_judged
from rewardedit.cli.engine import add_engine_option
from rewardedit.cli.score import (
    EXAMPLES,
    JUDGE,
    chosen_scorers,
)
from rewardedit.cli.score_input import (
    add_columns_option,
    add_world_option,
    read_asked,
    read_columns_option,
)


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
        "--instructions",
        metavar="FILE",
        help="table of the folders' instructions, with the columns name and instruction",
    )
    p.add_argument("--instruction", metavar="TEXT", help="one instruction for all images")
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
        help="on the page, draw heat maps, or what bpm or dice found: for N requests with the largest "
        "differences, or for requests by name",
    )

    p.add_argument(
        "--judge-pairs",
        metavar="MODEL",
        help="a vision-language model that sees each two edits of a request, in both orders, and says which "
        "is better: a hub name, a folder, URL#MODEL, or a mapping, e.g. '{checkpoint: …, key_variable: …}'",
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
    from rewardedit.cli.announce import announce_models
    from rewardedit.cli.small_models import SCORER, first_size, warn_of_small_models, world_of
    from rewardedit.evaluation.score_guard import read_baseline
    from rewardedit.processes import processes
    from rewardedit.scorers.load import packaged_models

    _refuse_options(args)
    if args.out is None and processes().num_processes > 1:
        raise ValueError("several processes share the scores in a folder; add --out FOLDER")
    max_drops = read_max_drops(args.max_drop)
    baseline = read_baseline(Path(args.against)) if args.against else None
    rows = read_edits(args)
    world = world_of(args.world)
    specs = chosen_scorers(args.scorer, world)
    judge = read_judge(args.judge_pairs)
    models = {name: packaged_models(spec) for name, spec in specs.items()}
    if judge is not None:
        models["--judge-pairs"] = packaged_models({"vlm_judge": judge})
    warn_of_small_models(models, first_size(rows), SCORER)
    announce_models(specs)

    comparison = Comparison(rows, specs, _inputs(args, rows), args.size, args.kind)
    with _folder(args.out) as folder:
        records = comparison.score(folder / SCORES)
        failed = 0
        is_main = processes().is_main_process
        if is_main:
            if args.against:
                _require_same_scorers(Path(args.against), comparison.identity(folder / SCORES))
            requests, figures = comparison.result(records, args.tie)
            show(figures)
            if args.out is not None:
                comparison.write(records, requests, figures, folder, args.draw)
            failed = 0 if baseline is None else guard(records, baseline, *max_drops)

        if judge is not None:  # last: whatever the judge refuses, the scores are shown
            judged = comparison.judge_pairs(folder / PAIRS, judge)
            if is_main:
                show_judged(judged, judge, folder if args.out is not None else None)
    return failed


def read_judge(text: str | None) -> dict[str, Any] | None:
    """Options of `PairJudge.from_pretrained`, as `--judge-pairs` gives them; what it asks and loads is said.

    Raises:
        ValueError: if an option is unknown.
    """
    if text is None:
        return None
    from inspect import signature

    from rewardedit import config as configs
    from rewardedit.cli.announce import announce, announce_models, announcements
    from rewardedit.scorers.vlm_pairs import PairJudge

    options = configs.parse_value(text) if text.startswith("{") else {"checkpoint": text}
    known = list(signature(PairJudge.from_pretrained).parameters)
    if not isinstance(options, dict) or not set(options) <= set(known):
        raise ValueError(f"--judge-pairs: expected a model, or some of {', '.join(known)}; got {text}")
    announce(announcements(options))
    announce_models({"--judge-pairs": {"vlm_judge": options}})
    return options


def _require_same_scorers(baseline: Path, now: dict[str, Any]) -> None:
    """Raises ValueError if the baseline's comparison.json, where it lies beside the scores, names other
    settings or models of a scorer.
    """
    from rewardedit.files import to_json
    from rewardedit.stages.stage import differences
    from rewardedit.untrusted import read_json, read_settings_file

    beside = baseline.with_name(RESULT)
    before = read_settings_file(beside).get("made_of") if beside.is_file() else None
    for scorer, settings in now.items():
        earlier = before.get(scorer) if isinstance(before, dict) else None
        if isinstance(earlier, dict) and (changed := differences(earlier, read_json(to_json(settings)))):
            raise ValueError(
                f"--against {baseline}: {scorer} was another scorer ({changed[0]}); make the baseline anew"
            )


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

    instructions = None if args.sources is None else read_asked(args)
    return open_editors(args.input, args.sources, instructions, read_columns_option(args.columns))


def _inputs(args: argparse.Namespace, rows: Any) -> dict[str, Any]:
    """Everything that determines the rows of each editor, by its name."""
    names = ("sources", "instructions", "instruction", "columns")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    inputs = {}
    for editor, path in zip(rows.editors, args.input, strict=True):
        inputs[editor] = {"input": {"path": path}, **given}
        for name in ("sources", "instructions"):
            if name in given:
                inputs[editor][name] = {"path": given[name]}
    return inputs


@contextmanager
def _folder(name: str | None) -> Iterator[Path]:
    """The folder of the results; a temporary one if none is named."""
    if name is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        yield Path(name)


def guard(
    records: list[dict[str, Any]], baseline: list[Any], max_drop: float, max_drops: dict[str, float]
) -> int:
    """Prints each mean's change from the baseline, and the baseline's scorers that are not compared; returns
    1 if one fell by more than allowed, else 0.

    Raises:
        ValueError: if a scorer that `--max-drop` names is not there, or as `changes`.
    """
    from rewardedit.evaluation.editor_words import interval
    from rewardedit.evaluation.score_guard import changes, not_compared
    from rewardedit.reports.plain_names import decimals, signed

    drops = changes(records, baseline, max_drop, max_drops)
    unknown = set(max_drops) - {change.scorer for change in drops}
    if unknown:
        raise ValueError(f"--max-drop: no scores by {', '.join(sorted(unknown))} in both; leave it out")
    failed = 0
    for change in drops:
        digits = decimals([change.change.value, change.allowed])
        line = (
            f"{change.editor}, {change.scorer}: {interval(change.change, digits, signed)} since the baseline"
        )
        failed += bool(change.failure)
        print(f"{'FAILED' if change.failure else 'ok'}  {line}{change.failure and f'; {change.failure}'}")
    if left := not_compared(records, baseline):
        print(f"not compared: {', '.join(left)}, scorers of the baseline by which there are no scores now")
    return 1 if failed else 0
