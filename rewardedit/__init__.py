"""Reward models for instruction-guided image editing: score an edit, choose the best, guide the editor, train it."""

from rewardedit.batch import EditBatch, EditSample, Scores, collate
from rewardedit.diffusion.editors import Editor, EditSettings, load_editor
from rewardedit.diffusion.guidance import mask_guidance, two_round_edit
from rewardedit.diffusion.reward_guidance import reward_guidance
from rewardedit.images import Preprocess, load_image
from rewardedit.regions import change_mask
from rewardedit.relabel import RewardPrompt, RewardScale
from rewardedit.scorers import Scorer, WeightedSum, load_scorer
from rewardedit.selection import best_of_n

__version__ = "0.1.0"
__all__ = [
    "EditBatch",
    "EditSample",
    "EditSettings",
    "Editor",
    "Preprocess",
    "RewardPrompt",
    "RewardScale",
    "Scorer",
    "Scores",
    "WeightedSum",
    "best_of_n",
    "change_mask",
    "collate",
    "load_editor",
    "load_image",
    "load_scorer",
    "mask_guidance",
    "reward_guidance",
    "two_round_edit",
]
