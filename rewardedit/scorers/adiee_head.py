"""The head of the ADIEE scorer, which decodes a state into scores, and the settings of a trained scorer."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from rewardedit import config as configs
from rewardedit import devices
from rewardedit.language.vlm import Bits
from rewardedit.models import pretrained
from rewardedit.scorers.adiee_text import Layout, Prompts
from rewardedit.untrusted import read_settings_file

GRADES = (0.0, 5.0, 10.0)  # grades of the head with classes
SETTINGS = "adiee.json"
HEAD = "head.safetensors"
HeadKind = Literal["scalar", "classes"]


@dataclass(frozen=True)
class AdieeSettings:
    """Settings of a trained scorer."""

    head: HeadKind = "scalar"
    # "pair": source and edit as two images; "concat": side by side in one, as in the released code
    layout: Layout = "pair"
    side: int | None = 512  # pixels a side that both images are stretched to; None: as they are
    axes: tuple[str, ...] = ("overall",)  # names of the scored axes; the first is the score
    base: str | None = None  # the model that an adapter belongs to; None: the folder holds a whole model
    quantize: Bits | None = None  # quantisation of the base's language model when the adapter was trained
    prompts: Prompts = "ours"  # wording of the questions: ours or the paper's

    def __post_init__(self) -> None:
        if self.head not in ("scalar", "classes") or self.layout not in ("pair", "concat"):
            raise ValueError(f"expected a head scalar or classes, a layout pair or concat; got {self}")
        if not self.axes or len(set(self.axes)) < len(self.axes):
            raise ValueError(f"axes: expected different names, at least one; got {self.axes}")

    @classmethod
    def read(cls, folder: Path) -> "AdieeSettings":
        """Reads the settings in a trained scorer's folder."""
        try:
            return configs.build(cls, read_settings_file(folder / SETTINGS))
        except ValueError as error:
            raise ValueError(f"{folder / SETTINGS}: no settings of an ADIEE scorer ({error})") from error


class ScoreHead(nn.Module):
    """Decodes a state into raw scores: Linear, ReLU, Linear, ReLU, Linear of 256 and 16 units (ADIEE)."""

    def __init__(self, width: int, settings: AdieeSettings) -> None:
        super().__init__()
        self.classes = len(GRADES) if settings.head == "classes" else 1
        self.axes = len(settings.axes)
        self.layers = nn.Sequential(
            nn.Linear(width, 256),
            nn.ReLU(),
            nn.Linear(256, 16),
            nn.ReLU(),
            nn.Linear(16, self.axes * self.classes),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    @classmethod
    def to_train(cls, width: int, settings: AdieeSettings, folder: Path | None) -> "ScoreHead":
        """A fresh head, or the trained one if the model's folder holds a scorer.

        Raises:
            ValueError: if that scorer has other settings, except for the base of its LoRA.
        """
        head = cls(width, settings)
        if folder is not None and (folder / SETTINGS).is_file():
            before = AdieeSettings.read(folder)
            if replace(before, base=None, quantize=None) != replace(settings, base=None, quantize=None):
                raise ValueError(f"model {folder}: expected a scorer with {settings}; it has {before}")
            with pretrained.reading(str(folder)):
                head.load_state_dict(load_file(folder / HEAD))
        return head

    def forward(self, state: Float[Tensor, "b d"]) -> Float[Tensor, "b axes classes"]:
        """Raw values: scores from 0 to 10 of the scalar head, logits of the head with classes. In fp32 even
        within a mixed-precision run, so that training and inference give the same score.
        """
        with devices.no_autocast(state.device.type):
            raw = self.layers(state.to(next(self.parameters()).dtype)).float()
            return raw.unflatten(-1, (self.axes, self.classes))

    def scores(self, state: Float[Tensor, "b d"]) -> Float[Tensor, "b axes"]:
        """Scores, not clamped: the value itself, or the expectation over the grades 0, 5 and 10."""
        raw = self(state)
        if self.classes == 1:
            return raw[..., 0]
        return (raw.softmax(-1) * raw.new_tensor(GRADES)).sum(-1)
