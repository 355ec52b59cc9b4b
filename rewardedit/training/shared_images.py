"""Rows that show the same edit, with several instructions or questions: training reads its two images once
for all of them.

Most tokens of a question about an edit are those of its images, and they precede the question. Keys and
values of the images are therefore computed once, with their gradient, and every question about the edit
attends to them; the result is the same as for each question alone.
"""

import hashlib
from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from rewardedit.batch import EditSample
from rewardedit.data import Rows
from rewardedit.scorers.adiee import WITH_PREFIX, Adiee
from rewardedit.scorers.adiee_text import IMAGES


def group_by_edit(rows: Rows, usable: Sequence[int]) -> list[list[int]]:
    """Positions in `usable`, for each usable row, of all rows with the same two images, including itself."""
    groups: dict[Hashable, list[int]] = {}
    keys = [images_key(rows[number]) or number for number in usable]
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    return [groups[key] for key in keys]


def images_key(sample: EditSample) -> bytes | None:
    """Digest of a row's two images, the same for equal pixels; None if an image is not a PIL image, as those
    of stored rows are.
    """
    images = (sample.source, sample.edited)
    if not isinstance(sample.source, Image.Image) or not isinstance(sample.edited, Image.Image):
        return None
    digest = hashlib.sha256()
    for image in images:
        assert isinstance(image, Image.Image)
        digest.update(f"{image.size} {image.mode}".encode() + image.tobytes())
    return digest.digest()


def rows_of_same_edit(place: int, same: Sequence[int], count: int, generator: torch.Generator) -> list[int]:
    """The row and others of the same edit, drawn without repetition, `count` in all; if there are fewer, they
    are repeated, for other questions.
    """
    others = [other for other in same if other != place]
    order = torch.randperm(len(others), generator=generator).tolist()
    chosen = [place, *(others[i] for i in order)][:count]
    return [chosen[i % len(chosen)] for i in range(count)]


def require_shared_images(kind: str, gradient_checkpointing: bool) -> None:
    """Raises ValueError if a kind of model cannot read images once for several questions."""
    if kind not in WITH_PREFIX:
        raise ValueError(f"questions_per_edit: expected a model of {', '.join(WITH_PREFIX)}; got {kind}")
    if gradient_checkpointing:
        raise ValueError("questions_per_edit: what is read once is kept; set gradient_checkpointing=false")


def require_clean_parts(scorer: Adiee) -> None:
    """Raises ValueError if a text in two parts has other tokens than as a whole; shared images forbid it."""
    if not scorer.parts_cleanly(IMAGES[scorer.settings.layout]):
        raise ValueError("questions_per_edit: the tokenizer gives a text other tokens in two parts")


def encode_images_once(
    scorer: Adiee,
    texts: list[str],
    source: Float[Tensor, "edits 3 h w"],
    edited: Float[Tensor, "edits 3 h w"],
) -> tuple[Float[Tensor, "b n d"], Int[Tensor, "b n"]]:
    """Last hidden states of the questions, after the images, and their tokens.

    Args:
        texts: b questions; consecutive ones belong to the same edit, equally many to each.
    """
    images = IMAGES[scorer.settings.layout]
    before, _ = scorer.split(texts[0], images)
    shared = scorer.inputs([before] * len(source), source, edited)
    shared.pop("attention_mask", None)  # all have the same length
    cache = scorer.model.model(**shared, use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(texts) // len(source))
    ids = scorer.vlm.tokens([scorer.split(text, images)[1] for text in texts])
    begin = shared["input_ids"].shape[1]
    positions = torch.arange(begin, begin + ids.shape[1], device=ids.device).expand(len(ids), -1)
    # Padding comes last, where no token in use attends to it.
    out = scorer.model.model(input_ids=ids, past_key_values=cache, position_ids=positions, use_cache=True)
    return out.last_hidden_state, ids
