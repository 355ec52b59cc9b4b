"""Writes the tables of README.md, of this folder's page and of the offline world's from the recorded results:
python benchmarks/tables.py --write
"""

import re
import sys
from collections.abc import Callable
from functools import partial

from command_line import read_command_line
from record import ROOT, WORLD
from table_parts import recorded
from tables_speed import (
    code_metrics,
    kills,
    prefix,
    refl_step,
    speed_cpu,
    startup,
    stops,
    suite,
    throughput,
)

sys.path.append(str(WORLD))

from tables_world import OF_THE_WORLD

PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "scorers-compared.md",
    ROOT / "benchmarks" / "README.md",
    WORLD.parent / "README.md",
)
# by name in the pages: the function that writes the table
TABLES: dict[str, Callable[[], str]] = {
    **OF_THE_WORLD,
    **{
        name: partial(recorded, result, write)
        for name, result, write in (
            ("refl-step", "refl-step", refl_step),
            ("speed-cpu", "speed-cpu", speed_cpu),
            ("throughput", "throughput", throughput),
            ("prefix", "prefix", prefix),
            ("startup", "startup", startup),
            ("kills", "kills", kills),
            ("kills-stopped", "kills-stopped", stops),
            ("kills-stopped-trainings", "kills-stopped-trainings", stops),
            ("adiee-data-kills", "kills-adiee-data", kills),
            ("code-metrics", "code-metrics", code_metrics),
            ("code-metrics-house", "code-metrics-house", code_metrics),
            ("suite", "suite", suite),
        )
    },
}


def fill(text: str) -> str:
    """A page with all tables regenerated."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda match, make=make: f"{match[1]}{make()}\n{match[2]}", text, flags=re.S)
    return text


def main(write: bool) -> int:
    """Writes, or names, the pages whose tables differ from the results; returns their number."""
    changed = [page for page in PAGES if fill(page.read_text()) != page.read_text()]
    for page in changed:
        print(f"{page}: {'written' if write else 'is to be written; --write does it'}")
        if write:
            page.write_text(fill(page.read_text()))
    return 0 if write else len(changed)


if __name__ == "__main__":
    sys.exit(main(read_command_line(__doc__).write))
