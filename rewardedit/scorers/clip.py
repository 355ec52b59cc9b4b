"""CLIP scorers: similarity of an image, or of its change, with a text or another image."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rewardedit.batch import EditBatch, Scores
from rewardedit.images import Preprocess
from rewardedit.language.texts import tokenize
from rewardedit.models import CLIP, pretrained, resolve_model
from rewardedit.prepared import Prepared
from rewardedit.scorers.base import Scorer
from rewardedit.scorers.preservation import FeatureSimilarity

TEXTS = ("caption", "instruction")
# share of a feature's length below which two images, or two texts, have no direction between them
COINCIDE = 1e-5


def load_clip(checkpoint: str, dtype: torch.dtype) -> tuple[Any, Any, Preprocess]:
    """Loads model, tokenizer and preprocessing of a CLIP or SigLIP checkpoint: a hub name, a path, or
    "shapes/clip", for drawn shapes.

    Raises:
        ValueError: if there is no such model, or it does not embed both images and texts.
    """
    from transformers import AutoModel, AutoTokenizer

    path = resolve_model(checkpoint)
    try:
        model = pretrained.load(AutoModel, path, dtype=dtype)
        if not hasattr(model, "get_text_features"):
            raise ValueError(
                f"scorer checkpoint {checkpoint!r}: expected CLIP or SigLIP; got {type(model).__name__}"
            )
        return model, pretrained.load(AutoTokenizer, path), Preprocess.from_pretrained(path)
    except OSError as error:
        raise ValueError(
            f"scorer checkpoint {checkpoint!r}: no CLIP model can be loaded ({error})"
        ) from error


class ClipScorer(Scorer):
    """A CLIP or SigLIP model and its features, which the scorers below compare."""

    range = (-1.0, 1.0)
    differentiable = True
    allows_half_weights = True
    family = "clip"

    def __init__(self, model: Any, tokenizer: Any, preprocess: Preprocess) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.preprocess = preprocess

    @classmethod
    def from_pretrained(cls, checkpoint: str = CLIP, dtype: torch.dtype = torch.float32) -> "ClipScorer":
        """The scorer with the model that `load_clip` finds."""
        return cls(*load_clip(checkpoint, dtype))

    def image_features(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        """The model's features of images, not normalised."""
        return image_features(self.model, self.preprocess, image)

    @torch.no_grad()
    def text_features(self, texts: list[str]) -> Float[Tensor, "b d"]:
        """The model's features of texts, not normalised. A text of several rows is encoded once."""
        distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        tokens = self.tokenize(list(distinct)).to(self.model.device)
        features = self.model.get_text_features(**tokens).pooler_output.float()
        return features[[distinct[text] for text in texts]]

    def tokenize(self, texts: list[str]) -> Any:
        """Tokens and attention mask (b, n). SigLIP's texts are padded to full length, as in its training."""
        config = self.model.config
        return tokenize(
            self.tokenizer,
            texts,
            min(self.tokenizer.model_max_length, config.text_config.max_position_embeddings),
            self.family,
            padding="max_length" if config.model_type.startswith("siglip") else True,
        )


class ClipD(ClipScorer):
    """CLIP directional similarity, in [−1, 1]: cos(I(edited) − I(source), T(target) − T(source)).

    ADIEE Eq. 1. Features have unit length before they are subtracted, as in InstructPix2Pix;
    `normalise=False` subtracts them unnormalised, as the code of ADIEE and BPM does. The texts are the
    captions; a row without a target caption uses its instruction, one without a source caption the empty
    text, and with `text="instruction"` all rows do, even with captions. If edited and source coincide, the
    score is 0 with zero gradient; if the two texts are the same, the row is invalid.
    """

    paper = "ADIEE Eq. 1; InstructPix2Pix"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        preprocess: Preprocess,
        normalise: bool = True,
        text: str = "caption",
    ) -> None:
        super().__init__(model, tokenizer, preprocess)
        if text not in TEXTS:
            raise ValueError(f"text: expected one of {', '.join(TEXTS)}; got {text!r}")
        self.normalise = normalise
        self.text = text

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = CLIP,
        dtype: torch.dtype = torch.float32,
        normalise: bool = True,
        text: str = "caption",
    ) -> "ClipD":
        """The scorer with the model that `load_clip` finds."""
        return cls(*load_clip(checkpoint, dtype), normalise=normalise, text=text)

    @torch.no_grad()
    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        return Prepared({"source": self._scaled(self.image_features(source))})

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        b = len(batch)
        if self.text == "instruction":
            batch = replace(batch, source_caption=None, target_caption=None)
        seen = prepared.inputs["source"]
        texts = self._scaled(self.text_features(target_texts(batch) + (batch.source_caption or [""] * b)))
        words = texts[:b] - texts[b:]
        least = COINCIDE * texts[:b].norm(dim=1)
        same_words = words.norm(dim=1) < least
        change = self._scaled(self.image_features(batch.edited)) - seen
        same_picture = (batch.edited == batch.source).flatten(1).all(1)
        square = change.square().sum(1)
        still = same_picture | (square < (COINCIDE * seen.norm(dim=1)) ** 2)
        length = torch.where(still, torch.ones_like(square), square).sqrt() * torch.maximum(
            words.norm(dim=1), least
        )
        score = torch.where(still, torch.zeros_like(square), (change * words).sum(1) / length)
        written = zip(target_texts(batch), batch.source_caption or [""] * b, same_words.tolist(), strict=True)
        reason = [_no_direction(target, source) if same else None for target, source, same in written]
        return Scores.make(score.clamp(-1, 1), reason=reason)

    def _scaled(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        return F.normalize(features, dim=-1) if self.normalise else features


def _no_direction(target: str, source: str) -> str:
    """The reason why two texts have no direction between them."""
    if target == source:
        return "source and target texts are the same: no direction"
    return "source and target texts differ only in what the model does not read: no direction; shorten them"


class ClipT(ClipScorer):
    """CLIP-T, in [−1, 1]: cos(I(edited), T(target)) by CLIP.

    The text is the target caption; a row without one uses its instruction, and needs no ground truth. It does
    not see the source: an unedited source scores as high as it happens to match the text.
    """

    paper = "cosine of CLIP's image and caption"

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        texts = self.text_features(target_texts(batch))
        return Scores.make(F.cosine_similarity(self.image_features(batch.edited), texts).clamp(-1, 1))


class ClipI(FeatureSimilarity):
    """CLIP-I, in [−1, 1]: cos(I(edited), I(target)) by CLIP; 1 for the target itself.

    `against="source"` compares with the source and needs no ground truth: it measures how much is kept
    (InstructPix2Pix's CLIP image similarity).
    """

    required_fields = frozenset({"target"})
    paper = "cosine of CLIP's images; ADIEE Eq. 2"
    family = "clip"

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = CLIP,
        region: str = "all",
        against: str = "target",
        dtype: torch.dtype = torch.float32,
    ) -> "ClipI":
        """The scorer with the model that `load_clip` finds."""
        model, _, preprocess = load_clip(checkpoint, dtype)
        return cls(model, preprocess, region, against)

    def features(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        return image_features(self.model, self.preprocess, image)


def image_features(
    model: Any, preprocess: Preprocess, image: Float[Tensor, "b 3 h w"]
) -> Float[Tensor, "b d"]:
    """A CLIP or SigLIP model's features of images, not normalised."""
    return model.get_image_features(pixel_values=preprocess(image).to(model.dtype)).pooler_output.float()


def target_texts(batch: EditBatch) -> list[str]:
    """The target captions; for rows without one, the instruction."""
    captions = batch.target_caption or [""] * len(batch)
    return [caption or instruction for caption, instruction in zip(captions, batch.instruction, strict=True)]
