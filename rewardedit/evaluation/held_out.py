"""Held-out rows on which editors are compared: of any data set, or of a world that knows the truth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Subset

from rewardedit.batch import EditBatch, EditSample, collate, common_fields
from rewardedit.data import DataConfig, held_out_rows, open_rows, require_size, source_ids
from rewardedit.data.datasets import shared_sources
from rewardedit.data.labelled import made_from
from rewardedit.data.reading import PreparedRows, Unreadable
from rewardedit.data.sources import HELD_OUT_OF, Rows, first_rows
from rewardedit.data.worlds import WORLDS, Rating, Samples, WorldConfig, world
from rewardedit.evaluation.evaluate_config import EvaluateConfig
from rewardedit.scorer_spec import spec_name
from rewardedit.scorers import Scorer, load_scorer

LEAST_SOURCES = 3  # source images of a comparison: one for val, two for the test


@dataclass(frozen=True)
class HeldOut:
    """n rows to be edited."""

    batch: EditBatch  # its edited images are the sources; target, mask and captions if all rows have them
    id: list[str]
    source_id: list[str]  # the source image of each row; intervals draw whole source images
    edit_type: list[str] | None  # None unless all rows say it
    truth: Samples | None = None  # scenes of a world, by which edits are rated exactly

    def __len__(self) -> int:
        return len(self.id)

    @property
    def source(self) -> Tensor:
        return self.batch.source

    @property
    def instruction(self) -> list[str]:
        return self.batch.instruction

    def edited(self, images: Tensor) -> EditBatch:
        """Returns the rows with these edits (n, 3, h, w)."""
        return replace(self.batch, edited=images)

    def rate(self, images: Tensor) -> Rating:
        """Returns the exact ratings of these edits (n, 3, h, w); only for rows of a world."""
        assert self.truth is not None
        return world(self.truth.world).rate(self.truth, images)


def of_world(samples: Samples) -> HeldOut:
    """Returns a world's samples as held-out rows."""
    batch = EditBatch(
        samples.source,
        samples.instruction,
        samples.source,
        target=samples.target,
        mask=samples.mask,
        source_caption=samples.source_caption,
        target_caption=samples.target_caption,
    )
    return HeldOut(batch, samples.id, samples.id, samples.edit_type, samples)


def world_of(data: DataConfig) -> str | None:
    """Returns the world that rows, or the rows they were made from, belong to; None for all others."""
    if data.name in WORLDS:
        return data.name
    if data.name == "labelled":
        names = made_from(Path(data.path))
        return next(iter(names)) if len(names) == 1 and names <= set(WORLDS) else None
    return None


def without_held_out(data: DataConfig, separate: DataConfig | None, n: int) -> DataConfig:
    """Returns training data without the source images that a comparison takes from it.

    Args:
        separate: data set that the comparison names; None: its rows are held out of the training data.
        n: rows that the comparison needs.

    Raises:
        ValueError: if source images are shared, or cannot be held out.
    """
    if separate is not None:
        shared = 0 if data.name in WORLDS else shared_sources([data], separate)
        if shared:
            raise ValueError(
                f"evaluate.data: {shared} of its source images are trained on; give another split or data set"
            )
        return data
    if world_of(data) is not None:
        return data
    if data.stream or data.name == "labelled":
        raise ValueError(
            f"evaluate.data: no source images can be held out of {'streamed' if data.stream else 'labelled'} "
            "rows; name other rows, e.g. {name: magicbrush, path: osunlp/MagicBrush, split: dev}, or leave "
            "evaluate out"
        )
    return replace(data, holdout_sources=max(data.holdout_sources, n))


def read_held_out(
    data: DataConfig, separate: DataConfig | None, val_n: int, n: int, seed: int
) -> tuple[HeldOut, HeldOut]:
    """Reads rows for choosing settings and rows for the test, of different source images.

    Both are smaller, in the same proportion, if there are fewer rows than val_n + n.

    Args:
        data: training data, as `without_held_out` returned it.
        separate: data set that the comparison names; None: the rows held out of the training data.

    Raises:
        ValueError: if there are too few source images, or no row can be read.
    """
    rows, val, test = choose_rows(data, separate, val_n, n, seed)
    shape = data if separate is None or separate.size is None else separate
    size = require_size(shape)
    return _read(rows, val, size, shape.resize), _read(rows, test, size, shape.resize)


def choose_rows(
    data: DataConfig, separate: DataConfig | None, val_n: int, n: int, seed: int
) -> tuple[Rows, list[int], list[int]]:
    """Returns the rows that a comparison can take, and the indices of those for val and for the test; no
    image is read. Arguments are those of `read_held_out`.

    Raises:
        ValueError: if there are too few source images.
    """
    rows: Rows = held_out_rows(data) if separate is None else open_rows(separate)
    sources = source_ids(rows)
    if len(first_rows(sources)) < LEAST_SOURCES:
        raise _too_few_sources(rows, separate)
    return rows, *split_by_source(sources, val_n, n, seed)


def _too_few_sources(rows: Rows, separate: DataConfig | None) -> ValueError:
    """The error for rows of fewer than `LEAST_SOURCES` source images."""
    if separate is not None:
        number = len(first_rows(source_ids(rows)))
        return ValueError(
            f"evaluate.data: expected at least {LEAST_SOURCES} source images; got {number}; name other rows, "
            "or leave the comparison out by evaluate=null"
        )
    assert isinstance(rows, Subset)
    number = len(first_rows(source_ids(rows.dataset)))
    return ValueError(
        f"data: expected at least {LEAST_SOURCES * HELD_OUT_OF} source images, as the comparison needs "
        f"{LEAST_SOURCES} and at most one in {HELD_OUT_OF} is held out for it; got {number}; add rows, name "
        "others for it by evaluate.data, or leave it out by evaluate=null"
    )


def split_by_source(sources: Sequence[str], val_n: int, n: int, seed: int) -> tuple[list[int], list[int]]:
    """Returns indices of about val_n and n rows that have no source image in common, drawn by a seed.

    Args:
        sources: source image of each row, at least three different ones.
    """
    names = list(first_rows(sources))
    val_n = min(val_n, max(1, len(sources) * val_n // (val_n + n)))
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    rows: dict[str, list[int]] = {name: [] for name in names}
    for row, name in enumerate(sources):
        rows[name].append(row)
    val: list[int] = []
    test: list[int] = []
    left = len(names)
    for i in order:
        # Two source images at least stay for the test, whose interval needs them.
        (val if len(val) < val_n and left > 2 else test).extend(rows[names[i]])
        left -= 1
    return sorted(val[:val_n]), sorted(test[:n])


def _read(rows: Rows, indices: list[int], size: int, policy: str) -> HeldOut:
    subset = Subset(rows, indices)  # type: ignore[arg-type]
    prepared = PreparedRows(subset, size, policy)
    sources = source_ids(subset)
    samples: list[EditSample] = []
    kept_sources: list[str] = []
    reasons: list[str] = []
    for i, source in enumerate(sources):
        row = prepared[i]
        if isinstance(row, Unreadable):
            reasons.append(row.reason)
            continue
        # The wanted image of a pair is its target, under either name.
        target = row.target if row.target is not None else row.edited
        samples.append(replace(row, target=target, edited=row.source))
        kept_sources.append(source)
    if not samples:
        raise ValueError(f"evaluate: none of {len(reasons)} rows can be read; the first: {reasons[0]}")

    types = [sample.edit_type for sample in samples]
    return HeldOut(
        collate(samples, fields=common_fields(samples)),
        [sample.id for sample in samples],
        kept_sources,
        None if None in types else list(map(str, types)),
    )


def comparison_data(evaluate: EvaluateConfig | None, data: DataConfig) -> DataConfig:
    """Returns the training data without the rows that the comparison takes from it.

    Raises:
        ValueError: if the comparison's rows share source images with it, or cannot be held out of it.
    """
    if evaluate is None:
        return data
    return without_held_out(data, evaluate.data, evaluate.val_n + evaluate.n)


def comparison_plan(evaluate: EvaluateConfig | None, numbers: tuple[int, int]) -> list[str]:
    """Returns the line of a plan that says on which rows editors are compared; none without a comparison.

    Args:
        numbers: rows of val and of the test, as `require_comparison` or `comparison_rows` counted them.
    """
    if evaluate is None:
        return []
    val_n, n = numbers
    separate = evaluate.data
    rows = "held out of the data" if separate is None else f"{separate.name} {separate.path} {separate.split}"
    scorers = ", ".join(map(spec_name, evaluate.scorers))
    judges = f"; judged by {scorers} too" if scorers else ""
    return [f"comparison: settings on {val_n} rows, test on {n}, {rows}{judges}"]


def comparison_rows(evaluate: EvaluateConfig | None, data: DataConfig) -> tuple[int, int]:
    """Returns the numbers of rows of val and of the test, of which no image is read.

    Args:
        data: training data, as `comparison_data` returned it.

    Raises:
        ValueError: if there are too few source images.
    """
    if evaluate is None:
        return 0, 0
    if world_of(evaluate.data or data) is not None:
        return evaluate.val_n, evaluate.n
    _, val, test = choose_rows(data, evaluate.data, evaluate.val_n, evaluate.n, evaluate.seed)
    return len(val), len(test)


def require_comparison(
    evaluate: EvaluateConfig | None, data: DataConfig, rewards: Mapping[str, Scorer] | None = None
) -> tuple[int, int]:
    """Checks before a training that the comparison after it can be made; returns the numbers of rows of val
    and of the test.

    Args:
        data: training data, as `comparison_data` returned it.
        rewards: scorers of the training that are loaded already.

    Raises:
        ValueError: if rows cannot be read, or a scorer needs what they lack.
    """
    if evaluate is None:
        return 0, 0
    val, test = held_out(evaluate, data)
    scorers = dict(rewards or {})
    for spec in evaluate.scorers:
        scorers[spec_name(spec)] = load_scorer(spec, device="cpu")
    has = {field.name for field in fields(test.batch) if getattr(test.batch, field.name) is not None}
    for name, scorer in scorers.items():
        if scorer.required_fields - has:
            lacks = ", ".join(sorted(scorer.required_fields - has))
            raise ValueError(f"evaluate.scorers: {name} needs {lacks}, which the held-out rows lack")
    return len(val), len(test)


def held_out(evaluate: EvaluateConfig, data: DataConfig | None) -> tuple[HeldOut, HeldOut]:
    """Reads the rows on which settings are chosen, and those of the test.

    Args:
        data: the training data, as `comparison_data` returned it; None: the comparison names its own.

    Raises:
        ValueError: if there are too few source images, or no row can be read.
    """
    config = evaluate.data or data
    if config is None:
        raise ValueError("evaluate.data: expected the rows that editors are compared on; got none")
    name = world_of(config)
    if name is not None:
        scenes = config.shapes or WorldConfig()
        samples = world(name).samples
        val = samples("val", scenes.seed, scenes.backdrops, 0, evaluate.val_n)
        test = samples("test", scenes.seed, scenes.backdrops, 0, evaluate.n)
        return of_world(val), of_world(test)
    return read_held_out(data or config, evaluate.data, evaluate.val_n, evaluate.n, evaluate.seed)
