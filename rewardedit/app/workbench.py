"""The work behind the page: an image and an instruction in, ranked candidates out."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from rewardedit.app.settings import AppConfig
from rewardedit.batch import EditBatch, Scores
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.sizes import out_of_memory_told, smaller_size, trained_side
from rewardedit.images import to_pil
from rewardedit.regions.change_map import change_mask
from rewardedit.reports.heatmap import draw_heat, heat_map
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch
from rewardedit.selection import best_of_n, join

CAPTIONS = ("source_caption", "target_caption")  # fields of an edit that the page asks for
MAX_SEED = 2**31 - 1
MAX_STEPS = 200
LARGEST = 2  # area of a long image, in squares of the shorter side at which others are edited
LONGEST = 8  # ratio of an image's sides


@dataclass(frozen=True)
class EditRequest:
    """A user's request for an edit.

    Raises:
        ValueError: for an empty instruction, or a number outside of its bounds.
    """

    source: Float[Tensor, "3 h w"]
    instruction: str
    count: int  # number of candidates
    ranked_by: str  # the scorer that chooses the best
    shown: tuple[str, ...] = ()  # further scorers
    seed: int = 0  # seed of the first candidate; the others count up
    steps: int | None = None  # denoising steps; None: the editor's own
    captions: Mapping[str, str] = field(default_factory=dict)  # by the names in `CAPTIONS`

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ValueError("instruction: expected a text; got none; write what is to change")
        require_between("seed", self.seed, 0, MAX_SEED)
        if self.steps is not None:
            require_between("steps", self.steps, 1, MAX_STEPS)


def require_between(name: str, value: int, low: int, high: int) -> None:
    """Raises ValueError for a number outside of [low, high]."""
    if not low <= value <= high:
        raise ValueError(f"{name}: expected a number from {low} to {high}; got {value}")


@dataclass(frozen=True)
class Candidate:
    """One edit with its scores."""

    seed: int
    edited: Image.Image | None  # None: the editor made none
    changed: Image.Image | None  # white where it differs from the source
    heat: Image.Image | None  # effect of its pixels on the score; None: no chosen scorer has a gradient
    scores: Mapping[str, float | None]  # by the scorers' names; None: it cannot be scored
    reasons: Mapping[str, str]  # why it cannot, by the scorers' names


@dataclass(frozen=True)
class Ranking:
    """All candidates of a request, the best first."""

    candidates: list[Candidate]
    heat_of: str | None  # the scorer of the heat maps


class Workbench:
    """An editor and scorers that are loaded once, for the requests of all users."""

    def __init__(
        self, model: str, editor: Editor, scorers: Mapping[str, Scorer], device: str, config: AppConfig
    ) -> None:
        for name, scorer in scorers.items():
            if lacking := sorted(scorer.required_fields - set(CAPTIONS)):
                raise ValueError(
                    f"--scorer {name}: needs {', '.join(lacking)}, which an uploaded image does not have; "
                    "take another scorer"
                )
        self.model = model
        self.editor = editor
        self.scorers = dict(scorers)
        self.device = device
        self.config = config

    def edit(self, request: EditRequest) -> Ranking:
        """Makes the candidates of a request and scores each.

        Raises:
            ValueError: for an unknown scorer, too many candidates, an image that is too long, a missing
                caption, memory that ran out, or candidates of which none can be scored.
        """
        require_between("candidates", request.count, 1, self.config.max_candidates)
        names = list(dict.fromkeys((request.ranked_by, *request.shown)))
        if unknown := [name for name in names if name not in self.scorers]:
            raise ValueError(f"scorers: expected some of {', '.join(self.scorers)}; got {unknown[0]}")

        source = self._scaled(request.source)
        captions = {name: text for name in CAPTIONS if (text := request.captions.get(name, "").strip())}
        self._require_captions(names, captions)
        settings = self.editor.settings
        if request.steps is not None:
            settings = dataclasses.replace(settings, num_inference_steps=request.steps)
        with out_of_memory_told(Path("image"), source, self._memory_remedy()):
            choice = best_of_n(
                self.editor,
                self.scorers[request.ranked_by],
                source,
                request.instruction,
                request.count,
                seed=request.seed,
                target_score=self.config.target_score,
                settings=settings,
                fields=captions,
                keep=request.count,
            )
            row = EditBatch(
                source,
                [request.instruction],
                source,
                **{name: [text] for name, text in captions.items()},
            )
            has_edit = choice.images.isfinite().flatten(1).all(dim=1).tolist()
            batch = row.with_candidates(choice.images, has_edit)
            scores = {request.ranked_by: choice.scores, **self._further_scores(batch, names[1:])}
            heat_of = next((name for name in names if self.scorers[name].differentiable), None)
            candidates = [self._candidate(i, choice.seeds, batch, scores, heat_of) for i in choice.ranking]
        return Ranking(candidates, heat_of)

    def _scaled(self, image: Float[Tensor, "3 h w"]) -> Float[Tensor, "1 3 h2 w2"]:
        """The image at `--size`; by default no larger than the editor was trained at. A long one is made
        smaller, so that it does not keep the others waiting.

        Raises:
            ValueError: if one side is more than `LONGEST` times the other.
        """
        short, long = sorted(image.shape[-2:])
        if long > LONGEST * short:
            raise ValueError(
                f"image: expected a longer side of at most {LONGEST} times the shorter; got {long} and "
                f"{short} pixels; crop it"
            )
        size = self.config.size or min(short, trained_side(self.editor))
        size = round(size * min(1.0, math.sqrt(LARGEST * short / long)))
        return self.editor.resize(image, size)

    def _memory_remedy(self) -> str:
        """Advice to a user whose image took more memory than there is; `--size` is not theirs to give."""
        size = self.config.size
        remedy = f"ask whoever runs this page to {smaller_size(size)}"
        return f"upload a smaller image, or {remedy}" if size is None else remedy

    def _require_captions(self, names: list[str], captions: Mapping[str, str]) -> None:
        for name in names:
            if lacking := sorted(self.scorers[name].required_fields - set(captions)):
                wanted = " and ".join(field.replace("_", " ") for field in lacking)
                raise ValueError(f"{name}: expected a {wanted}; got none; write one under More")

    def _further_scores(self, batch: EditBatch, names: list[str]) -> dict[str, Scores]:
        if not names:
            return {}
        scorers = {name: self.scorers[name] for name in names}
        columns: dict[str, list[Scores]] = {name: [] for name in names}
        rows = list(range(len(batch)))
        for batch_scores in in_batches(
            rows, BatchSize(len(rows)), lambda rows: score_batch(batch[rows], scorers, self.device)
        ):
            for name, scores in batch_scores.items():
                columns[name].append(scores)
        return {name: join(parts) for name, parts in columns.items()}

    def _candidate(
        self, i: int, seeds: list[int], batch: EditBatch, scores: Mapping[str, Scores], heat_of: str | None
    ) -> Candidate:
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for name, column in scores.items():
            reason = column.reason[i]
            values[name] = float(column.score[i]) if reason is None else None
            if reason is not None:
                reasons[name] = reason
        if not batch.is_finite[i]:
            return Candidate(seeds[i], None, None, None, values, reasons)

        one = batch[[i]]
        mask = change_mask(one.source, one.edited).expand(-1, 3, -1, -1)
        heat = None
        if heat_of is not None and heat_of not in reasons:
            contribution = heat_map(self.scorers[heat_of], one.to(self.device)).cpu()
            heat = to_pil(draw_heat(one.edited, contribution)[0])
        return Candidate(seeds[i], to_pil(one.edited[0]), to_pil(mask[0]), heat, values, reasons)
