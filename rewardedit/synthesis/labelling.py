"""Common ground of the label rules: settings and models, random numbers, and the images of labelled rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.data.labelled import LabelledEdit, encode_png
from rewardedit.synthesis.label_rules import FAILED, Grade, Measured, Thresholds
from rewardedit.synthesis.measured import METRICS
from rewardedit.synthesis.rules_config import RulesConfig

Reconstruct = Callable[[Float[Tensor, "b 3 h w"]], Float[Tensor, "b 3 h w"]]
VAE_BATCH_SIZE = 8  # images that go through the autoencoder together
# For a row with an instruction that is not its own: captions would reveal the original instruction.
NO_CAPTIONS = {"source_caption": None, "target_caption": None}
# Random streams: what is added to the seed, so that no rule's numbers depend on another rule's settings.
STREAMS = {
    "row": 0,
    "turn_roundtrip": 1,
    "output_roundtrip": 2,
    "output_other_instruction": 3,
    "later_turn": 4,
    "damage": 5,
    "turn_choice": 7,
}


@dataclass(frozen=True)
class Labelling:
    """Rules, thresholds and models that label rows."""

    rules: RulesConfig
    thresholds: Thresholds
    grades: dict[str, Grade]  # grade of each method
    reconstruct: Reconstruct  # encodes and decodes images with the autoencoder
    elsewhere: frozenset[str]  # methods whose outputs were made elsewhere, not by our autoencoder
    seed: int

    def generator(self, stream: str, number: int, offset: int = 0) -> torch.Generator:
        """Generator of a row's or a sequence's random numbers, the same in whichever process labels it.

        Args:
            stream: a name of `STREAMS`.
            number: the row's number in the data set.
            offset: added to the seed, such as one for each method.
        """
        seed = self.seed + STREAMS[stream] + offset
        return torch.Generator().manual_seed(seed * 1_000_003 + number)

    def draws(self, stream: str, number: int, n: int, offset: int = 0) -> Float[Tensor, " n"]:
        """The first n random numbers in [0, 1) of a stream; see `generator`."""
        return torch.rand(n, generator=self.generator(stream, number, offset))


@dataclass(frozen=True)
class Negative:
    """An instruction that an edit does not follow."""

    suffix: str  # ending of the row's id
    rule: str
    instruction: str


@dataclass(frozen=True)
class Draft:
    """A row whose edited image is not encoded yet."""

    row: LabelledEdit
    edited: Float[Tensor, "3 h w"]


def with_negative(row: LabelledEdit, negative: Negative) -> LabelledEdit:
    """The same edit, labelled as failed under an instruction that it does not follow."""
    return replace(
        row,
        id=f"{row.id}/{negative.suffix}",
        instruction=negative.instruction,
        label=FAILED,
        rule=negative.rule,
        **NO_CAPTIONS,
    )


def measurements(measured: Measured | None) -> dict[str, float | None]:
    """Measurements of an image by metric; None for unknown ones."""
    if measured is None:
        return dict.fromkeys(METRICS)
    return dict(zip(METRICS, (measured.clip_d, *measured.similarity), strict=True))


def finished(drafts: Sequence[Draft], labelling: Labelling) -> list[LabelledEdit]:
    """Rows with their edited images, reconstructed by the autoencoder if marked so. An image that several
    rows share is processed once.
    """
    keys = [(id(draft.edited), draft.row.vae_roundtrip) for draft in drafts]
    images = dict(zip(keys, (draft.edited for draft in drafts), strict=True))
    edited = through_autoencoder(list(images.values()), [marked for _, marked in images], labelling)
    stored = dict(zip(images, map(encode_png, edited), strict=True))
    return [replace(draft.row, edited=stored[key]) for draft, key in zip(drafts, keys, strict=True)]


def through_autoencoder(
    images: Sequence[Tensor], marked: Sequence[bool], labelling: Labelling
) -> list[Float[Tensor, "3 h w"]]:
    """Passes the marked images through the autoencoder, a few at a time; returns all images."""
    passed = list(images)
    chosen = list(compress(range(len(images)), marked))
    for first in range(0, len(chosen), VAE_BATCH_SIZE):
        chunk = chosen[first : first + VAE_BATCH_SIZE]
        reconstructed = labelling.reconstruct(torch.stack([images[i] for i in chunk]))
        for i, image in zip(chunk, reconstructed, strict=True):
            passed[i] = image
    return passed
