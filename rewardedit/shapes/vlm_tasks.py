"""Tasks that teach a small vision-language model about edits without any score: captions, instructions, and
deciding which instructions an edit follows.
"""

import random
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rewardedit.instructions.swap_word import swap_word
from rewardedit.language.vlm import Vlm
from rewardedit.shapes.vocabulary import BACKGROUNDS, COLOURS, SHAPES, SIZES

Task = Literal["caption", "second_caption", "instruction", "choice", "result", "match"]
QUESTIONS: dict[Task, str] = {
    "caption": "what is in this image?",
    "second_caption": "what is in the second image?",
    "instruction": "what was changed?",
    "choice": 'was it "{}" or "{}"?',
    "result": 'what is there after "{}"?',
    "match": 'was it "{}"?',
}
YES, NO = " yes", " no"
# Phrasings of the question if an instruction was followed, and beginnings of the answer before "yes" or "no".
PHRASINGS = (
    QUESTIONS["match"],
    'the instruction was "{}". was it followed?',
    'is the second image what "{}" makes of the first image?',
    'the second image is an edit of the first image. was the instruction "{}"?',
    'somebody was told "{}" about the first image. is the second image what was asked for?',
)
ANSWER_PREFIXES = ("", " It is")
UNEDITED_SHARE = 1 / 8  # share of edits in the task match that show the unedited source
WORDS = 0.5  # weight of the words of the followed instruction, relative to the answers about it
# Groups of words; replacing a word by another of its group requests a different edit.
WORD_GROUPS: tuple[tuple[str, ...], ...] = (
    SHAPES,
    SIZES,
    tuple(COLOURS),
    tuple(BACKGROUNDS),
    ("left", "right"),
    ("top", "bottom"),
    ("above", "below"),
    ("above", "under"),
    ("bigger", "smaller"),
    ("larger", "smaller"),
    ("shrink", "enlarge"),
)


def answer_logits(
    vlm: Vlm, images: Float[Tensor, "b k 3 h w"], questions: list[str], texts: list[str]
) -> tuple[Float[Tensor, "tokens vocabulary"], Int[Tensor, " tokens"], Int[Tensor, " tokens"]]:
    """Logits of the answers to questions about images, the target tokens, and the row that each of them
    belongs to.
    """
    prompts = [prompt(vlm, text, images.shape[1]) for text in questions]
    end = vlm.processor.tokenizer.eos_token
    whole = [f"{asked} {text}{end}" for asked, text in zip(prompts, texts, strict=True)]

    inputs = vlm.inputs(whole, images, padding_side="right")
    ids = inputs["input_ids"]
    mask = inputs.pop("attention_mask")  # padding comes last: no token attends to it
    before = vlm.inputs(prompts, images, padding_side="right")["attention_mask"].sum(1, keepdim=True)
    wanted = (torch.arange(ids.shape[1], device=ids.device) >= before) & (mask > 0)
    hidden = vlm.model.model(**inputs, use_cache=False).last_hidden_state
    logits = vlm.model.lm_head(hidden[:, :-1][wanted[:, 1:]])
    return logits.float(), ids[:, 1:][wanted[:, 1:]], wanted[:, 1:].nonzero()[:, 0]


def prompt(vlm: Vlm, question: str, images: int) -> str:
    """A question about so many images, in the model's chat format."""
    content = [{"type": "image"}] * images + [{"type": "text", "text": question}]
    return vlm.prompt([{"role": "user", "content": content}])


def _values(samples: dict[str, Any], name: str, rows: Sequence[int]) -> list[Any]:
    values = samples[name]
    return [values[row] for row in rows]


def _choose(first: Sequence[Any], second: Sequence[Any], takes_second: Sequence[bool]) -> list[Any]:
    """For each row the value of the second list where `takes_second` is True, else of the first."""
    rows = zip(first, second, takes_second, strict=True)
    return [late if takes else early for early, late, takes in rows]


def make_examples(
    samples: dict[str, Any], rows: list[int], task: Task, generator: torch.Generator
) -> tuple[Float[Tensor, "b k 3 h w"], list[str], list[str]]:
    """Images (one or two per row), questions and answers of a task. A caption is that of source or target at
    random; the two instructions of a choice are in random order.
    """
    images = samples["images"][rows].float() / 255
    question = QUESTIONS[task]
    instructions = _values(samples, "instruction", rows)
    targets = _values(samples, "target_caption", rows)
    coins = torch.rand(2, len(rows), generator=generator) < 0.5
    swap = coins[0].tolist()
    if task == "caption":
        images = torch.where(coins[0, :, None, None, None], images[:, 1], images[:, 0])
        texts = _choose(_values(samples, "source_caption", rows), targets, swap)
        return images[:, None], [question] * len(rows), texts
    if task == "result":
        return images[:, :1], list(map(question.format, instructions)), targets
    if task == "choice":
        others = negative_instructions(samples, rows, coins[1].tolist())
        first = _choose(instructions, others, swap)
        second = _choose(others, instructions, swap)
        return images, list(map(question.format, first, second)), instructions
    return images, [question] * len(rows), targets if task == "second_caption" else instructions


def negative_instructions(samples: dict[str, Any], rows: list[int], near: list[bool]) -> list[str]:
    """An instruction that was not followed, for each row: another one for the same source if `near` is True
    and there is one, else the next row's.
    """
    following = _values(samples, "instruction", (*rows[1:], rows[0]))
    others = _values(samples, "other_instruction", rows)
    return [(is_near and other) or text for other, text, is_near in zip(others, following, near, strict=True)]


def instructions_of(
    samples: dict[str, Any], rows: list[int], generator: torch.Generator, shape_swap_share: float = 0.0
) -> list[list[str]]:
    """Five instructions for each row; only the first was followed. The others are a near one, the row's own
    with one word swapped, twice, and that of another row.

    Args:
        shape_swap_share: the probability of swapping a shape, if the instruction has one, rather than any
        word.
    """
    instructions = _values(samples, "instruction", rows)
    near = negative_instructions(samples, rows, [True] * len(rows))
    further = [*instructions[2:], *instructions[:2]]
    choice = random.Random(int(torch.randint(2**31, (), generator=generator)))
    offered = []
    for text, close, other in zip(instructions, near, further, strict=True):
        first = swap_word(text, WORD_GROUPS, choice, SHAPES, shape_swap_share) or other
        second = swap_word(text, WORD_GROUPS, choice, SHAPES, shape_swap_share) or other
        offered.append([text, close, first, second, other])
    return offered


def replace_some_by_source(
    images: Float[Tensor, "b 2 3 h w"], generator: torch.Generator
) -> tuple[Float[Tensor, "b 2 3 h w"], Bool[Tensor, " b"]]:
    """The images, with the target replaced by the source in some rows; and True for rows that still show the
    requested edit.
    """
    followed = torch.rand(len(images), generator=generator) >= UNEDITED_SHARE
    second = torch.where(followed[:, None, None, None], images[:, 1], images[:, 0])
    return torch.stack([images[:, 0], second], 1), followed


def sample_phrasing(generator: torch.Generator) -> tuple[str, str]:
    """A random phrasing of the question if an instruction was followed, with an opening of the answer."""
    question = PHRASINGS[int(torch.randint(len(PHRASINGS), (), generator=generator))]
    opening = ANSWER_PREFIXES[int(torch.randint(len(ANSWER_PREFIXES), (), generator=generator))]
    return question, opening


def match_logits(
    vlm: Vlm,
    images: Float[Tensor, "b 2 3 h w"],
    instructions: list[list[str]],
    question: str = QUESTIONS["match"],
    opening: str = "",
) -> tuple[Float[Tensor, "b k"], Float[Tensor, " b"]]:
    """Log-odds of "yes" against "no", after the opening of the answer, that an edit followed each of k
    instructions, and the mean cross-entropy of the words of the first. Each pair of images is read once for
    all of its instructions.
    """
    b, k = len(images), len(instructions[0])
    tokenizer = vlm.processor.tokenizer

    def tokens(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    parted = question.split("{}")
    whole = prompt(vlm, parted[0] + parted[1], 2) + opening
    place = whole.index(parted[0])
    shared = vlm.inputs([whole[:place] + parted[0]] * b, images)
    shared.pop("attention_mask")  # all rows have the same length
    after = tokens(whole[place + len("".join(parted)) - len(parted[1]) :])
    read = vlm.model.model(**shared, use_cache=True)
    cache = read.past_key_values
    cache.batch_repeat_interleave(k)

    said = list(map(tokens, chain.from_iterable(instructions)))
    length = max(map(len, said)) + len(after)
    # Padding comes last: no token attends to it.
    ids = torch.full((len(said), length), tokenizer.pad_token_id)
    for i, instruction_ids in enumerate(said):
        ids[i, : len(instruction_ids) + len(after)] = torch.tensor([*instruction_ids, *after])
    ids = ids.to(vlm.model.device)
    begin = shared["input_ids"].shape[1]
    positions = torch.arange(begin, begin + length, device=ids.device).expand(len(ids), -1)
    hidden = vlm.model.model(
        input_ids=ids, past_key_values=cache, position_ids=positions, use_cache=True
    ).last_hidden_state

    words = torch.tensor(list(map(len, said)), device=ids.device)
    last = hidden[torch.arange(len(ids), device=ids.device), words + len(after) - 1]
    answer = vlm.model.lm_head(last).float()
    odds = answer[:, tokens(YES)[0]] - answer[:, tokens(NO)[0]]

    # each word of the first instructions from the state before it, the first word from the shared prefix
    states = torch.cat([read.last_hidden_state[:, -1:], hidden[::k, :-1]], dim=1)
    wanted = torch.arange(length, device=ids.device) < words[::k, None]
    word_losses = -likelihood(
        vlm.model.lm_head(states[wanted]).float(), ids[::k][wanted], wanted.nonzero()[:, 0]
    )
    return odds.view(b, k), word_losses / words[::k]


def match_loss(
    odds: Float[Tensor, "b k"], words: Float[Tensor, " b"], followed: Bool[Tensor, " b"]
) -> Float[Tensor, ""]:
    """Loss of the task match. For rows whose first of k instructions was followed: cross-entropy of choosing
    it among the k, and of its words. For all: "yes" for these and "no" for all others, at half weight each.
    """
    followed = followed.to(odds.device)
    right = torch.zeros_like(odds, dtype=torch.bool)
    right[:, 0] = followed
    count = followed.sum().clamp_min(1)
    likeliest = F.cross_entropy(odds, torch.zeros_like(followed, dtype=torch.long), reduction="none")
    yes = (F.softplus(-odds) * right).sum() / count
    no = (F.softplus(odds) * ~right).sum() / (~right).sum()
    return ((likeliest + WORDS * words) * followed).sum() / count + (yes + no) / 2


def likelihood(
    logits: Float[Tensor, "tokens vocabulary"], wanted: Int[Tensor, " tokens"], rows: Int[Tensor, " tokens"]
) -> Float[Tensor, " b"]:
    """The log-likelihood of each row's answer."""
    token_likelihoods = -F.cross_entropy(logits, wanted, reduction="none")
    return token_likelihoods.new_zeros(int(rows.max()) + 1).scatter_add(0, rows, token_likelihoods)
