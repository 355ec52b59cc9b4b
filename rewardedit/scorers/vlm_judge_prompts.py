"""Questions to a judge of edits, and the reading of its answers.

Each aspect is a separate question, graded from 0 to 10, so that one grade does not influence the next. The
criteria are those of two published judges; the wording is ours:

"viescore" (Ku et al. 2024): semantic consistency (the instruction is followed and nothing else is changed)
and perceptual quality (the image looks natural and is free of faults).

"hq_edit" (Hui et al. 2024, the metrics of its code): alignment, how well the instruction describes the change
from one image to the other, and coherence, how well the parts of the edited image go together. There both
range from 0 to 100 and are reported separately; here they are graded like all others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from rewardedit.images import load_image
from rewardedit.language.answers import is_unfinished, normalised
from rewardedit.language.vlm import Turn
from rewardedit.untrusted import read_json_file

Chat = list[Turn]
ANSWERS = ("digits", "text")
GROUPS = ("consistency", "quality")  # VIEScore's semantic consistency and perceptual quality
BEGINNING = "Grade: "  # the answer up to the digit
QUOTED = 200  # characters quoted in a reason, from the end of an answer: the grade comes last


@dataclass(frozen=True)
class Aspect:
    """One aspect that an edit is graded for."""

    name: str
    group: str  # one of GROUPS
    pair: bool  # the judge sees the source and the edited image; otherwise the edited image alone
    question: str  # question about the whole image, or about the inside of the change mask
    outside: str | None  # question about the outside of the change mask; None: it is not asked


PAIR = 'The second image was made from the first by an editor that was told: "{instruction}"\n'
ALONE = "An editor made this image.\n"
FOLLOWED = PAIR + (
    "Grade how far the second image does what the editor was told. The lowest grade: none of it was done. "
    "The middle: a part of it, or all of it in a wrong way. The highest: everything, as one would expect it."
)
PRESERVED = PAIR + (
    "Whether it was done is not the question here. Grade how well everything was kept that did not have to "
    "change for it: other objects, people, background, colours and style. The lowest grade: another image "
    "altogether. The highest: no difference that was not needed."
)
PRESERVED_OUTSIDE = PAIR + (
    "You see only the parts that the editor should have left as they were. Grade how well they were kept. "
    "The lowest grade: they show something else. The highest: they are the same."
)
NATURAL = ALONE + (
    "Grade how natural it looks: whether light and shadows, sizes, distances and perspective agree, as in a "
    "scene that was taken or drawn in one piece. The lowest grade: nothing fits. The highest: nothing looks "
    "odd."
)
CLEAN = ALONE + (
    "Grade how free it is of faults: smears, warped shapes, blurred or doubled parts, wrong limbs and faces, "
    "seams, stray marks and lettering. The lowest grade: faults all over. The highest: none to be found."
)
ALIGNMENT = PAIR + (
    "Compare the two images and take those words as a description of what differs. Grade how well it fits: "
    "all that it names has changed, all that has changed is named, and it was not so before. The lowest "
    "grade: the images have nothing to do with each other, or are the same. The highest: the words describe "
    "the difference exactly."
)
COHERENCE = ALONE + (
    "Grade how well its parts go together: one direction of light with fitting shadows, things that belong "
    "in the scene, clean transitions where one meets the next, one style throughout. The lowest grade: parts "
    "that clash everywhere. The highest: nothing that looks pasted in."
)
CRITERIA: dict[str, tuple[Aspect, ...]] = {
    "viescore": (
        Aspect("followed", "consistency", True, FOLLOWED, None),
        Aspect("preserved", "consistency", True, PRESERVED, PRESERVED_OUTSIDE),
        Aspect("natural", "quality", False, NATURAL, NATURAL),
        Aspect("clean", "quality", False, CLEAN, CLEAN),
    ),
    "hq_edit": (
        Aspect("alignment", "consistency", True, ALIGNMENT, PRESERVED_OUTSIDE),
        Aspect("coherence", "quality", False, COHERENCE, COHERENCE),
    ),
}
HIDDEN = "\nWhat is not to be judged is covered with flat gray; leave the gray out of account."
FORMS = {  # "digits" of a model here, whose answer is begun for it; "digit" of one behind an endpoint
    "digits": (
        "\nAnswer with one line and nothing else: the word Grade, a colon, and one digit from 0, the lowest "
        "grade, to 9, the highest."
    ),
    "digit": "\nAnswer with one digit and nothing else, from 0, the lowest grade, to 9, the highest.",
    "text": (
        "\nFirst name in two or three sentences what speaks for and against a high grade. Then close with a "
        "line of its own: the word Grade, a colon, and a whole number from 0, the lowest grade, to 10, the "
        "highest."
    ),
}


@dataclass(frozen=True)
class Question:
    """An aspect, asked about a view: "whole", or "inside" or "outside" the change mask."""

    aspect: Aspect
    view: str

    @property
    def name(self) -> str:
        return self.aspect.name if self.view == "whole" else f"{self.aspect.name}_{self.view}"

    @property
    def text(self) -> str:
        """The question; it holds {instruction} if the judge sees both images."""
        if self.view == "whole":
            return self.aspect.question
        text = self.aspect.question if self.view == "inside" else self.aspect.outside
        assert text is not None
        return text + HIDDEN


def questions(criteria: str, apart: bool) -> list[Question]:
    """Questions of a set of criteria, about the whole images or separately inside and outside the mask.

    Raises:
        ValueError: on unknown criteria.
    """
    if criteria not in CRITERIA:
        raise ValueError(f"criteria: expected one of {', '.join(CRITERIA)}; got {criteria!r}")
    aspects = CRITERIA[criteria]
    inside = [Question(aspect, "inside" if apart else "whole") for aspect in aspects]
    outside = [Question(aspect, "outside") for aspect in aspects if apart and aspect.outside is not None]
    return inside + outside


@dataclass(frozen=True)
class Example:
    """An edit with its grades, shown before the one that is judged (VIEScore's one-shot; ADIEE App. D)."""

    source: Float[Tensor, "3 h w"]  # RGB in [0, 1]
    edited: Float[Tensor, "3 h w"]
    instruction: str
    grades: dict[str, float]  # 0 to 10, by the names of the questions
    reasons: dict[str, str] = field(default_factory=dict)  # by question too, for a judge that gives reasons

    @classmethod
    def load(cls, path: str | Path) -> "Example":
        """Reads a JSON file with the fields above; the images are files next to it.

        Raises:
            ValueError: if the file, an image or a field is missing, or a field is unknown.
        """
        path = Path(path)
        try:
            values = read_json_file(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"example {path}: expected a JSON file ({error})") from error
        needed = {"source", "edited", "instruction", "grades"}
        if not isinstance(values, dict) or not needed <= set(values) <= needed | {"reasons"}:
            got = sorted(values) if isinstance(values, dict) else type(values).__name__
            raise ValueError(f"example {path}: expected {sorted(needed)}, and reasons or not; got {got}")
        source = load_image(path.parent / values["source"])
        edited = load_image(path.parent / values["edited"])
        if source.shape != edited.shape:
            raise ValueError(f"example {path}: source and edited differ in size")
        return cls(source, edited, values["instruction"], values["grades"], values.get("reasons", {}))

    def check(self, questions: Sequence[Question], answer: str) -> None:
        """Raises ValueError if a question has no grade from 0 to 10, or no reasons with answer="text"."""
        names = {question.name for question in questions}
        shown: list[tuple[str, dict[str, Any]]] = [("grades", self.grades)]
        if answer == "text":
            shown.append(("reasons", self.reasons))
        for label, values in shown:
            if set(values) != names:
                raise ValueError(f"example: {label}: expected {sorted(names)}; got {sorted(values)}")
        for name, grade in self.grades.items():
            if not 0 <= grade <= 10:
                raise ValueError(f"example: {name}: expected a grade from 0 to 10; got {grade}")

    def said(self, question: Question, form: str) -> str:
        """Answer of the judge in the example, in one of `FORMS`."""
        grade = self.grades[question.name]
        if form != "text":
            return f"{BEGINNING if form == 'digits' else ''}{int(grade * 0.9 + 0.5)}"
        return f"{self.reasons[question.name].strip()}\n{BEGINNING}{grade:g}"


def chat(question: Question, instruction: str, form: str, example: Example | None = None) -> Chat:
    """The chat up to the judge's answer, which is to be in one of `FORMS`; images are placeholders that are
    filled later.
    """
    turns = []
    if example is not None:
        turns.append(_asked(question, example.instruction, form))
        said = {"type": "text", "text": example.said(question, form)}
        turns.append({"role": "assistant", "content": [said]})
    return [*turns, _asked(question, instruction, form)]


def _asked(question: Question, instruction: str, form: str) -> Turn:
    images: list[Turn] = [{"type": "image"}] * (2 if question.aspect.pair else 1)
    text = question.text.format(instruction=instruction) + FORMS[form]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


_LABELLED = re.compile(
    r"[>#•| \-]*(?:(?:the|my|overall|final|total) ){0,3}grade"
    r"(?: ?\((?:0 ?(?:-|–|to) ?10|out of 10)\))? ?[:=] ?(.*)",
    re.IGNORECASE,
)
_VALUE = re.compile(r"(\d+(?:\.\d+)?) ?(?:\(?(?:/|out of) ?10\)?)?[ .]*", re.IGNORECASE)


def read_grade(answer: str) -> float | None:
    """The grade of an answer, 0 to 10; None if no line holds one, two lines differ, or a line holds anything
    other than a grade out of ten.

    Thoughts before the answer are not read.
    """
    grades = set()
    for line in normalised(answer).splitlines():
        labelled = _LABELLED.fullmatch(" ".join(line.split()))
        if labelled is not None and re.match(r"[-+]?\d", labelled[1]):
            value = _VALUE.fullmatch(labelled[1])
            grades.add(None if value is None else float(value[1]))
    grade = grades.pop() if len(grades) == 1 else None
    return grade if grade is not None and grade <= 10 else None


def unread(answer: str) -> str:
    """The reason why a row without a grade is invalid, with the end of the model's answer."""
    if is_unfinished(answer):
        return "the answer ends within its reasoning; raise max_new_tokens"
    shown = answer if len(answer) <= QUOTED else "…" + answer[-QUOTED:]
    return f"no grade could be read; the model answered {shown!r}"
