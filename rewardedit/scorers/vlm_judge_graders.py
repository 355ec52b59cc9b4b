"""Graders of `VlmJudge`: by the logits of digits, by a text that a model writes, or by an endpoint."""

import base64
import inspect
import io
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import to_pil
from rewardedit.language.answers import Answer, AnswerError
from rewardedit.language.endpoint import Endpoint, EndpointError, Message
from rewardedit.language.judge_models import ProcessorVlm
from rewardedit.language.vlm import Vlm
from rewardedit.scorers.vlm_judge_prompts import BEGINNING, Chat, read_grade, unread

DIGITS = "0123456789"

Asked = tuple[list[Chat], Tensor]  # b chats, and their images (b, n, 3, h, w), RGB in [0, 1]
Graded = tuple[Tensor, list[str | None]]  # b grades, 0 to 10 or NaN, and the reasons of NaN


class ByDigits:
    """The expected grade over the ten digits, in one forward pass per question.

    The answer is given up to its digit; the logits there, over the ten digits only, weight the grades 0 to 9,
    and the mean is scaled to 0 to 10. Differentiable if the images are.

    Raises:
        ValueError: if a digit is not one token.
    """

    def __init__(self, vlm: Vlm) -> None:
        self.vlm = vlm
        self.ids = digit_ids(vlm)
        self.keeps = "logits_to_keep" in inspect.signature(vlm.model.forward).parameters
        self.differentiable = not isinstance(vlm, ProcessorVlm)

    def __call__(self, asked: Sequence[Asked]) -> list[Graded]:
        graded: list[Graded] = []
        for chats, images in asked:
            grades = expected_grade(self.logits(chats, images))
            reasons = [None if ok else "its logits are not finite" for ok in grades.isfinite().tolist()]
            graded.append((grades, reasons))
        return graded

    def logits(self, chats: list[Chat], images: Float[Tensor, "b n 3 h w"]) -> Float[Tensor, "b 10"]:
        """Logits of the ten digits. The text ends in a digit, which is predicted at the token before it."""
        texts = [answer_up_to(self.vlm, chat) + "0" for chat in chats]
        inputs: dict[str, Any] = self.vlm.inputs(texts, images)
        if self.keeps:
            inputs["logits_to_keep"] = 2
        return self.vlm.model(**inputs).logits[:, -2, self.ids].float()

    def decoding(self) -> dict[str, Any]:
        return {"answer": "digits", "dtype": str(self.vlm.model.dtype).removeprefix("torch.")}


class ByText:
    """The grade at the end of a text that the model writes, greedily; rows without one are invalid."""

    differentiable = False

    def __init__(self, vlm: Vlm, max_new_tokens: int) -> None:
        self.vlm = vlm
        self.max_new_tokens = max_new_tokens

    def __call__(self, asked: Sequence[Asked]) -> list[Graded]:
        graded = []
        for chats, images in asked:
            texts = list(map(self.vlm.prompt, chats))
            answers = self.vlm.answer(texts, images, self.max_new_tokens)
            graded.append(read_all(answers, images.device))
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

    def __init__(self, endpoint: Endpoint, max_new_tokens: int) -> None:
        self.endpoint = endpoint
        self.max_new_tokens = max_new_tokens

    def __call__(self, asked: Sequence[Asked]) -> list[Graded]:
        chats: list[list[Message]] = []
        for part, images in asked:
            chats += starmap(messages, zip(part, images, strict=True))
        answers = self.endpoint.answer(chats, self.max_new_tokens)
        for answer in answers:
            if isinstance(answer, AnswerError) and answer.may_pass:
                raise answer
        graded = []
        for part, images in asked:
            graded.append(read_all(answers[: len(part)], images.device))
            answers = answers[len(part) :]
        return graded

    def decoding(self) -> dict[str, Any]:
        return {"answer": "text", "temperature": 0.0, "max_new_tokens": self.max_new_tokens}


def expected_grade(logits: Float[Tensor, "b 10"]) -> Float[Tensor, " b"]:
    """Σ p(d) · d · 10/9 over the digits d, with p the softmax of their logits: in [0, 10]."""
    grades = torch.arange(10, dtype=logits.dtype, device=logits.device) * (10 / 9)
    # Not as a matrix product, which autocast would round to half precision.
    return (logits.softmax(1) * grades).sum(1).clamp(0, 10)


def answer_up_to(vlm: Vlm, chat: Chat) -> str:
    """The text of a chat up to the digit of its answer; a thought that the chat's template begins is left
    empty.
    """
    text = vlm.prompt(chat)
    if text.rstrip().endswith("<think>"):
        text = text.rstrip() + "\n\n</think>\n\n"
    return text + BEGINNING


def digit_ids(vlm: Vlm) -> list[int]:
    """The tokens of the digits 0 to 9 at the place of the answer's digit.

    Raises:
        ValueError: if they are not ten different tokens after the same preceding tokens.
    """
    text = answer_up_to(vlm, [{"role": "user", "content": [{"type": "text", "text": "?"}]}])
    tokenizer = vlm.processor.tokenizer
    encoded = [tokenizer(text + digit, add_special_tokens=False)["input_ids"] for digit in DIGITS]
    last = [ids[-1] for ids in encoded]
    same_before = all(ids[:-1] == encoded[0][:-1] for ids in encoded)
    if not same_before or len(set(last)) < len(DIGITS):
        raise ValueError(
            f"expected a tokenizer in which each digit after {BEGINNING!r} is one token; that of "
            f"{type(vlm.model).__name__} ends in {last}; use answer='text'"
        )
    return last


def read_all(answers: Sequence[Answer], device: torch.device) -> Graded:
    """Reads the grades of answers, and the reasons for those that have none."""
    grades: list[float] = []
    reasons: list[str | None] = []
    for answer in answers:
        grade = None if isinstance(answer, AnswerError) else read_grade(answer)
        grades.append(float("nan") if grade is None else grade)
        if isinstance(answer, AnswerError):
            reasons.append(f"no answer: {answer}" if isinstance(answer, EndpointError) else str(answer))
        else:
            reasons.append(unread(answer) if grade is None else None)
    return torch.tensor(grades, device=device), reasons


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
