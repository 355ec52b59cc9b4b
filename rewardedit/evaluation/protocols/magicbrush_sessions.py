"""Sessions of MagicBrush's test set, and the outputs of editors that belong to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardedit.untrusted import read_settings_file, require_component

SESSIONS = "edit_sessions.json"
CAPTIONS = ("local_descriptions.json", "local_captions.json")


@dataclass(frozen=True)
class Output:
    """An output of an editor and what it is compared with; paths are relative to the folders."""

    editor: str
    image: str  # id of the source image
    turn: str  # "1", "inde_2", "iter_2" …
    source: str
    target: str
    instruction: str
    caption: str | None

    @property
    def id(self) -> str:
        return f"{self.editor}/{self.image}/{self.turn}"

    @property
    def name(self) -> str:
        """Its file in the editor's folder."""
        return f"{self.image}/{self.image}_{self.turn}.png"


def read_captions(folder: Path) -> dict[str, Any]:
    """Local captions by image and file; {} without them."""
    for name in CAPTIONS:
        if (folder / name).is_file():
            return read_settings_file(folder / name)
    return {}


def outputs_of(editor: str, image: str, turns: Any, captions: Mapping[str, str]) -> list[Output]:
    """An editor's outputs of one session: all independent ones, and the last iterated one.

    Raises:
        ValueError: if a turn lacks its instruction or images.
    """
    require_component(image, SESSIONS)
    if not isinstance(turns, list) or not turns:
        raise ValueError("expected a list of turns")
    outputs = []
    for number, turn in enumerate(turns, 1):
        texts = list(map(turn.get, ("input", "output", "instruction")))
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"turn {number} lacks its input, output or instruction")
        source, target = f"{image}/{texts[0]}", f"{image}/{texts[1]}"
        rest = (target, texts[2], captions.get(texts[1]))
        kinds = ["1"] if number == 1 else [f"inde_{number}"]
        if number == len(turns) > 1:
            kinds.append(f"iter_{number}")
        first = f"{image}/{turns[0]['input']}"
        for kind in kinds:
            # an editor that does nothing returns the session's first image at its end
            outputs.append(Output(editor, image, kind, first if kind.startswith("iter") else source, *rest))
    return outputs


def last_turns(outputs: Sequence[Output]) -> dict[tuple[str, str], str]:
    """The last turn of each editor's session: the iterated one, or the only one."""
    return {(one.editor, one.image): one.turn for one in outputs}
