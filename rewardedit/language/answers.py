"""Reading answers of language models: why each ended, and its text in one plain form.

Every reader of an answer calls `normalised` first. Nothing is guessed: an answer that was cut off, refused or
withheld, or that is an unfinished thought, counts as no answer, whatever it contains.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardedit.untrusted import CONTENT_ERRORS, read_json

QUOTED = 200  # characters of an answer quoted in a reason
# Finish reasons of servers for an answer that ended by itself; a missing reason is taken as such.
ENDED = ("", "stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete")
CUT = ("length", "max_tokens", "max_length", "model_length")
WITHHELD = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content")
MOST_CHARACTERS = 2**18  # longest answer that is read
MOST_TOKENS = 2**40  # largest plausible token count
LINES = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
BLANKS = re.compile("[\t\u00a0\u2000-\u200a\u202f\u205f\u3000]")
UNSEEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ufe0e\ufe0f]")
COLONS = re.compile("[\u2236\ua789\ufe13\ufe55\uff1a]")
FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
THOUGHT = re.compile(r"<(/?)think(?:ing)?>|\[(/?)THINK\]|◁(/?)think▷", re.IGNORECASE)
# emphasis marks around words, not within them
MARKS = re.compile(r"(?<![\w*`])[*_`]++|(?<![*_`])[*_`]++(?!\w)")
FENCE = re.compile(r"^[ ]*+`{3,}+[ ]*+\w*+[ ]*+$", re.MULTILINE)


class AnswerError(RuntimeError):
    """A model gave no usable answer; the message says why.

    Args:
        text: the unusable text, if any.
    """

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text

    @property
    def may_pass(self) -> bool:
        """True if the same question may be answered later."""
        return False

    @classmethod
    def cut(cls, max_new_tokens: int, text: str = "") -> "AnswerError":
        return cls(f"the answer was cut off at {max_new_tokens} tokens; raise max_new_tokens", text)


Answer = str | AnswerError  # a model's answer, or why there is none


def text_of(answer: Answer) -> str:
    """The text of an answer, even of an unusable one."""
    return answer if isinstance(answer, str) else answer.text


def local_answers(
    prompts: Sequence[str], texts: Sequence[str], is_cut: Sequence[bool], max_new_tokens: int
) -> list[Answer]:
    """Answers of a model in this process, from the texts it wrote after its prompts.

    If the prompt ends by opening a thought, as in some chat templates, the answer begins with that mark.
    """
    answers: list[Answer] = []
    for prompt, text, cut in zip(prompts, texts, is_cut, strict=True):
        begins = re.search(r"(<think(?:ing)?>|\[THINK\]|◁think▷)\s*$", prompt, re.IGNORECASE)
        text = (begins[1] if begins else "") + text.strip()
        answers.append(AnswerError.cut(max_new_tokens, text) if cut else text)
    return answers


@dataclass(frozen=True)
class Completion:
    """A chat completion."""

    choice: Mapping[str, Any]  # as the endpoint sent it
    text: str
    refusal: str  # "" if there is none
    reason: str  # finish reason, in small letters; "" if there is none
    tokens: tuple[int, int]  # numbers of prompt and answer tokens

    @classmethod
    def parse(cls, content: bytes) -> "Completion":
        """Reads a response.

        Raises:
            ValueError: if it is no chat completion.
        """
        try:
            completion = read_json(content)
            choice = completion["choices"][0]
            message = choice["message"]
            text, refusal = _texts(message.get("content"))
            refusal = refusal or _text(message.get("refusal"))
            reason = _text(choice.get("finish_reason")).strip().lower()
            return cls(choice, text, refusal, reason, _tokens(completion.get("usage")))
        except CONTENT_ERRORS as error:
            said = content[: 20 * QUOTED].decode(errors="replace").strip()
            raise ValueError(f"expected a chat completion; got {said or 'nothing'}") from error

    @property
    def refused(self) -> AnswerError | None:
        """The error of an answer that the model refused or the endpoint withheld."""
        if self.refusal:
            return AnswerError(f"the model refused to answer: {quoted(self.refusal)}")
        if self.reason in WITHHELD:
            return AnswerError(f"the endpoint withheld the answer ({self.reason})")
        return None


def read_completion(content: bytes, max_new_tokens: int) -> tuple[str | AnswerError, int, int]:
    """A chat completion's text, or why it is unusable, and its numbers of prompt and answer tokens.

    Args:
        max_new_tokens: the limit that was requested.

    Raises:
        ValueError: if it is no chat completion.
    """
    completion = Completion.parse(content)
    if completion.reason in CUT:
        return AnswerError.cut(max_new_tokens, completion.text), *completion.tokens
    if completion.refused is not None:
        return completion.refused, *completion.tokens
    if completion.reason not in ENDED:
        error = AnswerError(f"the answer did not come to its own end ({quoted(completion.reason)})")
        return error, *completion.tokens
    if len(completion.text) > MOST_CHARACTERS:
        return AnswerError(f"the answer is longer than {MOST_CHARACTERS} characters"), *completion.tokens
    return completion.text, *completion.tokens


def _texts(content: Any) -> tuple[str, str]:
    """Texts of a message's content (a text or a list of parts) and of any refusal in it."""
    if not isinstance(content, list):
        return _text(content), ""
    kinds: dict[str, list[str]] = {"text": [], "refusal": []}
    for part in content:
        kind = "text" if isinstance(part, str) else part["type"]
        if kind == "output_text":
            kind = "text"
        if kind in kinds:  # other kinds are thoughts and images
            kinds[kind].append(part if isinstance(part, str) else _text(part[kind]))
    return "".join(kinds["text"]), "".join(kinds["refusal"])


def _text(value: Any) -> str:
    """The text without lone surrogates, which no file can hold; "" for None.

    Raises:
        ValueError: if it is neither.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"expected a text; got {type(value).__name__}")
    return value.encode("utf-8", "replace").decode("utf-8")


def _tokens(usage: Any) -> tuple[int, int]:
    """Numbers of prompt and answer tokens; 0 if missing or implausible."""
    counts = usage if isinstance(usage, Mapping) else {}
    return _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))


def _count(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
    return value if is_count else 0


def normalised(answer: str) -> str:
    """The answer in the plain form in which it is read; "" if it is an unfinished thought.

    Thoughts before the answer are removed. Line ends, blanks, digits and punctuation become ASCII; emphasis
    marks are removed; a JSON object becomes one line "key: value" for each of its values.
    """
    text = _after_thought(answer.encode("utf-8", "replace").decode("utf-8"))
    text = UNSEEN.sub("", LINES.sub("\n", text))
    text = BLANKS.sub(" ", COLONS.sub(":", text)).translate(FULL_WIDTH).replace("\u2212", "-")
    # "²" and "½" are not decimal digits.
    digits = {ord(c): str(unicodedata.decimal(c)) for c in set(text) if c.isdecimal() and not c.isascii()}
    text = text.translate(digits)
    text = FENCE.sub("", text)
    return MARKS.sub("", _without_json(text)).strip()


def is_unfinished(answer: str) -> bool:
    """True if an answer ends within a thought."""
    marks = list(THOUGHT.finditer(answer))
    return bool(marks) and not any(marks[-1].groups())


def quoted(text: str, limit: int = QUOTED) -> str:
    """The beginning of an untrusted text, as one printable line."""
    line = one_line(text)
    return line if len(line) <= limit else line[:limit] + "…"


def one_line(text: str) -> str:
    """An untrusted text without control characters and with single blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _after_thought(text: str) -> str:
    if is_unfinished(text):
        return ""
    ends = [match.end() for match in THOUGHT.finditer(text)]
    return text[ends[-1] :] if ends else text


def _without_json(text: str) -> str:
    """The text with its JSON object, if any, written as lines."""
    first, last = text.find("{"), text.rfind("}")
    if first < 0 or last < first:
        return text
    try:
        # Pairs, as an object may have duplicate names.
        lines = _lines(read_json(text[first : last + 1], objects=tuple))
    except CONTENT_ERRORS:
        return text
    return "\n".join([text[:first].rstrip(), *lines, text[last + 1 :].lstrip()])


def _lines(pairs: tuple[tuple[str, Any], ...]) -> list[str]:
    """Lines "key: value", one for each value of an object and of the objects nested in it."""
    lines = []
    for key, value in pairs:
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, tuple):
            lines += _lines(value)
            continue
        values = value if isinstance(value, list) else [value]
        lines.append(f"{one_line(key)}: {', '.join(map(_value, values))}")
    return lines


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return one_line(str(value))
