"""Tokenizes texts for models with a limited number of tokens, and reports the texts that are cut.

A text is cut if it has more tokens than the model reads, or if it holds a token that ends a text for the
model, which tokenizers of few characters use for an unknown character.
"""

import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import compress
from typing import Any

# A tokenizer stores its padding and truncation between calls: two threads must not set them at once.
LOCK = threading.RLock()
_told: set[str] = set()
_noted: ContextVar[set[str] | None] = ContextVar("cut texts", default=None)


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int, reader: str, **options: Any) -> Any:
    """Returns the tokens of texts as tensors, cut to `max_length`, and notes the texts that are cut.

    Args:
        reader: the model that reads them, for the warning.
        options: options of the tokenizer, such as `padding`.
    """
    texts = list(texts)
    with LOCK:
        note_cut(tokenizer, texts, max_length, reader)
        return tokenizer(texts, truncation=True, max_length=max_length, return_tensors="pt", **options)


def note_cut(tokenizer: Any, texts: Sequence[str], max_length: int, reader: str) -> list[bool]:
    """Returns True for each text that a tokenizer of `max_length` tokens cuts, and notes those."""
    cut = [not is_whole(tokenizer, text, max_length) for text in texts]
    note(list(compress(texts, cut)), len(texts), max_length, reader)
    return cut


def is_whole(tokenizer: Any, text: str, max_length: int) -> bool:
    """True if a tokenizer reads a text to its end."""
    with LOCK:
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        room = max_length - tokenizer.num_special_tokens_to_add()
    return len(ids) <= room and tokenizer.eos_token_id not in ids


def note(cut: Collection[str], total: int, max_length: int, reader: str, more: str = "") -> None:
    """Warns of texts that are cut, once per process and reader, and keeps them for `noting`.

    Args:
        more: further words for the warning.
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
        f"{len(cut)} of {total} texts are cut: {reader} reads at most {max_length} tokens, and none after an "
        f"unknown character; {more + ', ' if more else ''}shorten or reword them, such as: {first[:60]}",
        stacklevel=3,
    )


@contextmanager
def noting() -> Iterator[set[str]]:
    """Collects the texts that are cut while the block runs, in this thread."""
    before = _noted.get()
    cut: set[str] = set()
    token = _noted.set(cut)
    try:
        yield cut
    finally:
        _noted.reset(token)
        if before is not None:
            before.update(cut)
