"""The contract of every scorer, and the weighted sum."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rewardedit.assets import names_in
from rewardedit.batch import EditBatch, Scores
from rewardedit.encoded import Encoded


class Scorer(nn.Module):
    """Scores b edits. Subclasses set the attributes below and write `score`; they may write `prepare`."""

    range: tuple[float, float] = (-math.inf, math.inf)  # of the score
    differentiable: bool = False  # has a gradient with respect to `edited`
    needs: frozenset[str] = frozenset()  # EditBatch fields beyond source, instruction and edited
    paper: str = ""  # where the score is defined
    # scorers that share weights or a kind of measurement; of a sum its members', joined by +
    family: str = "custom"

    @classmethod
    def packaged(cls, options: Mapping[str, Any]) -> set[str]:
        """The package's own models that are loaded with all of these options, by name: those that the options
        name. A class that loads others besides says so.
        """
        return names_in(options)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What scores depend on beyond name and options, as JSON has it, such as a hash of a model that comes
        from the hub; {} where there is nothing of the kind.

        It stands in results, and scores by another are not gone on with. A class that holds scorers tells
        theirs.
        """
        return {}

    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Encoded:
        """Everything that depends on the source side alone,
        computed once for any number of candidates (`Encoded.take`).
        """
        return Encoded({})

    def score(self, batch: EditBatch, prepared: Encoded) -> Scores:
        raise NotImplementedError

    def forward(self, batch: EditBatch, prepared: Encoded | None = None) -> Scores:
        """Scores of b edits; `prepared` is made here where it is not given. No gradient reaches the edited
        image of an invalid row, not even NaN.

        Raises:
            ValueError: before any compute, if the batch lacks a field in `needs`, or carries a gradient that
                this scorer cannot pass on.
        """
        name = type(self).__name__
        missing = sorted(field for field in self.needs if getattr(batch, field) is None)
        if missing:
            raise ValueError(
                f"{name} needs {', '.join(missing)}; give the EditBatch that field, or take another scorer"
            )
        passes = batch.edited.requires_grad and torch.is_grad_enabled()
        if passes:
            self.require_gradient()
        if prepared is None:
            prepared = self.prepare(batch.source, batch.instruction)
        if not passes:
            return self.score(batch, prepared)
        edited = batch.edited.view_as(batch.edited)
        scores = self.score(replace(batch, edited=edited), prepared)
        edited.register_hook(partial(_of_rows, scores.valid))
        return scores

    def require_gradient(self) -> None:
        """Raises ValueError where this scorer has no gradient:
        for trainers and guidance to ask before they load anything.
        """
        if not self.differentiable:
            raise ValueError(
                f"{type(self).__name__} has no gradient with respect to the edited image; "
                "detach it, or take a differentiable scorer such as clip_d or l1"
            )


def _of_rows(
    valid: Bool[Tensor, " b"], gradient: Float[Tensor, "b 3 h w"] | None
) -> Float[Tensor, "b 3 h w"] | None:
    """The gradient, 0 elsewhere: what overflows in a row's pass makes its zeros NaN on the way back."""
    if gradient is None:  # nothing asked for one of the score
        return None
    return torch.where(valid.to(gradient.device)[:, None, None, None], gradient, 0.0)


class FunctionScorer(Scorer):
    """A plain function `(EditBatch) -> (b,)` as a scorer; rows where it returns NaN are invalid."""

    def __init__(
        self,
        function: Callable[[EditBatch], Tensor],
        range: tuple[float, float] = (-math.inf, math.inf),
        differentiable: bool = False,
        needs: frozenset[str] = frozenset(),
        family: str = "custom",
    ) -> None:
        super().__init__()
        self.function = function
        self.range = range
        self.differentiable = differentiable
        self.needs = frozenset(needs)
        self.family = family

    def score(self, batch: EditBatch, prepared: Encoded) -> Scores:
        score = self.function(batch)
        if score.shape != (len(batch),):
            raise ValueError(
                f"{self.function!r}: expected one score a row, ({len(batch)},); got {tuple(score.shape)}"
            )
        return Scores.make(
            score, reason=["the function returned NaN" if bad else None for bad in score.isnan().tolist()]
        )


class WeightedSum(Scorer):
    """Σ wᵢ sᵢ over named scorers; a row is invalid where any of them is. `parts` holds each sᵢ.

    Raises:
        ValueError: on no scorers, or a weight that is zero or not finite.
    """

    def __init__(self, scorers: dict[str, Scorer], weights: dict[str, float]) -> None:
        super().__init__()
        if not scorers or set(scorers) != set(weights):
            raise ValueError(
                f"expected a weight for each scorer; got scorers {sorted(scorers)}, weights {sorted(weights)}"
            )
        for name, weight in weights.items():
            if not math.isfinite(weight) or weight == 0:
                raise ValueError(f"{name}: expected a finite weight other than 0; got {weight}")
        # Not a ModuleDict: the name of a class of one's own has dots, which names of modules may not have.
        self.names = tuple(scorers)
        self.scorers = nn.ModuleList(scorers.values())
        self.weights = dict(weights)
        ends = [sorted(weight * end for end in scorers[name].range) for name, weight in weights.items()]
        self.range = (sum(low for low, _ in ends), sum(high for _, high in ends))
        self.differentiable = all(scorer.differentiable for scorer in scorers.values())
        self.needs = frozenset().union(*(scorer.needs for scorer in scorers.values()))
        self.family = "+".join(
            sorted({name for scorer in scorers.values() for name in scorer.family.split("+")})
        )

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Those of its scorers that have one, by their names."""
        found = {name: scorer.fingerprint for name, scorer in self._named()}
        return {name: told for name, told in found.items() if told}

    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Encoded:
        return Encoded({name: scorer.prepare(source, instruction) for name, scorer in self._named()})

    def score(self, batch: EditBatch, prepared: Encoded) -> Scores:
        scores = {name: scorer(batch, prepared.inputs[name]) for name, scorer in self._named()}
        total = sum(weight * scores[name].score for name, weight in self.weights.items())
        reasons = [
            "; ".join(f"{name}: {s.reason[i]}" for name, s in scores.items() if s.reason[i]) or None
            for i in range(len(batch))
        ]
        assert isinstance(total, Tensor)
        return Scores.make(total, {name: s.score for name, s in scores.items()}, reasons)

    def _named(self) -> list[tuple[str, Scorer]]:
        named = zip(self.names, self.scorers, strict=True)
        return [(name, scorer) for name, scorer in named if isinstance(scorer, Scorer)]
