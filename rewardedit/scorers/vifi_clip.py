"""ViFi-CLIP for edits: source and edited image as a video of two frames, matched with the instruction."""

import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.images import Preprocess
from rewardedit.models import fetched, pretrained, require_checkpoint
from rewardedit.prepared import Prepared
from rewardedit.scorers.clip import ClipScorer, load_clip
from rewardedit.untrusted import read_settings_file

POOLINGS = ("mean", "temporal")
SETTINGS = "vifi_clip.json"
WEIGHTS = "pooling.safetensors"  # next to the CLIP model's own files


class TemporalPooling(nn.Module):
    """Correction to the mean of two frames, which loses their order: a small transformer over the patch
    tokens of source, edited image and their difference.

    One token per place holds all three, in this order; a query token reads them and its output is added to
    the mean. The last layer starts at zero, so that an untrained module leaves the mean unchanged.

    Args:
        tokens: width of the frame encoder's tokens.
        features: width of the joint space.
        grid: patches a side of the position embeddings; for other grids they are interpolated.
    """

    def __init__(
        self, tokens: int, features: int, grid: int, width: int = 128, layers: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(tokens)
        self.into = nn.Linear(3 * tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, width, grid, grid))
        self.query = nn.Parameter(0.02 * torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, features)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, source: Float[Tensor, "b n d"], edited: Float[Tensor, "b n d"]) -> Float[Tensor, "b e"]:
        """The correction of the mean, from the patch tokens of both frames (n a square)."""
        side = round(source.shape[1] ** 0.5)
        place = self.place
        if place.shape[-1] != side:
            place = F.interpolate(place, (side, side), mode="bicubic", align_corners=False)
        before = self.norm(source)
        after = self.norm(edited)
        seen = self.into(torch.cat([before, after, after - before], dim=-1)) + place.flatten(2).transpose(
            1, 2
        )
        query = self.query.expand(len(source), -1, -1).to(seen)
        return self.out(self.encoder(torch.cat([query, seen], dim=1))[:, 0])


class ViFiClip(ClipScorer):
    """100 · cos(video, T(instruction)), in [−100, 100],
    where the video is [source → edited] (Donabauer et al. 2025).

    `pooling="mean"` is ViFi-CLIP's (Rasheed et al. 2023): the mean of the frames' features, then unit length;
    it cannot tell the edit from its reverse. `pooling="temporal"` adds the output of `TemporalPooling`, which
    sees the order of the frames. Images are resized to `size` pixels a side; if that is not the frame
    encoder's own size, its position embeddings are interpolated.
    """

    range = (-100.0, 100.0)
    paper = "ViFi-CLIP for edits (Donabauer et al. 2025)"

    def __init__(
        self, model: Any, tokenizer: Any, preprocess: Preprocess, temporal: TemporalPooling | None = None
    ) -> None:
        super().__init__(model, tokenizer, preprocess)
        self.temporal = temporal

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | None = None,
        pooling: str | None = None,
        size: int | None = None,
        dtype: torch.dtype | str = torch.float32,
    ) -> "ViFiClip":
        """Loads a CLIP checkpoint (a hub name or a path), or one written by `save`; "shapes/vifi-clip", with
        temporal pooling, is for drawn shapes.

        Args:
            pooling: by default the saved one, "mean" for a plain CLIP. A plain CLIP's "temporal" starts equal
                to its mean.
            size: pixels a side, a multiple of the patch; by default the checkpoint's own.

        Raises:
            ValueError: if no checkpoint is given or it is no CLIP model, on an unknown pooling or dtype, or
                if the size is not a multiple of the patch.
        """
        if pooling is not None and pooling not in POOLINGS:
            raise ValueError(f"pooling: expected one of {', '.join(POOLINGS)}; got {pooling!r}")
        dtype = devices.parse_dtype(dtype)
        checkpoint = require_checkpoint("vifi_clip", checkpoint, "humanedit-vifi-clip", "shapes/vifi-clip")
        model, tokenizer, preprocess = load_clip(checkpoint, dtype)
        if model.config.model_type != "clip":
            raise ValueError(
                f"vifi_clip: expected a CLIP checkpoint; {checkpoint!r} is {model.config.model_type}"
            )

        patch = model.config.vision_config.patch_size
        if size is not None:
            if size < patch or size % patch:
                raise ValueError(f"size: expected a multiple of the patch, {patch}; got {size}")
            preprocess = preprocess.resized(size)

        folder = fetched(checkpoint, (SETTINGS, WEIGHTS))
        saved = {"pooling": "mean"}
        if (folder / SETTINGS).is_file():
            saved = read_settings_file(folder / SETTINGS)
        if saved.get("pooling") not in ("mean", "temporal"):
            raise ValueError(
                f"{folder / SETTINGS}: pooling: expected mean or temporal; train the scorer again"
            )

        temporal = None
        if (pooling or saved["pooling"]) == "temporal":
            temporal = make_temporal(model)
            if saved["pooling"] == "temporal":
                with pretrained.reading(str(folder)):
                    temporal.load_state_dict(load_file(folder / WEIGHTS))
        return cls(model, tokenizer, preprocess, temporal if temporal is None else temporal.to(dtype))

    def save(self, folder: Path) -> None:
        """Saves model, tokenizer and pooling for `from_pretrained`;
        the trainer writes the image processor's file.
        """
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / SETTINGS).write_text(
            json.dumps({"pooling": "mean" if self.temporal is None else "temporal"}) + "\n"
        )
        if self.temporal is not None:
            save_file(
                {name: value.contiguous() for name, value in self.temporal.state_dict().items()},
                folder / WEIGHTS,
            )

    def frame(self, image: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        """The frame's "feature" (b, e), not normalised, and for temporal pooling its patch "tokens" (b, n,
        d).
        """
        pixels = self.preprocess(image).to(self.model.dtype)
        vision = self.model.vision_model
        seen = vision(
            pixel_values=pixels, interpolate_pos_encoding=self.preprocess.size != vision.config.image_size
        )
        feature = {"feature": self.model.visual_projection(seen.pooler_output).float()}
        return feature if self.temporal is None else {**feature, "tokens": seen.last_hidden_state[:, 1:]}

    def video(self, source: dict[str, Tensor], edited: dict[str, Tensor]) -> Float[Tensor, "b e"]:
        """The feature of two frames in the joint space, of unit length."""
        mean = (source["feature"] + edited["feature"]) / 2
        if self.temporal is not None:
            mean = mean + self.temporal(source["tokens"], edited["tokens"]).float()
        return F.normalize(mean, dim=-1)

    @torch.no_grad()
    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        words = F.normalize(self.text_features(instruction), dim=-1)
        return Prepared({**self.frame(source), "words": words})

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        video = self.video(prepared.inputs, self.frame(batch.edited))
        return Scores.make(100 * (video * prepared.inputs["words"]).sum(1).clamp(-1, 1))


def make_temporal(model: Any) -> TemporalPooling:
    """A fresh temporal pooling for a CLIP model."""
    vision = model.config.vision_config
    return TemporalPooling(
        vision.hidden_size, model.config.projection_dim, vision.image_size // vision.patch_size
    )
