"""Best of 8 on the shapes world by several scorers, beside chance and the oracle's choice: python benchmarks/best_of_n.py"""

from typing import Any

import torch
from record import keep
from tqdm import tqdm

from rewardedit import best_of_n, load_editor, load_scorer
from rewardedit.cli import quiet
from rewardedit.data.shapes import Shapes, ShapesOracle
from rewardedit.data.shapes.world import join
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.selection import Selection

EDITS, N = 560, 8
SCORERS = ("clip_d", "l1", "clip_d:0.7,l1:0.3")


def compare(edits: int, n: int) -> dict[str, Any]:
    """Oracle means of the first candidate, a random one, each scorer's choice and the oracle's, over the same candidates."""
    editor, scorer, oracle = load_editor("shapes-editor"), load_scorer(SCORERS[-1]), ShapesOracle()
    samples = Shapes("test", backdrops=("plain",)).batch(0, edits)
    generator = torch.Generator().manual_seed(0)
    chosen: dict[str, list[float]] = {name: [] for name in ("one sample", "random choice", *SCORERS, "oracle's choice")}
    for i in tqdm(range(edits), desc="best of n", unit="edit"):
        fields = {"source_caption": samples.source_caption[i], "target_caption": samples.target_caption[i]}
        with torch.autocast("cpu", torch.bfloat16):
            found = best_of_n(
                editor,
                scorer,
                samples.source[i],
                samples.instruction[i],
                n,
                seed=n * i,
                settings=editor.settings,
                fields=fields,
            )
        rating = oracle.rate(join([samples[i : i + 1]] * n), found.images).score
        chosen["one sample"].append(float(rating[0]))
        chosen["random choice"].append(float(rating[int(torch.randint(n, (), generator=generator))]))
        for name in SCORERS:
            chosen[name].append(float(rating[choice(found, name)]))
        chosen["oracle's choice"].append(float(rating.max()))
    differences = {}
    for name, values in chosen.items():
        if name != "one sample":
            against = paired_bootstrap(values, chosen["one sample"], samples.id)
            differences[name] = {"difference": against.difference, "ci95": list(against.ci95)}
    means = {name: sum(values) / edits for name, values in chosen.items()}
    return {"n": edits, "candidates": n, "oracle": means, "against_one_sample": differences}


def choice(found: Selection, name: str) -> int:
    """Which candidate a scorer takes: the whole sum, or one of its parts."""
    if name not in found.scores.parts:
        return found.ranking[0]
    return int(found.scores.parts[name].nan_to_num(-torch.inf).argmax())


if __name__ == "__main__":
    quiet()
    keep("best-of-n", "python benchmarks/best_of_n.py", compare(EDITS, N))
