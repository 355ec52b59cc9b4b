"""Edits with labels from 0 to 10, as Parquet shards that hold the images: training data of scorers."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditSample
from rewardedit.data.hub import HubRows
from rewardedit.files import to_json, write_parquet
from rewardedit.images import to_pil
from rewardedit.stages.stage import MADE_OF
from rewardedit.untrusted import read_json, read_settings_file

SKIPPED = b"skipped"  # metadata of a shard
GROUP = 64  # rows that are read together
DICTIONARY = 2**30  # bytes of a column's distinct images in a group, beyond which each row stores its own


@dataclass(frozen=True)
class LabelledEdit:
    """One row of a shard. Images are PNG, so that nothing is lost."""

    id: str
    source: bytes
    edited: bytes
    instruction: str
    label: float  # 0 to 10
    rule: str  # rule that gave the label
    source_id: str  # the same for all rows made of one image; splits must keep them together
    other_source_id: str | None = None  # set if `edited` is made of another image than `source`
    method: str | None = None  # method that made or changed `edited`; None: from the data set
    seed: int | None = None  # seed of the method
    sequence_id: str | None = None  # the sequence's id, of rows from a sequence of edits
    vae_roundtrip: bool = False  # `edited` went through the autoencoder
    source_caption: str | None = None
    target_caption: str | None = None
    # measurements of `edited`: see `rewardedit.synthesis.measured`
    clip_d: float | None = None
    similarity_1: float | None = None
    similarity_2: float | None = None
    axes: dict[str, float] = field(default_factory=dict)  # labels of single axes, 0 to 10


class LabelledEdits(HubRows):
    """Rows of labelled shards, in a folder or on the hub: `train-00000.parquet` …"""

    pictures = ("source", "edited")
    texts = ("rule", "source_id", "other_source_id", "source_caption", "target_caption", "axes")
    columns = ("id", "instruction", "label", "rule", "source_id", "other_source_id", *pictures)
    type_column = "rule"

    def source_ids(self) -> list[str]:
        """The image that each row is made of."""
        return list(map(str, self.rows["source_id"]))

    def other_source_ids(self) -> list[str | None]:
        """The image that a row's edit is made of, if it is another than the row's source."""
        return list(self.rows["other_source_id"])

    def scores(self) -> list[float]:
        """The label of each row, NaN where it has none."""
        return [math.nan if label is None else float(label) for label in self.rows["label"]]

    def row_id(self, row: dict[str, Any]) -> str:
        return str(row["id"])

    def sample(self, row: dict[str, Any]) -> EditSample:
        captions = {name: row.get(name) for name in ("source_caption", "target_caption")}
        axes = read_json(row.get("axes") or "{}")
        if not isinstance(axes, dict):
            raise ValueError(f"axes: expected labels by name; got {axes!r}")
        return EditSample(
            id=self.row_id(row),
            source=row["source"],
            instruction=row["instruction"],
            edited=row["edited"],
            label=None if row["label"] is None else float(row["label"]),
            axes=axes,
            **captions,
        )


def write_labelled(rows: Sequence[LabelledEdit], path: Path, skipped: Sequence[dict[str, Any]] = ()) -> None:
    """Writes the rows as one Parquet shard; its metadata lists what was left out, with the reasons."""
    import pyarrow as pa

    text = (
        "rule",
        "method",
        "source_id",
        "other_source_id",
        "sequence_id",
        "source_caption",
        "target_caption",
        "axes",
    )
    schema = pa.schema(
        {
            "id": pa.string(),
            "source": pa.binary(),
            "edited": pa.binary(),
            "instruction": pa.string(),
            "label": pa.float32(),
            **dict.fromkeys(text, pa.string()),
            "seed": pa.int64(),
            "vae_roundtrip": pa.bool_(),
            **dict.fromkeys(("clip_d", "similarity_1", "similarity_2"), pa.float32()),
        }
    )
    records = [{**asdict(row), "axes": to_json(row.axes)} for row in rows]

    # Images are compressed already; small groups of rows keep the read for one row small. An image that
    # several rows of a group show is stored once: in its column's dictionary.
    images = ["source", "edited"]
    compression = dict.fromkeys(schema.names, "SNAPPY") | dict.fromkeys(images, "NONE")
    write_parquet(
        records,
        schema.with_metadata({SKIPPED: json.dumps(list(skipped))}),
        path,
        row_group_size=GROUP,
        compression=compression,
        use_dictionary=images,
        dictionary_pagesize_limit=DICTIONARY,
    )


def made_from(folder: Path) -> set[str]:
    """The names of the data sets that a folder's labelled rows were made from; empty if it does not say."""
    try:
        settings = read_settings_file(folder / MADE_OF)
        names = set()
        for kind in ("all_data", "sequences"):
            for config in settings.get(kind, {}).values():
                names.add(str(config["name"]))
        return names
    except FileNotFoundError:
        return set()
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{folder / MADE_OF}: expected what labelled rows were made of; make them again"
        ) from error


def read_skipped(path: Path) -> list[dict[str, Any]]:
    """Records of what was left out of a shard."""
    import pyarrow.parquet as pq

    return json.loads(pq.read_schema(path).metadata[SKIPPED])


def encode_png(image: Float[Tensor, "3 h w"]) -> bytes:
    """An image, RGB in [0, 1], as the bytes of a PNG file."""
    file = io.BytesIO()
    to_pil(image).save(file, "PNG")
    return file.getvalue()
