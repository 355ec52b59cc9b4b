"""Deformable DETR's loss (Zhu et al. 2021) for a detector of names, after OWL-ViT (Minderer et al. 2022)."""

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from rewardedit.regions.boxes import areas

# Weights in the matching cost and in the loss: class, L1 of the box, generalised IoU (Deformable DETR).
WEIGHTS = (2.0, 5.0, 2.0)
FOCAL_ALPHA = 0.25
FOCAL_GAMMA = 2.0


def detection_loss(logits: Tensor, predicted: Tensor, truth: list[tuple[Tensor, Tensor]]) -> Tensor:
    """DETR's loss of predictions; `truth` holds for each image the boxes (k, 4) and names (k, names) of its
    objects.
    """
    target = torch.zeros_like(logits)
    boxes: list[Tensor] = []
    wanted: list[Tensor] = []
    for i, (true_boxes, names) in enumerate(truth):
        patches, objects = match(logits[i], predicted[i], true_boxes, names)
        target[i, patches] = names[objects].float()
        boxes.append(predicted[i, patches])
        wanted.append(true_boxes[objects])

    made = torch.cat(boxes)
    true = torch.cat(wanted)
    number = max(1, len(true))
    error = F.binary_cross_entropy_with_logits(logits, target, reduction="none")

    # Errors of confident right answers hardly count (Lin et al. 2017).
    surprise = 1 - torch.exp(-error)
    weight = target * FOCAL_ALPHA + (1 - target) * (1 - FOCAL_ALPHA)
    focal = (weight * surprise**FOCAL_GAMMA * error).sum() / number
    overlap = 1 - generalised_iou(made, true)
    return WEIGHTS[0] * focal + (WEIGHTS[1] * (made - true).abs().sum() + WEIGHTS[2] * overlap.sum()) / number


@torch.no_grad()
def match(logits: Tensor, predicted: Tensor, boxes: Tensor, names: Tensor) -> tuple[Tensor, Tensor]:
    """Matches each object of an image with one patch: indices of the assignment of least cost."""
    right = logits.sigmoid()
    share = names.float() / names.sum(1, keepdim=True)
    cost = -WEIGHTS[0] * right @ share.T
    cost = cost + WEIGHTS[1] * torch.cdist(predicted, boxes, p=1)
    each_predicted = predicted.repeat_interleave(len(boxes), dim=0)
    each_box = boxes.repeat(len(predicted), 1)
    cost = cost - WEIGHTS[2] * generalised_iou(each_predicted, each_box).view(len(predicted), len(boxes))
    patches, objects = linear_sum_assignment(cost.cpu().numpy())
    return torch.from_numpy(patches).to(logits.device), torch.from_numpy(objects).to(logits.device)


def generalised_iou(a: Tensor, b: Tensor) -> Tensor:
    """Generalised IoU of pairs of boxes (n, 4), in [−1, 1] (Rezatofighi et al. 2019)."""
    low = torch.maximum(a[:, :2], b[:, :2])
    high = torch.minimum(a[:, 2:], b[:, 2:])
    both = (high - low).clamp_min(0).prod(1)
    union = (areas(a) + areas(b) - both).clamp_min(1e-9)
    hull = torch.cat([torch.minimum(a[:, :2], b[:, :2]), torch.maximum(a[:, 2:], b[:, 2:])], dim=1)
    around = areas(hull).clamp_min(1e-9)
    return both / union - (around - union) / around
