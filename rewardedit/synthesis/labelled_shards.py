"""Labelled rows of one shard: of rows with their methods' outputs, or of edit sequences."""

from pathlib import Path
from typing import Any

from rewardedit.data import DataConfig, Rows
from rewardedit.data.bad_rows import SelectedRows
from rewardedit.data.labelled import LabelledEdit
from rewardedit.data.sequences import Sequences
from rewardedit.synthesis.labelling import Labelling
from rewardedit.synthesis.measured import FIELDS, Outputs, read_measured
from rewardedit.synthesis.output_rows import output_rows
from rewardedit.synthesis.outputs import read_outputs, read_rows
from rewardedit.synthesis.own_rows import own_rows
from rewardedit.synthesis.sequence_rows import sequence_rows
from rewardedit.untrusted import CONTENT_ERRORS, is_system_error


def label_part(
    rows: Rows,
    first: int,
    number: int,
    outputs: dict[str, list[Path]],
    measured: list[Path],
    data: DataConfig,
    batch_size: int,
    names: list[str],
    labelling: Labelling,
) -> tuple[list[LabelledEdit], list[dict[str, Any]]]:
    """Labelled rows of a shard, and rows that have become unreadable since they were measured; rows that
    could not be measured are left out, since they are listed already.
    """
    values = read_measured(measured[number])
    known = [i for i in range(len(rows)) if (first + i, "source") in values]
    made = {name: Outputs(read_outputs(paths[number])) for name, paths in outputs.items()}
    labelled: list[LabelledEdit] = []
    skipped: list[dict[str, Any]] = []
    for chunk in read_rows(SelectedRows(rows, known), data, batch_size, first, (*FIELDS, "mask")):
        gone = {row: why for row, why in chunk.unreadable.items() if (row, "source") in values}
        skipped += [{"row": row, "image": "source", "reason": why} for row, why in gone.items()]
        if chunk.batch is None:
            continue
        ids = [names[row] for row in chunk.numbers]
        labelled += own_rows(chunk, ids, values, labelling)
        for name, method_outputs in made.items():
            taken = method_outputs.take(chunk.numbers)
            labelled += output_rows(chunk, ids, name, taken, values, labelling)
    return labelled, skipped


def label_sequences(
    name: str, sequences: Sequences, numbers: range, data: DataConfig, labelling: Labelling
) -> tuple[list[LabelledEdit], list[dict[str, Any]]]:
    """Labelled rows of some sequences, and the sequences that cannot be read."""
    labelled: list[LabelledEdit] = []
    skipped: list[dict[str, Any]] = []
    for number in numbers:
        try:
            sequence = sequences[number]
            source = f"{name}:{sequence.source_id or sequence.id}"
            labelled += sequence_rows(sequence, number, source, data.size, data.resize, labelling)
        except CONTENT_ERRORS as error:
            if is_system_error(error):
                raise
            skipped.append({"row": f"{name}-{number}", "image": "sequence", "reason": str(error)})
    return labelled, skipped
