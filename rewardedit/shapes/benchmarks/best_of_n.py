"""Best of 8 on the shapes world by several scorers, compared with chance and the oracle's choice:
python rewardedit/shapes/benchmarks/best_of_n.py [RUNS]

First without captions, as for a user of `rewardedit edit --best-of 8`. The world's exact captions, which
describe the target truthfully, give an upper bound.
Every way of choosing uses the number of steps that is best for it on val. RUNS/best-of-n keeps the choices:
an interrupted program continues with the next number of steps.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from common import load_scorer, read_command_line
from grid import best_by_steps
from tqdm import tqdm
from variants import figures_of

from rewardedit import EditBatch, best_of_n, load_editor
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.models import digests
from rewardedit.scorer_spec import read_spec
from rewardedit.scorers import Scorer
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.shapes.world import join

EDITS = 280
VAL = 140
N = 8
SCORERS: dict[str, dict[str, Any]] = {  # with their options
    "clip_d": {},
    "vifi_clip": {},
    "bpm": {"missing_object": "failed"},
    "adiee": {},
    "l1": {},
    "ssim": {},
}
SUMS = ("clip_d:0.7,l1:0.3", "adiee:0.1,bpm:0.5")  # the second of scores from 0 to 10 and from 0 to 2
WITH_CAPTIONS = ("clip_d", "clip_d:0.7,l1:0.3")
ONE = "one sample"

Choices = dict[str, list[float]]  # way of choosing: the oracle's ratings of the chosen edits


def choose(editor: Editor, samples: ShapesBatch, n: int, settings: SamplingConfig) -> dict[str, Choices]:
    """Ratings of each scorer's choices among the same n candidates, without captions and with them."""
    scorers = {name: load_scorer(name, device="cpu", **options) for name, options in SCORERS.items()}
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
        candidates = best_of_n(editor, scorers["l1"], source, instruction, n, seed=N * i, settings=settings)
        rating = oracle.rate(join([samples[i : i + 1]] * n), candidates.images).score
        note("without_captions", ONE, rating[0])
        note("without_captions", "random choice", rating[int(torch.randint(n, (), generator=generator))])
        edits = EditBatch(source.expand(n, -1, -1, -1), [instruction] * n, candidates.images)
        captions = {name: [getattr(samples, name)[i]] * n for name in ("source_caption", "target_caption")}
        captioned = EditBatch(edits.source, edits.instruction, edits.edited, **captions)
        for name, place in best(scorers, edits, (*SCORERS, *SUMS)).items():
            note("without_captions", name, rating[place])
        for name, place in best(scorers, captioned, WITH_CAPTIONS).items():
            note("with_captions", name, rating[place])
        note("without_captions", "oracle's choice", rating.max())
    return out


@torch.no_grad()
def best(scorers: dict[str, Scorer], edits: EditBatch, names: Sequence[str]) -> dict[str, int]:
    """Index of the edit of a source that each scorer, or sum of scorers, chooses; invalid ones come last."""
    terms = {name: read_spec(name) for name in names}
    scores: dict[str, torch.Tensor] = {}
    for name in {name for spec in terms.values() for name in spec}:
        prepared = scorers[name].prepare(edits.source[:1], edits.instruction[:1]).take([0] * len(edits))
        scores[name] = scorers[name](edits, prepared).score
    chosen = {}
    for name, spec in terms.items():
        total = torch.stack([(term.weight or 1.0) * scores[one] for one, term in spec.items()]).sum(0)
        chosen[name] = int(total.nan_to_num(-torch.inf).argmax())
    return chosen


def compare(
    edits: int, val_edits: int, n: int, runs: Path, grid: dict[int, SamplingConfig] | None = None
) -> dict[str, Any]:
    """Oracle means of the first candidate, a random one, each scorer's choice and the oracle's,
    over the same candidates.

    Args:
        runs: folder that keeps the choices.
        grid: settings by number of steps; by default the base's best ones on val for each.
    """
    grid = grid or best_by_steps()
    editor = load_editor("shapes/editor")
    test = Shapes("test").batch(0, edits)

    def chosen_of(split: str, samples: ShapesBatch, k: int, n: int) -> dict[str, Choices]:
        return figures_of(
            runs / "best-of-n" / f"{split}-{k}-steps-{n}",
            [len(samples), asdict(grid[k]), SCORERS, SUMS, digests()],
            lambda _: choose(editor, samples, n, grid[k]),
        )

    val = Shapes("val").batch(0, val_edits)
    on_val = {k: chosen_of("val", val, k, n) for k in grid}

    chosen: dict[str, dict[str, int]] = {}
    for condition in ("without_captions", "with_captions"):
        names = on_val[next(iter(grid))][condition]
        chosen[condition] = {
            name: max(grid, key=lambda k: _mean(on_val[k][condition][name])) for name in names
        }
    used = {k for names in chosen.values() for name, k in names.items() if name != ONE}
    on_test = {k: chosen_of("test", test, k, n) for k in grid if k in used}
    alone = chosen["without_captions"][ONE]
    if alone not in on_test:  # one sample needs no other candidates
        on_test[alone] = chosen_of("test", test, alone, 1)
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
    line = read_command_line(__doc__, "RUNS", many=False)
    quiet()
    line.keep("best-of-n", compare(EDITS, VAL, N, Path(*line.words or ["runs"])))
