"""Reward models for instruction-guided image editing: score an edit, choose the best, guide the editor,
train it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewardedit.batch import EditBatch, EditSample, Scores, collate
    from rewardedit.diffusion.editors import Editor, SamplingConfig, load_editor
    from rewardedit.diffusion.guidance import mask_guidance, two_round_edit
    from rewardedit.diffusion.reward_guidance import reward_guidance
    from rewardedit.images import Preprocess, load_image
    from rewardedit.regions.change_map import change_mask
    from rewardedit.reward_prompt import RewardPrompt, RewardScale
    from rewardedit.scorers import Scorer, WeightedSum, load_scorer, scorer
    from rewardedit.selection import best_of_n

__version__ = "0.1.0"
__all__ = [
    "EditBatch",
    "EditSample",
    "Editor",
    "Preprocess",
    "RewardPrompt",
    "RewardScale",
    "SamplingConfig",
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
    "scorer",
    "two_round_edit",
]

# torch and diffusers take seconds to import, which `rewardedit --help` should not: a name is imported when it
# is first used.
_MODULES = {
    "rewardedit.batch": ("EditBatch", "EditSample", "Scores", "collate"),
    "rewardedit.diffusion.editors": ("SamplingConfig", "Editor", "load_editor"),
    "rewardedit.diffusion.guidance": ("mask_guidance", "two_round_edit"),
    "rewardedit.diffusion.reward_guidance": ("reward_guidance",),
    "rewardedit.images": ("Preprocess", "load_image"),
    "rewardedit.regions.change_map": ("change_mask",),
    "rewardedit.reward_prompt": ("RewardPrompt", "RewardScale"),
    "rewardedit.scorers": ("Scorer", "WeightedSum", "load_scorer", "scorer"),
    "rewardedit.selection": ("best_of_n",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            globals()[name] = getattr(import_module(module), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
