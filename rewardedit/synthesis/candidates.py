"""Candidates: each row's own target and source, and its edits by trained editors (ADIEE Sec. 3.1)."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rewardedit.batch import EditSample
from rewardedit.config import require_unset
from rewardedit.data import DataConfig, Rows, open_rows
from rewardedit.data.datasets import SHARD_BATCHES
from rewardedit.data.digests import file_digests
from rewardedit.data.preferences import instructions_of
from rewardedit.data.sources import row_id, source_ids
from rewardedit.data.stream import StreamedRows, read_or_stream
from rewardedit.files import AnyPath, reopened
from rewardedit.images import load_pil
from rewardedit.models import fingerprints, names_in
from rewardedit.stages.stage import Share
from rewardedit.synthesis.methods import MethodConfig
from rewardedit.synthesis.outputs import Output, make_outputs, read_outputs


@dataclass(frozen=True)
class CandidatesConfig:
    """Candidates besides the data set's own targets, and sampling settings of the editors."""

    editors: tuple[str, ...] = ()  # hub names or folders of editors
    source: bool = True  # include the unchanged source as a candidate: the most common failure
    num_inference_steps: int = 100  # denoising steps
    guidance_scale: float = 7.5  # text guidance scale
    image_guidance_scale: float = 1.5  # image guidance scale
    batch_size: int = 8  # images edited at a time
    seed: int = 42  # seed of row 0; row i has this + i
    dtype: str | None = None  # type of the editor's weights; None: float16 on a GPU, float32 on a CPU
    graphs: bool = False  # on a GPU, record the editor's steps as CUDA graphs and replay them

    def __post_init__(self) -> None:
        if not self.editors:
            sampling = (
                "num_inference_steps",
                "guidance_scale",
                "image_guidance_scale",
                "batch_size",
                "dtype",
                "graphs",
            )
            require_unset(self, sampling, "without editors; name some, or leave it out")

    def method(self, editor: str) -> MethodConfig:
        """One of the editors as an editing method."""
        return MethodConfig(
            model=editor,
            num_inference_steps=self.num_inference_steps,
            guidance_scale=self.guidance_scale,
            image_guidance_scale=self.image_guidance_scale,
            dtype=self.dtype,
            graphs=self.graphs,
        )


class WithCandidates(Sequence):
    """Every row once per candidate: target, source, and one edit by each editor.

    Args:
        outputs: shards of each editor's edits of the rows, by the editor's name.

    Reading a candidate that its editor failed to make raises ValueError with the reason.
    """

    def __init__(self, rows: Rows, config: CandidatesConfig, outputs: dict[str, list[AnyPath]]) -> None:
        self.rows = rows
        self.outputs = outputs
        self.shard_rows = SHARD_BATCHES * config.batch_size
        self.kinds = ["target", *(["source"] if config.source else []), *outputs]
        # Candidates are read row by row, so one shard per editor is kept.
        self._in_use: dict[str, tuple[int, list[Output]]] = {}

    def _read(self, name: str, shard: int) -> list[Output]:
        number, outputs = self._in_use.get(name, (-1, []))
        if number != shard:
            outputs = list(read_outputs(reopened(self.outputs[name][shard])))
            self._in_use[name] = (shard, outputs)
        return outputs

    def __len__(self) -> int:
        return len(self.rows) * len(self.kinds)

    def source_ids(self) -> list[str]:
        """The source image of each candidate."""
        return list(chain.from_iterable([name] * len(self.kinds) for name in source_ids(self.rows)))

    def instructions(self) -> list[str | None]:
        """The instruction of each candidate."""
        return list(chain.from_iterable([text] * len(self.kinds) for text in instructions_of(self.rows)))

    def id_of(self, index: int) -> str:
        """A candidate's id, even if its row cannot be read."""
        at, kind = divmod(index, len(self.kinds))
        return f"{row_id(self.rows, at)}/{self.kinds[kind]}"

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        at, kind = divmod(index, len(self.kinds))
        sample = self.rows[at]
        name = self.kinds[kind]
        originals = {
            "target": sample.target if sample.target is not None else sample.edited,
            "source": sample.source,
        }
        if name in originals:
            return replace(sample, id=f"{sample.id}/{name}", edited=originals[name])

        shard, place = divmod(at, self.shard_rows)
        output = self._read(name, shard)[place]
        if output.image is None:
            raise ValueError(f"row {sample.id}: {name} made no edit: {output.reason}")
        return replace(sample, id=f"{sample.id}/{name}", edited=load_pil(io.BytesIO(output.image)))


def candidate_rows(
    config: CandidatesConfig | None,
    data: DataConfig,
    folder: AnyPath,
    share: Share | None = None,
) -> Rows | StreamedRows:
    """Rows to score: the data set's own, or each with its candidates, which are made in `folder` unless they
    are there already.

    Raises:
        ValueError: if the folder holds candidates of other rows or by other editors; as `open_rows` and
            `stream_files`; for candidates of streamed rows.
    """
    if config is None:
        return read_or_stream(data)
    rows = open_rows(data)

    outputs = {}
    for k, editor in enumerate(config.editors):
        name = f"editor-{k}"
        method = config.method(editor)
        # If the rows or the editor change, earlier outputs cannot be reused.
        more = {}
        if models := fingerprints(names_in([editor])):
            more["models"] = models
        if files := file_digests([data, method], folder):
            more["files"] = files
        outputs[name] = make_outputs(
            method, rows, data, folder / name, config.seed, config.batch_size, more, share
        )

    return WithCandidates(rows, config, outputs)
