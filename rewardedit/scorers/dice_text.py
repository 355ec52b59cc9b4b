"""DICE's texts: differences as a model writes and reads them, the questions, and the judgement's answer.

A detector answers with a list of texts, one a difference, such as

    ["ADD: red cup, [0.120, 0.340, 0.560, 0.780]", "EDIT: the dog's collar, [0, 0.5, 0.25, 1]"]

or "no change". Boxes are x0, y0, x1, y1 in shares of the image's width and height, y downwards; the box of a
removed object is where it was.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.language.answers import normalised, one_line, quoted
from rewardedit.language.vlm import Turn
from rewardedit.regions.differences import COMMANDS, Box, Difference
from rewardedit.regions.frames import FRAMES, framed

NO_CHANGE = "no change"
# Characters that have a meaning in an answer, so that no subject holds them; apostrophes and commas are kept.
REPLACED = str.maketrans({'"': "'", "[": "(", "]": ")", **dict.fromkeys("{}<>*_`\\◁▷", " ")})
NO_BRACKETS = str.maketrans("()", "  ")

# Each of these reads a text in time proportional to its length: no two repetitions compete for a character.
_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
_BOX = re.compile(rf"[\[(]{','.join([_NUMBER] * 4)}[\])]")
_COMMAND = re.compile(rf"\b({'|'.join(COMMANDS)})\s*:", re.IGNORECASE)
_ITEM = re.compile(r"""\s*(["'])(.*?)\1\s*(?:,(?=\s*["'])|,?\Z)""", re.DOTALL)
_NOTHING = re.compile(r"""[\[\s"']*no[ -]?changes?[\]\s"'.!]*""", re.IGNORECASE)
_DECISION = re.compile(r"decision\s*:\s*(yes|no)\b.*", re.IGNORECASE)  # to the end of the line
_YES_OR_NO = re.compile(r"\b(?:yes|no)\b", re.IGNORECASE)
_REASONING = re.compile(r"reasoning\s*:", re.IGNORECASE)
_DECIDES = re.compile(r"decision\s*:", re.IGNORECASE)


@dataclass(frozen=True)
class ParsedAnswer:
    """A detector's answer, as it was read."""

    text: str  # the answer in plain form, as `normalised` makes it
    differences: tuple[Difference, ...]
    starts: tuple[int, ...]  # index in `text` of the command of each difference
    items: int  # texts in the list, readable or not; one with several commands counts as so many
    says_no_change: bool = False

    @property
    def dropped(self) -> int:
        """Number of items that are not differences."""
        return self.items - len(self.differences)


@dataclass(frozen=True)
class Judgement:
    """The answer of a coherence estimator."""

    coherent: bool | None  # None if the answer is neither yes nor no, or both
    reason: str
    text: str  # the answer in plain form
    start: int  # index in `text` of the decision; its end if there is none


@dataclass(frozen=True)
class DiceFormat:
    """The texts that a checkpoint was trained on; stored in its folder in the file `DICE_SETTINGS`."""

    # One of `PROMPTS`. "code" is the layout of the published checkpoints, in our words: the judge's task is
    # a system prompt, its text comes before the images, and its chat does not open the assistant's turn.
    prompts: str = "full"
    decimals: int = 3  # decimals of the coordinates
    rationale: bool = True  # the judgement gives its reason before the decision
    base: str | None = None  # model that the folder's adapter was trained on; None: the folder is a model

    def __post_init__(self) -> None:
        if self.prompts not in PROMPTS:
            raise ValueError(f"prompts: expected one of {', '.join(PROMPTS)}; got {self.prompts!r}")
        if self.decimals not in range(1, 7):
            raise ValueError(f"decimals: expected 1 to 6; got {self.decimals!r}")

    @property
    def opens_judgement(self) -> bool:
        """True if the judge's chat ends with the words that open the model's turn."""
        return self.prompts != "code"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "DiceFormat":
        """The format that a file of settings holds.

        Raises:
            ValueError: on an unknown setting, or a value of another type.
        """
        unknown = set(settings) - set(TYPES)
        if unknown:
            raise ValueError(f"{DICE_SETTINGS}: expected {', '.join(TYPES)}; got {sorted(unknown)}")
        for name, value in settings.items():
            if type(value) not in TYPES[name]:
                raise ValueError(f"{DICE_SETTINGS}: {name}: expected another type; got {quoted(str(value))}")
        return cls(**settings)


DICE_SETTINGS = "dice.json"
TYPES = {"prompts": (str,), "decimals": (int,), "rationale": (bool,), "base": (str, type(None))}
DETECT = (
    "The second image is an edited version of the first one. Find every object that was added, removed or "
    "changed. Answer with a list of texts, one for each difference, in the form "
    '"COMMAND: subject, [x0, y0, x1, y1]". COMMAND is ADD for an object that only the second image shows, '
    "REMOVE for one that only the first image shows, and EDIT for one that looks different or was replaced "
    "by another. The subject names the object in a few words. The numbers are the left, top, right and "
    "bottom edges of the box around it, as shares of the width and height from 0 to 1. If the images show "
    "the same, answer: no change"
)
JUDGE = (
    'The second image is an edited version of the first one; the editor was told: "{instruction}". '
    "A frame marks one of the differences, {difference}. Is the difference within the frame what the "
    "instruction asks for? Look at the frame alone: whether the rest of the instruction was carried out does "
    "not matter. The decision is NO if anything within the frame changed that was not asked for. "
)
WITH_REASON = "Answer in the form: Reasoning: one sentence. Decision: YES or NO"
WITHOUT_REASON = "Answer in the form: Decision: YES or NO"
SYSTEM = (
    "You are shown an image, an edited version of it with a frame around one difference, and the instruction "
    "that the editor was given. Decide if the difference within the frame is what the instruction asks for. "
    "The decision is NO if anything within the frame changed that was not asked for. "
)
# Short prompts are for small models, which read few tokens and have been trained on nothing else.
PROMPTS = {
    "full": {"detect": DETECT, "judge": JUDGE, True: WITH_REASON, False: WITHOUT_REASON},
    "code": {
        "detect": DETECT,
        "judge": 'Instruction: "{instruction}". Difference: {difference}. ',
        True: "",
        False: "",
    },
    "short": {
        "detect": "list the differences.",
        "judge": '{difference}: was it asked for by "{instruction}"?',
        True: "",
        False: "",
    },
}


def plain_subject(text: str) -> str:
    """A subject as an answer can hold it: one line, without quotation marks, square brackets or markup, and
    without what would read as a box or as the command of another difference.
    """
    subject = _without_marks(text)
    if _BOX.search(subject):
        subject = subject.translate(NO_BRACKETS)
    if _COMMAND.search(subject):
        subject = subject.replace(":", " ")
    return one_line(subject)


def _without_marks(text: str) -> str:
    """The text in one line, without characters that have a meaning in an answer."""
    return one_line(normalised(one_line(text)).translate(REPLACED))


def format_box(box: Box, decimals: int = 3) -> str:
    """A box as text, such as "[0.120, 0.340, 0.560, 0.780]"; each side is at least one step of the last
    decimal.
    """
    steps = 10**decimals
    x0, y0, x1, y1 = (min(max(round(edge * steps), 0), steps) for edge in box)
    x0, y0 = min(x0, steps - 1), min(y0, steps - 1)
    x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)
    return f"[{', '.join(f'{edge / steps:.{decimals}f}' for edge in (x0, y0, x1, y1))}]"


def format_difference(difference: Difference, decimals: int = 3) -> str:
    """A difference as text, such as "ADD: red cup, [0.120, 0.340, 0.560, 0.780]".

    Raises:
        ValueError: if nothing is left of its subject.
    """
    subject = plain_subject(difference.subject)
    if not subject:
        raise ValueError(f"subject: expected a name of the object; got {difference.subject!r}")
    return f"{difference.command}: {subject}, {format_box(difference.box, decimals)}"


def format_differences(differences: Iterable[Difference], decimals: int = 3) -> str:
    """The answer of a detector that found these differences."""
    items = [f'"{format_difference(difference, decimals)}"' for difference in differences]
    return f"[{', '.join(items)}]" if items else NO_CHANGE


def parse_differences(answer: str) -> ParsedAnswer:
    """Reads a detector's answer.

    The whole answer is a list of quoted texts, each "COMMAND: subject, [x0, y0, x1, y1]" in any case and with
    round or square brackets, or it says "no change". Nothing is guessed: an item of another form, or whose
    box is empty or not within [0, 1], or whose subject holds another command or box, is dropped. An answer
    that is no list has no items.
    """
    text = normalised(answer)
    if _NOTHING.fullmatch(text):
        return ParsedAnswer(text, (), (), 0, says_no_change=True)
    place, end = _inside_list(text)

    differences: list[Difference] = []
    starts: list[int] = []
    items = 0
    while place < end:
        item = _ITEM.match(text, place, end)
        if item is None:  # not a quoted text: nothing after it can be told apart
            items += _count_items(text[place:end])
            break
        place = item.end()
        items += _count_items(item[2])
        difference = _read_difference(item[2])
        if difference is not None:
            differences.append(difference)
            starts.append(item.start(2) + len(item[2]) - len(item[2].lstrip()))
    return ParsedAnswer(text, tuple(differences), tuple(starts), items)


def _inside_list(text: str) -> tuple[int, int]:
    """Start and end of what the brackets of a list enclose, without blanks at its end; (0, 0) for a text that
    is no list.
    """
    whole = text.removesuffix(".").rstrip()
    if len(whole) < 2 or whole[0] != "[" or whole[-1] != "]":
        return 0, 0
    return 1, len(whole[:-1].rstrip())


def _count_items(text: str) -> int:
    """Number of differences that a text of the list means to state, at least 1."""
    return max(1, len(_COMMAND.findall(text)))


def _read_difference(text: str) -> Difference | None:
    """The difference of an item; None if it is not one, its box is none, or its subject is not plain."""
    text = text.strip()
    command = _COMMAND.match(text)
    opening = max(text.rfind("["), text.rfind("("))
    box = _BOX.fullmatch(text, max(opening, 0))
    before = text[:opening].rstrip()
    if command is None or box is None or len(before) <= command.end() or before[-1] != ",":
        return None

    raw = before[command.end() : -1].strip()
    subject = _without_marks(raw.replace("\\'", "'"))
    x0, y0, x1, y1 = map(float, box.groups())
    is_box = 0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1
    if not subject or "\n" in raw or subject != plain_subject(subject) or not is_box:
        return None
    (name,) = (one for one in COMMANDS if one == command[1].upper())
    return Difference(name, subject, (x0, y0, x1, y1))


def detection_chat(prompts: str = "full") -> list[Turn]:
    """The chat of the detector: source, edited image, then the question; the instruction is not shown."""
    return [_turn("user", [*_images(), _text(PROMPTS[prompts]["detect"])])]


def coherence_chat(
    instruction: str, difference: Difference, settings: DiceFormat | None = None
) -> list[Turn]:
    """The chat of the coherence estimator, whose images are those of `framed_pair`, then the question."""
    settings = settings or DiceFormat()
    question = _text(coherence_question(instruction, difference, settings))
    if settings.prompts == "code":
        task = _text(SYSTEM + (WITH_REASON if settings.rationale else WITHOUT_REASON))
        return [_turn("system", [task]), _turn("user", [question, *_images()])]
    return [_turn("user", [*_images(), question])]


def coherence_question(instruction: str, difference: Difference, settings: DiceFormat | None = None) -> str:
    """The question to the coherence estimator about one difference."""
    settings = settings or DiceFormat()
    texts = PROMPTS[settings.prompts]
    named = f"{difference.command}: {plain_subject(difference.subject)}"
    return (texts["judge"] + texts[settings.rationale]).format(instruction=instruction, difference=named)


def framed_pair(
    source: Float[Tensor, "3 h w"],
    edited: Float[Tensor, "3 h w"],
    difference: Difference,
    settings: DiceFormat | None = None,
) -> Float[Tensor, "2 3 h w"]:
    """Source and edited image with a frame around the difference: red for ADD, green for EDIT, blue for
    REMOVE.

    The frame is on both images; with the prompts "code" on the source for REMOVE, else on the edited image.
    """
    colour = FRAMES[difference.command]
    on = [True, True]
    if settings is not None and settings.prompts == "code":
        on = [difference.command == "REMOVE", difference.command != "REMOVE"]
    pair = zip((source, edited), on, strict=True)
    return torch.stack([framed(image, difference.box, colour) if frame else image for image, frame in pair])


def format_judgement(coherent: bool, reason: str = "") -> str:
    """The answer of a coherence estimator, such as "Reasoning: no dog was asked for. Decision: NO"."""
    decision = f"Decision: {'YES' if coherent else 'NO'}"
    reason = one_line(reason)
    return f"Reasoning: {reason} {decision}" if reason else decision


def parse_judgement(answer: str) -> Judgement:
    """Reads the answer of a coherence estimator; the decision is None unless there is exactly one, with the
    other word nowhere on its line: "Decision: YES or NO" is an echo of the question.
    """
    text = normalised(answer)
    decisions = list(_DECISION.finditer(text))
    words: set[str] = set()
    for match in decisions:
        words |= set(_YES_OR_NO.findall(match[0].lower()))
    reasoning = _REASONING.search(text)
    reason = "" if reasoning is None else one_line(_DECIDES.split(text[reasoning.end() :], maxsplit=1)[0])
    start = decisions[0].start(1) if decisions else len(text)
    return Judgement(words == {"yes"} if len(words) == 1 else None, reason, text, start)


def _images() -> list[Turn]:
    return [{"type": "image"}, {"type": "image"}]


def _text(text: str) -> Turn:
    return {"type": "text", "text": text}


def _turn(role: str, content: list[Turn]) -> Turn:
    return {"role": role, "content": content}
