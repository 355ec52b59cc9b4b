"""Masks of BPM's regions, and their overlap with the world's true regions."""

from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusionDiffEditPipeline
from rivals import BATCH, batch_of

from rewardedit.diffusion.schedulers import set_ddim
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.regions.base import ObjectLocator
from rewardedit.regions.change_map import change_mask
from rewardedit.regions.grounded_sam import GroundedSam
from rewardedit.scorers.bpm.bpm import Bpm, parsed_edits
from rewardedit.shapes import ShapesBatch


def iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of pairs of masks (n, h, w)."""
    both = (a & b).flatten(1).sum(1)
    either = (a | b).flatten(1).sum(1)
    return both / either.clamp_min(1)


def located(locator: Any, samples: ShapesBatch, edited: torch.Tensor) -> torch.Tensor:
    """M_origin ∪ M_edit of every edit, (n, h, w); empty if an object is not found."""
    masks = []
    for i in range(0, len(samples), BATCH):
        batch = batch_of(samples[i : i + BATCH], edited[i : i + BATCH])
        parsed = parsed_edits(parse_all(batch.instruction))
        regions = locator.of_edits(batch, parsed, locator.of_sources(batch.source, parsed))
        masks += [region.mask.cpu() & (region.reason is None) for region in regions]
    return torch.stack(masks)


def mask_ious(samples: ShapesBatch, edited: torch.Tensor, bpm: Bpm) -> dict[str, torch.Tensor]:
    """IoU of every edit's mask with the world's true regions, for masks located in several ways; masks that
    are not found count as 0.
    """
    true = samples.mask[:, 0] > 0
    boxes = ObjectLocator(GroundedSam(finder_of(bpm).detector, None))
    masks = {
        "bpm": located(bpm.locator, samples, edited),
        "boxes": located(boxes, samples, edited),
        "change_mask": change_mask(samples.source, edited)[:, 0] > 0.5,
    }
    return {name: iou(mask, true) for name, mask in masks.items()}


def medians(ious: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(values.median()) for name, values in ious.items()}


def finder_of(bpm: Bpm) -> GroundedSam:
    """The detector and segmenter of a BPM scorer."""
    assert isinstance(bpm.locator, ObjectLocator)
    assert isinstance(bpm.locator.finder, GroundedSam)
    return bpm.locator.finder


def diffedit_masks(samples: ShapesBatch) -> torch.Tensor:
    """DiffEdit's maps, from the true captions; they need no edit."""
    stock = load_text_to_image("shapes/text-to-image")
    parts = {name: module for name, module in stock.components.items() if name != "image_encoder"}
    pipe = StableDiffusionDiffEditPipeline(**parts, inverse_scheduler=None, requires_safety_checker=False)
    set_ddim(pipe)
    pipe.set_progress_bar_config(disable=True)
    masks = []
    for i in range(len(samples)):
        mask = pipe.generate_mask(
            samples.source[i : i + 1],
            [samples.target_caption[i]],
            source_prompt=[samples.source_caption[i]],
            guidance_scale=3.0,
            num_inference_steps=10,
            generator=torch.Generator().manual_seed(i),
        )
        small = torch.as_tensor(mask).float().view(1, 1, *np.shape(mask)[-2:])
        masks.append(torch.nn.functional.interpolate(small, samples.source.shape[-2:])[0, 0] > 0.5)
    return torch.stack(masks)
