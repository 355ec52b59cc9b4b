"""Best of 8 on the shapes world by several scorers, beside chance and the oracle's choice:
python benchmarks/best_of_n.py

Without captions first, which is what a user of `rewardedit edit --best-of 8` has. The world's exact captions,
which tell the truth about the target, are the upper case.
Every way of choosing takes the number of steps that is best for it on val.
"""

from typing import Any

import torch
from grid import best_by_steps
from record import keep
from tqdm import tqdm

from rewardedit import EditBatch, best_of_n, load_editor, load_scorer
from rewardedit.cli import quiet
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.data.shapes.world import join
from rewardedit.diffusion.editors import EditConfig, Editor
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.scoring import score_batch

EDITS = 280
VAL = 70
N = 8
SCORERS = ("clip_d", "vifi_clip", "bpm", "l1", "ssim", "clip_d:0.7,l1:0.3")
WITH_CAPTIONS = ("clip_d", "clip_d:0.7,l1:0.3")
ONE = "one sample"

Choices = dict[str, list[float]]  # way of choosing: the oracle's rating of what it chose, an edit each


def choose(editor: Editor, samples: ShapesBatch, n: int, settings: EditConfig) -> dict[str, Choices]:
    """Ratings of what each scorer chooses among the same n candidates, without captions and with them."""
    scorers = {name: load_scorer(name) for name in SCORERS}
    oracle = ShapesOracle()
    generator = torch.Generator().manual_seed(0)
    out: dict[str, Choices] = {"without_captions": {}, "with_captions": {}}

    def note(condition: str, name: str, rating: torch.Tensor) -> None:
        out[condition].setdefault(name, []).append(float(rating))

    for i in tqdm(
        range(len(samples)),
        desc=f"best of {n}, {settings.num_inference_steps} steps",
        unit="edit",
        leave=False,
    ):
        source = samples.source[i]
        instruction = samples.instruction[i]
        found = best_of_n(editor, scorers["l1"], source, instruction, n, seed=N * i, settings=settings)
        rating = oracle.rate(join([samples[i : i + 1]] * n), found.images).score
        note("without_captions", ONE, rating[0])
        note("without_captions", "random choice", rating[int(torch.randint(n, (), generator=generator))])
        edits = EditBatch(source.expand(n, -1, -1, -1), [instruction] * n, found.images)
        captions = {name: [getattr(samples, name)[i]] * n for name in ("source_caption", "target_caption")}
        told = EditBatch(edits.source, edits.instruction, edits.edited, **captions)
        for name in SCORERS:
            note("without_captions", name, rating[best(scorers[name], edits)])
        for name in WITH_CAPTIONS:
            note("with_captions", name, rating[best(scorers[name], told)])
        note("without_captions", "oracle's choice", rating.max())
    return out


def best(scorer: Any, edits: EditBatch) -> int:
    """Which of the edits the scorer takes; one that cannot be scored is never taken."""
    return int(score_batch(edits, {"": scorer})[""].score.nan_to_num(-torch.inf).argmax())


def compare(edits: int, val_edits: int, n: int, grid: dict[int, EditConfig] | None = None) -> dict[str, Any]:
    """Oracle means of the first candidate, a random one, each scorer's choice and the oracle's,
    over the same candidates.

    Args:
        grid: the settings by number of steps; by default the base's best on val for each.
    """
    grid = grid or best_by_steps()
    editor = load_editor("shapes-editor")
    val = Shapes("val").batch(0, val_edits)
    test = Shapes("test").batch(0, edits)
    on_val = {k: choose(editor, val, n, settings) for k, settings in grid.items()}

    chosen: dict[str, dict[str, int]] = {}
    for condition in ("without_captions", "with_captions"):
        names = on_val[next(iter(grid))][condition]
        chosen[condition] = {
            name: max(grid, key=lambda k: _mean(on_val[k][condition][name])) for name in names
        }
    used = {k for names in chosen.values() for name, k in names.items() if name != ONE}
    on_test = {k: choose(editor, test, n, settings) for k, settings in grid.items() if k in used}
    alone = chosen["without_captions"][ONE]
    if alone not in on_test:  # one sample needs no candidates beside it
        on_test[alone] = choose(editor, test, 1, grid[alone])
    one = on_test[alone]["without_captions"][ONE]

    out: dict[str, Any] = {}
    for condition, names in chosen.items():
        ratings = {name: on_test[k][condition][name] for name, k in names.items()}
        against = {
            name: paired_bootstrap(values, one, test.id) for name, values in ratings.items() if name != ONE
        }
        out[condition] = {
            "oracle": {name: _mean(values) for name, values in ratings.items()},
            "against_one_sample": {
                k: {"difference": f.difference, "ci95": list(f.ci95)} for k, f in against.items()
            },
            "steps": names,
        }
    return {"n": edits, "candidates": n, **out.pop("without_captions"), **out}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    quiet()
    keep("best-of-n", "python benchmarks/best_of_n.py", compare(EDITS, VAL, N))
