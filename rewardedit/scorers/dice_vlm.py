"""DICE's two parts by a vision-language model: the difference detector and the coherence estimator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rewardedit.batch import EditBatch
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.language.answers import Answer, quoted, text_of
from rewardedit.language.choices import choice_probabilities
from rewardedit.language.vlm import Vlm, reserved_tokens, without
from rewardedit.regions.both_orders import merge_orders
from rewardedit.regions.differences import COMMANDS, Detection, Difference
from rewardedit.scorers.dice_text import (
    DiceFormat,
    ParsedAnswer,
    coherence_chat,
    detection_chat,
    framed_pair,
    parse_differences,
    parse_judgement,
)

CONFIDENCES = ("likelihood", "fixed")
PENALTY = 1.5  # repetition penalty of the published detector's code
DECISIONS = ("YES", "NO")
PAIRS_AT_ONCE = 8  # pairs of images of which answers are generated together, at most


@dataclass(frozen=True)
class Verdict:
    """The judgement of one difference."""

    coherent: bool | None  # the instruction asks for it; None if that is unknown
    probability: float  # probability of yes, in [0, 1]; NaN if unknown
    reason: str  # why, in the model's words; if `coherent` is None, why there is no judgement


@runtime_checkable
class CoherenceJudge(Protocol):
    """Judges differences against an instruction."""

    def judge(
        self,
        source: Float[Tensor, "3 h w"],
        edited: Float[Tensor, "3 h w"],
        instruction: str,
        differences: Sequence[Difference],
    ) -> list[Verdict]:
        """Judges each difference of one edit."""
        ...


@dataclass(frozen=True)
class DiceVlm:
    """A vision-language model with the texts that it was trained on."""

    vlm: Vlm
    format: DiceFormat
    name: str

    def detection_prompt(self) -> str:
        """The text of the detector's chat, up to the place of the answer."""
        return self.vlm.prompt(detection_chat(self.format.prompts))

    def coherence_prompt(self, instruction: str, difference: Difference) -> str:
        """The text of the judge's chat about one difference, up to the place of the answer."""
        chat = coherence_chat(instruction, difference, self.format)
        return self.vlm.prompt(chat, opens_answer=self.format.opens_judgement)


class VlmDetector(nn.Module):
    """Finds differences by a model that sees source and edited image, and not the instruction.

    The confidence of a difference is the probability of its command among the three, given the model's own
    answer up to it and without the repetition penalty; with `confidence="fixed"` it is 1.

    Args:
        max_new_tokens: most tokens of an answer; an answer that is cut off is not read.
        both_orders: shows each pair in reverse order too and merges the differences (`merge_orders`), which
            takes twice the time. The published method shows each pair once.

    Raises:
        ValueError: on another confidence, or without a token to answer in.
    """

    def __init__(
        self,
        dice: DiceVlm,
        confidence: str = "likelihood",
        max_new_tokens: int = 500,
        both_orders: bool = False,
    ) -> None:
        super().__init__()
        require_confidence(confidence)
        require_tokens(max_new_tokens)
        self.dice = dice
        self.model = dice.vlm.model  # so that it moves with the scorer
        self.confidence = confidence
        self.max_new_tokens = max_new_tokens
        self.both_orders = both_orders
        self.penalty = PENALTY if dice.format.prompts == "code" else 1.0
        self.size = BatchSize(PAIRS_AT_ONCE)

    def detect(self, batch: EditBatch) -> list[Detection]:
        """Finds the differences of each row, of as many at once as fit into memory."""
        images = torch.stack([batch.source, batch.edited], dim=1)
        forward = self._detect(images)
        if not self.both_orders:
            return forward
        backward = self._detect(images.flip(1))
        return [merge_orders(*pair) for pair in zip(forward, backward, strict=True)]

    def _detect(self, images: Float[Tensor, "n 2 3 h w"]) -> list[Detection]:
        prompt = self.dice.detection_prompt()

        def detect_some(images: Float[Tensor, "b 2 3 h w"]) -> list[Detection]:
            texts = [prompt] * len(images)
            answers = self.dice.vlm.answer(texts, images, self.max_new_tokens, self.penalty)
            return [self._read(prompt, images[i : i + 1], answer) for i, answer in enumerate(answers)]

        return list(chain.from_iterable(in_batches(images, self.size, detect_some)))

    def _read(self, prompt: str, images: Float[Tensor, "1 2 3 h w"], answer: Answer) -> Detection:
        if not isinstance(answer, str):
            return Detection((), reason=f"differences: {answer}")
        parsed = parse_differences(answer)
        if not parsed.differences and not parsed.says_no_change:
            said = quoted(answer) or "nothing"
            return Detection((), parsed.items, f"no difference could be read; the model answered: {said}")
        differences = parsed.differences
        if differences and self.confidence == "likelihood":
            differences = self._with_confidence(prompt, images, parsed)
        return Detection(differences, parsed.items)

    def _with_confidence(
        self, prompt: str, images: Float[Tensor, "1 2 3 h w"], parsed: ParsedAnswer
    ) -> tuple[Difference, ...]:
        beginnings = [parsed.text[:start] for start in parsed.starts]
        choices = in_case_of(parsed.text[parsed.starts[0] :], COMMANDS)
        likely = choice_probabilities(self.dice.vlm, prompt, images, beginnings, choices).tolist()
        differences = []
        for difference, shares in zip(parsed.differences, likely, strict=True):
            confidence = shares[COMMANDS.index(difference.command)]
            differences.append(replace(difference, confidence=confidence))
        return tuple(differences)


class VlmCoherence(nn.Module):
    """Judges each difference by a model that sees it framed in the images, with the instruction.

    The judgement is the model's written decision; its probability is that of YES beside NO at that place.

    Args:
        max_new_tokens: most tokens of an answer; an answer that is cut off is no judgement.

    Raises:
        ValueError: without a token to answer in.
    """

    def __init__(self, dice: DiceVlm, max_new_tokens: int = 500) -> None:
        super().__init__()
        require_tokens(max_new_tokens)
        self.dice = dice
        self.model = dice.vlm.model
        self.max_new_tokens = max_new_tokens
        self.reserved = reserved_tokens(dice.vlm)
        self.size = BatchSize(PAIRS_AT_ONCE)

    def judge(
        self,
        source: Float[Tensor, "3 h w"],
        edited: Float[Tensor, "3 h w"],
        instruction: str,
        differences: Sequence[Difference],
    ) -> list[Verdict]:
        """Judges each difference of one edit, as many at once as fit into memory."""
        if not differences:
            return []
        self.dice.vlm.note_cut([instruction], "dice")
        plain = without(self.reserved, instruction)

        def judge_some(chunk: Sequence[Difference]) -> list[Verdict]:
            texts = []
            pairs = []
            for difference in chunk:
                named = replace(difference, subject=without(self.reserved, difference.subject))
                texts.append(self.dice.coherence_prompt(plain, named))
                pairs.append(framed_pair(source, edited, difference, self.dice.format))
            images = torch.stack(pairs)
            answers = self.dice.vlm.answer(texts, images, self.max_new_tokens)
            return [self._read(texts[i], images[i : i + 1], answer) for i, answer in enumerate(answers)]

        return list(chain.from_iterable(in_batches(differences, self.size, judge_some)))

    def _read(self, prompt: str, images: Float[Tensor, "1 2 3 h w"], answer: Answer) -> Verdict:
        judgement = parse_judgement(answer) if isinstance(answer, str) else None
        if judgement is None or judgement.coherent is None:
            said = answer if judgement is None else quoted(text_of(answer)) or "nothing"
            return Verdict(None, float("nan"), f"the decision is neither YES nor NO: {said}")
        beginning = judgement.text[: judgement.start]
        choices = in_case_of(judgement.text[judgement.start :], DECISIONS)
        shares = choice_probabilities(self.dice.vlm, prompt, images, [beginning], choices)
        return Verdict(judgement.coherent, float(shares[0, 0]), judgement.reason)


def require_confidence(confidence: str) -> None:
    """Raises ValueError if there is no such confidence."""
    if confidence not in CONFIDENCES:
        raise ValueError(f"confidence: expected one of {', '.join(CONFIDENCES)}; got {confidence!r}")


def require_tokens(max_new_tokens: int) -> None:
    """Raises ValueError if an answer may have no token."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected at least 1; got {max_new_tokens}")


def in_case_of(text: str, words: Sequence[str]) -> list[str]:
    """Words in capitals as they are, or in lower case or with a capital, as the first word of a text is."""
    first = text[:2]
    if first.islower():
        return [word.lower() for word in words]
    return list(words) if first.isupper() else [word.capitalize() for word in words]


def prompt_texts(settings: DiceFormat) -> list[Any]:
    """Both chats with placeholders, for a hash of the prompts."""
    example = Difference("EDIT", "subject", (0.0, 0.0, 1.0, 1.0))
    return [detection_chat(settings.prompts), coherence_chat("{instruction}", example, settings)]
