"""Best-of-N: edit many times, score, keep the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import find_executable_batch_size
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch, ImageLike, Scores
from rewardedit.diffusion.editors import EditConfig, as_editor
from rewardedit.images import to_tensor
from rewardedit.scorers import Scorer

CHANNELS = {"target": 3, "mask": 1}  # of the fields that are images


@dataclass(frozen=True)
class Selection:
    """N candidates of one edit and their scores, in the order of their seeds."""

    images: Float[Tensor, "n 3 h w"]
    scores: Scores
    seeds: list[int]

    @property
    def ranking(self) -> list[int]:
        """Indices of the candidates, the best first; those that could not be scored come last."""
        score = self.scores.score.nan_to_num(-torch.inf)
        return sorted(range(len(score)), key=lambda i: (not bool(self.scores.valid[i]), -float(score[i])))

    @property
    def best(self) -> Float[Tensor, "3 h w"]:
        """The image with the highest score."""
        return self.images[self.ranking[0]]

    @property
    def best_seed(self) -> int:
        """The seed that makes the best image again."""
        return self.seeds[self.ranking[0]]


def best_of_n(
    pipe: Any,
    scorer: Scorer,
    image: ImageLike,
    instruction: str,
    n: int = 8,
    *,
    seed: int = 0,
    score: float = 10.0,
    settings: EditConfig | None = None,
    fields: dict[str, Any] | None = None,
    batch_size: int | None = None,
    **options: Any,
) -> Selection:
    """Edits an image n times, with seeds `seed`, `seed + 1` …, and scores each edit.

    Source and instruction are encoded and prepared for scoring once. Candidates are made in as few batches as
    memory allows: where one does not fit, smaller ones are tried. Each has a seed of its own,
    so `pipe` makes the winner again alone.

    Args:
        pipe: an `Editor`, or a stock diffusers InstructPix2Pix pipeline.
        scorer: any, by `load_scorer`; a sum such as "clip_d:0.7,l1:0.3" too.
        image: a PIL image, or RGB in [0, 1] (3, h, w).
        score: what a reward-conditioned editor is asked for, 0–10.
        fields: what else the scorer wants to know of the edit, e.g. {"target_caption": "a cat with a hat"};
            target and mask are images as `image` is.
        batch_size: the largest number of candidates made at once; None for all n.

    Raises:
        ValueError: for n below 1, a field that the scorer needs and does not get, or where no candidate can
            be scored.
    """
    if n < 1 or (batch_size is not None and batch_size < 1):
        raise ValueError(f"expected n and batch_size of at least 1; got {n} and {batch_size}")
    fields = {
        name: to_tensor(value, CHANNELS[name])[None] if name in CHANNELS else [value]
        for name, value in (fields or {}).items()
    }
    missing = sorted(scorer.needs - set(fields))
    if missing:
        raise ValueError(f"{type(scorer).__name__} needs {', '.join(missing)}; give them as fields")

    # Source and instruction are encoded once; each candidate takes the first row of them.
    editor = as_editor(pipe)
    source = to_tensor(image, 3)[None]
    seeds = list(range(seed, seed + n))
    device = next((p.device for p in scorer.parameters()), source.device)
    with torch.no_grad():
        encoded = editor.encode(source, [instruction], score=score)
        prepared = scorer.prepare(source.to(device), [instruction])

        def candidates(size: int) -> tuple[Tensor, list[Scores]]:
            images = []
            scores = []
            for start in range(0, n, size):
                part = seeds[start : start + size]
                k = len(part)
                images.append(editor.sample(encoded.take([0] * k), part, settings=settings, **options))
                given = {
                    name: v.expand(k, *v.shape[1:]) if isinstance(v, Tensor) else v * k
                    for name, v in fields.items()
                }
                edits = EditBatch(source.expand(k, -1, -1, -1), [instruction] * k, images[-1], **given)
                scores.append(scorer(edits.to(device), prepared.take([0] * k)).cpu())
            return torch.cat(images), scores

        images, scores = find_executable_batch_size(candidates, starting_batch_size=min(batch_size or n, n))()

    found = join(scores)
    if not bool(found.valid.any()):
        raise ValueError(f"none of {n} candidates could be scored: {found.reason[0]}")
    return Selection(images, found, seeds)


def join(scores: Sequence[Scores]) -> Scores:
    """The scores of several batches as one."""
    parts = {name: torch.cat([s.parts[name] for s in scores]) for name in scores[0].parts}
    reason = [text for s in scores for text in s.reason]
    return Scores(torch.cat([s.score for s in scores]), parts, torch.cat([s.valid for s in scores]), reason)
