"""Measurements for the label rules: CLIP-D and two similarities to the target, of all images."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.data import DataConfig, Rows, row_shards
from rewardedit.data.reading import RowBatch
from rewardedit.files import write_parquet
from rewardedit.images import load_image
from rewardedit.scorer_spec import ScorerSpec, resolve_spec, spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scoring import score_batch
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import Share, stage
from rewardedit.synthesis.label_rules import Measured
from rewardedit.synthesis.outputs import Output, read_outputs, read_parquet, read_rows

OWN = ("source", "target")  # images that a row has without any method
FIELDS = ("target", "source_caption", "target_caption")
METRICS = ("clip_d", "similarity_1", "similarity_2")


@dataclass(frozen=True)
class MeasureConfig:
    """Scorers that measure the images."""

    clip_d: ScorerSpec = "clip_d"  # scorer of directional similarity (ADIEE Eq. 1)
    # two scorers of similarity to the target that do not share a model (Eq. 2, 3)
    similarity: tuple[ScorerSpec, ...] = ("clip_i", {"dino_i": {"against": "target"}})

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_d", resolve_spec(self.clip_d))
        object.__setattr__(self, "similarity", tuple(map(resolve_spec, self.similarity)))
        if len(self.similarity) != 2:
            raise ValueError(f"similarity: expected two scorers; got {len(self.similarity)}")

    def load(self) -> dict[str, Scorer]:
        """Loads the scorers, by the name of their metric.

        Raises:
            ValueError: if a similarity scorer does not use the target.
        """
        specs = dict(zip(METRICS, (self.clip_d, *self.similarity), strict=True))
        scorers = {}
        for name, spec in specs.items():
            scorers[name] = load_scorer(spec)
        for name, spec in list(specs.items())[1:]:
            if "target" not in scorers[name].required_fields:
                raise ValueError(
                    f"measure.similarity: expected a scorer that compares with the target; got "
                    f"{spec_name(spec)}; most do with against: target"
                )
        return scorers


def measure_edits(
    config: MeasureConfig,
    rows: Rows,
    data: DataConfig,
    outputs: dict[str, list[Path]],
    made_of: dict[str, Any],
    folder: Path,
    batch_size: int = 8,
    share: Share | None = None,
) -> list[Path]:
    """Measures all rows' sources, targets and outputs.

    Args:
        outputs: shards of each method's outputs, by its name.
        made_of: settings that the outputs depend on.

    Returns:
        Parquet shards with a record for each row and image: row, image ("source", "target" or a method's
        name), clip_d, similarity_1, similarity_2 (null if they cannot be measured) and reason (if there is
        no image).
    """
    parts = row_shards(rows, batch_size)

    @Lazy
    def load() -> dict[str, Scorer]:
        return config.load()

    def make(number: int, path: Path) -> None:
        records: list[dict[str, Any]] = []
        made = {name: Outputs(read_outputs(shards[number])) for name, shards in outputs.items()}

        for chunk in read_rows(parts[number], data, batch_size, number * len(parts[0]), FIELDS):
            for row, reason in chunk.unreadable.items():
                records.append(_record(row, "source", reason=reason))
            if chunk.batch is not None:
                records += _records(chunk, chunk.batch, made, load())
        write_measured(sorted(records, key=lambda record: record["row"]), path)

    settings = {**made_of, "measure": config, "data": data, "rows": len(rows), "batch_size": batch_size}
    return stage(folder, settings, make, len(parts), "part-{:05d}.parquet", share=share)


class Outputs:
    """A method's outputs in the order of the rows; some may be skipped."""

    def __init__(self, outputs: Iterator[Output]) -> None:
        self.outputs = outputs

    def take(self, numbers: Sequence[int]) -> list[Output]:
        """Outputs of these rows, which must come after all rows taken before."""
        by_row = {output.row: output for output in self._until(numbers[-1])}
        return [by_row[number] for number in numbers]

    def _until(self, last: int) -> Iterator[Output]:
        for output in self.outputs:
            yield output
            if output.row == last:
                return


def decode_output(output: Output) -> Float[Tensor, "3 h w"] | None:
    """An output's image, RGB in [0, 1]; None if it has none."""
    return None if output.image is None else load_image(io.BytesIO(output.image))


def _records(
    chunk: RowBatch, batch: EditBatch, made: dict[str, Outputs], scorers: dict[str, Scorer]
) -> list[dict[str, Any]]:
    records = _measure("source", chunk, batch, list(batch.source), scorers)
    if batch.target is not None:
        records += _measure("target", chunk, batch, list(batch.target), scorers)
    for name, outputs in made.items():
        taken = outputs.take(chunk.numbers)
        of_method = _measure(name, chunk, batch, list(map(decode_output, taken)), scorers)
        for record, output in zip(of_method, taken, strict=True):
            record["reason"] = output.reason
        records += of_method
    return records


def _measure(
    name: str,
    chunk: RowBatch,
    batch: EditBatch,
    images: list[Tensor | None],
    scorers: dict[str, Scorer],
) -> list[dict[str, Any]]:
    """Records of one image per row. For a missing image the source is scored, and its values are dropped."""
    pairs = zip(images, batch.source, strict=True)
    edited = torch.stack([source if image is None else image for image, source in pairs])
    scores = score_batch(replace(batch, edited=edited), scorers)
    records = []
    for i, row in enumerate(chunk.numbers):
        values = {metric: _known(scores[metric].score[i]) for metric in METRICS}
        if not has_captions(batch, i):  # the scorer would take the instruction for a caption
            values["clip_d"] = None
        records.append(_record(row, name, values if images[i] is not None else None))
    return records


def has_captions(batch: EditBatch, i: int) -> bool:
    """True if a row has captions before and after its edit."""
    captions = (batch.source_caption, batch.target_caption)
    return all(texts is not None and bool((texts[i] or "").strip()) for texts in captions)


def _record(
    row: int, image: str, values: dict[str, float | None] | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"row": row, "image": image, **(values or dict.fromkeys(METRICS)), "reason": reason}


def _known(value: Tensor) -> float | None:
    return None if value.isnan() else float(value)


def write_measured(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes the records to one Parquet file."""
    import pyarrow as pa

    numbers = dict.fromkeys(METRICS, pa.float64())
    schema = pa.schema({"row": pa.int64(), "image": pa.string(), **numbers, "reason": pa.string()})
    write_parquet(records, schema, path)


def read_measured(path: Path) -> dict[tuple[int, str], Measured]:
    """Reads measurements by row and image; rows that could not be read have none."""
    measurements = {}
    for record in read_parquet(path, 1024):
        if record["image"] != "source" or record["reason"] is None:
            measurements[record["row"], record["image"]] = measured_of(record)
    return measurements


def measured_of(record: dict[str, Any]) -> Measured:
    return Measured(record["clip_d"], (record["similarity_1"], record["similarity_2"]))


def own_images(paths: Sequence[Path], image: str) -> list[Measured]:
    """Measurements of all sources, or of all targets, from which thresholds are computed."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    measurements: list[Measured] = []
    for path in paths:
        table = pq.read_table(path, columns=["image", *METRICS])
        measurements += map(measured_of, table.filter(pc.field("image") == image).to_pylist())
    return measurements
