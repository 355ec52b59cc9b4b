"""ViFi-CLIP's temporal pooling with an MLP head, trained on the ADIEE scorer's own rows, to separate the
contribution of the model from that of the data: python rewardedit/shapes/benchmarks/same_labels.py [OUT]

It starts from the shipped ViFi-CLIP; adiee.py reads it from OUT (default: runs/same-labels). It
uses the rows of all the scorer's phases at once, their total number of steps, batches of the same size and
the last phase's loss over classes. Images that several rows of a batch share are read once, as there.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import read_command_line
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoImageProcessor

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.cli import quiet
from rewardedit.cli.recipes import load_recipe
from rewardedit.config import build, override, to_dict
from rewardedit.data import open_named
from rewardedit.data.bad_rows import usable_rows
from rewardedit.data.datasets import images_of
from rewardedit.files import replaced
from rewardedit.models import pretrained, resolve_model
from rewardedit.prepared import Prepared
from rewardedit.scorers.adiee_head import GRADES
from rewardedit.scorers.vifi_clip import ViFiClip
from rewardedit.trainers.adiee_scorer import Config, read_steps
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, fit
from rewardedit.training.labels import require_label
from rewardedit.training.score_token import score_loss

START = "shapes/vifi-clip"
LR = 5e-4  # of the recipe shapes/vifi-clip
HEAD = "head.safetensors"  # next to ViFi-CLIP's own files


class LabelledViFiClip(ViFiClip):
    """A score from 0 to 10 by an MLP on the video's feature, the instruction's and their product.

    It is the expectation over the grades 0, 5 and 10.
    """

    range = (0.0, 10.0)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        width = self.model.config.projection_dim
        self.head = nn.Sequential(nn.Linear(3 * width, 256), nn.GELU(), nn.Linear(256, len(GRADES)))

    def read(self, source: dict[str, Tensor], edited: dict[str, Tensor], words: Tensor) -> Tensor:
        """Logits of the grades, (b, classes); fewer frames than words are each repeated for several words."""
        video = self.video(source, edited)
        video = video.repeat_interleave(len(words) // len(video), 0)
        seen = torch.cat([video, words, video * words * video.shape[1]], dim=1)
        with torch.autocast(seen.device.type, enabled=False):  # in fp32, as ADIEE's head
            return self.head(seen.float())

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        read = self.read(prepared.inputs, self.frame(batch.edited), prepared.inputs["words"])
        return Scores.make(read.softmax(1) @ read.new_tensor(GRADES))


def load_same_labels(folder: Path) -> LabelledViFiClip:
    """Loads the scorer that `train` has written."""
    scorer = LabelledViFiClip.from_pretrained(str(folder))
    scorer.head.load_state_dict(load_file(folder / HEAD))
    return scorer.eval().requires_grad_(False)


def phases_of_scorer() -> list[Config]:
    """Settings of the small scorer's phases."""
    return [phase.settings for phase in load_recipe("shapes/adiee-scorer", [])[1].phases.values()]


def config_of_phases(words: list[str]) -> Config:
    """The last phase's settings with the rows and steps of all phases, with `words` as overrides."""
    phases = phases_of_scorer()
    # One that takes a part of some rows follows one that takes all of them.
    data = {name: path for phase in reversed(phases) for name, path in phase.data.items()}
    steps = sum(phase.train.max_steps for phase in phases)
    merged = replace(phases[-1], data=data, train=replace(phases[-1].train, max_steps=steps))
    return build(Config, override(to_dict(merged), words))


def train(config: Config, folder: Path) -> Path:
    """Trains on batches as the ADIEE scorer's trainer reads them and writes `folder/scorer`.

    An interrupted training is resumed from its newest checkpoint in the folder.
    """
    run.start(folder, config, resume=True)
    config = replace(config, train=replace(config.train, micro_batch_size=None))
    torch.manual_seed(config.train.seed)
    rows = open_named(config.data)
    usable = usable_rows(rows, images_of(config.data), require_label, folder, config.bad_rows, config.data)
    scorer = LabelledViFiClip.from_pretrained(START).to(devices.default_device())
    scorer.model.set_attn_implementation("eager")  # its backward pass is faster on a CPU than SDPA's
    scorer.requires_grad_(True)
    scorer.model.text_model.embeddings.token_embedding.requires_grad_(False)
    settings = config.train
    batches = read_steps(config, rows, usable)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        [(edits, labels, *_)] = batches(step)
        edits = edits.to(devices.default_device())
        tokens = scorer.tokenize(edits.instruction).to(scorer.model.device)
        words = F.normalize(scorer.model.get_text_features(**tokens).pooler_output.float(), dim=-1)
        source, edited = (images[:: settings.questions_per_edit] for images in (edits.source, edits.edited))
        read = scorer.read(scorer.frame(source), scorer.frame(edited), words)
        return score_loss(read, labels[:, 0].to(read.device), config.compat, config.train.positive_weight)

    small = SmallTrainConfig(
        max_steps=settings.max_steps,
        batch_size=settings.batch_size,
        lr=LR,
        lr_warmup_steps=settings.lr_warmup_steps,
        weight_decay=settings.weight_decay,
        ema=settings.ema,
        seed=settings.seed,
        mixed_precision=settings.mixed_precision,
        checkpoint_every=settings.checkpoint_every,
    )
    fit(small, {"scorer": scorer}, loss_of, folder, resume=True)
    batches.close()
    out = folder / "scorer"
    with replaced(out) as aside:
        scorer.save(aside)
        save_file(scorer.head.state_dict(), aside / HEAD)
        pretrained.load(AutoImageProcessor, resolve_model(START)).save_pretrained(aside)
    return out


if __name__ == "__main__":
    line = read_command_line(__doc__, "FOLDER")
    quiet()
    folder = Path(*line.words[:1] or ["runs/same-labels"])
    print(train(config_of_phases(line.words[1:]), folder))
