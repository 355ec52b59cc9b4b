"""Texts for models that read so many tokens of one and no more: tokenized, counted where they are cut, told.

A text is cut where it has more tokens than the model reads, or where a token stands in it that ends a text
for the model, as tokenizers of few characters take for one that they do not know.
"""

import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# A tokenizer keeps how it pads and cuts from one call to the next: two threads must not set that at once.
LOCK = threading.RLock()
_told: set[str] = set()
_noted: ContextVar[set[str] | None] = ContextVar("cut texts", default=None)


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int, reader: str, **options: Any) -> Any:
    """Returns tokens of texts as tensors, cut to `max_length`; texts that are cut are noted.

    Args:
        reader: the model that reads them, for the warning.
        options: of the tokenizer, such as `padding`.
    """
    texts = list(texts)
    with LOCK:
        note_cut(tokenizer, texts, max_length, reader)
        return tokenizer(texts, truncation=True, max_length=max_length, return_tensors="pt", **options)


def note_cut(tokenizer: Any, texts: Sequence[str], max_length: int, reader: str) -> list[bool]:
    """Returns for each text whether a tokenizer that reads `max_length` tokens cuts it, and notes those."""
    cut = [not is_whole(tokenizer, text, max_length) for text in texts]
    note([text for text, is_cut in zip(texts, cut, strict=True) if is_cut], len(texts), max_length, reader)
    return cut


def is_whole(tokenizer: Any, text: str, max_length: int) -> bool:
    """True where a tokenizer reads a text to its end."""
    with LOCK:
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        room = max_length - tokenizer.num_special_tokens_to_add()
    return len(ids) <= room and tokenizer.eos_token_id not in ids


def note(cut: Collection[str], total: int, max_length: int, reader: str, more: str = "") -> None:
    """Warns of texts that are cut, once a process for each reader, and keeps them for `noting`.

    Args:
        more: what else is to be said of them.
    """
    if not cut:
        return
    kept = _noted.get()
    if kept is not None:
        kept.update(cut)
    if reader in _told:
        return
    _told.add(reader)
    first = min(cut, key=len)
    warnings.warn(
        f"{len(cut)} of {total} texts are cut: {reader} reads at most {max_length} tokens, and none behind a "
        f"character that it does not know; {more + ', ' if more else ''}shorten or reword them, such as: "
        f"{first[:60]}",
        stacklevel=3,
    )


@contextmanager
def noting() -> Iterator[set[str]]:
    """Gives the texts that are cut while the block runs, in this thread."""
    before = _noted.get()
    cut: set[str] = set()
    token = _noted.set(cut)
    try:
        yield cut
    finally:
        _noted.reset(token)
        if before is not None:
            before.update(cut)
