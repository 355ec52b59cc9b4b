"""Samples of the offline world as files, as an example of the format for the user's own pairs."""

import csv
from pathlib import Path

from rewardedit.files import replaced
from rewardedit.images import to_pil
from rewardedit.shapes.world import Shapes

COLUMNS = ("source", "target", "instruction")


def write_table(folder: Path, world: Shapes, n: int = 14, first: int = 0) -> Path:
    """Writes n samples as `pairs.csv`, with paths relative to it, and PNG images next to it.

    Returns:
        The table's path. The table is written last, after all of its images.

    Raises:
        FileExistsError: if the table already exists; nothing is written then.
    """
    table = folder / "pairs.csv"
    if table.exists():
        raise FileExistsError(f"{table} already exists; use another folder or remove it")

    (folder / "images").mkdir(parents=True, exist_ok=True)
    samples = world.batch(first, n)
    rows = []
    for i in range(n):
        source = f"images/{i:03d}-source.png"
        target = f"images/{i:03d}-target.png"
        to_pil(samples.source[i]).save(folder / source)
        to_pil(samples.target[i]).save(folder / target)
        rows.append((source, target, samples.instruction[i]))

    with replaced(table) as path, path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return table
