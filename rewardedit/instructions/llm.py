"""Edit instructions parsed by a language model (BPM Sec. 3.2, Fig. 6): any causal LM of transformers, a GGUF
file, or an OpenAI-compatible endpoint.

Three questions are asked: for the objects before and after the edit, for the change of size, and for the
relation to something else. Answers are read strictly, with synonyms; one that cannot be read is requested
once more, and then the instruction is invalid, with the answer as the reason. Nothing is guessed.
An instruction that an endpoint refuses, or whose answer is cut off, is invalid too, but is sent again the
next time.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit.files import append_json_line
from rewardedit.instructions import paper_prompts
from rewardedit.instructions.grammar.phrases import several_objects
from rewardedit.instructions.grammar.words import COLOURS, PRONOUNS
from rewardedit.instructions.parsed import RELATIONS, Parsed, ParsedEdit, SizeState, Unparsed
from rewardedit.language.answers import Answer, AnswerError, local_answers, normalised
from rewardedit.language.decoding import answer_greedily
from rewardedit.language.endpoint import EndpointError, Message
from rewardedit.models import pretrained
from rewardedit.models.extras import install_command
from rewardedit.untrusted import CONTENT_ERRORS, read_json

# chats to the model's answers, with an error in place of each that could not be obtained
Ask = Callable[[Sequence[Sequence[Message]]], Sequence[Answer]]
NONE = frozenset(("none", "nothing", "null", "n/a", "no object", ""))
SIZES: dict[str, SizeState] = {
    **dict.fromkeys(("larger", "bigger", "increased", "increase", "enlarged", "taller", "longer"), "larger"),
    **dict.fromkeys(
        ("smaller", "decreased", "decrease", "reduced", "shrunk", "shorter", "tinier"), "smaller"
    ),
    **dict.fromkeys(("unchanged", "same", "no change", "none", "not changed"), "unchanged"),
}
_IN_IMAGE = list(map(" ".join, itertools.product(("top", "bottom", "center"), ("left", "right", "center"))))
PLACED: dict[str, str] = {
    **dict(zip(RELATIONS, RELATIONS, strict=True)),
    **dict.fromkeys(("left of", "to the left", "to the left of", "on the left"), "left"),
    **dict.fromkeys(("right of", "to the right", "to the right of", "on the right"), "right"),
    **dict.fromkeys(("above", "over", "top", "on top", "on top of", "upper"), "up"),
    **dict.fromkeys(("onto", "upon"), "on"),
    **dict.fromkeys(("below", "under", "underneath", "beneath", "bottom", "lower"), "down"),
    **dict.fromkeys(("next to", "beside", "close to", "by", "adjacent", "behind", "in front of"), "near"),
    **dict.fromkeys(("in", "within", "into", "in the middle of"), "inside"),
    **dict.fromkeys(("unchanged", "same", "none", "no change", "same position"), "unchanged"),
    **dict(zip(_IN_IMAGE, _IN_IMAGE, strict=True)),
}
WHOLE_IMAGE = ("image", "whole image", "photo", "picture", "scene")
OBJECTS = (
    'Instruction for an image edit: "{instruction}"\n'
    "Which part of the image does the edit change, and what is there afterwards? Name both in a few words, "
    'without articles. Write "none" for what is not there: before something is added, after something is '
    'removed. Where the whole image changes, as in "make it night", write "image" before. Where the '
    'instruction says "it" and names nothing, write "unclear".\n'
    'For example, for "swap the lamp for a candle":\nbefore: lamp\nafter: candle\n'
    "Answer with these two lines and nothing else."
)
SIZE = (
    'Instruction for an image edit: "{instruction}"\n'
    "Does it ask for another size of what is edited? What is added or exchanged has no other size.\n"
    "Answer with one word: larger, smaller or unchanged."
)
POSITION = (
    'Instruction for an image edit: "{instruction}"\nbefore: {source}\nafter: {target}\n'
    "Does it say where the edited thing is to be: left, right, up, down, on, inside or near, and of what? "
    "Words that only tell which object is meant do not count.\n"
    'For example, for "put a bird on top of the tower":\nrelation: up\nof: tower\n'
    'Answer with these two lines and nothing else; "relation: unchanged" and "of: none" where it does not.'
)
AGAIN = "That is not in the form that was asked for. Answer once more, in that form alone."


@dataclass(frozen=True)
class ParsePrompts:
    """Three questions, and functions that bring their answers to the form that is read."""

    objects: str = OBJECTS
    size: str = SIZE
    position: str = POSITION
    of_objects: Callable[[str], str] = str
    of_position: Callable[[str], str] = str


PROMPTS = {
    "ours": ParsePrompts(),
    "paper": ParsePrompts(
        paper_prompts.OBJECTS,
        paper_prompts.SIZE,
        paper_prompts.POSITION,
        paper_prompts.as_lines,
        paper_prompts.as_relation,
    ),
}


class LlmParser:
    """Parses instructions by a chat model; results are kept on disk.

    Args:
        answer: asks the model, e.g. `Endpoint(…).answer` or `load_chat_model(…)`.
        name: of the model, for the cache.
        cache: a JSONL file; None: nothing is kept.
        batch_size: number of instructions that are parsed together.
        prompts: "ours", or "paper" as BPM prints them, whose answers name no reference.
    """

    def __init__(
        self,
        answer: Ask,
        name: str,
        cache: Path | None = None,
        batch_size: int = 32,
        prompts: str = "ours",
    ) -> None:
        if prompts not in PROMPTS:
            raise ValueError(f"prompts: expected one of {', '.join(PROMPTS)}; got {prompts}")
        self.prompts = PROMPTS[prompts]
        self.answer = answer
        self.name = name
        self.cache = cache
        self.batch_size = batch_size
        self.known: dict[str, Parsed] = {}
        for line in cache.read_bytes().splitlines() if cache is not None and cache.is_file() else []:
            with suppress(*CONTENT_ERRORS):  # damaged records are requested again
                record = read_json(line)
                if record["key"] == self._key(record["instruction"]):
                    self.known[record["key"]] = _kept(record["parsed"])

    def __call__(self, instructions: Sequence[str]) -> list[Parsed]:
        """Parses each instruction, in order.

        Raises:
            EndpointError: if the endpoint is not reached, fails or is busy; its other answers are kept.
        """
        wanted = [text for text in dict.fromkeys(instructions) if self._key(text) not in self.known]
        unanswered: dict[str, Unparsed] = {}
        failed: AnswerError | None = None
        for first in range(0, len(wanted), self.batch_size):
            chunk = wanted[first : first + self.batch_size]
            for text, parsed in zip(chunk, self._parse(chunk), strict=True):
                if not isinstance(parsed, _Unanswered):
                    self._keep(text, parsed)
                elif parsed.error.may_pass:
                    failed = parsed.error
                else:
                    unanswered[text] = Unparsed(parsed.reason)
            if failed is not None:
                raise failed
        return [unanswered.get(text) or self.known[self._key(text)] for text in instructions]

    def _keep(self, text: str, parsed: Parsed) -> None:
        self.known[self._key(text)] = parsed
        if self.cache is not None:
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            record = {"key": self._key(text), "instruction": text, "parsed": asdict(parsed)}
            append_json_line(self.cache, record)

    def _key(self, instruction: str) -> str:
        prompts = f"{self.prompts.objects}{self.prompts.size}{self.prompts.position}"
        text = f"{self.name}\0{prompts}\0{instruction}"
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def _parse(self, instructions: Sequence[str]) -> list[Parsed]:
        prompts = self.prompts
        questions = [prompts.objects.format(instruction=text) for text in instructions]
        objects = self._ask(questions, lambda answer: read_objects(prompts.of_objects(answer)))
        questions = [prompts.size.format(instruction=text) for text in instructions]
        sizes = self._ask(questions, read_size)

        questions = []
        for text, words in zip(instructions, objects, strict=True):
            source, target = ("", "") if isinstance(words, Unparsed) else words
            names = {"source": source or "none", "target": target or "none"}
            questions.append(prompts.position.format(instruction=text, **names))
        places = self._ask(questions, lambda answer: read_position(prompts.of_position(answer)))

        return list(map(_first_unparsed_or_edit, objects, sizes, places))

    def _ask(self, questions: list[str], read: Callable[[str], Any]) -> list[Any]:
        """The values read from the answers; `Unparsed` if none can be read after a second try."""
        chats: list[list[Message]] = [[{"role": "user", "content": text}] for text in questions]
        answers = self.answer(chats)
        parsed = [_read(answer, read) for answer in answers]
        unread = [i for i, value in enumerate(parsed) if value is None]
        if unread:
            again = []
            for i in unread:
                first_answer = {"role": "assistant", "content": answers[i]}
                again.append([*chats[i], first_answer, {"role": "user", "content": AGAIN}])
            for i, answer in zip(unread, self.answer(again), strict=True):
                value = _read(answer, read)
                parsed[i] = Unparsed(f"the model answered {answer!r}") if value is None else value
        return parsed


def _first_unparsed_or_edit(objects: Any, size: Any, place: Any) -> Parsed:
    """The edit that three answers describe; the first of them that could not be read, if there is one."""
    for answer in (objects, size, place):
        if isinstance(answer, Unparsed):
            return answer
    return parsed_edit(objects, size, place)


def _kept(values: Mapping[str, Any]) -> Parsed:
    """The parsed instruction in a cache's record.

    Raises:
        TypeError, ValueError: if it is not in the form that is kept.
    """
    parsed = Unparsed(**values) if "reason" in values else ParsedEdit(**values)
    fits = all(isinstance(value, str | bool | None) for value in vars(parsed).values())
    if isinstance(parsed, ParsedEdit):
        fits = fits and isinstance(parsed.is_global, bool) and isinstance(parsed.ambiguous, bool)
        fits = fits and isinstance(parsed.edit_type, str)
        fits = fits and parsed.size in SIZES.values() and parsed.position in PLACED.values()
    if not fits:
        raise ValueError("expected what was parsed, as it was kept")
    return parsed


@dataclass(frozen=True)
class _Unanswered(Unparsed):
    """An instruction without an answer: its parse is not known yet."""

    error: AnswerError


def _read(answer: Answer, read: Callable[[str], Any]) -> Any:
    if not isinstance(answer, AnswerError):
        return read(answer)
    is_sent = isinstance(answer, EndpointError)
    return _Unanswered(f"no answer: {answer}" if is_sent else str(answer), answer)


def read_objects(answer: str) -> tuple[str, str] | None:
    """("lamp", "candle") of "before: lamp / after: candle"; "" stands for nothing, "unclear" stays."""
    before = _line(answer, "before")
    after = _line(answer, "after")
    if before is None or after is None or (before in NONE and after in NONE):
        return None
    return "" if before in NONE else before, "" if after in NONE else after


def read_size(answer: str) -> SizeState | None:
    """One of the three states; None if the answer has none, or several."""
    words = normalised(answer).lower().strip(".\"' ")
    if words in SIZES:
        return SIZES[words]
    sizes = set(map(SIZES.get, re.findall(r"[a-z]+", words))) - {None}
    return sizes.pop() if len(sizes) == 1 else None


def read_position(answer: str) -> tuple[str, str | None] | None:
    """("up", "tower") of "relation: up / of: tower"; None if the relation is unknown."""
    relation = _line(answer, "relation")
    if relation is None or relation not in PLACED:
        return None
    of = _line(answer, "of")
    return PLACED[relation], None if of is None or of in NONE else of


def _line(answer: str, key: str) -> str | None:
    """The text after "key:", in lower case and without article and punctuation; None if there is none, or two
    lines say different things.
    """
    line = re.compile(rf"\W*{key}\W*?:\W*(\w?.*)", re.IGNORECASE)
    texts = set()
    for match in filter(None, map(line.fullmatch, normalised(answer).splitlines())):
        text = match[1].strip().strip("\"'*.()[]").lower()
        texts.add(re.sub(r"^(?:an?|the) ", "", text))
    return texts.pop() if len(texts) == 1 else None


def parsed_edit(objects: tuple[str, str], size: SizeState, place: tuple[str, str | None]) -> Parsed:
    """The three answers as one `ParsedEdit`; `Unparsed` if a name is that of several objects."""
    unclear = {"unclear", *PRONOUNS}
    ambiguous = not unclear.isdisjoint(objects)
    source, target = (None if text in unclear else text or None for text in objects)
    position, reference = place
    # A moved object may be named as its own reference: then its own place in the source is meant.
    if reference in (source, target, *PRONOUNS, *WHOLE_IMAGE):
        reference = None
    for named in (source, target, reference):
        if several := several_objects(named or ""):
            return Unparsed(f"the instruction names several objects ({'; '.join(several)})")
    kind = edit_type(objects[0], objects[1], size, position)
    is_global = (source or "") in ("background", *WHOLE_IMAGE)
    return ParsedEdit(kind, source, target, reference, size, position, is_global, ambiguous)


def edit_type(before: str, after: str, size: SizeState, position: str) -> str:
    """The type of edit that the answers describe."""
    if not before:
        return "add"
    if not after:
        return "remove"
    if before in ("background", "backdrop"):
        return "background"
    if before in WHOLE_IMAGE:
        return "style"
    if size != "unchanged":
        return "resize"
    if before == after:
        return "move" if position != "unchanged" else "modify"

    kept = set(before.split()) & set(after.split()) - COLOURS
    if kept:
        return "recolour" if set(after.split()) & COLOURS - set(before.split()) else "modify"
    return "replace"


def load_chat_model(
    name: str = "princeton-nlp/gemma-2-9b-it-SimPO",
    *,
    gguf_file: str | None = None,
    device: str = "cpu",
    dtype: Any = None,
    max_new_tokens: int = 64,
) -> Ask:
    """Loads a causal LM of transformers as a function that answers chats, greedily.

    Args:
        name: hub name or folder; the default is BPM's.
        gguf_file: a GGUF file in it; its weights are unpacked to `dtype`.

    Raises:
        ValueError: if there is no such model, it has no chat template, or a GGUF file comes without the
            package gguf.
    """
    from importlib.util import find_spec

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if gguf_file is not None and find_spec("gguf") is None:
        raise ValueError(f"{gguf_file}: a GGUF file needs gguf: {install_command('gguf')}")

    more = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        tokenizer = pretrained.load(AutoTokenizer, name, padding_side="left", **more)
        model = pretrained.load(AutoModelForCausalLM, name, dtype=dtype or torch.float32, **more).to(device)
    except OSError as error:
        raise ValueError(
            f"language model {name!r}: cannot be loaded ({str(error).splitlines()[0]})"
        ) from error

    if tokenizer.chat_template is None:
        raise ValueError(f"language model {name!r}: it has no chat template; use a model tuned for chat")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.eval()

    @torch.no_grad()
    def answer(chats: Sequence[Sequence[Message]]) -> list[Answer]:
        template = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
        texts = [template(list(chat)) for chat in chats]
        inputs = tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt").to(device)
        made, is_cut = answer_greedily(model, dict(inputs), max_new_tokens)
        said = tokenizer.batch_decode(made, skip_special_tokens=True)
        return local_answers(texts, said, is_cut, max_new_tokens)

    return answer
