"""The contract of every scorer, functions as scorers, and the weighted sum of several scorers."""

import hashlib
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.images.values import NOT_FINITE
from rewardedit.models import names_in
from rewardedit.prepared import Prepared, is_of_inference_mode

F = TypeVar("F", bound=Callable[..., Any])
DECLARED = "_rewardedit_scorer"  # attribute of a function that holds its declaration by `scorer`


class Scorer(nn.Module):
    """Scores b edits. Subclasses set the attributes below and define `score`, and optionally `prepare`."""

    range: tuple[float, float] = (-math.inf, math.inf)  # lowest and highest score
    differentiable: bool = False  # has a gradient with respect to `edited`
    required_fields: frozenset[str] = frozenset()  # EditBatch fields beyond source, instruction and edited
    # weights of linear and convolutional layers may be in bf16 where autocast computes in it
    allows_half_weights: bool = False
    paper: str = ""  # where the score is defined
    # scorers that share weights or a kind of measurement; for a sum, its members' families joined by +
    family: str = "custom"

    @classmethod
    def packaged_models(cls, options: Mapping[str, Any]) -> set[str]:
        """Names of the package's own models that are loaded with all of these options."""
        return names_in(cls.resolved(options))

    @classmethod
    def resolved(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options as they take effect, nothing being loaded. A class whose checkpoint names further models
        overrides it.
        """
        return dict(options)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Returns whatever else the scores depend on, beyond name and options, as JSON values, such as a hash
        of a model from the hub; {} if nothing.

        It is stored with results; scores with a different fingerprint are not resumed. Composite scorers
        return their members' fingerprints.
        """
        return {}

    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        """Computes everything that depends on source and instruction only,
        once for any number of candidates (`Prepared.take`).
        """
        return Prepared({})

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        raise NotImplementedError

    def forward(self, batch: EditBatch, prepared: Prepared | None = None) -> Scores:
        """Scores b edits; computes `prepared` if it is not given. No gradient reaches the edited image of an
        invalid row, not even NaN. A batch on another device is moved to the scorer's, and its scores back.

        Raises:
            ValueError: before any compute, if the batch lacks a field in `required_fields`, or carries a
                gradient that this scorer cannot pass on.
        """
        name = type(self).__name__
        if not isinstance(batch, EditBatch):
            raise ValueError(f"{name}: expected an EditBatch; got {type(batch).__name__}")

        moved = self.beside(batch)
        if moved is not batch:
            return self(moved, prepared).to(batch.edited.device)

        missing = sorted(field for field in self.required_fields if getattr(batch, field) is None)
        if missing:
            raise ValueError(
                f"{name} needs {', '.join(missing)}; set that field of the EditBatch, or use another scorer"
            )

        passes = batch.edited.requires_grad and torch.is_grad_enabled()
        if passes:
            self.require_gradient()
            batch = _out_of_inference_mode(batch)

        if not all(batch.is_finite):
            return self._of_finite_rows(batch, prepared)
        with devices.tf32(batch.edited.device.type):
            if prepared is None or (passes and is_of_inference_mode(prepared)):  # not usable in autograd
                prepared = self.prepare(batch.source, batch.instruction)
            if not passes:
                return self.score(batch, prepared)

            edited = batch.edited.view_as(batch.edited)
            scores = self.score(batch.with_edited(edited), prepared)
        edited.register_hook(partial(_of_rows, scores.valid))
        return scores

    def checkpointed(self, batch: EditBatch) -> Scores:
        """Scores b edits like a call, with activations that are computed again in the backward pass. A scorer
        of separate parts overrides it, to hold those of one part at a time.
        """

        def scores(edited: Tensor) -> Scores:
            return self(batch.with_edited(edited))

        computed: Any = checkpoint(scores, batch.edited, use_reentrant=False)
        return computed

    def _of_finite_rows(self, batch: EditBatch, prepared: Prepared | None) -> Scores:
        """Scores the rows whose edited image is finite; the others are skipped and invalid."""
        rows = list(compress(range(len(batch)), batch.is_finite))
        reason: list[str | None] = [NOT_FINITE] * len(batch)
        nothing = torch.full((len(batch),), torch.nan, device=batch.edited.device)
        if not rows:  # a loss over invalid rows only still has a gradient: 0
            nothing = nothing + 0 * batch.edited.nan_to_num(0, 0, 0).flatten(1).sum(1)
            return Scores.make(nothing, reason=reason)

        scores = self(batch[rows], None if prepared is None else prepared.take(rows))

        def spread(values: Tensor) -> Tensor:
            index = torch.tensor(rows, device=values.device)
            return nothing.to(values).index_put((index,), values)

        for row, text in zip(rows, scores.reason, strict=True):
            reason[row] = text
        parts = {name: spread(values) for name, values in scores.parts.items()}
        return Scores.make(spread(scores.score), parts, reason)

    def beside(self, batch: EditBatch) -> EditBatch:
        """The batch on the device of this scorer's weights; as it is if it lies there, or there are none."""
        places = [weights.device for weights in self.parameters()]
        return batch.to(places[0]) if places and batch.edited.device not in places else batch

    def require_gradient(self) -> None:
        """Raises ValueError if this scorer has no gradient;
        trainers and guidance call it before they load anything.
        """
        if not self.differentiable:
            raise ValueError(no_gradient(type(self), type(self).__name__))


def _out_of_inference_mode(batch: EditBatch) -> EditBatch:
    """The batch with copies of the images that were made in torch's inference mode."""
    made = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor) and value.is_inference():
            made[field.name] = value.clone()
    return replace(batch, **made) if made else batch


def no_gradient(kind: type[Scorer], name: str) -> str:
    """The error for a scorer without a gradient; a user's own scorer may just not declare its gradient."""
    remedy = "detach the edited image, or use a differentiable scorer such as clip_d or l1"
    if issubclass(kind, FunctionScorer):
        remedy = "if the function has one, put @rewardedit.scorer(differentiable=True) above it"
    elif not kind.__module__.startswith("rewardedit."):
        remedy = "if it has one, set differentiable = True in its class"
    return f"{name} has no gradient with respect to the edited image; {remedy}"


def _of_rows(
    valid: Bool[Tensor, " b"], gradient: Float[Tensor, "b 3 h w"] | None
) -> Float[Tensor, "b 3 h w"] | None:
    """The gradient of valid rows, 0 elsewhere: the backward pass through an overflow turns zeros into NaN."""
    if gradient is None:  # no gradient of the score was requested
        return None
    return torch.where(valid.to(gradient.device)[:, None, None, None], gradient, 0.0)


def scorer(
    *,
    range: tuple[float, float] = (-math.inf, math.inf),
    differentiable: bool = False,
    required_fields: Collection[str] = (),
    family: str = "custom",
) -> Callable[[F], F]:
    """Declares a function `(EditBatch) -> (b,)` as a scorer that recipes and commands may name.

    Args:
        range: lowest and highest score; higher is better.
        differentiable: has a gradient with respect to `edited`, which training on it needs.
        required_fields: required fields of the `EditBatch` beyond source, instruction and edited.
        family: shared by scorers of one kind; a training's held-out scorer is of another family.
    """
    settings = {
        "range": range,
        "differentiable": differentiable,
        "required_fields": frozenset(required_fields),
        "family": family,
    }

    def declare(function: F) -> F:
        function.__dict__[DECLARED] = settings
        return function

    return declare


def declared(function: Callable[..., Any]) -> dict[str, Any]:
    """Attributes of a `Scorer` that `scorer` declared for a function; {} if none."""
    return getattr(function, DECLARED, {})


class FunctionScorer(Scorer):
    """A plain function `(EditBatch) -> (b,)` as a scorer; rows where it returns NaN are invalid.

    Arguments that are not given are taken from the declaration by `scorer`.
    """

    def __init__(
        self,
        function: Callable[[EditBatch], Tensor],
        range: tuple[float, float] | None = None,
        differentiable: bool | None = None,
        required_fields: Collection[str] | None = None,
        family: str | None = None,
    ) -> None:
        super().__init__()
        self.function = function
        given = {
            "range": range,
            "differentiable": differentiable,
            "required_fields": required_fields,
            "family": family,
        }
        settings = declared(function) | {name: value for name, value in given.items() if value is not None}
        self.range = settings.get("range", Scorer.range)
        self.differentiable = settings.get("differentiable", Scorer.differentiable)
        self.required_fields = frozenset(settings.get("required_fields", Scorer.required_fields))
        self.family = settings.get("family", Scorer.family)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """A digest of the file that holds the function; {} if there is no such file."""
        file = inspect.getsourcefile(self.function) if inspect.isfunction(self.function) else None
        if file is None or not Path(file).is_file():
            return {}
        return {"source": hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]}

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        score = self.function(batch)
        if score.shape != (len(batch),):
            raise ValueError(
                f"{self.function!r}: expected one score a row, ({len(batch)},); got {tuple(score.shape)}"
            )
        return Scores.make(score)


@contextmanager
def recomputed(module: Any) -> Iterator[None]:
    """Within this context `module.recomputes` is True: its activations are computed again going backwards."""
    module.recomputes = True
    try:
        yield
    finally:
        module.recomputes = False


class Combination(Scorer):
    """Several scorers as one: it has a gradient if all have one, needs the fields that any of them needs,
    belongs to all their families, and a row is invalid if it is for any of them. Subclasses set `range` and
    define `score`.
    """

    recomputes = False  # each scorer's activations are computed again in the backward pass

    def __init__(self, scorers: dict[str, Scorer]) -> None:
        super().__init__()
        # Not a ModuleDict: the name of a user's own class has dots, which module names may not have.
        self.names = tuple(scorers)
        self.scorers = nn.ModuleList(scorers.values())
        self.differentiable = all(scorer.differentiable for scorer in scorers.values())
        self.required_fields = frozenset().union(*(scorer.required_fields for scorer in scorers.values()))
        families = "+".join(scorer.family for scorer in scorers.values())
        self.family = "+".join(sorted(set(families.split("+"))))

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Fingerprints of its scorers, by their names; scorers without one are left out."""
        fingerprints = {}
        for name, scorer in self.named():
            if fingerprint := scorer.fingerprint:
                fingerprints[name] = fingerprint
        return fingerprints

    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        if self.recomputes:  # each scorer does it within its own computation
            return Prepared({})
        return Prepared({name: scorer.prepare(source, instruction) for name, scorer in self.named()})

    def checkpointed(self, batch: EditBatch) -> Scores:
        """Each scorer is computed again by itself, in its own way."""
        with recomputed(self):
            return self(batch)

    def scores(self, batch: EditBatch, prepared: Prepared) -> dict[str, Scores]:
        """Scores of the batch by each scorer, by name."""
        if self.recomputes:
            return {name: scorer.checkpointed(batch) for name, scorer in self.named()}
        return {name: scorer(batch, prepared.inputs[name]) for name, scorer in self.named()}

    def reasons(self, scores: Mapping[str, Scores]) -> list[str | None]:
        """For each row, the reasons why it is invalid, with the scorers' names; None if it is valid."""
        reasons: list[str | None] = []
        for texts in zip(*(scored.reason for scored in scores.values()), strict=True):
            named = zip(scores, texts, strict=True)
            reasons.append("; ".join(f"{name}: {text}" for name, text in named if text) or None)
        return reasons

    def named(self) -> list[tuple[str, Scorer]]:
        """The scorers with their names."""
        named = zip(self.names, self.scorers, strict=True)
        return [(name, scorer) for name, scorer in named if isinstance(scorer, Scorer)]


class WeightedSum(Combination):
    """Σ wᵢ sᵢ over named scorers; a row is invalid if any of its scores is. `parts` holds each sᵢ.

    Raises:
        ValueError: on no scorers, or a weight that is zero or not finite.
    """

    def __init__(self, scorers: dict[str, Scorer], weights: dict[str, float]) -> None:
        super().__init__(scorers)
        if not scorers or set(scorers) != set(weights):
            raise ValueError(
                f"expected a weight for each scorer; got scorers {sorted(scorers)}, weights {sorted(weights)}"
            )
        for name, weight in weights.items():
            if not math.isfinite(weight) or weight == 0:
                raise ValueError(f"{name}: expected a finite weight other than 0; got {weight}")
        self.weights = dict(weights)
        low = 0.0
        high = 0.0
        for name, weight in weights.items():
            first, last = scorers[name].range
            low += min(weight * first, weight * last)
            high += max(weight * first, weight * last)
        self.range = (low, high)

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        scores = self.scores(batch, prepared)
        total = sum(weight * scores[name].score for name, weight in self.weights.items())
        assert isinstance(total, Tensor)
        return Scores.make(total, {name: s.score for name, s in scores.items()}, self.reasons(scores))
