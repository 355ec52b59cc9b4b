"""Tokens that a small model's tokenizer lacks for the texts it is to read and write.

Published tokenizers write any text. A small one may turn unknown characters into the end of the text, and
splits words that it has not seen into letters.
"""

import json
import re
import string
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

UNKNOWN = "<unk>"
WORD = re.compile(r"[^\W\d_]+")
NOISE = 0.1  # of a new token's embeddings, in standard deviations of the others
WAVES = 8  # of the embeddings of coordinates


def extend_vocabulary(model: Any, tokenizer: Any, texts: Iterable[str], decimals: int = 0) -> None:
    """Adds tokens to a tokenizer of the BPE kind and rows to a model's embeddings.

    Added are an unknown token, if unknown characters end the text; each punctuation mark that is unknown;
    each word of the texts that would be split; and the numbers from 0 to 1 with so many decimals, each as
    one token, whose embeddings change smoothly.

    Call it before PEFT wraps the model.
    """
    before = len(tokenizer)

    def tokens(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    marks = [mark for mark in string.punctuation if _is_unknown(tokenizer, tokens(mark))]
    words = sorted(set(WORD.findall(" ".join(texts).lower())))
    parts = {word: ids for word in words if len(ids := tokens(word)) > 1}
    merged = _add_merges(tokenizer, list(map(tokenizer.convert_ids_to_tokens, parts.values())))
    numbers = [f"{i / 10**decimals:.{decimals}f}" for i in range(10**decimals + 1)] if decimals else []
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*marks, *numbers)])

    make_room(model, tokenizer)
    for weights in (model.get_input_embeddings().weight.data, model.get_output_embeddings().weight.data):
        embeddings = weights.float().cpu()  # the weights may be of a GPU, and in half precision
        mean, spread = embeddings[:before].mean(0), embeddings[:before].std(0)
        new = range(before, len(tokenizer))
        embeddings[new] = mean + NOISE * spread * torch.randn(len(new), embeddings.shape[1])
        for token, pair in merged.items():
            embeddings[token] = embeddings[list(pair)].mean(0)
        if numbers:
            smooth = mean + spread * _smooth(len(numbers), embeddings.shape[1])
            embeddings[tokenizer.convert_tokens_to_ids(numbers)] = smooth
        weights.copy_(embeddings)


def make_room(model: Any, tokenizer: Any) -> None:
    """Resizes the embeddings to all tokens, unless the model already has enough."""
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)


def _smooth(n: int, width: int) -> Tensor:
    """n rows of unit variance, of which neighbours are alike: sums of random waves over [0, 1]."""
    place = torch.linspace(0, 1, n)[:, None] * torch.pi * torch.arange(1, WAVES + 1)
    waves = torch.cat([place.cos(), place.sin()], 1)
    return waves @ torch.randn(2 * WAVES, width) / WAVES**0.5


def _is_unknown(tokenizer: Any, ids: list[int]) -> bool:
    """True if the tokens of a mark hold the one that stands for unknown characters."""
    unknown = tokenizer.backend_tokenizer.model.unk_token
    return unknown is not None and tokenizer.convert_tokens_to_ids(unknown) in ids


def _add_merges(tokenizer: Any, words: list[list[str]]) -> dict[int, tuple[int, int]]:
    """Makes each word of several tokens one token, by merging its first two, then the third, and so on; and
    gives the tokenizer an unknown token of its own. Returns the two tokens of each new one.
    """
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    model = whole["model"]
    vocabulary = model["vocab"]
    # Added tokens come after the vocabulary: those that are there already become part of it, with their ids.
    vocabulary |= {token["content"]: token["id"] for token in whole["added_tokens"]}
    assert sorted(vocabulary.values()) == list(range(len(tokenizer))), "a vocabulary with gaps"

    if model["unk_token"] in (tokenizer.eos_token, tokenizer.pad_token):
        model["unk_token"] = UNKNOWN
        vocabulary.setdefault(UNKNOWN, len(vocabulary))
    merged: dict[int, tuple[int, int]] = {}
    for pieces in words:
        left = pieces[0]
        for right in pieces[1:]:
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                model["merges"].append([left, right])
                merged[vocabulary[left + right]] = (vocabulary[left], vocabulary[right])
            left += right
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(whole))
    if model["unk_token"] == UNKNOWN:
        tokenizer.unk_token = UNKNOWN
    return merged
