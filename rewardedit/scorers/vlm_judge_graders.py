"""Graders of `VlmJudge`: by the logits of digits or by a text, of a model here or behind an endpoint."""

import base64
import inspect
import io
from collections.abc import Mapping, Sequence
from itertools import starmap
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rewardedit import devices
from rewardedit.images import to_pil
from rewardedit.language.answers import Answer, AnswerError, quoted
from rewardedit.language.endpoint import REFUSES_ALL, Endpoint, EndpointError, Message
from rewardedit.language.first_token import FIRST_TOKENS, TOP, FirstToken
from rewardedit.language.judge_models import ProcessorVlm
from rewardedit.language.vlm import Vlm
from rewardedit.scorers.vlm_judge_prompts import BEGINNING, Chat, read_grade, unread

DIGITS = "0123456789"

Asked = tuple[list[Chat], Tensor]  # b chats, and their images (b, n, 3, h, w), RGB in [0, 1]


class Graded(NamedTuple):
    """Grades of b edits by one question."""

    grades: Tensor  # (b,), 0 to 10; NaN if there is none
    reasons: list[str | None]  # of each NaN
    parts: Mapping[str, Tensor] = MappingProxyType({})  # further values, (b,) each


class ByDigits:
    """The expected grade over the ten digits, in one forward pass per question.

    The answer is given up to its digit; the logits there, over the ten digits only, weight the grades 0 to 9,
    and the mean is scaled to 0 to 10. Differentiable if the images are.

    Raises:
        ValueError: if a digit is not one token.
    """

    form = "digits"  # of the questions, in `FORMS`

    def __init__(self, vlm: Vlm) -> None:
        self.vlm = vlm
        self.ids = last_tokens(vlm, DIGITS)
        self.recomputes = False
        self.differentiable = not isinstance(vlm, ProcessorVlm)

    def __call__(self, questions: Sequence[Asked]) -> list[Graded]:
        graded: list[Graded] = []
        for chats, images in questions:
            if self.recomputes:
                logits: Any = checkpoint(self.logits, chats, images, use_reentrant=False)
            else:
                logits = self.logits(chats, images)
            grades = expected_grade(logits)
            reasons = [None if ok else "its logits are not finite" for ok in grades.isfinite().tolist()]
            graded.append(Graded(grades, reasons))
        return graded

    def logits(self, chats: list[Chat], images: Float[Tensor, "b n 3 h w"]) -> Float[Tensor, "b 10"]:
        """Logits of the ten digits."""
        texts = [answer_up_to(self.vlm, chat) + "0" for chat in chats]
        with devices.tf32(images.device.type):  # a backward pass computes it outside of the scorer's call
            return last_logits(self.vlm, texts, images)[:, self.ids].float()

    def decoding(self) -> dict[str, Any]:
        return {"answer": "digits", "dtype": str(self.vlm.model.dtype).removeprefix("torch.")}


class ByText:
    """The grade at the end of a text that the model writes, greedily; rows without one are invalid."""

    differentiable = False
    form = "text"

    def __init__(self, vlm: Vlm, max_new_tokens: int) -> None:
        self.vlm = vlm
        self.max_new_tokens = max_new_tokens

    def __call__(self, questions: Sequence[Asked]) -> list[Graded]:
        graded = []
        for chats, images in questions:
            texts = list(map(self.vlm.prompt, chats))
            answers = self.vlm.answer(texts, images, self.max_new_tokens)
            graded.append(Graded(*read_all(answers, images.device)))
        return graded

    def decoding(self) -> dict[str, Any]:
        dtype = str(self.vlm.model.dtype).removeprefix("torch.")
        return {
            "answer": "text",
            "do_sample": False,
            "num_beams": 1,
            "max_new_tokens": self.max_new_tokens,
            "dtype": dtype,
        }


class ByEndpoint:
    """The grade at the end of a text by an endpoint's model; rows without one, or whose question the endpoint
    or its model refuses, are invalid.

    Raises:
        EndpointError: if the endpoint refuses the key or all chats, does not know the model, or may answer
            later: an unjudged row is not a bad one, and the run can be resumed from there.
    """

    differentiable = False
    form = "text"

    def __init__(self, endpoint: Endpoint, max_new_tokens: int) -> None:
        self.endpoint = endpoint
        self.max_new_tokens = max_new_tokens

    def __call__(self, questions: Sequence[Asked]) -> list[Graded]:
        chats: list[list[Message]] = []
        for variants, images in questions:
            chats += starmap(messages, zip(variants, images, strict=True))
        answers = self.answers(chats)
        for answer in answers:
            if isinstance(answer, AnswerError) and answer.may_pass:
                raise answer
        graded = []
        for variants, images in questions:
            graded.append(self.read(answers[: len(variants)], images.device))
            answers = answers[len(variants) :]
        return graded

    def answers(self, chats: list[list[Message]]) -> list[Any]:
        """The endpoint's answer to each chat, or an `AnswerError`."""
        return self.endpoint.answer(chats, self.max_new_tokens)

    def read(self, answers: Sequence[Any], device: torch.device) -> Graded:
        """The grades of answers to one question."""
        return Graded(*read_all(answers, device))

    def decoding(self) -> dict[str, Any]:
        return {"answer": "text", "temperature": 0.0, "max_new_tokens": self.max_new_tokens}


class ByEndpointDigits(ByEndpoint):
    """The expected grade over the digits 0 to 9 as an answer's first token, by an endpoint that returns
    logprobs: Σ p(d) · d · 10/9 / Σ p(d).

    Each digit is one token in all tokenizers. Grades end at 9 because "10" is one token in some and "1" with
    "0" in others, where a 10 would count as a 1; such tokens of several digits count as no grade. Blanks in
    or before the token are left out. `digit_probability` is Σ p(d); a row where it is below `least` is
    invalid: the model answered something else.

    Raises:
        EndpointError: as `ByEndpoint`; if the endpoint returns no logprobs.
    """

    form = "digit"

    def __init__(self, endpoint: Endpoint, token_ids: Sequence[int] | None, least: float) -> None:
        super().__init__(endpoint, FIRST_TOKENS)
        self.token_ids = token_ids
        self.least = least

    def answers(self, chats: list[list[Message]]) -> list[Any]:
        try:
            return self.endpoint.first_tokens(chats, self.token_ids)
        except EndpointError as error:
            if not error.refuses_all or error.status in REFUSES_ALL:
                raise
            message = f"{error}; use answer='text' where there are no logprobs"
            raise EndpointError(message, error.status, error.said, of_all=True) from error

    def read(self, answers: Sequence[FirstToken | AnswerError], device: torch.device) -> Graded:
        grades = torch.full((len(answers),), torch.nan, device=device)
        total = torch.full((len(answers),), torch.nan, device=device)
        reasons: list[str | None] = []
        for row, answer in enumerate(answers):
            if isinstance(answer, AnswerError):
                reasons.append(no_answer(answer))
                continue
            weights = [answer.get(digit, 0.0) for digit in DIGITS]
            total[row] = min(sum(weights), 1.0)
            if sum(weights) < self.least or not sum(weights):
                likely = max(answer, key=answer.__getitem__)
                reasons.append(
                    f"the digits hold {sum(weights):.3f} of the probability, less than {self.least:g}; the "
                    f"most probable first token is {quoted(likely)!r}"
                )
                continue
            grades[row] = sum(d * weight for d, weight in enumerate(weights)) / sum(weights) * 10 / 9
            reasons.append(None)
        return Graded(grades, reasons, {"digit_probability": total})

    def decoding(self) -> dict[str, Any]:
        ids = None if self.token_ids is None else list(self.token_ids)
        return {"answer": "digits", "temperature": 0.0, "top": TOP, "token_ids": ids, "least": self.least}


def last_logits(vlm: Vlm, texts: list[str], images: Float[Tensor, "b n 3 h w"]) -> Float[Tensor, "b v"]:
    """Logits of the texts' last tokens, each predicted at the token before it."""
    inputs: dict[str, Any] = vlm.inputs(texts, images)
    if "logits_to_keep" in inspect.signature(vlm.model.forward).parameters:
        inputs["logits_to_keep"] = 2
    return vlm.model(**inputs).logits[:, -2]


def expected_grade(logits: Float[Tensor, "b 10"]) -> Float[Tensor, " b"]:
    """Σ p(d) · d · 10/9 over the digits d, with p the softmax of their logits: in [0, 10]."""
    grades = torch.arange(10, dtype=logits.dtype, device=logits.device) * (10 / 9)
    # Not as a matrix product, which autocast would round to half precision.
    return (logits.softmax(1) * grades).sum(1).clamp(0, 10)


def answer_up_to(vlm: Vlm, chat: Chat, beginning: str = BEGINNING) -> str:
    """The text of a chat up to the last token of its answer; a thought that the chat's template begins is
    left empty.
    """
    text = vlm.prompt(chat)
    if text.rstrip().endswith("<think>"):
        text = text.rstrip() + "\n\n</think>\n\n"
    return text + beginning


def last_tokens(vlm: Vlm, words: Sequence[str], beginning: str = BEGINNING) -> list[int]:
    """The tokens of words, such as the digits 0 to 9, at the end of an answer.

    Raises:
        ValueError: if they are not different tokens, one each, after the same preceding tokens.
    """
    text = answer_up_to(vlm, [{"role": "user", "content": [{"type": "text", "text": "?"}]}], beginning)
    tokenizer = vlm.processor.tokenizer
    encoded = [tokenizer(text + word, add_special_tokens=False)["input_ids"] for word in words]
    last = [ids[-1] for ids in encoded]
    same_before = all(ids[:-1] == encoded[0][:-1] for ids in encoded)
    if not same_before or len(set(last)) < len(words):
        raise ValueError(
            f"expected a tokenizer in which each of {', '.join(words)} after {beginning!r} is one token; "
            f"that of {type(vlm.model).__name__} ends in {last}; use answer='text'"
        )
    return last


def read_all(answers: Sequence[Answer], device: torch.device) -> tuple[Tensor, list[str | None]]:
    """Reads the grades of answers, and the reasons for those that have none."""
    grades: list[float] = []
    reasons: list[str | None] = []
    for answer in answers:
        grade = None if isinstance(answer, AnswerError) else read_grade(answer)
        grades.append(float("nan") if grade is None else grade)
        if isinstance(answer, AnswerError):
            reasons.append(no_answer(answer))
        else:
            reasons.append(unread(answer) if grade is None else None)
    return torch.tensor(grades, device=device), reasons


def no_answer(error: AnswerError) -> str:
    """The reason of a row whose question got no usable answer."""
    return f"no answer: {error}" if isinstance(error, EndpointError) else str(error)


def messages(chat: Chat, images: Float[Tensor, "n 3 h w"]) -> list[Message]:
    """Converts a chat to an endpoint's format, with images as PNG in data URLs."""
    urls = map(data_url, images)
    turns: list[Message] = []
    for turn in chat:
        if turn["role"] == "assistant":
            turns.append({"role": "assistant", "content": turn["content"][0]["text"]})
            continue
        content = []
        for part in turn["content"]:
            shown = part["type"] == "image"
            content.append({"type": "image_url", "image_url": {"url": next(urls)}} if shown else part)
        turns.append({"role": turn["role"], "content": content})
    return turns


def data_url(image: Float[Tensor, "3 h w"]) -> str:
    """Encodes RGB in [0, 1] as the PNG of a data URL."""
    file = io.BytesIO()
    to_pil(image).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
