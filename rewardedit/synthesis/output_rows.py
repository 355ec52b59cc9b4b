"""Labelled rows of the outputs of editing methods (ADIEE Sec. 3.1)."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from rewardedit.data.labelled import LabelledEdit
from rewardedit.data.reading import RowBatch
from rewardedit.synthesis.data_rows import DataRow, MeasuredImages, data_rows
from rewardedit.synthesis.distance_to_target import labels_by_target
from rewardedit.synthesis.label_rules import ANOTHER_INSTRUCTION, UNREACHED, label_output
from rewardedit.synthesis.labelling import Draft, Labelling, Negative, finished, measurements, with_negative
from rewardedit.synthesis.measured import decode_output
from rewardedit.synthesis.outputs import Output
from rewardedit.synthesis.rules_config import known

RIGHT_FROM = 8.0  # outputs with at least this label fail under the same instructions as the target
MAX_NEGATIVES = 3  # number of best-fitting other instructions from which an output's is drawn


@dataclass(frozen=True)
class LabelledOutput:
    """An output of a method, and the rule that labels it; the label is None if it is inconclusive."""

    row: DataRow
    method: str
    image: Float[Tensor, "3 h w"]
    edit: LabelledEdit  # fields shared by all labelled rows of the output
    rule: str
    label: float | None

    @property
    def is_compared(self) -> bool:
        """True if the distance to the target gives the label."""
        return self.rule == UNREACHED and self.label is not None


def output_rows(
    chunk: RowBatch,
    source_ids: Sequence[str],
    method: str,
    outputs: Sequence[Output],
    measured: MeasuredImages,
    labelling: Labelling,
) -> list[LabelledEdit]:
    """Labelled rows of a method's outputs, one per row of `chunk`; outputs that no rule labels are dropped.
    Some are also paired with instructions that they do not follow.

    Outputs went through an autoencoder when they were made; of outputs made elsewhere, a share goes through
    it here, as for targets and sources.
    """
    drafts: list[Draft] = []
    for output in labelled_outputs(chunk, source_ids, method, outputs, measured, labelling):
        for rule in OUTPUT_ROW_RULES:
            drafts.extend(rule(output))
    if method in labelling.elsewhere:
        return finished(drafts, labelling)
    return [draft.row for draft in drafts]


def labelled_outputs(
    chunk: RowBatch,
    source_ids: Sequence[str],
    method: str,
    outputs: Sequence[Output],
    measured: MeasuredImages,
    labelling: Labelling,
) -> Iterator[LabelledOutput]:
    """Outputs that have an image, labelled by their distance from the target if the settings say so and the
    rows have targets, else by thresholds.
    """
    batch, by_target = chunk.batch, labelling.rules.by_target
    assert batch is not None
    images = list(map(decode_output, outputs))
    labels = None if by_target is None else labels_by_target(batch, images, by_target)

    rows = data_rows(chunk, source_ids, measured, labelling)
    for i, (row, image, output) in enumerate(zip(rows, images, outputs, strict=True)):
        if image is None:
            continue
        if labels is None:
            values = measured[row.number, method]
            rule, label = label_output(values, labelling.thresholds, labelling.grades[method])
        else:
            rule, label = labels[i]
        yield LabelledOutput(row, method, image, _shared_fields(row, method, output), rule, label)


def requested_row(output: LabelledOutput) -> Iterator[Draft]:
    """The output under its own instruction, if a rule labels it."""
    if output.label is None:
        return
    edit, row = output.edit, output.row
    is_passed = output.method in row.labelling.elsewhere and edit.vae_roundtrip
    values = measurements(None if is_passed else row.measured[row.number, output.method])
    yield Draft(replace(edit, label=output.label, rule=output.rule, **values), output.image)


def compared_negative_rows(output: LabelledOutput) -> Iterator[Draft]:
    """An output that the target labels, under instructions that the target does not follow. A wrong output
    may follow an instruction with a word altered, but hardly another row's.
    """
    if not output.is_compared:
        return
    assert output.label is not None
    for negative in output.row.negatives:
        if output.label >= RIGHT_FROM or negative.rule == "another_instruction":
            yield Draft(with_negative(output.edit, negative), output.image)


def other_instruction_row(output: LabelledOutput) -> Iterator[Draft]:
    """Any other output under another row's instruction, for a share of outputs, labelled or not."""
    if output.is_compared:
        return
    row = output.row
    # Each method has its own random numbers; otherwise all outputs of a row would get the same instruction.
    offset = zlib.crc32(output.method.encode())
    share, choice = row.labelling.draws("output_other_instruction", row.number, 2, offset)
    if share >= row.rules.negatives.output_other_instruction:
        return

    others = row.other_instructions()[:MAX_NEGATIVES]
    for text in others[int(choice * len(others)) :][:1]:
        negative = Negative(ANOTHER_INSTRUCTION, ANOTHER_INSTRUCTION, text)
        yield Draft(with_negative(output.edit, negative), output.image)


OUTPUT_ROW_RULES: tuple[Callable[[LabelledOutput], Iterator[Draft]], ...] = (
    requested_row,
    compared_negative_rows,
    other_instruction_row,
)


def _shared_fields(row: DataRow, method: str, output: Output) -> LabelledEdit:
    """Fields shared by all labelled rows of an output."""
    labelling = row.labelling
    is_elsewhere = method in labelling.elsewhere
    (draw,) = labelling.draws("output_roundtrip", row.number, 1)
    return replace(
        row.base,
        id=f"{row.base.id}/{method}",
        edited=b"" if is_elsewhere else output.image,
        method=method,
        seed=None if is_elsewhere else labelling.seed + row.number,
        vae_roundtrip=not is_elsewhere or bool(draw < known(row.rules.vae_roundtrip)),
    )
