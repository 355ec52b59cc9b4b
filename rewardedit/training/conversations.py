"""Conversations that a vision-language model learns from: captions of edits, and DICE's two tasks.

Each example is a dict: `images`, PIL; `prompt`, the turns up to the answer; `completion`, the answer's turn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image
from torch import Tensor

from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, require_size
from rewardedit.data.difference_rows import DifferenceRow, plain_difference
from rewardedit.images import fit, resize, to_pil, to_tensor
from rewardedit.language.vlm import Turn, Vlm, without
from rewardedit.scorers.dice_text import (
    DiceFormat,
    coherence_chat,
    detection_chat,
    format_differences,
    format_judgement,
    framed_pair,
)
from rewardedit.synthesis.captions import Prompts, first_question, said, second_question
from rewardedit.training.loop import row_order

Task = Literal["captions", "differences", "coherence"]
Example = dict[str, Any]


@dataclass(frozen=True)
class TaskRows:
    """The rows of a task, and the conversations that are made of each."""

    rows: Sequence[Any]
    examples: Callable[[Any], list[Example]]  # makes the examples of a row; as many for each
    each: int = 1  # examples of a row
    is_shuffled: bool = False  # the rows come in random order already, as those of a generated world
    opens_answer: bool = True  # the prompt opens the model's turn

    def __len__(self) -> int:
        return len(self.rows) * self.each

    def __getitem__(self, index: int) -> Example:
        row, number = divmod(index, self.each)
        return self.examples(self.rows[row])[number]

    def order(self, seed: int, epoch: int) -> list[int]:
        """Order of the examples in one pass."""
        count = len(self)
        return list(range(count)) if self.is_shuffled else row_order(count, seed, epoch).tolist()


def caption_examples(
    row: EditSample, data: DataConfig, reserved: Sequence[str] = (), prompts: Prompts = "ours"
) -> list[Example]:
    """The two answers of a row with captions, the second given the first.

    The conversation is passed twice, with one answer each, so that only answers count in the loss. Texts in
    `reserved`, which control the model, are removed from a row's texts.
    """
    assert row.source_caption is not None
    assert row.target_caption is not None
    image = to_pil(fit(to_tensor(row.source, 3)[None], require_size(data), data.resize)[0])
    instruction = without(reserved, row.instruction)
    before = without(reserved, row.source_caption)
    after = without(reserved, row.target_caption)
    first = first_question(instruction, prompts)
    second = second_question(instruction, before, prompts)
    return [_example([image], prompt, answer) for prompt, answer in ((first, before), (second, after))]


def difference_examples(row: DifferenceRow, form: DiceFormat, reserved: Sequence[str] = ()) -> list[Example]:
    """The detector's answer for a pair of images: all differences; the instruction is not shown."""
    named = [plain_difference(difference, reserved) for difference in row.differences]
    answer = format_differences(named, form.decimals)
    return [_example(list(map(to_pil, _pair(row))), detection_chat(form.prompts), answer)]


def coherence_examples(row: DifferenceRow, form: DiceFormat, reserved: Sequence[str] = ()) -> list[Example]:
    """The verdict on one difference, which is framed in the images."""
    assert row.coherent is not None
    assert row.instruction is not None
    difference = plain_difference(row.differences[0], reserved)
    images = list(map(to_pil, framed_pair(*_pair(row), difference, form)))
    chat = coherence_chat(without(reserved, row.instruction), difference, form)
    reason = without(reserved, row.reason) if form.rationale else ""
    return [_example(images, chat, format_judgement(row.coherent, reason))]


def merged_order(
    tasks: Sequence[TaskRows], seed: int, examples: int, shares: Sequence[float] | None = None
) -> list[tuple[int, int]]:
    """The examples of a whole training as (task, example), mixed evenly: each batch has its share of every
    task, which is gone through in passes.

    Args:
        shares: share of each task, which sum to 1; None: in proportion to their examples.
    """
    if shares is None:
        total = sum(map(len, tasks))
        shares = [len(task) / total for task in tasks]
    placed: list[tuple[float, int, int]] = []
    for number, (task, share) in enumerate(zip(tasks, shares, strict=True)):
        count = math.ceil(share * examples)
        indices: list[int] = []
        for epoch in range(math.ceil(count / len(task))):
            indices += task.order(seed, epoch)
        for place, index in enumerate(indices[:count]):
            placed.append(((place + 0.5) / count, number, index))
    placed.sort(key=lambda entry: entry[:2])
    return [(number, index) for _, number, index in placed[:examples]]


def as_texts(vlm: Vlm, example: Example, opens_answer: bool = True) -> Example:
    """The example with its turns as texts of the model's chat, as TRL takes them: the prompt is exactly that
    of `Vlm.prompt`, and the completion, which alone counts in the loss, is all that a chat with the answer
    has after it.

    Args:
        opens_answer: whether the prompt opens the model's turn.
    """
    prompt = vlm.prompt(example["prompt"], opens_answer=opens_answer)
    whole = vlm.prompt([*example["prompt"], *example["completion"]], opens_answer=False)
    # A template may open an answer in a way of its own, which a chat with an answer does not have.
    before = prompt if whole.startswith(prompt) else vlm.prompt(example["prompt"], opens_answer=False)
    assert whole.startswith(before), "a chat template that writes earlier turns anew"
    return {"images": example["images"], "prompt": prompt, "completion": whole[len(before) :]}


def _pair(row: DifferenceRow) -> tuple[Tensor, Tensor]:
    """Source and edited image; the latter in the size of the source, as it is scored."""
    source = to_tensor(row.source, 3)
    edited = to_tensor(row.edited, 3)
    height, width = source.shape[-2:]
    return source, resize(edited[None], (height, width))[0]


def _example(images: list[Image.Image], prompt: list[Turn], answer: str) -> Example:
    return {"images": images, "prompt": prompt, "completion": [said(answer)]}


def check_captions(sample: EditSample) -> None:
    """Raises ValueError if a row has no captions to learn from."""
    if not sample.source_caption or not sample.target_caption:
        raise ValueError(f"row {sample.id}: expected source_caption and target_caption; it lacks one")
