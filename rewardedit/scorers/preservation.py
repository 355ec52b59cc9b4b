"""Similarity of an edit with its source (preservation) or with the target: pixels, structure,
perception, features.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.images import Preprocess, gaussian_blur
from rewardedit.models import DINO, pretrained
from rewardedit.prepared import Prepared
from rewardedit.scorers.base import Scorer
from rewardedit.scorers.lpips import LpipsNetwork, load_lpips

REGIONS = ("all", "inside", "outside")
REFERENCES = ("source", "target")
MIN_REGION_PIXELS = 0.5  # pixels: a region with fewer is empty
MOST_DB = 100.0  # highest PSNR
SIGMA = 1.5
RIM = 5  # SSIM's window: 11 × 11 pixels


class Preservation(Scorer):
    """Compares the edited image with the source or the target; subclasses define `compare`.

    Args:
        region: "all", or the pixels "inside" or "outside" the batch's mask, which is then needed. Mask values
            between 0 and 1 are weights. Rows with an empty region are invalid.
        against: "source" (how much is kept) or "target" (how near the edit comes to it; then needed).

    Raises:
        ValueError: on another region or reference.
    """

    differentiable = True
    family = "pixel"

    def __init__(self, region: str = "all", against: str = "source") -> None:
        super().__init__()
        for name, value, known in (("region", region, REGIONS), ("against", against, REFERENCES)):
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}; got {value!r}")
        self.region = region
        self.against = against
        required_fields = {"mask"} if region != "all" else set()
        if against == "target":
            required_fields.add("target")
        self.required_fields = frozenset(required_fields)

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        reference = batch.source if self.against == "source" else batch.target
        assert reference is not None
        dtype = torch.promote_types(torch.promote_types(batch.edited.dtype, reference.dtype), torch.float32)
        edited = batch.edited.to(dtype)
        reference = reference.to(dtype)
        weight = self.weight(batch).to(dtype)
        empty = (self.counted(weight).flatten(1).sum(1) < MIN_REGION_PIXELS).tolist()
        reason = [f"nothing lies {self.region} the mask" if nothing else None for nothing in empty]
        return Scores.make(self.compare(edited, reference, weight, prepared), reason=reason)

    def weight(self, batch: EditBatch) -> Float[Tensor, "b 1 h w"]:
        """1 in the region, 0 elsewhere."""
        if self.region == "all" or batch.mask is None:
            return torch.ones_like(batch.source[:, :1])
        return batch.mask if self.region == "inside" else 1 - batch.mask

    def counted(self, weight: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 1 h w"]:
        """The part of the region that `compare` takes the mean over."""
        return weight

    def compare(
        self,
        edited: Float[Tensor, "b 3 h w"],
        reference: Float[Tensor, "b 3 h w"],
        weight: Float[Tensor, "b 1 h w"],
        prepared: Prepared,
    ) -> Float[Tensor, " b"]:
        """Returns one finite score per row, even if the region is empty."""
        raise NotImplementedError


def region_mean(values: Float[Tensor, "b c h w"], weight: Float[Tensor, "b 1 h2 w2"]) -> Float[Tensor, " b"]:
    """Mean over channels and a region, which is resized to the values' size; 0 if the region is empty."""
    weight = F.adaptive_avg_pool2d(weight, values.shape[-2:])
    return (values.mean(1, keepdim=True) * weight).flatten(1).sum(1) / weight.flatten(1).sum(1).clamp_min(
        1e-8
    )


def only(
    edited: Float[Tensor, "b 3 h w"], reference: Float[Tensor, "b 3 h w"], weight: Float[Tensor, "b 1 h w"]
) -> Float[Tensor, "b 3 h w"]:
    """The edited image in the region and the reference elsewhere,
    so that no window sees changes across the region's rim.
    """
    return torch.lerp(reference, edited, weight)


class L1(Preservation):
    """1 − mean |edited − source|, in [0, 1]; 1 for an untouched source."""

    range = (0.0, 1.0)
    paper = "mean absolute difference"

    def compare(
        self, edited: Tensor, reference: Tensor, weight: Tensor, prepared: Prepared
    ) -> Float[Tensor, " b"]:
        return 1 - region_mean((edited - reference).abs(), weight)


class L2(Preservation):
    """1 − mean (edited − source)², in [0, 1]; 1 for an untouched source."""

    range = (0.0, 1.0)
    paper = "mean squared difference"

    def compare(
        self, edited: Tensor, reference: Tensor, weight: Tensor, prepared: Prepared
    ) -> Float[Tensor, " b"]:
        return 1 - region_mean((edited - reference).square(), weight)


class Psnr(Preservation):
    """Peak signal-to-noise ratio, −10 log₁₀ MSE, in decibels from 0 to 100;
    clamped at 100, without a gradient there.
    """

    range = (0.0, MOST_DB)
    paper = "peak signal-to-noise ratio, in decibels"

    def compare(
        self, edited: Tensor, reference: Tensor, weight: Tensor, prepared: Prepared
    ) -> Float[Tensor, " b"]:
        return (
            -10 * region_mean((edited - reference).square(), weight).clamp_min(10 ** (-MOST_DB / 10)).log10()
        )


class Ssim(Preservation):
    """Structural similarity (Wang et al. 2004, Eq. 13), in [−1, 1]; 1 for an untouched source.

    A Gaussian window of σ = 1.5 over 11 × 11 pixels, K₁ = 0.01, K₂ = 0.03, averaged over the three channels.
    Windows that leave the image do not count, so that a region within 5 pixels of its rim is empty;
    images need at least 11 pixels a side.
    """

    range = (-1.0, 1.0)
    paper = "Wang et al. 2004"

    def counted(self, weight: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 1 h w"]:
        if min(weight.shape[-2:]) <= 2 * RIM:
            raise ValueError(
                f"ssim: expected images of at least {2 * RIM + 1} pixels a side; got "
                f"{tuple(weight.shape[-2:])}"
            )
        return F.pad(weight[..., RIM:-RIM, RIM:-RIM], (RIM,) * 4)

    def compare(
        self, edited: Tensor, reference: Tensor, weight: Tensor, prepared: Prepared
    ) -> Float[Tensor, " b"]:
        similarity = ssim_map(only(edited, reference, weight), reference)
        return region_mean(similarity, self.counted(weight)).clamp(-1, 1)


def ssim_map(x: Float[Tensor, "b c h w"], y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """SSIM of the window around each pixel, in [−1, 1]."""
    with devices.no_autocast(x.device.type):  # a variance is a difference of nearly equal numbers
        together = torch.cat([x, y, x * x, y * y, x * y])
        mean_x, mean_y, xx, yy, xy = gaussian_blur(together, SIGMA).chunk(5)
    brightness = (2 * mean_x * mean_y + 0.01**2) / (mean_x**2 + mean_y**2 + 0.01**2)
    structure = (2 * (xy - mean_x * mean_y) + 0.03**2) / ((xx - mean_x**2) + (yy - mean_y**2) + 0.03**2)
    return brightness * structure


class Lpips(Preservation):
    """−LPIPS v0.1 (Zhang et al. 2018, Eq. 1), at most 0; 0 for an untouched source. `net` is "alex", the
    authors' choice for evaluation, or "vgg", theirs for gradients. A region weights each layer's distances;
    images need at least 32 pixels a side.
    """

    range = (-float("inf"), 0.0)
    paper = "Zhang et al. 2018"
    family = "lpips"
    allows_half_weights = True

    def __init__(self, network: LpipsNetwork, region: str = "all", against: str = "source") -> None:
        super().__init__(region, against)
        self.network = network

    @classmethod
    def from_pretrained(
        cls, net: str = "alex", weights: str | None = None, region: str = "all", against: str = "source"
    ) -> "Lpips":
        """The scorer with the weights that `load_lpips` reads from the folder `weights`, or fetches."""
        return cls(load_lpips(net, weights), region, against)

    @torch.no_grad()
    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        if self.against != "source":
            return Prepared({})
        return Prepared({f"layer {i}": layer for i, layer in enumerate(self.network(source))})

    def compare(
        self, edited: Tensor, reference: Tensor, weight: Tensor, prepared: Prepared
    ) -> Float[Tensor, " b"]:
        expected = list(prepared.inputs.values()) or self.network(reference)
        maps = self.network.distances(self.network(only(edited, reference, weight)), expected)
        return -torch.stack([region_mean(distance, weight) for distance in maps]).sum(0)


class FeatureSimilarity(Preservation):
    """cos(f(edited), f(reference)) of a vision model's features f, in [−1, 1]; 1 for the reference itself.

    With a region, the rest of the edited image is replaced by the reference before the model sees it.
    """

    range = (-1.0, 1.0)
    family = "custom"
    allows_half_weights = True

    def __init__(
        self, model: Any, preprocess: Preprocess, region: str = "all", against: str = "source"
    ) -> None:
        super().__init__(region, against)
        self.model = model
        self.preprocess = preprocess

    def features(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        raise NotImplementedError

    @torch.no_grad()
    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        return Prepared({"source": self.features(source)} if self.against == "source" else {})

    def compare(
        self, edited: Tensor, reference: Tensor, weight: Tensor, prepared: Prepared
    ) -> Float[Tensor, " b"]:
        expected = prepared.inputs["source"] if self.against == "source" else self.features(reference)
        return F.cosine_similarity(self.features(only(edited, reference, weight)), expected).clamp(-1, 1)


class DinoI(FeatureSimilarity):
    """DINO-I, in [−1, 1]: cosine of the class tokens of edited image and source,
    as in ADIEE.
    """

    paper = "cosine of DINO's images; ADIEE Eq. 3"
    family = "dino"

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = DINO,
        region: str = "all",
        against: str = "source",
        dtype: torch.dtype = torch.float32,
    ) -> "DinoI":
        """Loads a DINO, DINOv2 or DINOv3 checkpoint: a hub name or a path.

        Raises:
            ValueError: if there is no such model.
        """
        from transformers import AutoModel

        try:
            model = pretrained.load(AutoModel, checkpoint, dtype=dtype)
            preprocess = Preprocess.from_pretrained(checkpoint)
        except OSError as error:
            raise ValueError(
                f"scorer checkpoint {checkpoint!r}: no DINO model can be loaded ({error})"
            ) from error
        return cls(model, preprocess, region, against)

    def features(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        pixels = self.preprocess(image).to(self.model.dtype)
        # DINO's own pooler is not trained
        return self.model(pixel_values=pixels).last_hidden_state[:, 0].float()
