"""Best-of-N: edit many times, score, keep the best."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from rewardedit.batch import EditBatch, Scores
from rewardedit.batch.html import gallery, number_cell
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.diffusion.editors import SamplingConfig, as_editor
from rewardedit.diffusion.edits import Edits
from rewardedit.images import ImagesLike, read_images
from rewardedit.scorers import Scorer

CHANNELS = {"target": 3, "mask": 1}  # channels of the fields that are images
MOST_AT_ONCE = 16  # candidates made together by default
KEPT = 64  # images kept in memory by default: 200 MB at 512 pixels a side


@dataclass(frozen=True)
class Selection:
    """N candidates of one edit and their scores, in the order of their seeds, with the images of the best."""

    images: Float[Tensor, "k 3 h w"]  # images of the candidates `kept`; NaN for a candidate without an edit
    scores: Scores
    seeds: list[int]
    kept: list[int] | None = None  # indices of the candidates in `images`, in order; None: all

    @property
    def ranking(self) -> list[int]:
        """Indices of the candidates, the best first; those that could not be scored come last."""
        return _ranked(range(len(self.seeds)), self.scores)

    @property
    def seeds_of_images(self) -> list[int]:
        """The seed of each of the `images`."""
        return self.seeds if self.kept is None else [self.seeds[i] for i in self.kept]

    @property
    def best(self) -> Float[Tensor, "3 h w"]:
        """The image with the highest score."""
        best = self.ranking[0]
        return self.images[best if self.kept is None else self.kept.index(best)]

    @property
    def best_seed(self) -> int:
        """The seed that makes the best image again."""
        return self.seeds[self.ranking[0]]

    def _repr_html_(self) -> str:
        kept = list(range(len(self.seeds))) if self.kept is None else self.kept
        figures = []
        for i in self.ranking:
            if i in kept:
                caption = f"seed {self.seeds[i]}: {number_cell(float(self.scores.score[i]))}"
                figures.append((self.images[kept.index(i)], caption, self.scores.reason[i]))
        return gallery(figures, len(self.seeds))


def _ranked(candidates: Iterable[int], scores: Scores) -> list[int]:
    score = scores.score.nan_to_num(-torch.inf)
    return sorted(candidates, key=lambda i: (not bool(scores.valid[i]), -float(score[i])))


def best_of_n(
    pipe: Any,
    scorer: Scorer,
    image: ImagesLike,
    instruction: str,
    n: int = 8,
    *,
    seed: int = 0,
    target_score: float = 10.0,
    settings: SamplingConfig | None = None,
    fields: dict[str, Any] | None = None,
    batch_size: int | None = None,
    keep: int = KEPT,
    **options: Any,
) -> Selection:
    """Edits an image n times, with seeds `seed`, `seed + 1` …, and scores each edit.

    Source and instruction are encoded and prepared for scoring once. If memory runs out, the editor's batch
    or the scorer's is halved from there on, and finished candidates are kept. Each candidate has its own
    seed, so `pipe` can reproduce the winner alone. A candidate whose image overflowed, or was withheld by a
    safety checker, is invalid.

    Args:
        pipe: an `Editor`, or a stock diffusers InstructPix2Pix pipeline.
        scorer: any scorer of `load_scorer`, including a sum such as "clip_d:0.7,l1:0.3".
        image: a path, a PIL image, an array (h, w, 3), or a tensor (3, h, w) in [0, 1].
        target_score: the score requested of a reward-conditioned editor, 0–10.
        fields: further fields that the scorer needs, e.g. {"target_caption": "a cat with a hat"}; target and
            mask are images in any form of `image`.
        batch_size: the largest number of candidates made, and scored, at once; None for up to `MOST_AT_ONCE`.
        keep: number of candidates, the best ones, whose images stay in memory.

    Raises:
        ValueError: on n, batch_size or keep below 1, if a field that the scorer needs is missing, or if no
            candidate can be scored.
    """
    for name, value in (("n", n), ("keep", keep), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected at least 1; got {value}")
    if not isinstance(scorer, Scorer):
        kind = type(scorer).__name__
        raise ValueError(f"scorer: expected one as load_scorer returns; got {kind}")

    fields = _read_fields(fields or {})
    missing = sorted(scorer.required_fields - set(fields))
    if missing:
        raise ValueError(f"{type(scorer).__name__} needs {', '.join(missing)}; give them as fields")

    # Source and instruction are encoded once; each candidate uses their first row.
    editor = as_editor(pipe)
    source = read_images(image)
    if len(source) != 1:
        raise ValueError(f"best_of_n: expected one image; got {len(source)}")

    seeds = list(range(seed, seed + n))
    device = next((p.device for p in scorer.parameters()), source.device)
    with torch.no_grad():
        encoded = editor.encode(source, [instruction], target_score=target_score)
        row = EditBatch(source, [instruction], source, **fields).to(device)
        prepared = scorer.prepare(row.source, row.instruction)

        def sample(chunk: list[int]) -> Edits:
            rows = encoded.take([0] * len(chunk))
            return editor.sample(rows, chunk, settings=settings, **options).to(device)

        def score(edits: Edits) -> Scores:
            batch = row.with_candidates(edits.images, [reason is None for reason in edits.reason])
            scores = scorer(batch, prepared.take([0] * len(batch))).cpu()
            reasons = zip(edits.reason, scores.reason, strict=True)
            return replace(scores, reason=[lacks or text for lacks, text in reasons])

        images, scores = _candidates(seeds, min(batch_size or MOST_AT_ONCE, n), sample, score, keep)

    if not bool(scores.valid.any()):
        raise ValueError(f"none of {n} candidates could be scored: {scores.reason[0]}")
    return Selection(torch.stack(list(images.values())), scores, seeds, list(images))


def _read_fields(fields: dict[str, Any]) -> dict[str, Any]:
    read = {}
    for name, value in fields.items():
        read[name] = read_images(value, CHANNELS[name]) if name in CHANNELS else [value]
    return read


def _candidates(
    seeds: list[int],
    batch_size: int,
    sample: Callable[[list[int]], Edits],
    score: Callable[[Edits], Scores],
    keep: int,
) -> tuple[dict[int, Tensor], Scores]:
    """Makes one candidate for each seed, at most `batch_size` at once; returns the images of the `keep` best
    in main memory, by their indices, and the scores of all.

    Sampling and scoring have batch sizes of their own, in case memory runs out.
    """
    n = len(seeds)
    sampled = BatchSize(batch_size)
    scored = BatchSize(batch_size)
    images: dict[int, Tensor] = {}
    scores: list[Scores] = []
    start = 0
    with tqdm(total=n, desc="candidates", unit="edit", delay=5, leave=False, disable=n == 1) as bar:
        for edits in in_batches(seeds, sampled, sample):
            scores = [join([*scores, *in_batches(edits, scored, score)])]
            stop = start + len(edits)
            best = sorted(_ranked([*images, *range(start, stop)], scores[0])[:keep])
            fresh = [i for i in best if i >= start]
            moved = edits.images[[i - start for i in fresh]].cpu()
            # Cloned, or a row would keep all of its batch in memory.
            images = {i: images[i] for i in best if i < start}
            images |= {i: moved[k].clone() for k, i in enumerate(fresh)}
            bar.update(len(edits))
            start = stop
    return images, scores[0]


def join(scores: Sequence[Scores]) -> Scores:
    """Joins the scores of several batches; a part that a batch lacks, such as one of invalid rows, is NaN."""

    def sub_score(name: str, batch: Scores) -> Tensor:
        return batch.parts.get(name, torch.full_like(batch.score, torch.nan))

    parts = {}
    for name in dict.fromkeys(chain.from_iterable(batch.parts for batch in scores)):
        parts[name] = torch.cat([sub_score(name, batch) for batch in scores])
    return Scores(
        torch.cat([batch.score for batch in scores]),
        parts,
        torch.cat([batch.valid for batch in scores]),
        list(chain.from_iterable(batch.reason for batch in scores)),
    )
