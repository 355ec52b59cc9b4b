"""Does an editor that follows a scorer's gradient edit better: python benchmarks/reward_guidance.py

For each scorer the scale that the oracle likes best on val; test run once.
"""

import torch
from record import keep
from tqdm import tqdm

from rewardedit import EditBatch, Editor, load_editor, load_scorer, reward_guidance
from rewardedit.cli import quiet
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.scoring import score_batch

EDITS = 560
VAL = 140
BATCH = 140
SCALES = (0.02, 0.05, 0.1, 0.2)
SCORERS = {"vifi_clip": (), "clip_d": ("source_caption", "target_caption")}  # and the captions they see


def edit(editor: Editor, name: str, scale: float, samples: ShapesBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Edits under guidance and their scores."""
    scorer = load_scorer(name)
    made = []
    scores = []
    captions = {field: getattr(samples, field) for field in SCORERS[name]}
    for i in tqdm(range(0, len(samples), BATCH), desc=f"{name}, scale {scale:g}", leave=False):
        part = samples[i : i + BATCH]
        said = {field: texts[i : i + BATCH] for field, texts in captions.items()}
        with reward_guidance(editor.pipe, scorer, part.source, part.instruction, scale=scale, **said):
            made.append(editor(part.source, part.instruction, range(i, i + len(part))))
        edits = EditBatch(part.source, part.instruction, made[-1], **said)
        scores.append(score_batch(edits, {name: scorer})[name].score)
    return torch.cat(made), torch.cat(scores)


def measure(n: int, val_n: int, scales: tuple[float, ...] = SCALES) -> dict:
    """Scores and oracle ratings with and without guidance."""
    editor = load_editor("shapes-editor")
    oracle = ShapesOracle()
    out = {}
    val = Shapes("val").batch(0, val_n)
    test = Shapes("test").batch(0, n)
    for name in SCORERS:
        on_val = {
            scale: float(oracle.rate(val, edit(editor, name, scale, val)[0]).score.mean()) for scale in scales
        }
        best = max(scales, key=lambda scale: on_val[scale])
        plain, guided = (edit(editor, name, scale, test) for scale in (0.0, best))
        rated = [oracle.rate(test, edited).score.numpy() for edited, _ in (plain, guided)]
        out[name] = {
            "val": on_val,
            "scale": best,
            "score": paired_bootstrap(guided[1].numpy(), plain[1].numpy(), test.id).as_dict(),
            "oracle": paired_bootstrap(rated[1], rated[0], test.id).as_dict(),
        }
    return {"n": n, "guided_minus_plain": out}


if __name__ == "__main__":
    quiet()
    keep("reward-guidance", "python benchmarks/reward_guidance.py", measure(EDITS, VAL))
