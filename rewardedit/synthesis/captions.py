"""Captions of a row before and after its edit, by a vision-language model (ADIEE Sec. 3.1, App. A).

Independent captions of two images differ in more than the edit. So the model captions in two turns: first
the source with the edit in mind, then the image after the edit, given its own first caption. The answers are
checked: the words in which the two differ must relate to the instruction.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from pathlib import Path
from typing import Any, Literal

import torch

from rewardedit import devices
from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, Rows, row_shards
from rewardedit.data.datasets import SHARD_BATCHES
from rewardedit.files import write_parquet
from rewardedit.language.answers import Answer, AnswerError, normalised, text_of
from rewardedit.language.vlm import Turn, Vlm, load_vlm, reserved_tokens, without
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import Share, stage
from rewardedit.synthesis.outputs import CAPTIONS, read_parquet, read_rows

BEFORE = (
    'The edit "{instruction}" will be made of this image later. Describe the image with it in mind, briefly.'
)
AFTER = "Describe the image after that edit. Keep your words for all that stays as it is."
Prompts = Literal["ours", "paper"]
# The two questions, in our wording and in that of ADIEE's released code.
PROMPTS: dict[Prompts, tuple[str, str]] = {
    "ours": (BEFORE, AFTER),
    "paper": (
        'Describe this image based on the edit "{instruction}" we want to perform on it later',
        "Describe the edited image with respect to this image and the edit instruction.",
    ),
}
EMPTY_CAPTION = "a caption is empty"
SHORT = 3  # least number of letters of a stem
# Words that carry no information about an edit.
EMPTY = frozenset(
    (
        *("a", "an", "the", "and", "or", "of", "in", "on", "at", "to", "with", "from", "into", "by", "for"),
        *("it", "its", "is", "are", "be", "there", "this", "that", "these", "those", "his", "her", "their"),
        *("one", "two", "some", "has", "have", "being", "image", "picture", "photo"),
    )
)


@dataclass(frozen=True)
class CaptionsConfig:
    """Model and prompts that caption the rows without captions."""

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder: LLaVA-NeXT, Idefics3 or Qwen2.5-VL
    adapter: str | None = None  # folder of a LoRA that the recipe captioner trained
    max_new_tokens: int = 64  # longest caption, in tokens
    batch_size: int = 4  # rows captioned at a time
    prompts: Prompts = "ours"  # wording of the questions, ours or the paper's; must match the adapter's
    check: bool = True  # leave out captions whose differences do not relate to the instruction


def write_captions(
    config: CaptionsConfig,
    rows: Rows,
    data: DataConfig,
    folder: Path,
    more: dict[str, Any] | None = None,
    share: Share | None = None,
) -> "WithCaptions":
    """Captions the rows, unless `folder` holds the captions already; rows that have their own captions keep
    them.

    Args:
        more: settings besides `data` that the rows depend on.
    """
    parts = row_shards(rows, config.batch_size)

    @Lazy
    def load() -> Vlm:
        device = devices.default_device()
        return load_vlm(config.model, adapter=config.adapter, device=device, dtype=devices.llm_dtype())

    def make(number: int, path: Path) -> None:
        records: list[dict[str, Any]] = []
        for chunk in read_rows(parts[number], data, config.batch_size, number * len(parts[0]), CAPTIONS):
            if chunk.batch is None:
                continue
            batch = chunk.batch
            has_captions = batch.source_caption is not None and batch.target_caption is not None
            if batch.source_caption is not None and batch.target_caption is not None:
                pairs = list(zip(batch.source_caption, batch.target_caption, strict=True))
            else:
                own_words = (config.max_new_tokens, config.prompts)
                pairs = caption_pairs(load(), batch.source, batch.instruction, *own_words)
            for row, instruction, pair in zip(chunk.numbers, batch.instruction, pairs, strict=True):
                before, after = pair if has_captions else map(caption_of, pair)
                cut = next((answer for answer in pair if isinstance(answer, AnswerError)), None)
                reason = None
                if not (before.strip() and after.strip()):
                    reason = EMPTY_CAPTION
                elif config.check and not has_captions:
                    reason = disagreement(before, after, instruction) if cut is None else f"a caption: {cut}"
                records.append(
                    {"row": row, "source_caption": before, "target_caption": after, "reason": reason}
                )
        _write(records, path)

    made_of = {"captions": config, "data": data, "rows": len(rows), **(more or {})}
    paths = stage(folder, made_of, make, len(parts), "part-{:05d}.parquet", share=share)
    return WithCaptions(rows, paths, SHARD_BATCHES * config.batch_size)


def require_captioned(without: Sequence[dict[str, Any]], rows: int) -> None:
    """Raises ValueError if most captions do not fit their instructions, as with a model that writes random
    text: the next stages would take hours for few rows.
    """
    if 2 * len(without) > rows:
        raise ValueError(
            f"captions: {len(without)} of {rows} rows have none that fit their instruction (row "
            f"{without[0]['row']}: {without[0]['reason']}); use another model, or captions.check=false"
        )


def caption_pairs(
    vlm: Vlm,
    source: torch.Tensor,
    instructions: Sequence[str],
    max_new_tokens: int = 64,
    prompts: Prompts = "ours",
) -> list[tuple[Answer, Answer]]:
    """Captions before and after the edit, for b sources (b, 3, h, w) and their instructions. Reserved texts
    that control the model, such as image placeholders, are removed from the questions.
    """
    images = source[:, None]
    reserved = reserved_tokens(vlm)
    asked = [without(reserved, text) for text in instructions]
    first = [vlm.prompt(first_question(text, prompts)) for text in asked]
    before = vlm.answer(first, images, max_new_tokens)

    second = []
    for text, answer in zip(asked, before, strict=True):
        caption = without(reserved, caption_of(answer))
        second.append(vlm.prompt(second_question(text, caption, prompts)))
    after = vlm.answer(second, images, max_new_tokens)
    return list(zip(before, after, strict=True))


def caption_of(answer: Answer) -> str:
    """Caption in a model's answer, even if it was cut off."""
    return normalised(text_of(answer))


def first_question(instruction: str, prompts: Prompts = "ours") -> list[Turn]:
    """Chat up to the caption of the source."""
    return [ask(PROMPTS[prompts][0].format(instruction=instruction), image=True)]


def second_question(instruction: str, before: str, prompts: Prompts = "ours") -> list[Turn]:
    """Chat up to the caption of the image after the edit."""
    return [*first_question(instruction, prompts), said(before), ask(PROMPTS[prompts][1])]


def ask(text: str, image: bool = False) -> Turn:
    """User's turn of a chat, with the image, if any, before the text."""
    shown: list[Turn] = [{"type": "image"}] if image else []
    return {"role": "user", "content": [*shown, {"type": "text", "text": text}]}


def said(text: str) -> Turn:
    """Model's turn of a chat."""
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def disagreement(before: str, after: str, instruction: str) -> str | None:
    """Reason why two captions do not fit an instruction; None if they do.

    They fit if a word that only one of them has, or has more often, is a word of the instruction, up to its
    ending: "a cat" and "a cat with a hat" fit "add a hat", but not "make it night".
    """
    if not before.strip() or not after.strip():
        return EMPTY_CAPTION
    first, second = _words(before), _words(after)
    if first == second:
        return "the two captions say the same"
    changed = {word for word in {*first, *second} if first.count(word) != second.count(word)} - EMPTY
    asked = set(_words(instruction)) - EMPTY
    if any(starmap(_akin, product(changed, asked))):
        return None
    shown = ", ".join(sorted(changed)) or "nothing that counts"
    return f"the captions differ in {shown}; the instruction has none of it"


def _words(text: str) -> list[str]:
    """Words of a text; in scripts without spaces, single characters."""
    return re.findall(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+", text.lower())


def _akin(one: str, other: str) -> bool:
    """True if one word begins with the other: "fat" and "fatter", "paint" and "painting"."""
    short, long = sorted((one, other), key=len)
    return short == long or (len(short) >= SHORT and long.startswith(short))


class WithCaptions(Sequence):
    """Rows with the captions that a stage wrote; captions that do not fit are left out."""

    def __init__(self, rows: Rows, paths: Sequence[Path], shard_rows: int) -> None:
        self.rows = rows
        self.paths = paths
        self.shard_rows = shard_rows
        self._in_use: tuple[int, dict[int, dict[str, Any]]] = (-1, {})  # one shard: rows are read in order

    def _read(self, shard: int) -> dict[int, dict[str, Any]]:
        if self._in_use[0] != shard:
            records = read_parquet(self.paths[shard], 1024)
            self._in_use = (shard, {record["row"]: record for record in records})
        return self._in_use[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        sample = self.rows[index]
        record = self._read(index // self.shard_rows).get(index)
        if record is None or record["reason"] is not None:
            return replace(sample, source_caption=None, target_caption=None)
        return replace(
            sample, source_caption=record["source_caption"], target_caption=record["target_caption"]
        )


def _write(records: Sequence[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa

    texts = dict.fromkeys((*CAPTIONS, "reason"), pa.string())
    write_parquet(records, pa.schema({"row": pa.int64(), **texts}), path)
