"""Source images and instructions of a benchmark as files, for editors to edit."""

import io
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rewardedit.data.table import write_records
from rewardedit.files import replaced
from rewardedit.images import as_pil
from rewardedit.processes import notice, processes
from rewardedit.untrusted import CONTENT_ERRORS, file_name, is_system_error

SOURCES = "sources"
TABLE = "requests.jsonl"


def write_requests(benchmark: Any, folder: Path) -> Path:
    """Writes each request once: the source image as sources/NAME.png, and a row of requests.jsonl with id,
    source, instruction and edit type. Returns the table's path.

    NAME is the benchmark's name of the request (its `requests`), or of the source image among its rows; of
    several instructions for one source the second one is NAME-2, and so on.

    Raises:
        ValueError: if no request can be read.
    """
    rows = benchmark.requests() if hasattr(benchmark, "requests") else benchmark.rows()
    (folder / SOURCES).mkdir(parents=True, exist_ok=True)
    records: dict[tuple[str, str], dict[str, Any]] = {}
    names: set[str] = set()
    lost = 0
    hidden = not processes().is_main_process
    for index, source in enumerate(tqdm(rows.source_ids(), "requests", delay=5, disable=hidden)):
        try:
            sample = rows[index]
        except CONTENT_ERRORS as error:
            if is_system_error(error):
                raise
            lost += 1
            continue
        key = (source, sample.instruction)
        if key in records:
            continue
        name = _new_name(file_name(Path(source).stem), names)
        file = folder / SOURCES / f"{name}.png"
        content = io.BytesIO()
        as_pil(sample.source).save(content, "PNG")
        if (
            not file.is_file() or file.read_bytes() != content.getvalue()
        ):  # or edits of it would be made again
            with replaced(file) as aside:
                aside.write_bytes(content.getvalue())
        kind = {"edit_type": sample.edit_type} if sample.edit_type else {}
        instruction = sample.instruction
        records[key] = {"id": name, "source": f"{SOURCES}/{file.name}", "instruction": instruction, **kind}

    if not records:
        raise ValueError("--editors: no request of the benchmark can be read; are its images there?")
    if lost:
        notice(f"{lost} rows of the benchmark cannot be read")
    with replaced(folder / TABLE) as aside:
        write_records(aside, list(records.values()))
    return folder / TABLE


def _new_name(stem: str, names: set[str]) -> str:
    """The stem, or it with the first number from 2 on that no other name has; added to the names."""
    name = stem
    number = 2
    while name in names:
        name = f"{stem}-{number}"
        number += 1
    names.add(name)
    return name
