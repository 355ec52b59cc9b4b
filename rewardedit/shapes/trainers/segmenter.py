"""The small segmenter of the shapes world: a transformers `SamModel` from scratch, trained on the masks of
objects in their boxes.

Loss: SAM's (Kirillov et al. 2023, App. A): 20 × focal + dice of the single mask of a box, and the squared
error of the model's IoU prediction for its mask. Boxes are shifted at random, like a detector's; images are
those of `shapes_detector`, with the same defects.

Command: rewardedit train shapes/segmenter
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    SamConfig,
    SamImageProcessorPil,
    SamMaskDecoderConfig,
    SamModel,
    SamPromptEncoderConfig,
    SamVisionConfig,
)

from rewardedit import devices
from rewardedit.files import write_json
from rewardedit.regions.segmenter import Segmenter
from rewardedit.shapes import Shapes
from rewardedit.shapes.image_defects import add_artifacts
from rewardedit.shapes.objects import scene_objects
from rewardedit.shapes.trainers import detector as shapes_detector
from rewardedit.shapes.vocabulary import SIZE
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

FOCAL_WEIGHT = 20.0  # weight relative to the dice loss (SAM, App. A)
FOCAL_GAMMA = 2.0
FOCAL_ALPHA = 0.25
DECODER_WIDTH = 64  # width of the prompt encoder and the mask decoder
JITTER = 0.08  # standard deviation of a box's edges, as a share of its sides
MULTIMASKS = 3  # further masks that SAM can return for one prompt; not used with boxes


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the segmenter."""

    name: str  # name of the run and of its folder in runs/
    editor: str = "shapes/editor"  # editor whose autoencoder reconstructs half of the images
    samples: int = 8_400  # training samples of the shapes world, each with source and target
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # backdrops of successive samples
    width: int = 96  # width of the image encoder
    layers: int = 4  # transformer layers of the image encoder
    evaluate_n: int = 560  # validation images
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def make_model(config: Config) -> SamModel:
    """A SAM for images of the world's size; masks come out at that size too."""
    patch = 4
    vision = SamVisionConfig(
        hidden_size=config.width,
        output_channels=DECODER_WIDTH,
        num_hidden_layers=config.layers,
        num_attention_heads=4,
        image_size=SIZE,
        patch_size=patch,
        mlp_ratio=3.0,
        window_size=8,
        global_attn_indexes=[config.layers - 1],
        num_pos_feats=DECODER_WIDTH // 2,
        scale=1.0,  # frequencies of positions, as in SAM's checkpoints; the default makes neighbours unlike
        initializer_range=0.02,
    )

    prompts = SamPromptEncoderConfig(hidden_size=DECODER_WIDTH, image_size=SIZE, patch_size=patch)
    masks = SamMaskDecoderConfig(
        hidden_size=DECODER_WIDTH,
        mlp_dim=2 * DECODER_WIDTH,
        num_attention_heads=4,
        num_multimask_outputs=MULTIMASKS,
        iou_head_hidden_dim=DECODER_WIDTH,
    )

    model = SamModel(
        SamConfig(vision_config=vision, prompt_encoder_config=prompts, mask_decoder_config=masks)
    )

    # With SAM's own initialisation, of standard deviation 0.02, a model of this size learns very slowly.
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            layer.reset_parameters()
    # Frequencies of positions are fixed, as in the paper; they are the same for images and boxes.
    model.shared_image_embedding.positional_embedding.requires_grad_(False)
    return model


def plan(config: Config) -> list[str]:
    return [
        f"segmenter: {count(make_model(config))}, {2 * config.samples} images, {config.train.max_steps} steps"
    ]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves the segmenter to `folder/segmenter`; metrics.json holds its masks' IoU on val."""
    run.start(folder, config, resume, alone=True)
    torch.manual_seed(config.train.seed)
    model = make_model(config)
    of_detector = shapes_detector.Config(
        config.name, editor=config.editor, samples=config.samples, backdrops=config.backdrops
    )
    images, objects, _ = shapes_detector.pictures(of_detector)
    boxes = objects.boxes

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        chosen = torch.randint(len(boxes), (config.train.batch_size,), generator=generator)
        pixels = add_artifacts(images[objects.row[chosen]].float() / 255, generator)
        prompts = jittered(boxes[chosen], JITTER, generator)
        true = objects.masks(chosen).to(model.device)
        out = model(
            pixel_values=(2 * pixels - 1).to(model.device),
            input_boxes=prompts[:, None].to(model.device),
            multimask_output=False,
        )
        return mask_loss(out.pred_masks[:, 0, 0].float(), out.iou_scores[:, 0, 0].float(), true)

    fit(config.train, {"sam": model}, loss_of, folder, resume)
    out = folder / "segmenter"
    model.half().save_pretrained(out)
    SamImageProcessorPil(
        size={"longest_edge": SIZE},
        pad_size={"height": SIZE, "width": SIZE},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    ).save_pretrained(out)
    write_json(folder / "metrics.json", evaluate(out, config.evaluate_n))
    return out


def jittered(boxes: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Boxes (n, 4) whose edges are off by normal noise of `share` of their sides."""
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    return boxes + share * sides * torch.randn(boxes.shape, generator=generator)


def mask_loss(logits: Tensor, said: Tensor, true: Tensor) -> Tensor:
    """Loss of mask logits (n, h, w) and the model's IoU predictions (n,), given true masks (n, h, w)."""
    target = true.float()
    error = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    weight = target * FOCAL_ALPHA + (1 - target) * (1 - FOCAL_ALPHA)
    focal = (weight * (1 - torch.exp(-error)) ** FOCAL_GAMMA * error).flatten(1).mean(1)
    share = logits.sigmoid().flatten(1)
    flat = target.flatten(1)
    dice = 1 - (2 * (share * flat).sum(1) + 1) / (share.sum(1) + flat.sum(1) + 1)
    return (FOCAL_WEIGHT * focal + dice + (said - mask_iou(logits > 0, true)) ** 2).mean()


@torch.no_grad()
def mask_iou(predicted: Tensor, true: Tensor) -> Tensor:
    """Intersection over union of pairs of masks (n, h, w)."""
    both = (predicted & true).flatten(1).sum(1)
    either = (predicted | true).flatten(1).sum(1)
    return both / either.clamp_min(1)


def evaluate(folder: Path, n: int) -> dict[str, float]:
    """The IoU of the saved segmenter's masks in the true boxes of val's targets."""
    samples = Shapes("val", backdrops=("plain", "plain", "textured", "photo")).batch(0, n)
    objects = scene_objects(samples.after)
    segmenter = Segmenter.from_pretrained(str(folder)).to(devices.default_device())
    ious: list[Tensor] = []
    for first in range(0, n, 140):
        rows = range(first, min(first + 140, n))
        boxes = [objects.boxes[objects.row == row].to(devices.default_device()) for row in rows]
        predicted = segmenter(samples.target[rows.start : rows.stop].to(devices.default_device()), boxes)
        for row, masks in zip(rows, predicted, strict=True):
            true = objects.masks((objects.row == row).nonzero().flatten())
            ious.append(mask_iou(masks.cpu(), true))
    every = torch.cat(ious)
    return {
        "n": len(every),
        "mean_iou": float(every.mean()),
        "share_above_0.7": float((every > 0.7).float().mean()),
    }


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the weights."""
    print(f"segmenter: {train(config, folder, resume)}")
