"""Training data for a scorer, labelled by rules: neither people nor another scorer judge the edits.

Method: ADIEE Sec. 3.1 and 3.2. Stages, each computed once: captions → methods → measured → rows. A model
captions rows without captions (`captions`); every editing method edits every row (`methods/NAME`); sources,
targets and outputs are measured (`measured`); thresholds are taken from the data set's own sources and
targets; rules label the images, and edit sequences give further rows (`rows`, Parquet shards with the
images, which {name: labelled, path: RUN/rows} reads).

Deviations from the paper's released code: thresholds are percentiles of this data set, not numbers for
another encoder; half of the sources, targets and turns pass through the autoencoder, whose traces would
otherwise distinguish them from methods' outputs; there are additional kinds of failed edits, targets with
damages of known strength (`rules.damage`), and labels of outputs by their distance from the target
(`rules.by_target`); images are mirrored or rotated only if no text mentions a direction; rows of one source
image share a `source_id`, by which they are split. `rules.preset=paper` uses the paper's threshold and leaves
the additions out.

Command: rewardedit train magicbrush-adiee-data
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rewardedit import devices
from rewardedit.data import DataConfig, Rows, open_named, open_rows, row_shards, source_ids
from rewardedit.data.bad_rows import require_few, require_share
from rewardedit.data.datasets import SHARD_BATCHES, images_of, require_alike
from rewardedit.data.labelled import read_skipped, write_labelled
from rewardedit.data.magicbrush import warn_of_benchmarks
from rewardedit.data.sequences import SequencesConfig, open_sequences
from rewardedit.diffusion.editors import load_editor
from rewardedit.files import write_json
from rewardedit.language.vlm import require_vlm
from rewardedit.models import EDITOR
from rewardedit.processes import print_on_main, processes
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.synthesis.captions import EMPTY_CAPTION, CaptionsConfig, require_captioned, write_captions
from rewardedit.synthesis.counts import (
    caption_failures,
    output_failures,
    plan_lines,
    source_failures,
    summary,
    unet_calls,
)
from rewardedit.synthesis.damage import DAMAGES
from rewardedit.synthesis.data_report import write_report
from rewardedit.synthesis.label_rules import DAMAGED, OWN_LABELS, Thresholds, find_thresholds
from rewardedit.synthesis.labelled_shards import label_part, label_sequences
from rewardedit.synthesis.labelling import Labelling, Reconstruct
from rewardedit.synthesis.measured import MeasureConfig, measure_edits, own_images
from rewardedit.synthesis.methods import NO_CAPTIONS, MethodConfig, load_method
from rewardedit.synthesis.outputs import make_outputs
from rewardedit.synthesis.rules_config import RulesConfig
from rewardedit.training import run
from rewardedit.training.estimate import plan_of, plan_sampling
from rewardedit.untrusted import read_json_file

OWN_NAMES = (*OWN_LABELS, DAMAGED, *DAMAGES)


@dataclass(frozen=True)
class Config:
    """Rows, editing methods and rules that make a labelled data set."""

    name: str  # name of the run and of its folder in runs/
    # rows to edit, as data sets under names of your choice; all have the size and the resizing of the first
    data: dict[str, DataConfig] = field(default_factory=dict)
    methods: dict[str, MethodConfig] = field(default_factory=dict)  # editing methods by name
    # captioner of rows without captions, which methods with prompts need; None: only the rows' own captions
    captions: CaptionsConfig | None = None
    # sequences of edits that give further rows, under names of your choice
    sequences: dict[str, SequencesConfig] = field(default_factory=dict)
    measure: MeasureConfig = field(default_factory=MeasureConfig)  # scorers whose values the rules use
    rules: RulesConfig = field(default_factory=RulesConfig)  # thresholds and shares of the label rules
    autoencoder: str = EDITOR  # editor whose autoencoder reconstructs a share of the images
    seed: int = 42  # seed of row 0's edits; row i has this + i
    batch_size: int = 8  # rows edited at a time
    bad_rows: float = 0.01  # largest share of unusable rows; above it the run stops
    examples: int = 4  # examples of each rule in the report

    def __post_init__(self) -> None:
        require_alike(self.data, "data.mine={name: table, path: pairs.csv, size: 256}")
        for name in self.methods:
            if name in OWN_NAMES or not re.fullmatch(r"[\w-]+", name):
                raise ValueError(
                    f"methods: expected a name of letters, digits, - and _, other than "
                    f"{', '.join(OWN_NAMES)}; got {name!r}"
                )
        if self.batch_size < 2 and self.rules.negatives.uses_other_rows:
            raise ValueError(
                f"batch_size: expected at least 2, since rules.negatives take other rows of the batch; got "
                f"{self.batch_size}"
            )
        in_a_row = {(data_set.name, data_set.path) for data_set in self.sequences.values()}
        for name, data_set in self.data.items():
            if data_set.holdout_sources and (data_set.name, data_set.path) in in_a_row:
                raise ValueError(
                    f"data.{name}.holdout_sources: sequences of the same data set would bring these images "
                    f"back"
                )
        require_share(self.bad_rows)


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is missing."""
    warn_of_benchmarks((*config.data.values(), *config.sequences.values()))

    def rows() -> list[str]:
        opened = open_named(config.data)
        require_captions(config, opened)
        sequences = list(map(open_sequences, config.sequences.values()))
        return plan_lines(config.rules, len(opened), config.methods, sequences)

    def sampling() -> list[str]:
        calls = unet_calls(config.methods, len(open_named(config.data)), config.batch_size)
        return [plan_sampling(calls, images_of(config.data).size, config.batch_size)] if calls else []

    def models() -> list[str]:
        for method in config.methods.values():
            load_method(method)
        config.measure.load()
        load_editor(config.autoencoder, device="cpu")
        if config.captions is not None:
            require_vlm(config.captions.model)
        return []

    return plan_of(rows, sampling, models)


def require_captions(config: Config, rows: Rows) -> None:
    """Raises ValueError if outputs of strong methods are labelled by a percentile of CLIP-D and no row has
    the captions that it needs, before hours are spent on them.
    """
    rules = config.rules
    has_strong = any(method.grade == "strong" for method in config.methods.values())
    has_limit = rules.thresholds.clip_d is not None or rules.by_target is not None
    if config.captions is not None or has_limit or not has_strong:
        return
    for number in range(len(rows)):
        with suppress(ValueError, OSError):  # an unreadable row
            if rows[number].source_caption and rows[number].target_caption:
                return
    raise ValueError(
        "rules: outputs of strong methods are labelled by CLIP-D, for which no row has captions; give "
        "captions, rules.thresholds.clip_d, rules.by_target, or other grades of the methods"
    )


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Makes the data set in `folder`.

    Returns:
        The folder of the labelled rows.

    Raises:
        ValueError: if too many rows cannot be used; `skipped.jsonl` lists them.
    """
    run.start(folder, config, resume)
    spent = run.minutes_spent(folder)
    warn_of_benchmarks((*config.data.values(), *config.sequences.values()))
    rows = open_named(config.data)
    data = images_of(config.data)

    require_captions(config, rows)

    # Captions before and after each edit, for methods with prompts and for CLIP-D.
    made_of: dict[str, Any] = {"all_data": config.data}
    uncaptioned: list[dict[str, Any]] = []
    if config.captions is not None:
        rows = write_captions(config.captions, rows, data, folder / "captions", made_of)
        made_of = {**made_of, "captions": config.captions}
        uncaptioned = caption_failures(list(rows.paths))
        require_few_skipped(config, folder, len(rows), uncaptioned)
        require_captioned(uncaptioned, len(rows))

    # Every method edits every row (Sec. 3.1).
    outputs: dict[str, list[Path]] = {}
    for name, method in config.methods.items():
        method_folder = folder / "methods" / name
        outputs[name] = make_outputs(
            method, rows, data, method_folder, config.seed, config.batch_size, made_of
        )
        require_few_skipped(config, folder, len(rows), output_failures(outputs), uncaptioned)
        spent()

    # Measurements for the rules.
    made_of = {**made_of, "methods": config.methods, "seed": config.seed}
    measured = measure_edits(
        config.measure, rows, data, outputs, made_of, folder / "measured", config.batch_size
    )
    without_image = [*output_failures(outputs), *source_failures(measured)]
    require_few_skipped(config, folder, len(rows), without_image, uncaptioned)
    spent()

    # Thresholds of this data set's own sources and targets; rules; sequences (Sec. 3.2).
    sources = own_images(measured, "source")
    targets = own_images(measured, "target")
    thresholds = find_thresholds(config.rules.thresholds, sources, targets)
    shards = label_rows(config, folder / "rows", rows, outputs, measured, thresholds, made_of)
    skipped = list(chain.from_iterable(map(read_skipped, shards)))
    gone = [record for record in skipped if record["image"] != "sequence"]
    broken = [record for record in skipped if record["image"] == "sequence"]
    before = [*uncaptioned, *without_image]
    require_few_skipped(config, folder, len(rows), gone, before)
    sequences = sum(len(open_sequences(data_set)) for data_set in config.sequences.values())
    require_few_skipped(config, folder, sequences, broken, [*before, *gone])

    def finish() -> None:
        write_json(folder / "thresholds.json", asdict(thresholds))
        bad = {record["row"] for record in (*before, *skipped) if is_bad(config, record)}
        counts = {**summary(shards, outputs), "skipped": len(bad), "minutes": spent()}
        write_json(folder / "metrics.json", counts)
        rows_folder = folder / "rows"
        write_report(folder / "report.html", config.name, rows_folder, measured, thresholds, config.examples)

    if processes().is_main_process:  # no collective operation: the others are done, and it would time out
        finish()
    return folder / "rows"


def all_source_ids(config: Config) -> list[str]:
    """Source id of each row, prefixed by the data set's name, as in sequences of the same data set."""
    ids = []
    for data in config.data.values():
        ids += [f"{data.name}:{name}" for name in source_ids(open_rows(data))]
    return ids


def source_names(config: Config, folder: Path) -> Lazy[list[str]]:
    """Result of `all_source_ids`, computed once for all processes."""
    made = {"data": config.data}
    (path,) = stage(folder, made, lambda _, path: write_json(path, all_source_ids(config)), name="{}.json")
    return Lazy(lambda: read_json_file(path))


def require_few_skipped(
    config: Config,
    folder: Path,
    rows: int,
    unusable: list[dict[str, Any]],
    before: Sequence[dict[str, Any]] = (),
) -> None:
    """Lists unusable rows; raises ValueError if too many rows are at fault."""
    require_few(folder, unusable, rows, config.bad_rows, before, partial(is_bad, config))


def is_bad(config: Config, record: dict[str, Any]) -> bool:
    """True if a row is at fault; rows that a model captioned badly are listed only."""
    if record["image"] == "captions":
        return record["reason"] == EMPTY_CAPTION
    return config.captions is None or record["reason"] != NO_CAPTIONS


def label_rows(
    config: Config,
    folder: Path,
    rows: Rows,
    outputs: dict[str, list[Path]],
    measured: list[Path],
    thresholds: Thresholds,
    made_of: dict[str, Any],
) -> list[Path]:
    """Writes labelled rows as `train-00000.parquet` …: first those of rows, then those of sequences."""
    parts = row_shards(rows, config.batch_size)
    blocks = []
    for data_set in config.sequences.values():
        sequences = open_sequences(data_set)
        for first in range(0, len(sequences), SHARD_BATCHES):
            numbers = range(first, min(first + SHARD_BATCHES, len(sequences)))
            blocks.append((data_set.name, sequences, numbers))
    data = images_of(config.data)
    names = source_names(config, folder.parent / "sources")

    @Lazy
    def labelling() -> Labelling:
        methods = config.methods.items()
        grades = {name: method.grade for name, method in methods}
        elsewhere = frozenset(name for name, method in methods if method.kind == "folder")
        reconstruct = autoencoder(config.autoencoder)
        return Labelling(config.rules, thresholds, grades, reconstruct, elsewhere, config.seed)

    def make(number: int, path: Path) -> None:
        if number < len(parts):
            first = number * len(parts[0])
            labelled, skipped = label_part(
                parts[number],
                first,
                number,
                outputs,
                measured,
                data,
                config.batch_size,
                names(),
                labelling(),
            )
        else:
            labelled, skipped = label_sequences(*blocks[number - len(parts)], data, labelling())
        write_labelled(labelled, path, skipped)

    settings = {
        **made_of,
        "sequences": config.sequences,
        "rules": config.rules,
        "thresholds": thresholds,
        "autoencoder": config.autoencoder,
        "rows": len(rows),
        "batch_size": config.batch_size,
    }
    return stage(folder, settings, make, len(parts) + len(blocks), "train-{:05d}.parquet")


def autoencoder(name: str) -> Reconstruct:
    """Function that reconstructs images with an editor's autoencoder."""
    editor = load_editor(name, device=devices.default_device(), dtype="float32")
    return lambda images: editor.family.reconstruct(editor.pipe, images)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Makes the data set and prints where it is."""
    out = train(config, folder, resume)
    print_on_main(f"labelled rows are in {out}; a recipe takes them as data, {{name: labelled, path: {out}}}")
