"""DICE: detect every difference, judge each against the instruction (Baraldi et al. 2025)."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rewardedit.batch import EditBatch, Scores
from rewardedit.config import require_unset
from rewardedit.language.model_hash import model_hash
from rewardedit.models import is_hub_name
from rewardedit.prepared import Prepared
from rewardedit.regions.change_detector import ChangeDetector
from rewardedit.regions.differences import Difference, DifferenceDetector, covered
from rewardedit.regions.load import FINDERS, locator_options
from rewardedit.scorers.base import Scorer
from rewardedit.scorers.dice_models import ModelOptions, load_dice, settings_of
from rewardedit.scorers.dice_rules import CoherenceRules
from rewardedit.scorers.dice_vlm import (
    CoherenceJudge,
    Verdict,
    VlmCoherence,
    VlmDetector,
    prompt_texts,
    require_confidence,
    require_tokens,
)

CHANGE = "change"  # detector without a model
RULES = "rules"  # judge without a model
RECIPES = {"detector": "dice-detector", "coherence": "dice-coherence"}
SMALL = "shapes/dice"
MOST_TOKENS = 500  # of an answer, unless others are asked for
NOT_ASKED = Verdict(False, 0.0, "the instruction asks for nothing")
PARTS = ("coherent", "unwanted_area", "differences", "confidence", "unchanged", "dropped")


@dataclass(frozen=True)
class Analysis:
    """Differences of one edit with their judgements, or the reason why it has no score."""

    differences: tuple[Difference, ...]
    verdicts: tuple[Verdict, ...]  # one a difference; none if `reason` is the detector's
    dropped: int  # items of the detector's answer that could not be read
    reason: str | None = None

    @property
    def coherent(self) -> list[Difference]:
        """The differences that the instruction asks for."""
        return self._judged(True)

    @property
    def incoherent(self) -> list[Difference]:
        """The differences that it does not ask for."""
        return self._judged(False)

    def _judged(self, coherent: bool) -> list[Difference]:
        pairs = zip(self.differences, self.verdicts, strict=False)  # there may be no verdicts
        return [difference for difference, verdict in pairs if verdict.coherent is coherent]


class Dice(Scorer):
    """DICE, in [0, 1]: the share of the changed area that the instruction asks for.

    A detector finds the differences between source and edited image without seeing the instruction; a judge
    decides for each if the instruction asks for it. The published method has no single number; the score is
    ours: 1 − (area of the boxes that are not asked for) / (area of all boxes), overlapping boxes counted
    once. It is 0 if nothing changed but something was asked for, and 1 if neither.

    `parts`: "coherent", the share of the differences that are asked for, by count; "unwanted_area", the
    share of the image that lies in boxes that are not; "differences", their number; "confidence", their mean
    confidence (NaN for none); "unchanged", 1 if there are none; "dropped", unreadable items of the answer.

    A row is invalid, with the reason, if no item of the detector's answer can be read and it does not say
    that nothing changed, if more than `max_dropped` of the items cannot be read, or if a judgement is
    neither yes nor no. There is no gradient.

    Args:
        max_dropped: largest share of unreadable items, in [0, 1].
    """

    paper = "DICE (Baraldi et al. 2025)"
    family = "dice"
    range = (0.0, 1.0)

    def __init__(self, detector: DifferenceDetector, judge: CoherenceJudge, max_dropped: float = 0.5) -> None:
        super().__init__()
        if not 0 <= max_dropped <= 1:
            raise ValueError(f"max_dropped: expected a number from 0 to 1; got {max_dropped}")
        self.detector = detector  # usually a module, which moves between devices with the scorer
        self.judge = judge
        self.max_dropped = max_dropped

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | None = None,
        detector: str | dict[str, Any] | None = None,
        coherence: str | dict[str, Any] | None = None,
        objects: str | dict[str, Any] | None = None,
        confidence: str = "likelihood",
        both_orders: bool = False,
        max_dropped: float = 0.5,
        compat: str = "paper",
        quantize: str | None = None,
        longest_edge: int | None = None,
        max_new_tokens: int = MOST_TOKENS,
        dtype: torch.dtype | str | None = None,
    ) -> "Dice":
        """Loads the two parts.

        Args:
            checkpoint: model of the parts that have none of their own, by hub name or folder.
            detector: another model for the detector, or "change", the change map, which needs none; with
                compat="code" a name or the fields of `DiceSource`: {"checkpoint": NAME, "adapter": LORA}.
            coherence: another model for the judge, or "rules", the parsed instruction, which needs none.
            objects: for detector="change", finds the named objects: a name of `FINDERS` or its options.
            confidence: "likelihood" (with detector="change" the change of the part) or "fixed" (1).
            both_orders: the detector sees each pair in reverse order too and takes every object from the
                order in which the second image has it; twice the time.
            compat: "code" reads the published checkpoints: their prompts' layout, for the detector a
                repetition penalty of 1.5, for the judge no opened turn of the assistant, images of 1456
                pixels, 4 bits with one quantisation.
            quantize: "4bit", "8bit" or "none"; None: "none", with compat="code" "4bit".
            longest_edge: of images, for processors with such a setting (Idefics3).
            max_new_tokens: most tokens of an answer.
            dtype: of weights that are not quantised, or its name; None: "bfloat16" if there is a GPU, else
                "float32".

        Raises:
            ValueError: if a part has no model, one cannot be loaded, or an option does not fit or has no
                effect.
        """
        first, second = _parts_of(checkpoint, detector, coherence)
        require_confidence(confidence)
        if objects is not None and first != CHANGE:
            raise ValueError('objects: goes with detector="change"; leave it out')
        # The small model stands for parts without one where a generated world is asked for.
        if None not in (checkpoint, detector, coherence) and checkpoint != SMALL:
            raise ValueError("checkpoint: has no effect beside detector and coherence; leave it out")
        if both_orders and first == CHANGE:
            raise ValueError(f"both_orders: has no effect with detector={CHANGE}; leave it out")
        require_tokens(max_new_tokens)
        options = ModelOptions(compat, quantize, dtype, longest_edge)
        if (first, second) == (CHANGE, RULES):
            reason = f"with detector={CHANGE} and coherence={RULES}, which load no model; leave it out"
            require_unset(options, [field.name for field in dataclasses.fields(options)], reason)
            if max_new_tokens != MOST_TOKENS:
                raise ValueError(f"max_new_tokens: has no effect {reason}")
        difference_detector: DifferenceDetector
        judge: CoherenceJudge
        shared = None
        if first == CHANGE:
            difference_detector = ChangeDetector(_finder(objects), fixed_confidence=confidence == "fixed")
        else:
            shared = load_dice(first, options)
            difference_detector = VlmDetector(shared, confidence, max_new_tokens, both_orders)
        if second == RULES:
            judge = CoherenceRules()
        else:
            same = shared is not None and first == second
            judge_model = shared if same and shared is not None else load_dice(second, options)
            judge = VlmCoherence(judge_model, max_new_tokens)
        return cls(difference_detector, judge, max_dropped)

    @classmethod
    def resolved(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with the models of both parts and their bases; a part without a model has none."""
        places = _parts_of(options["checkpoint"], options["detector"], options["coherence"])
        models: dict[str, Any] = {}
        for name, place in zip(("detector", "coherence"), places, strict=True):
            if place in (CHANGE, RULES):
                continue
            models[name] = {"checkpoint": place} if isinstance(place, str) else dict(place)
            settings = settings_of(place) if isinstance(place, str) and not is_hub_name(place) else None
            if settings is not None and settings.base is not None:
                models[name]["base"] = settings.base
        given = {"checkpoint": None, "detector": None, "coherence": None, **models}
        objects = options["objects"]
        return {**options, **given, "objects": None if objects is None else locator_options(objects)}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Names and hashes of the models, and a hash of their prompts; {} without models."""
        fingerprints = {}
        for name, component in (("detector", self.detector), ("coherence", self.judge)):
            if isinstance(component, VlmDetector | VlmCoherence):
                fingerprints[name] = _fingerprint(component)
        return fingerprints

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        return self.scores_of(batch, self.analyse(batch))

    def scores_of(self, batch: EditBatch, analyses: Sequence[Analysis]) -> Scores:
        """Scores of edits that are already analysed."""
        h, w = batch.edited.shape[-2:]
        values: dict[str, list[float]] = {name: [] for name in ("score", *PARTS)}
        for analysis, instruction in zip(analyses, batch.instruction, strict=True):
            for name, value in measures(analysis, bool(instruction.strip()), h, w).items():
                values[name].append(value)
        device = batch.edited.device
        tensors = {name: torch.tensor(column, device=device) for name, column in values.items()}
        score = tensors.pop("score")
        return Scores.make(score, tensors, [analysis.reason for analysis in analyses])

    @torch.no_grad()
    def analyse(self, batch: EditBatch) -> list[Analysis]:
        """Finds the differences of each edit and judges them."""
        analyses = []
        batch = self.beside(batch)
        for row, detection in enumerate(self.detector.detect(batch)):
            reason = detection.reason
            if reason is None and detection.dropped > self.max_dropped * detection.items:
                reason = f"{detection.dropped} of {detection.items} items of the answer could not be read"
            if reason is not None:
                analyses.append(Analysis(detection.differences, (), detection.dropped, reason))
                continue
            verdicts = self._judged(batch, row, detection.differences)
            open_ones = [verdict.reason for verdict in verdicts if verdict.coherent is None]
            reason = f"coherence: {open_ones[0]}" if open_ones else None
            analyses.append(Analysis(detection.differences, tuple(verdicts), detection.dropped, reason))
        return analyses

    def _judged(self, batch: EditBatch, row: int, differences: tuple[Difference, ...]) -> list[Verdict]:
        if not differences:
            return []
        if not batch.instruction[row].strip():
            return [NOT_ASKED] * len(differences)
        return self.judge.judge(
            batch.source[row], batch.edited[row].detach(), batch.instruction[row], differences
        )


def measures(analysis: Analysis, asked: bool, height: int, width: int) -> dict[str, float]:
    """Score and parts of one edit; NaN if it has no score.

    Args:
        asked: the instruction asks for something.
    """
    n = len(analysis.differences)
    if analysis.reason is not None:
        return dict.fromkeys(("score", *PARTS), float("nan")) | {"dropped": float(analysis.dropped)}
    every = area(analysis.differences, height, width)
    unwanted = area(analysis.incoherent, height, width)
    if_unchanged = 0.0 if asked else 1.0
    return {
        "score": 1 - unwanted / every if n else if_unchanged,
        "coherent": len(analysis.coherent) / n if n else if_unchanged,
        "unwanted_area": unwanted / (height * width),
        "differences": float(n),
        "confidence": sum(one.confidence for one in analysis.differences) / n if n else float("nan"),
        "unchanged": float(n == 0),
        "dropped": float(analysis.dropped),
    }


def area(differences: Sequence[Difference], height: int, width: int) -> int:
    """Number of pixels, of an image of this size, in the union of the boxes."""
    return int(covered(differences, height, width).sum())


def _parts_of(checkpoint: str | None, detector: Any, coherence: Any) -> tuple[Any, Any]:
    """The models of both parts.

    Raises:
        ValueError: if one has none, or a name stands for the other part.
    """
    first = checkpoint if detector is None else detector
    second = checkpoint if coherence is None else coherence
    if first is None or second is None:
        option = "detector" if first is None else "coherence"
        raise ValueError(
            f"scorer dice: {option}: expected a checkpoint; train one with `rewardedit train "
            f"{RECIPES[option]}`, or name a published one with compat=code; for images of drawn shapes take "
            f"{SMALL} (in the shell: --world shapes); detector={CHANGE} and coherence={RULES} need no model"
        )
    if first == RULES or second == CHANGE:
        raise ValueError(f"scorer dice: expected detector={CHANGE} or coherence={RULES}, not the reverse")
    return first, second


def _finder(objects: str | Mapping[str, Any] | None) -> Any:
    """The finder of objects by a name of `FINDERS` or its options; None for none.

    Raises:
        ValueError: on another name or an unknown option.
    """
    if objects is None:
        return None
    options = locator_options(objects)
    name = options.pop("name")
    if name not in FINDERS:
        raise ValueError(f"objects: expected one of {', '.join(FINDERS)}; got {name!r}")
    try:
        return FINDERS[name](**options)
    except TypeError as error:
        raise ValueError(f"objects {name!r}: {error}") from error


def _fingerprint(component: VlmDetector | VlmCoherence) -> dict[str, Any]:
    dice = component.dice
    prompts = json.dumps(prompt_texts(dice.format)).encode()
    return {
        "model": dice.name,
        "model_hash": model_hash(dice.vlm),
        "prompt_hash": hashlib.sha256(prompts).hexdigest(),
        "repetition_penalty": component.penalty if isinstance(component, VlmDetector) else 1.0,
    }
