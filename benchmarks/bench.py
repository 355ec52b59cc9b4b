"""Compares every scorer of the offline world: python benchmarks/bench.py [FOLDER]

Edits, scores and attacks are kept in FOLDER (default: bench/shapes), as `rewardedit bench shapes` keeps them;
an interrupted program goes on.
"""

from pathlib import Path

from command_line import read_command_line

from rewardedit.cli import quiet
from rewardedit.config import to_dict
from rewardedit.evaluation.bench_report import table_dict
from rewardedit.shapes.bench.compare import compare_scorers
from rewardedit.shapes.bench.settings import ShapesBench

if __name__ == "__main__":
    line = read_command_line(__doc__, "FOLDER", many=False)
    quiet()
    bench = ShapesBench()
    tables, _ = compare_scorers(Path(*line.words or ["bench/shapes"]), bench)
    figures = {"n": bench.n, "settings": to_dict(bench), "tables": list(map(table_dict, tables))}
    line.keep("bench", figures)
