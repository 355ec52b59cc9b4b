"""Scorers that see only source, edited image and instruction, as BPM and ADIEE; scores of many edits."""

import os

import torch
from common import load_scorer

from rewardedit import EditBatch, devices
from rewardedit.batch import Scores
from rewardedit.language.vlm import Vlm
from rewardedit.prepared import Prepared
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch
from rewardedit.shapes import ShapesBatch
from rewardedit.shapes.vlm_tasks import match_logits

BATCH = 140
# Scorers that see only source, edited image and instruction, as BPM does.
RIVALS = {
    "clip_t": ("clip_t", {}),
    "clip_i": ("clip_i", {"against": "source"}),
    "clip_t+clip_i": ("clip_t:1,clip_i:1", {}),
    "clip_d": ("clip_d", {}),
    "l2": ("l2", {}),
    "ssim": ("ssim", {}),
    "vifi_clip": ("vifi_clip", {}),
}
if "REWARDEDIT_LPIPS" in os.environ:  # the folder of its published weights
    RIVALS["lpips"] = ("lpips", {"weights": os.environ["REWARDEDIT_LPIPS"]})


class AskedVlm(Scorer):
    """A scorer that queries a vision-language model without training it."""

    def __init__(self, vlm: Vlm) -> None:
        super().__init__()
        self.vlm = vlm
        self.model = vlm.model


class Followed(AskedVlm):
    """Log-odds of "yes" against "no" when a small vision-language model is asked if an edit followed its
    instruction: the judgement of the model that the ADIEE scorer starts from.
    """

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        images = torch.stack([batch.source, batch.edited], dim=1)
        asked = [[text] for text in batch.instruction]
        odds, _ = match_logits(self.vlm, images, asked)
        return Scores.make(odds[:, 0])


def load_rivals() -> dict[str, Scorer]:
    """The rivals by name."""
    loaded = {}
    for name, (spec, options) in RIVALS.items():
        if "," in spec:
            loaded[name] = load_scorer(
                {"clip_t": {"weight": 1.0}, "clip_i": {"weight": 1.0, "against": "source"}}
            )
        else:
            loaded[name] = load_scorer(spec, **options)
    return loaded


def batch_of(samples: ShapesBatch, edited: torch.Tensor) -> EditBatch:
    """Batch of the edits without captions, targets and masks, on the models' device."""
    return EditBatch(samples.source, samples.instruction, edited).to(devices.default_device())


def scored(scorer: Scorer, samples: ShapesBatch, edited: torch.Tensor) -> Scores:
    """Scores of all edits."""
    starts = range(0, len(samples), BATCH)
    batches = [batch_of(samples[i : i + BATCH], edited[i : i + BATCH]) for i in starts]
    results = [score_batch(batch, {"": scorer})[""] for batch in batches]
    names = results[0].parts
    return Scores(
        torch.cat([result.score for result in results]),
        {name: torch.cat([result.parts[name] for result in results]) for name in names},
        torch.cat([result.valid for result in results]),
        [reason for result in results for reason in result.reason],
    )
