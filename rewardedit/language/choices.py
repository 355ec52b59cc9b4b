"""Probabilities of given words at places in a model's answer, by forced scoring."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.language.prefix import alone_with
from rewardedit.language.texts import LOCK
from rewardedit.language.vlm import Vlm


@torch.no_grad()
def choice_probabilities(
    vlm: Vlm,
    prompt: str,
    images: Float[Tensor, "1 n 3 h w"],
    beginnings: Sequence[str],
    choices: Sequence[str],
) -> Float[Tensor, "k c"]:
    """Probabilities of c words after each of k beginnings of an answer, normalised over the c words.

    The likelihood of a word is the product of the probabilities of all of its tokens, which the model is
    given one after another. The prompt and its images are read once.
    """
    decoder = vlm.model.model
    inputs = vlm.inputs([prompt], images)
    inputs.pop("attention_mask")  # one row, without padding
    with alone_with(decoder.get_decoder()):
        read = decoder(**inputs, use_cache=True)
        cache = read.past_key_values
        cache.batch_repeat_interleave(len(choices))
        last = read.last_hidden_state[:, -1:].expand(len(choices), -1, -1)
        begin = inputs["input_ids"].shape[1]
        deltas = getattr(decoder, "rope_deltas", None)  # Qwen's images have fewer positions than tokens
        if deltas is not None:
            begin += int(deltas[0])
        probabilities = []
        for beginning in beginnings:
            rows = [_tokens(vlm, beginning + choice) for choice in choices]
            ids = _padded(rows).to(vlm.model.device)
            place = torch.arange(begin, begin + ids.shape[1], device=ids.device).expand(len(ids), -1)
            # Padding comes last: no token attends to it.
            hidden = decoder(
                input_ids=ids, past_key_values=cache, position_ids=place, use_cache=True
            ).last_hidden_state
            cache.crop(-ids.shape[1])
            probabilities.append(_likelihoods(vlm, torch.cat([last, hidden[:, :-1]], dim=1), ids, rows))
    return torch.stack(probabilities).softmax(-1)


def _tokens(vlm: Vlm, text: str) -> list[int]:
    with LOCK:
        return vlm.processor.tokenizer(text, add_special_tokens=False).input_ids


def _padded(rows: list[list[int]]) -> Tensor:
    """Rows (c, n) of tokens, with any token after the shorter ones."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids


def _likelihoods(
    vlm: Vlm, states: Float[Tensor, "c n d"], ids: Tensor, rows: list[list[int]]
) -> Float[Tensor, " c"]:
    """Log-likelihoods of the rows' tokens from the first one on in which they differ."""
    shared = _shared(rows)
    logits = vlm.model.lm_head(states[:, shared:]).float()
    each = logits.log_softmax(-1).gather(2, ids[:, shared:, None])[..., 0]
    lengths = torch.tensor(list(map(len, rows)), device=ids.device)
    counts = torch.arange(shared, ids.shape[1], device=ids.device) < lengths[:, None]
    return (each * counts).sum(1)


def _shared(rows: list[list[int]]) -> int:
    """Number of tokens with which all rows begin."""
    for number, tokens in enumerate(zip(*rows, strict=False)):
        if len(set(tokens)) > 1:
            return number
    return min(map(len, rows))
