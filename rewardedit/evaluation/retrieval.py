"""Retrieval of an edit's instruction among all others, by score:
the protocol of the ViFi-CLIP poster (Donabauer et al. 2025).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.scorers.vifi_clip import ViFiClip

RECALLS = (1, 5, 10, 50)


@dataclass(frozen=True)
class Retrieval:
    """Scores of n edits against the n instructions, their own on the diagonal."""

    scores: Float[Tensor, "n n"]  # row: edit, column: instruction
    swapped: Float[Tensor, " n"]  # with source and edited exchanged, for their own instruction
    identity: Float[Tensor, " n"]  # scores of the untouched source

    @property
    def own(self) -> Float[Tensor, " n"]:
        return self.scores.diagonal()

    @property
    def ranks(self) -> Int[Tensor, " n"]:
        """Rank of each edit's own instruction, from 1; an equal score, or NaN, counts as better."""
        return (~(self.scores < self.own[:, None])).sum(1)

    @property
    def swap_won(self) -> Bool[Tensor, " n"]:
        """True where the edit scores above its reverse; a tie is lost."""
        return self.own > self.swapped

    @property
    def identity_won(self) -> Bool[Tensor, " n"]:
        """True where the edit scores above the untouched source; a tie is lost."""
        return self.own > self.identity

    def summary(self, kinds: Sequence[str | None] | None = None) -> dict[str, Any]:
        """Mean and median rank, recall@k, swap and identity test (shares),
        and the same by kind of edit if kinds are given.
        """
        out = self._of(torch.ones(len(self.own), dtype=torch.bool))
        of_kinds = {}
        for name in sorted(filter(None, set(kinds or ()))):
            of_kinds[name] = self._of(torch.tensor([kind == name for kind in kinds or ()]))
        if of_kinds:
            out["kinds"] = of_kinds
        return out

    def _of(self, rows: Bool[Tensor, " n"]) -> dict[str, Any]:
        ranks = self.ranks[rows].double()
        return {
            "n": int(rows.sum()),
            "mean_rank": float(ranks.mean()),
            "median_rank": float(ranks.quantile(0.5)),
            **{f"recall@{k}": float((ranks <= k).double().mean()) for k in RECALLS},
            "swap": float(self.swap_won[rows].double().mean()),
            "identity": float(self.identity_won[rows].double().mean()),
        }


@torch.no_grad()
def retrieve(scorer: ViFiClip, chunks: Iterable[EditBatch]) -> Retrieval:
    """Scores every edit with every instruction of the chunks.

    Raises:
        ValueError: if an instruction occurs twice: its two edits could not be told apart.
    """
    videos = []
    swapped = []
    identity = []
    words = []
    texts: list[str] = []
    for batch in chunks:
        prepared = scorer.prepare(batch.source, batch.instruction)
        source = prepared.inputs
        edited = scorer.frame(batch.edited)
        videos.append(scorer.video(source, edited))
        swapped.append(scorer.video(edited, source))
        identity.append(scorer.video(source, source))
        words.append(source["words"])
        texts += batch.instruction
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise ValueError(f"expected each instruction once; {twice!r} comes {texts.count(twice)} times")
    said = torch.cat(words)
    # All by the same product, so that a pooling that is blind to order ties to the last bit.
    scores, *others = (100 * (torch.cat(features) @ said.T).cpu() for features in (videos, swapped, identity))
    return Retrieval(scores, *(other.diagonal().clone() for other in others))
