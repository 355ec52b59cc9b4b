"""`rewardedit bench robustness TABLE --scorer NAME …`"""

import argparse
import sys
from dataclasses import dataclass, field
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.score_input import are_settings
from rewardedit.data import DataConfig
from rewardedit.data.datasets import open_rows
from rewardedit.data.digests import file_digests
from rewardedit.data.worlds import WORLDS
from rewardedit.evaluation.bench_report import Results, as_text, write_results
from rewardedit.evaluation.protocols.protocol import About
from rewardedit.evaluation.robustness.measure import RobustnessConfig, score_attacks
from rewardedit.evaluation.robustness.rows import JudgedEdits, judged_table, judged_world
from rewardedit.evaluation.robustness.tables import make_tables
from rewardedit.evaluation.scorer_use import use_scorers
from rewardedit.files import to_path
from rewardedit.processes import processes
from rewardedit.scorer_spec import ScorerSpec, with_options

NAME = "robustness"
# options of `rewardedit bench` that go with ratings by people
OTHER_OPTIONS = ("from_scores", "edits", "compat", "exclude_overlap", "limit")
ABOUT = About(
    "Attacks that improve nothing",
    "Attacks on edited images by which no score should rise, and gradient steps (Madry et al. 2018)",
    "your edits, some good and some failed",
    "yours",
    "a table with a column good, or a generated world",
    "none",
    heading="Attacks that improve nothing: which scores rise",
)


@dataclass(frozen=True)
class RobustnessSettings:
    """Settings that follow `rewardedit bench robustness`."""

    data: DataConfig  # a table with a column `good`, or rows of a generated world
    good_from: float = 8.0  # least exact rating of a world's good edits, 0 to 10
    failed_up_to: float = 2.0  # highest exact rating of a world's failed edits
    attack: RobustnessConfig = field(default_factory=RobustnessConfig)


def run(args: argparse.Namespace) -> None:
    """Attacks good and failed edits, prints the tables and writes them."""
    from rewardedit.cli.announce import announce_models
    from rewardedit.cli.score import chosen_scorers
    from rewardedit.cli.small_models import SCORER, first_size, warn_of_small_models, world_of
    from rewardedit.scorers.load import packaged_models

    refuse_options(args, NAME)
    settings = read_settings(args.input[1:])
    words = args.scorer or []
    if not words:
        raise ValueError("bench robustness: expected --scorer NAME …, the scorers to be tested")
    chosen = chosen_scorers(words, world_of(args.world))
    specs = {name: with_checkpoint(spec, args.checkpoint) for name, spec in chosen.items()}

    edits = open_edits(settings)
    models = {name: packaged_models(spec) for name, spec in specs.items()}
    warn_of_small_models(models, first_size(edits.rows), SCORER)
    announce_models(specs)

    made_of: dict[str, Any] = {"data": settings.data, "limits": [settings.good_from, settings.failed_up_to]}
    if digests := file_digests(settings.data, pictures=True):
        made_of["files"] = digests
    out = to_path(args.out or f"bench/{NAME}")
    size = args.size or settings.data.size
    uses = use_scorers(specs)
    scores = score_attacks(out, edits, uses, settings.attack, made_of, size, settings.data.resize)
    if not processes().is_main_process:
        return
    tables = make_tables(scores, edits, settings.attack)
    for table in tables:
        print("\n".join(as_text(table)))
    described = {
        "settings": configs.to_dict(settings),
        "scorers": {n: use.made_of for n, use in uses.items()},
    }
    write_results(Results(NAME, ABOUT, tables, described), out)
    print(f"tables: {out}", file=sys.stderr)


def refuse_options(args: argparse.Namespace, name: str) -> None:
    """Raises ValueError on an option that only benchmarks with ratings by people have."""
    for option in OTHER_OPTIONS:
        if getattr(args, option):
            raise ValueError(f"bench {name}: --{option.replace('_', '-')} goes with published benchmarks")


def read_settings(words: list[str]) -> RobustnessSettings:
    """Settings of a table's path or `data=…`, and others such as `attack.stepped=32`.

    Raises:
        ValueError: if there is no data, or a setting is unknown.
    """
    values: dict[str, Any] = {}
    if words and not are_settings(words[:1]):
        values = {"data": {"name": "table", "path": words[0]}}
        words = words[1:]
    values = configs.override(values, words)
    if "data" not in values:
        raise ValueError(
            "bench robustness: expected a table with a column good, or data={name: shapes, limit: 400}"
        )
    return configs.build(RobustnessSettings, values)


def with_checkpoint(spec: ScorerSpec, checkpoint: str | None) -> ScorerSpec:
    """A scorer's spec with the checkpoint of --checkpoint, if there is one."""
    from rewardedit.scorer_spec import read_spec

    if checkpoint is None:
        return spec
    return with_options(spec, {name: {"checkpoint": checkpoint} for name in read_spec(spec)})


def open_edits(settings: RobustnessSettings) -> JudgedEdits:
    """The good and failed edits of a table or a world."""
    if settings.data.name in WORLDS:
        return judged_world(settings.data, settings.good_from, settings.failed_up_to)
    return judged_table(open_rows(settings.data))
