"""A judge of pairs: a vision-language model sees two edits of one source and says which is better.

Such judges prefer a place, often the first, whatever stands there. The remedy is that of Zheng et al. (2023,
MT-Bench): each pair is asked about in both orders, and is a tie where they disagree.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rewardedit.images import to_float
from rewardedit.images.reading import Pixels
from rewardedit.language.answers import Answer, AnswerError, normalised
from rewardedit.language.endpoint import Endpoint
from rewardedit.language.model_hash import model_hash
from rewardedit.language.vlm import Vlm, reserved_tokens, without
from rewardedit.models import JUDGE
from rewardedit.scorers.vlm_judge import open_judge
from rewardedit.scorers.vlm_judge_graders import answer_up_to, last_logits, last_tokens, messages, no_answer
from rewardedit.scorers.vlm_judge_prompts import QUOTED, Chat

LETTERS = ("A", "B")
BEGINNING = "Better: "  # the answer up to the letter
QUESTION = (
    'The first image was given to two editors, A and B, who were told: "{instruction}"\n'
    "The second image is what A made of it, the third what B made. Decide whose edit is better: what was "
    "told is done as one would expect, all else is kept, and the image looks natural and is free of faults."
)
FORMS = {
    "letter": "\nAnswer with one line and nothing else: the word Better, a colon, and one letter, A or B.",
    "text": (
        "\nFirst name in two or three sentences what speaks for each. Then close with a line of its own: the "
        "word Better, a colon, and one letter, A or B."
    ),
}
_LABELLED = re.compile(
    r"[>#•| \-]*(?:(?:the|my|overall|final) )*better(?: edit| image| one)? ?[:=] ?(.*)", re.I
)
_LETTER = re.compile(r"(?:editor |image )?([AB])[ .!]*", re.I)


@dataclass(frozen=True)
class PairOfEdits:
    """Two edits of one source by one instruction: RGB (3, h, w) of one size, as bytes or in [0, 1]."""

    instruction: str
    source: Pixels
    first: Pixels
    second: Pixels


@dataclass(frozen=True)
class PairVerdict:
    """The better edit of a pair."""

    better: Literal["first", "second", "tie"] | None  # "tie": the orders disagree; None: one has no answer
    answers: tuple[str | None, str | None]  # A or B, with the first edit as A, and with it as B
    reason: str | None = None  # why there is no verdict


class PairJudge(nn.Module):
    """Verdicts on pairs of edits by a vision-language model, each asked for in both orders.

    A model in this process answers in a letter, the more probable one of the two, in one forward pass an
    order; one behind an endpoint writes its reasons, and then the letter.
    """

    def __init__(
        self, judge: Vlm | Endpoint, name: str, answer: str | None = None, max_new_tokens: int = 256
    ) -> None:
        """
        Args:
            name: the model's name, for `fingerprint`.
            answer: "letter" or "text"; by default "letter", for an endpoint "text".
            max_new_tokens: most tokens of an answer in text.

        Raises:
            ValueError: on an unknown form of answer, a letter by an endpoint, or a tokenizer that has no
                token for each letter.
        """
        super().__init__()
        local = isinstance(judge, Vlm)
        answer = answer or ("letter" if local else "text")
        if answer not in FORMS or (answer == "letter" and not local):
            expected = "letter or text" if local else "text, by an endpoint"
            raise ValueError(f"answer: expected {expected}; got {answer!r}")
        self.judge = judge
        self.name = name
        self.answer = answer
        self.max_new_tokens = max_new_tokens
        self.reserved: list[str] = []
        self.ids: list[int] = []
        if isinstance(judge, Vlm):
            self.model = judge.model  # so that it moves with the judge
            self.reserved = reserved_tokens(judge)
            self.ids = last_tokens(judge, LETTERS, BEGINNING) if answer == "letter" else []

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = JUDGE,
        answer: str | None = None,
        adapter: str | None = None,
        max_new_tokens: int = 256,
        key_variable: str | None = None,
        dtype: torch.dtype | str | None = None,
        quantize: str | None = None,
        seed: int = 0,
        timeout: float = 120.0,
        retries: int = 4,
        longest_wait: float = 120.0,
    ) -> "PairJudge":
        """Loads a judge; the options are those of `VlmJudge.from_pretrained`."""
        waits = {"timeout": timeout, "retries": retries, "longest_wait": longest_wait}
        judge, name = open_judge(checkpoint, adapter, key_variable, dtype, quantize, seed=seed, **waits)
        return cls(judge, name, answer, max_new_tokens)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The model and its hash (for an endpoint, its address and the seed), a hash of the question, and the
        form of the answer.
        """
        of_endpoint = isinstance(self.judge, Endpoint)
        question = (QUESTION + FORMS[self.answer] + BEGINNING).encode()
        return {
            "model": self.name,
            "endpoint": self.judge.url if isinstance(self.judge, Endpoint) else None,
            "model_hash": None if of_endpoint else model_hash(self.judge),
            "seed": self.judge.seed if isinstance(self.judge, Endpoint) else None,
            "prompt_hash": hashlib.sha256(question).hexdigest(),
            "answer": self.answer,
            "max_new_tokens": self.max_new_tokens,
        }

    @torch.no_grad()
    def forward(self, pairs: Sequence[PairOfEdits]) -> list[PairVerdict]:
        """Verdicts on pairs, in order; an endpoint is asked about all of them at once.

        Raises:
            EndpointError: as `ByEndpoint`.
        """
        orders = self._orders(pairs)
        answers = self._ask_endpoint(orders) if isinstance(self.judge, Endpoint) else self._ask_model(orders)
        return [verdict(*answers[i : i + 2]) for i in range(0, len(answers), 2)]

    def _orders(self, pairs: Sequence[PairOfEdits]) -> Iterator[tuple[Chat, Tensor]]:
        """Questions with their images (3, 3, h, w) in [0, 1], each pair in both orders, made one by one: as
        floating-point all of them would take eight times the memory of the pairs.
        """
        for pair in pairs:
            chat = self._chat(pair.instruction)
            for edits in ((pair.first, pair.second), (pair.second, pair.first)):
                yield chat, torch.stack(list(map(to_float, (pair.source, *edits))))

    def _chat(self, instruction: str) -> Chat:
        text = QUESTION.format(instruction=without(self.reserved, instruction)) + FORMS[self.answer]
        images = [{"type": "image"}] * 3
        return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]

    def _ask_endpoint(self, orders: Iterable[tuple[Chat, Tensor]]) -> list[Answer]:
        assert isinstance(self.judge, Endpoint)
        chats = [messages(text, images) for text, images in orders]
        answers = self.judge.answer(chats, self.max_new_tokens)
        for answer in answers:
            if isinstance(answer, AnswerError) and answer.may_pass:
                raise answer
        return answers

    def _ask_model(self, orders: Iterable[tuple[Chat, Tensor]]) -> list[Answer]:
        """The answers of a model in this process, to one order after another."""
        vlm = self.judge
        assert isinstance(vlm, Vlm)
        answers: list[Answer] = []
        for chat, images in orders:
            shown = images[None].to(vlm.model.device)
            if self.answer == "text":
                answers += vlm.answer([vlm.prompt(chat)], shown, self.max_new_tokens)
                continue
            text = answer_up_to(vlm, chat, BEGINNING) + LETTERS[0]
            logits = last_logits(vlm, [text], shown)[0, self.ids]
            if bool(logits.isfinite().all()):
                answers.append(BEGINNING + LETTERS[int(logits.argmax())])
            else:
                answers.append(AnswerError("its logits are not finite"))
        return answers


def verdict(as_a: Answer, as_b: Answer) -> PairVerdict:
    """The better edit by the answers of both orders.

    Args:
        as_a: answer with the first edit as A.
        as_b: answer with the first edit as B.
    """
    letters = tuple(None if isinstance(said, AnswerError) else read_letter(said) for said in (as_a, as_b))
    for said, letter in zip((as_a, as_b), letters, strict=True):
        if letter is None:
            return PairVerdict(None, letters, no_letter(said))
    if letters[0] == letters[1]:
        return PairVerdict("tie", letters)
    return PairVerdict("first" if letters[0] == "A" else "second", letters)


def read_letter(answer: str) -> str | None:
    """The letter of an answer, A or B; None if no line holds one, or two lines differ."""
    letters = set()
    lines = normalised(answer).splitlines()
    for line in lines:
        labelled = _LABELLED.fullmatch(" ".join(line.split()))
        if labelled is not None:
            letter = _LETTER.fullmatch(labelled[1])
            letters.add(None if letter is None else letter[1].upper())
    if not letters and len(lines) == 1 and lines[0].strip(" .") in LETTERS:
        return lines[0].strip(" .")
    return letters.pop() if len(letters) == 1 else None


def no_letter(answer: Answer) -> str:
    """The reason why an answer has no letter."""
    if isinstance(answer, AnswerError):
        return no_answer(answer)
    shown = answer if len(answer) <= QUOTED else "…" + answer[-QUOTED:]
    return f"neither A nor B could be read; the model answered {shown!r}"
