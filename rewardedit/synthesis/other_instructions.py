"""Other plausible instructions for an image, which its edit does not follow."""

import random
import re
from collections.abc import Sequence

from rewardedit.batch import EditBatch
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.parsed import Parsed, ParsedEdit
from rewardedit.instructions.swap_word import swap_word

SMALL_WORDS = frozenset(("a", "an", "the", "and", "of", "to", "in", "on", "at", "is", "be", "it", "with"))
CLAUSES = re.compile(r"[,;.]|\b(?:and|with|on|in)\b")  # separators between a caption's objects


def other_instructions(i: int, batch: EditBatch, source_ids: Sequence[str]) -> list[str]:
    """Different instructions of rows with other sources, best fit to this row's source first.

    The fit of an instruction is the share of its words that occur in the source's caption or in the row's
    own instruction, provided that it names something in the caption that the row's own does not: objects
    that are present but unchanged are the hardest to distinguish from changed ones. An instruction comes
    last if everything that it adds to its own source's caption already occurs in this one's: its result may
    be there already. Without captions, instructions are in the order of the rows.
    """
    before = batch.source_caption or [None] * len(batch)
    after = batch.target_caption or [None] * len(batch)
    own_words = words_of(batch.instruction[i])
    seen = words_of(before[i] or "")

    def fits(other: int) -> float:
        asked = words_of(batch.instruction[other])
        added = words_of(after[other] or "") - words_of(before[other] or "")
        if added and added <= seen:
            return -1.0
        return len(asked & (seen | own_words)) / len(asked) if asked & seen - own_words else 0.0

    following = [*range(i + 1, len(batch)), *range(i)]
    others = [other for other in following if source_ids[other] != source_ids[i]]
    others.sort(key=fits, reverse=True)
    texts = dict.fromkeys(batch.instruction[other] for other in others)
    texts.pop(batch.instruction[i], None)
    return list(texts)


def words_of(text: str) -> set[str]:
    """Words of a text in lower case, without function words."""
    return set(re.findall(r"\w+", text.lower())) - SMALL_WORDS


def objects_named(instructions: Sequence[str]) -> list[str | None]:
    """Object that each instruction changes, by the grammar; None if it names no object or edits the whole
    background.
    """
    return list(map(_only_object, parse_all(instructions)))


def _only_object(edit: Parsed) -> str | None:
    if not isinstance(edit, ParsedEdit) or edit.is_global or edit.ambiguous:
        return None
    return edit.source


def another_words(
    i: int, batch: EditBatch, word_groups: Sequence[Sequence[str]], count: int, choice: random.Random
) -> list[str]:
    """Up to `count` distinct forms of the row's instruction with one word altered. New words come from the
    batch's instructions, so that no word occurs in wrong instructions only.
    """
    known = set(re.findall(r"\w+", "\n".join(batch.instruction).lower()))
    texts: dict[str, None] = {}
    for _ in range(4 * count):
        text = swap_word(batch.instruction[i], word_groups, choice, known=known)
        if text is not None:
            texts[text] = None
    return [text for text in texts if not _may_hold(text, i, batch)][:count]


def _may_hold(text: str, i: int, batch: EditBatch) -> bool:
    """True if an altered instruction only replaces the reference object (as in "left of the tree") by another
    object of the image: the edit may satisfy that by chance.
    """
    original, other = parse_all([batch.instruction[i], text])
    if not isinstance(original, ParsedEdit) or not isinstance(other, ParsedEdit):
        return False
    if other.reference is None or other.reference == original.reference or batch.source_caption is None:
        return False
    clauses = map(words_of, CLAUSES.split(batch.source_caption[i] or ""))
    return any(map(words_of(other.reference).issubset, clauses))


def another_object(i: int, batch: EditBatch, named: Sequence[str | None], u: float) -> str | None:
    """The row's instruction with its object replaced by another one of the image, so that the row's edit does
    not follow it; None if there is no such object.

    The other object is named in another row's instruction and described by a clause of this row's source
    caption. That clause must not describe the row's own object, and another clause must.

    Args:
        named: result of `objects_named` for the batch's instructions.
        u: in [0, 1), chooses among the candidate objects.
    """
    own_object, captions = named[i], batch.source_caption
    text = batch.instruction[i]
    if own_object is None or captions is None:
        return None

    said = re.compile(rf"\b{re.escape(own_object)}\b", re.IGNORECASE)
    if len(said.findall(text)) != 1:
        return None

    clauses = list(map(words_of, CLAUSES.split(captions[i])))
    elsewhere = [clause for clause in clauses if not words_of(own_object) <= clause]
    if len(elsewhere) == len(clauses):
        return None

    others = []
    for name in sorted(filter(None, set(named))):
        words = words_of(name)
        # "the circle" may mean the same thing as "the red circle".
        if any(map(words.issubset, elsewhere)) and not words <= words_of(own_object):
            others.append(name)

    if not others:
        return None
    other = others[int(u * len(others))]
    return said.sub(lambda _: other, text)
