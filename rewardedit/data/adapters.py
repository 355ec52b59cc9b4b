"""Data sets that are read from files of their own, by the name that a recipe's `data:` gives.

Each is opened by its path and its split.
"""

from functools import partial
from typing import Any

from rewardedit.data.aurora import Aurora
from rewardedit.data.dice_d import DiceD
from rewardedit.data.editreward import EditReward
from rewardedit.data.emu_edit import EmuEdit
from rewardedit.data.emu_edit_generations import EmuEditGenerations
from rewardedit.data.humanedit import HumanEdit
from rewardedit.data.instruct_pix2pix import InstructPix2Pix
from rewardedit.data.labelled import LabelledEdits
from rewardedit.data.magicbrush import MagicBrush
from rewardedit.data.preferred import PreferredRows
from rewardedit.data.seed_data_edit import SeedRealEdits
from rewardedit.data.ultraedit import UltraEdit
from rewardedit.data.webdataset import WebDatasetEdits

ADAPTERS: dict[str, Any] = {
    "aurora": Aurora,
    "dice_d": DiceD,
    "editreward": partial(PreferredRows, EditReward),
    "emu_edit": EmuEdit,
    "emu_edit_generations": EmuEditGenerations,
    "humanedit": HumanEdit,
    "instruct_pix2pix": InstructPix2Pix,
    "labelled": LabelledEdits,
    "magicbrush": MagicBrush,
    "seed_data_edit": SeedRealEdits,
    "ultraedit": UltraEdit,
    "webdataset": WebDatasetEdits,
}
