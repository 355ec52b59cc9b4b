"""CLIP-I and CLIP-T on the parts of images that DICE leaves visible (Baraldi et al. 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from rewardedit.batch import EditBatch, Scores
from rewardedit.images import Preprocess, gaussian_blur
from rewardedit.models import CLIP
from rewardedit.prepared import Prepared
from rewardedit.regions.differences import Difference, covered
from rewardedit.scorers.clip import ClipScorer, load_clip, target_texts
from rewardedit.scorers.dice import Analysis, Dice

FILLS = ("mean", "blur")
MIN_VISIBLE = 0.01  # least share of an image that must stay visible for it to be compared
HIDDEN = "nothing is left to compare: {:.1f} % of the image is masked out"
BLUR = 16  # the blur's standard deviation is this part of the longer side


class DiceClip(ClipScorer):
    """Base of both: a CLIP model, a `Dice`, and the fill of masked regions.

    Args:
        fill: "mean" paints a region in the mean colour of the rest of the image, "blur" blurs the image
            there.
    """

    paper = "DICE-augmented CLIP (Baraldi et al. 2025)"
    family = "clip+dice"
    differentiable = False

    def __init__(self, model: Any, tokenizer: Any, preprocess: Preprocess, dice: Dice, fill: str) -> None:
        super().__init__(model, tokenizer, preprocess)
        if fill not in FILLS:
            raise ValueError(f"fill: expected one of {', '.join(FILLS)}; got {fill!r}")
        self.dice = dice
        self.fill = fill

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = CLIP,
        dtype: torch.dtype = torch.float32,
        dice: Mapping[str, Any] | None = None,
        fill: str = "mean",
    ) -> "DiceClip":
        """Loads a CLIP model of `load_clip`, and DICE by its options.

        Args:
            dice: options of `Dice.from_pretrained`, such as {"checkpoint": NAME}.
        """
        return cls(*load_clip(checkpoint, dtype), Dice.from_pretrained(**dict(dice or {})), fill)

    @classmethod
    def resolved(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with those of DICE and its models."""
        from rewardedit.scorers.load import all_options

        inner = all_options("dice", options["dice"] or {})
        return {**options, "dice": Dice.resolved(inner)}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """DICE's fingerprint, by its name; {} without models."""
        of_dice = self.dice.fingerprint
        return {"dice": of_dice} if of_dice else {}

    def masks(self, kept: Sequence[Sequence[Difference]], image: Tensor) -> Bool[Tensor, "b h w"]:
        """Masks of the boxes of each row's differences, in images (b, 3, h, w)."""
        h, w = image.shape[-2:]
        rows = [covered(row, h, w) for row in kept]
        return torch.stack(rows).to(image.device)

    def scores_of(
        self, score: Float[Tensor, " b"], analyses: Sequence[Analysis], regions: Bool[Tensor, "b h w"]
    ) -> Scores:
        """Scores of edits; invalid if DICE cannot judge them, or less than `MIN_VISIBLE` is outside of the
        region.
        """
        reasons: list[str | None] = []
        for analysis, share in zip(analyses, regions.double().mean((1, 2)).tolist(), strict=True):
            hidden = HIDDEN.format(100 * share) if 1 - share < MIN_VISIBLE else None
            reasons.append(analysis.reason or hidden)
        return Scores.make(score, reason=reasons)


class DiceClipI(DiceClip):
    """DICE-augmented CLIP-I, in [−1, 1]: cos(I(source), I(edited)), the coherent regions masked out of both.

    It measures how much is kept where nothing should change. Both images have the source's fill. A row that
    DICE cannot judge is invalid, and one of which less than `MIN_VISIBLE` stays visible.
    """

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        analyses = self.dice.analyse(batch)
        source = batch.source.float()
        edited = batch.edited.float()
        regions = self.masks([analysis.coherent for analysis in analyses], source)
        paint = mean_colour(source, regions) if self.fill == "mean" else None
        seen = self.image_features(masked(source, regions, paint))
        kept = self.image_features(masked(edited, regions, paint))
        return self.scores_of(F.cosine_similarity(seen, kept).clamp(-1, 1), analyses, regions)


class DiceClipT(DiceClip):
    """DICE-augmented CLIP-T, in [−1, 1]: cos(I(edited), T(target)), the incoherent regions masked out.

    The text is the target caption; a row without one uses its instruction. A row that DICE cannot judge is
    invalid, and one of which less than `MIN_VISIBLE` stays visible.
    """

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        analyses = self.dice.analyse(batch)
        edited = batch.edited.float()
        regions = self.masks([analysis.incoherent for analysis in analyses], edited)
        paint = mean_colour(edited, regions) if self.fill == "mean" else None
        seen = self.image_features(masked(edited, regions, paint))
        texts = self.text_features(target_texts(batch))
        return self.scores_of(F.cosine_similarity(seen, texts).clamp(-1, 1), analyses, regions)


def mean_colour(image: Float[Tensor, "b 3 h w"], regions: Bool[Tensor, "b h w"]) -> Float[Tensor, "b 3 1 1"]:
    """Mean colour of each image outside of its region; of the whole image if the region is all of it."""
    outside = (~regions).float()
    outside = torch.where(outside.flatten(1).any(1)[:, None, None], outside, torch.ones_like(outside))
    weight = outside[:, None]
    return (image * weight).sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True)


def masked(
    image: Float[Tensor, "b 3 h w"], regions: Bool[Tensor, "b h w"], paint: Float[Tensor, "b 3 1 1"] | None
) -> Float[Tensor, "b 3 h w"]:
    """The image with its region in one colour, or blurred if `paint` is None; elsewhere it is unchanged."""
    inside = regions[:, None]
    if paint is None:
        return torch.where(inside, gaussian_blur(image, max(image.shape[-2:]) / BLUR), image)
    return torch.where(inside, paint, image)
