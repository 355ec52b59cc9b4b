"""What else might have been asked of an image: instructions that its edit does not follow."""

import random
import re
from collections.abc import Sequence

from rewardedit.batch import EditBatch
from rewardedit.instructions.altered import altered
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.parsed import ParsedEdit

SMALL_WORDS = frozenset(("a", "an", "the", "and", "of", "to", "in", "on", "at", "is", "be", "it", "with"))
CLAUSES = re.compile(r"[,;.]|\b(?:and|with|on|in)\b")  # what parts a caption's objects


def other_instructions(i: int, batch: EditBatch, source_ids: Sequence[str]) -> list[str]:
    """The instructions of the rows with other sources that ask for something else, first those that fit this
    row's source best.

    An instruction fits by the share of its words that stand in the source's caption or in the row's own
    instruction, if it names something of the caption that the row's own does not: what is there and was not
    changed is the hardest to tell from what was. One comes last if all that it would add to its own source's
    caption stands in this one's: it may ask for what is there already. Without captions the order is that of
    the rows.
    """
    before, after = (
        captions or [None] * len(batch) for captions in (batch.source_caption, batch.target_caption)
    )
    own = words_of(batch.instruction[i])
    seen = words_of(before[i] or "")

    def fits(other: int) -> float:
        asked = words_of(batch.instruction[other])
        added = words_of(after[other] or "") - words_of(before[other] or "")
        if added and added <= seen:
            return -1.0
        return len(asked & (seen | own)) / len(asked) if asked & seen - own else 0.0

    following = [(i + step) % len(batch) for step in range(1, len(batch))]
    others = [other for other in following if source_ids[other] != source_ids[i]]
    ordered = [batch.instruction[other] for other in sorted(others, key=lambda other: -fits(other))]
    return [text for text in dict.fromkeys(ordered) if text != batch.instruction[i]]


def words_of(text: str) -> set[str]:
    """In lower case, without those that name nothing."""
    return set(re.findall(r"\w+", text.lower())) - SMALL_WORDS


def objects_named(instructions: Sequence[str]) -> list[str | None]:
    """The object that each instruction changes, by the grammar; None where it names none or means the whole
    background.
    """
    return [
        edit.source if isinstance(edit, ParsedEdit) and not edit.is_global and not edit.ambiguous else None
        for edit in parse_all(instructions)
    ]


def another_words(
    i: int, batch: EditBatch, alike: Sequence[Sequence[str]], count: int, choice: random.Random
) -> list[str]:
    """Up to `count` forms of the row's instruction with one word altered, none twice; only words of the
    batch's instructions come in: no word is one that right instructions never have.
    """
    known = {word for text in batch.instruction for word in re.findall(r"\w+", text.lower())}
    texts = (altered(batch.instruction[i], alike, choice, known=known) for _ in range(4 * count))
    different = list(dict.fromkeys(text for text in texts if text is not None))
    return [text for text in different if not _may_hold(text, i, batch)][:count]


def _may_hold(text: str, i: int, batch: EditBatch) -> bool:
    """Whether an altered instruction only names another object of the image as what the place is near or
    left of: the edit may lie so by chance.
    """
    own, other = parse_all([batch.instruction[i], text])
    if not isinstance(own, ParsedEdit) or not isinstance(other, ParsedEdit):
        return False
    if other.reference is None or other.reference == own.reference or batch.source_caption is None:
        return False
    words = words_of(other.reference)
    return any(words <= words_of(clause) for clause in CLAUSES.split(batch.source_caption[i] or ""))


def another_object(i: int, batch: EditBatch, named: Sequence[str | None], u: float) -> str | None:
    """The row's instruction for another object of its image, whose edit therefore does not follow it; None
    where the batch names none.

    The other object is one that another row's instruction names and a clause of this row's source caption
    describes, a clause that does not describe this row's own, which another clause has to.

    Args:
        named: what `objects_named` says of the batch's instructions.
        u: in [0, 1), chooses among the objects that there are.
    """
    own, captions = named[i], batch.source_caption
    text = batch.instruction[i]
    if own is None or captions is None:
        return None
    said = re.compile(rf"\b{re.escape(own)}\b", re.IGNORECASE)
    if len(said.findall(text)) != 1:
        return None
    clauses = [words_of(clause) for clause in CLAUSES.split(captions[i])]
    elsewhere = [clause for clause in clauses if not words_of(own) <= clause]
    if len(elsewhere) == len(clauses):
        return None
    others = sorted({name for name in named if name is not None})
    found = [name for name in others if any(words_of(name) <= clause for clause in elsewhere)]
    # "the circle" may mean the same thing as "the red circle".
    found = [name for name in found if not words_of(name) <= words_of(own)]
    if not found:
        return None
    other = found[int(u * len(found))]
    return said.sub(lambda _: other, text)
