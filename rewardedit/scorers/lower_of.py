"""The lower of several scorers, each relative to its median: a good edit must score well by all of them."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch, Scores
from rewardedit.prepared import Prepared
from rewardedit.scorer_spec import ScorerSpec, full_name
from rewardedit.scorers.base import Combination, Scorer
from rewardedit.scorers.load import load_scorer

# Median and standard deviation over the packaged editor's edits (shapes/benchmarks/centres.py).
CENTRES: dict[str, tuple[float, float]] = {
    "adiee(checkpoint=shapes/adiee)": (8.58, 3.214),
    "bpm(checkpoint=shapes/detector)": (1.795, 0.1861),
    "bpm(checkpoint=shapes/detector, missing_object=failed)": (1.787, 0.4032),
    "vifi_clip(checkpoint=shapes/vifi-clip)": (79.89, 16.79),
    "clip_d(checkpoint=shapes/clip)": (0.9561, 0.303),
}


class LowerOf(Combination):
    """min over i of (sᵢ − medianᵢ) / spreadᵢ; its gradient is that of the scorer with the lowest value.

    An image optimised for one scorer seldom scores well by another, so that the lower of two is harder to
    exploit than either, and than their sum. A row is invalid if any of its scores is; `parts` holds each
    centred score.

    Args:
        scorers: the scorers by name.
        centres: median and spread of each by the same names, in the scorer's own units.

    Raises:
        ValueError: on fewer than two scorers, or a spread that is not above 0.
    """

    paper = "the lower of several scorers, each over its own median"
    family = "adiee+bpm"
    differentiable = True

    def __init__(self, scorers: dict[str, Scorer], centres: Mapping[str, Sequence[float]]) -> None:
        super().__init__(scorers)
        if len(scorers) < 2 or set(scorers) != set(centres):
            raise ValueError(
                "lower_of: expected two scorers or more, each with its median and spread; got "
                f"{', '.join(sorted(scorers)) or 'none'}, and centres of "
                f"{', '.join(sorted(centres)) or 'none'}"
            )

        for name, values in centres.items():
            if len(values) != 2 or not values[1] > 0:
                raise ValueError(
                    f"lower_of.centres: {name}: expected a median and a spread above 0; got {list(values)}"
                )

        self.centres = {}
        lowest = []
        highest = []
        for name, scorer in scorers.items():
            median, spread = map(float, centres[name])
            self.centres[name] = (median, spread)
            lowest.append((scorer.range[0] - median) / spread)
            highest.append((scorer.range[1] - median) / spread)
        self.range = (min(lowest), min(highest))

    @classmethod
    def from_pretrained(
        cls,
        scorers: Sequence[ScorerSpec] = (),
        centres: Mapping[str, Sequence[float]] | None = None,
    ) -> "LowerOf":
        """Loads the scorers of these specs.

        Args:
            scorers: specs for `load_scorer`, such as "adiee" or {"bpm": {"missing_object": "failed"}}.
            centres: [median, spread] of each in its own units, by its name with options, as errors print it;
                those in `CENTRES` may be left out.

        Raises:
            ValueError: if a scorer has no centre, or occurs twice.
        """
        names = named(scorers)
        known = CENTRES | dict(centres or {})
        missing = [name for name in names if name not in known]
        if missing:
            raise ValueError(
                f"lower_of.centres: expected a median and a spread of {', '.join(missing)}, which the "
                f"package does not know; give centres: {{'{missing[0]}': [MEDIAN, SPREAD]}} of your edits"
            )
        loaded = {name: load_scorer(spec, device="cpu") for name, spec in names.items()}
        return cls(loaded, {name: known[name] for name in names})

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        scores = self.scores(batch, prepared)
        centred = {name: self.centred(name, own_scores.score) for name, own_scores in scores.items()}
        return Scores.make(torch.stack([*centred.values()]).amin(0), centred, self.reasons(scores))

    def centred(self, name: str, score: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Distance of a scorer's values above its median, in units of its spread."""
        median, spread = self.centres[name]
        return (score.float() - median) / spread


def named(scorers: Sequence[ScorerSpec]) -> dict[str, ScorerSpec]:
    """The specs by their names with options.

    Raises:
        ValueError: if one occurs twice.
    """
    names = dict(zip(map(full_name, scorers), scorers, strict=True))
    if len(names) < len(scorers):
        raise ValueError(f"lower_of: expected each scorer once; got {', '.join(map(full_name, scorers))}")
    return names
