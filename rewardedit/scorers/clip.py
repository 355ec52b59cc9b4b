"""CLIP scorers: does the picture change the way the words do?"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rewardedit.assets import resolve
from rewardedit.batch import EditBatch, Scores
from rewardedit.images import Preprocess
from rewardedit.scorers.base import Prepared, Scorer

COINCIDE = 1e-5  # feature distance below which two pictures, or two texts, have no direction between them


class ClipD(Scorer):
    """CLIP directional similarity, in [−1, 1]: cos(I(edited) − I(source), T(target) − T(source)).

    ADIEE Eq. 1, with normalised features as InstructPix2Pix has them. The texts are the captions; a row without a target
    caption takes its instruction, one without a source caption the empty text. Where edited and source coincide the score
    is 0 with zero gradient; where the two texts are the same, the row is invalid.
    """

    range = (-1.0, 1.0)
    differentiable = True

    def __init__(self, model: Any, tokenizer: Any, preprocess: Preprocess) -> None:
        super().__init__()
        self.model, self.tokenizer, self.preprocess = model, tokenizer, preprocess

    @classmethod
    def from_pretrained(cls, checkpoint: str = "shapes-clip", dtype: torch.dtype = torch.float32) -> "ClipD":
        """A hub name, a path, or "shapes-clip", the small one that comes with the package.

        Raises:
            ValueError: where there is no CLIP model of that name.
        """
        from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

        path = resolve(checkpoint)
        try:
            model = CLIPModel.from_pretrained(path, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(path)
            processor = AutoImageProcessor.from_pretrained(path, backend="pil")
        except OSError as error:
            raise ValueError(f"scorer checkpoint {checkpoint!r}: no CLIP model can be loaded ({error})") from error
        return cls(model, tokenizer, Preprocess.from_processor(processor))

    def image_features(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        """Unit vectors."""
        pixels = self.preprocess(image).to(self.model.dtype)
        return F.normalize(self.model.get_image_features(pixel_values=pixels).pooler_output.float(), dim=-1)

    @torch.no_grad()
    def text_features(self, texts: list[str]) -> Float[Tensor, "b d"]:
        """Unit vectors."""
        tokens = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.tokenizer.model_max_length, return_tensors="pt"
        ).to(self.model.device)
        features = self.model.get_text_features(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask)
        return F.normalize(features.pooler_output.float(), dim=-1)

    @torch.no_grad()
    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        return Prepared({"source": self.image_features(source)})

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        b = len(batch)
        to = [caption or batch.instruction[i] for i, caption in enumerate(batch.target_caption or [""] * b)]
        start = batch.source_caption or [""] * b
        texts = self.text_features(to + start)
        words = texts[:b] - texts[b:]
        same_words = words.norm(dim=1) < COINCIDE
        change = self.image_features(batch.edited) - prepared.values["source"]
        same_picture = (batch.edited == batch.source).flatten(1).all(1)
        square = change.square().sum(1)
        still = same_picture | (square < COINCIDE**2)
        length = torch.where(still, torch.ones_like(square), square).sqrt() * words.norm(dim=1).clamp_min(COINCIDE)
        score = torch.where(still, torch.zeros_like(square), (change * words).sum(1) / length)
        reason = ["source and target texts are the same: no direction" if same else None for same in same_words.tolist()]
        return Scores.make(score.clamp(-1, 1), reason=reason)
