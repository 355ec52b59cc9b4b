"""`rewardedit score INPUT --scorer NAME …`"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.engine import PROCESSES, add_engine_option
from rewardedit.cli.score_input import (
    add_input_options,
    add_world_option,
    are_settings,
    as_settings,
    named,
    read_input,
)
from rewardedit.cli.spelling import require_known
from rewardedit.scorer_spec import ScorerSpec, full_name

JUDGE = "bpm"  # scorer where none is named: it needs no training and no caption
SUFFIXES = (".parquet", ".json", ".jsonl", ".csv")  # of --out
EXAMPLES = "e.g. clip_d l1 clip_d:0.7,l1:0.3 '{l1: {region: outside}}'"


def add_parser(commands: Any) -> None:
    epilog = "Edited images are resized to the source's size."
    p = commands.add_parser("score", help="score edits", epilog=epilog)
    add_input_options(p)
    p.add_argument("--scorer", nargs="+", metavar="NAME", help=f"{EXAMPLES} (default: {JUDGE})")
    p.add_argument("--checkpoint", help="for the scorers that read one: a hub name or a folder")
    add_world_option(p)
    p.add_argument(
        "--size", type=int, help="bring images to this many pixels a side (cutting) and score in batches"
    )
    p.add_argument(
        "--out",
        metavar="FILE",
        help="write all scores to a .csv, .json or .jsonl file, or shard by shard to a .parquet file, here "
        "or in an object store (s3://…); the same command goes on where a .parquet file was interrupted; "
        "what a judge's scores were made of goes to FILE.made_of.json",
    )
    p.add_argument("--json", action="store_true", help="print all scores as JSON")
    p.add_argument(
        "--heatmap",
        metavar="FILE",
        help="draw where a differentiable scorer sees one edit succeed or fail (.png)",
    )
    p.add_argument(
        "--explain",
        metavar="FILE",
        help="draw what bpm or dice found in one edit, and what it says of it (.png, .html or .json)",
    )
    add_engine_option(p)
    p.set_defaults(run=run, check=check, parser=p, words="input")


def check(args: argparse.Namespace) -> None:
    """Raises ValueError on a misspelt setting of a data set, before a library is imported."""
    if args.input and are_settings(args.input):
        require_known("rewardedit.data", "DataConfig", configs.override({}, args.input))


def run(args: argparse.Namespace) -> None:
    from rewardedit.cli.announce import announce_models
    from rewardedit.cli.small_models import SCORER, first_size, warn_of_small_models, world_of
    from rewardedit.scorers.load import packaged_models
    from rewardedit.stages.lazy import Lazy

    out = _read_out(args.out)
    if args.explain:
        _require_suffix(Path(args.explain))
    rows, size, policy = read_input(args)

    options = {"checkpoint": args.checkpoint} if args.checkpoint else {}
    world = world_of(args.world)
    specs = chosen_scorers(args.scorer, world, **options)
    models = {name: packaged_models(spec, **options) for name, spec in specs.items()}
    warn_of_small_models(models, first_size(rows), SCORER)
    in_shards = out is not None and out.suffix == ".parquet"
    if not in_shards:
        _refuse_shards(rows, args.engine)
    draws = args.heatmap or args.explain
    batch = one_edit(args, rows, size, policy, specs) if draws else None
    announce_models(specs, **options)

    loaded = Lazy(partial(load_scorers, specs, options))
    load = partial(on_device, loaded)
    given = {"scorers": specs, "options": options, "size": size, "policy": policy, **as_settings(args)}
    settings = partial(made_of, args, rows, given, loaded, out)

    drawn = None if batch is None else _draw(args, batch, load(), in_shards)

    if in_shards:
        write_parquet(out, settings(), rows, load, size, policy, args.json)
    else:
        load = load if drawn is None else partial(dict, drawn)
        write_or_print(out, settings, args.json, rows, load, size, policy)


def _draw(args: argparse.Namespace, batch: Any, scorers: dict[str, Any], in_shards: bool) -> dict[str, Any]:
    """Draws one edit as --heatmap asks, and returns its scorer, which draws as --explain asks when it scores.
    Scores in shards may be there already, so that their explanation is drawn at once.
    """
    from rewardedit.cli.drawing import Explained, write_heatmap
    from rewardedit.scoring import score_batch

    if args.heatmap:
        write_heatmap(batch, scorers, Path(args.heatmap))
    if not args.explain:
        return scorers
    explained: dict[str, Any] = {}
    for name, scorer in scorers.items():
        explained[name] = Explained(scorer, Path(args.explain))
    if not in_shards:
        return explained
    score_batch(batch, explained)
    return scorers


def _read_out(name: str | None) -> Any:
    """The path that --out names; None without one.

    Raises:
        ValueError: if its suffix is not one of `SUFFIXES`.
    """
    from rewardedit.files import to_path

    out = to_path(name) if name else None
    if out is not None and out.suffix not in SUFFIXES:
        raise ValueError(f"--out {name}: expected a name that ends in {', '.join(SUFFIXES)}")
    return out


def _require_suffix(path: Path) -> None:
    """Raises ValueError unless an explanation can be written to a file of this name."""
    from rewardedit.reports.marked import require_suffix

    require_suffix(path)


def _refuse_shards(rows: Any, engine: str) -> None:
    """Raises ValueError for rows or an engine that need an output in shards."""
    from rewardedit.data.stream import StreamedRows

    if isinstance(rows, StreamedRows):
        raise ValueError("stream: goes with --out FILE.parquet, which is made file by file")
    if engine != PROCESSES:
        raise ValueError(f"--engine {engine}: goes with --out FILE.parquet, which is made in shards")


def load_scorers(specs: dict[str, ScorerSpec], options: dict[str, str]) -> dict[str, Any]:
    """The scorers of these specs, by their names."""
    from rewardedit.scorers import load_scorer

    return {name: load_scorer(spec, device="cpu", **options) for name, spec in specs.items()}


def on_device(loaded: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Scorers, loaded if need be, on the default device of the process that scores."""
    from rewardedit import devices

    device = devices.default_device()
    return {name: scorer.to(device) for name, scorer in loaded().items()}


def made_of(
    args: argparse.Namespace,
    rows: Any,
    settings: dict[str, Any],
    load: Callable[[], dict[str, Any]],
    out: Any,
) -> dict[str, Any]:
    """Everything that scores depend on: the input that the command line names, with its number of rows and
    a digest of its files; the settings; and the identity of the scorers' models.
    """
    from rewardedit.data.digests import file_digests
    from rewardedit.data.stream import count_rows
    from rewardedit.scorers.load import packaged_files, scorer_fingerprints

    specs, options = settings["scorers"], settings["options"]
    models = {name: packaged_files(spec, **options) for name, spec in specs.items()}
    recorded = {"input": args.input, "rows": count_rows(rows), "models": models, **settings}
    if digests := file_digests([named(args), specs, options], out, pictures=True):
        recorded["files"] = digests
    if fingerprints := scorer_fingerprints(specs, load):
        recorded["fingerprints"] = fingerprints
    return recorded


def read_scorers(words: list[str]) -> dict[str, ScorerSpec]:
    """The scorers that the command line names, by their full names.

    Raises:
        ValueError: if a name is unknown, or one is given twice.
    """
    from rewardedit.scorers.load import families

    specs = {full_name(spec): spec for spec in map(read_scorer, words)}
    if len(specs) < len(words):
        raise ValueError(f"--scorer: expected each once; got {' '.join(words)}")
    for spec in specs.values():
        families(spec)
    return specs


def chosen_scorers(words: list[str] | None, world: Any, **options: Any) -> dict[str, ScorerSpec]:
    """The scorers of a command by their full names, with the models of a world where one is named. Code and
    hosts of others that they use are announced before one is imported.

    Args:
        words: of the command line; None or empty: the world's judge, or `JUDGE`.
        world: as `world_of` returns it.
        options: given to all of them, such as a checkpoint.

    Raises:
        ValueError: if a name is unknown, or one is given twice.
    """
    from rewardedit.cli.announce import announce_scorers
    from rewardedit.cli.small_models import in_world

    words = words or [world.judge if world else JUDGE]
    announce_scorers(map(read_scorer, words), **options)
    return {name: in_world(spec, world) for name, spec in read_scorers(words).items()}


def one_edit(
    args: argparse.Namespace, rows: Any, size: int | None, policy: str, specs: dict[str, ScorerSpec]
) -> Any:
    """The edit to be drawn, as a batch of one.

    Raises:
        ValueError: if there are several edits or scorers.
    """
    from rewardedit import devices
    from rewardedit.data.stream import StreamedRows, count_rows

    n = count_rows(rows)
    if isinstance(rows, StreamedRows) or n != 1 or len(specs) != 1:
        option = "--heatmap" if args.heatmap else "--explain"
        raise ValueError(f"{option}: expected one edit and one scorer; got {n} and {len(specs)}")
    return read_batch(rows[0], size, policy).to(devices.default_device())


def write_parquet(
    out: Any, settings: dict[str, Any], rows: Any, load: Any, size: int | None, policy: str, as_json: bool
) -> None:
    """Scores all rows into a Parquet file, shard by shard, and also prints them if requested.

    Raises:
        ValueError: if no row can be scored.
    """
    from rewardedit.files import to_json
    from rewardedit.processes import processes
    from rewardedit.scoring import (
        NO_ROWS,
        as_record,
        parts_of,
        read_columns,
        read_records,
        score_to_parquet,
        usage_of,
    )
    from rewardedit.stages.stage import usage_in

    try:
        score_to_parquet(out, settings, rows, load=load, size=size, policy=policy)
    except BaseException:
        if processes().is_main_process:
            tell(None, usage_in(parts_of(out)))  # it must be paid for all the same
        raise
    if not processes().is_main_process:
        return
    names = ("scorer", "score", "valid", "row")
    columns = read_columns([out], *names)
    valid = columns[2]
    if not valid:
        raise ValueError(NO_ROWS)
    print(f"{len(valid)} scores, {valid.count(False)} invalid: {out}", file=sys.stderr)
    records = [as_record(dict(zip(names, cells, strict=True))) for cells in zip(*columns, strict=True)]
    tell_means(records, rows)
    tell(out, usage_of(out))
    if as_json:
        print(to_json(read_records(out), indent=2))
    if not any(valid):
        reasons, ids = read_columns([out], "reason", "id")
        raise ValueError(f"nothing could be scored; {ids[0]}: {reasons[0]}")


def write_or_print(
    out: Any, settings: Any, as_json: bool, rows: Any, load: Any, size: int | None, policy: str
) -> None:
    """Scores all rows, and prints the scores or writes them to a file.

    Raises:
        ValueError: if no row can be scored.
    """
    from tqdm import tqdm

    from rewardedit.files import to_json, write_json
    from rewardedit.language.endpoint import metered
    from rewardedit.processes import processes
    from rewardedit.scoring import score_rows, write_lines, write_made_of

    if not processes().is_main_process:
        return  # one process scores; only a Parquet file is written by all
    records = []
    scorers = load()
    # Before anything is scored, so that faults of its files are reported first.
    made_of = None if out is None else settings()
    bar = tqdm(total=len(rows), desc="scoring", unit="edit", disable=len(rows) == 1)
    with bar, metered() as used:
        try:
            for batch in score_rows(rows, scorers, size, policy):
                records += batch
                bar.update(len(batch) // len(scorers))
        except BaseException:
            tell(None, used)  # it must be paid for all the same
            raise
    if out is not None:
        write_made_of(out, made_of, used)
        if out.suffix == ".json":
            write_json(out, records)
        else:
            write_lines(records, out)
        invalid = sum(not record["valid"] for record in records)
        print(f"{len(records)} scores, {invalid} invalid: {out}", file=sys.stderr)
    tell(out, used)
    if as_json:
        print(to_json(records, indent=2))
    elif out is None:
        print("\n".join(line_of(record) for record in records))
    tell_means(records, rows)
    if not any(record["valid"] for record in records):
        raise ValueError(f"nothing could be scored; {records[0]['id']}: {records[0]['reason']}")


def tell(out: Any, used: Any) -> None:
    """Prints the path of the record of what the scores depend on, and the usage of endpoints for them, each
    if there is any.
    """
    from rewardedit.language.usage import format_usage
    from rewardedit.scoring import made_of_path

    if out is not None and made_of_path(out).exists():
        print(f"made of: {made_of_path(out)}", file=sys.stderr)
    if used:
        print(format_usage(used), file=sys.stderr)


def tell_means(records: list[dict[str, Any]], rows: Any) -> None:
    """Prints the mean scores of several rows; for folders of edits, of each folder."""
    from rewardedit.data.edited_folders import EditedFolders
    from rewardedit.data.stream import count_rows
    from rewardedit.evaluation.summary import summarise

    if count_rows(rows) != 1:
        print("\n".join(summarise(records, isinstance(rows, EditedFolders))), file=sys.stderr)


def read_scorer(text: str) -> ScorerSpec:
    """A scorer as the command line gives it: a name, a sum, or a mapping in braces, as YAML."""
    return configs.parse_value(text) if text.startswith("{") else text


def line_of(record: dict[str, Any]) -> str:
    """A score as one line of the terminal."""
    outcome = f"invalid: {record['reason']}"
    if record["valid"]:
        parts = "".join(f"  {name} {value:.4f}" for name, value in record["parts"].items())
        outcome = f"{record['score']:.4f}{parts}"
    return f"{record['id']}  {record['scorer']}  {outcome}"


def read_batch(sample: Any, size: int | None, policy: str) -> Any:
    """One edit as a batch."""
    from rewardedit.batch import collate
    from rewardedit.data.reading import PreparedRows

    return collate([PreparedRows([sample], size, policy).prepare(sample)])
