"""MagicBrush's own table (Zhang et al. 2023): L1, L2, CLIP-I, DINO and CLIP-T of editors' outputs against the
targets, as the released code computes them.

PATH is the unzipped test set (or dev set): images/ID/ID-input.png, ID-output1.png …, edit_sessions.json, and
local_descriptions.json, also called local_captions.json. --edits names a folder of outputs for each editor,
as the released code writes them: ID/ID_1.png, ID/ID_inde_2.png (of the true first turn), ID/ID_iter_2.png (of
the editor's own). Items are EDITOR/ID/1, EDITOR/ID/inde_2, EDITOR/ID/iter_2.

Multi-turn is the last iterated output, single-turn all first and independent ones. L1 and L2 (mean squared
differences) are of outputs brought to the target's size by PIL's bicubic; CLIP is ViT-B/32, DINO ViT-S/16 on
images resized to 256 and cropped to 224, both of the files as they are. Captions are the local ones, with
which the paper's numbers were made (issue 17 of its repository; the script's default is the global ones).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image
from rewardedit.evaluation.protocols.magicbrush_sessions import (
    SESSIONS,
    Output,
    last_turns,
    outputs_of,
    read_captions,
)
from rewardedit.evaluation.protocols.protocol import (
    About,
    Benchmark,
    Cell,
    Column,
    Items,
    ItemScores,
    Line,
    Options,
    Table,
    TrainingData,
    published,
    require_compat,
)
from rewardedit.evaluation.statistics import clustered_mean
from rewardedit.images import load_pil
from rewardedit.scorer_spec import ScorerSpec
from rewardedit.untrusted import read_settings_file

CLIP = "openai/clip-vit-base-patch32"
DINO = "facebook/dino-vits16"
DISTANCES = ("L1", "L2")  # 1 − the score of our scorers
SHORTER = {"CLIP-I": 224, "CLIP-T": 224, "DINO": 256}  # shorter side before the crop to 224 × 224
# measured with the released code on the test set; the paper's own table is not repeated here
SOURCE = "a user's run of the released code, issue 27 of MagicBrush's repository"
PUBLISHED = {
    "All turns (single-turn)": {
        "MagicBrush, the paper's checkpoint": (0.0656, 0.0217, 0.9253, 0.8895, 0.2722),
    },
    "Final turn (multi-turn)": {
        "MagicBrush, the paper's checkpoint": (0.0850, 0.0297, 0.8985, 0.8436, 0.2764),
        "MagicBrush, the checkpoint of July 2023": (0.1006, 0.0368, 0.8692, 0.7831, 0.2827),
    },
}
TARGET = "target"  # the editor of perfect outputs
UNCHANGED = "source unchanged"


class MagicBrushTable(Benchmark):
    """MagicBrush's table; see the module."""

    about = About(
        title="MagicBrush, quality of edits against the targets",
        paper="Zhang et al. 2023, arXiv 2306.10012",
        size="test: 535 sessions of 1,053 turns",
        licence="CC BY 4.0; the test set must not be redistributed",
        data="github.com/OSU-NLP-Group/MagicBrush names the download (PATH)",
        download="a zip file; outputs of editors are yours (--edits)",
    )
    baseline = None
    scorers: ClassVar[Mapping[str, ScorerSpec]] = {
        "L1": {"l1": {"against": "target"}},
        "L2": {"l2": {"against": "target"}},
        "CLIP-I": {"clip_i": {"checkpoint": CLIP}},
        "DINO": {"dino_i": {"checkpoint": DINO, "against": "target"}},
        "CLIP-T": {"clip_t": {"checkpoint": CLIP}},
    }

    def __init__(self, path: str = "", edits: Mapping[str, Path] | None = None) -> None:
        self.folder = Path(path)
        if not path or not (self.folder / SESSIONS).is_file():
            raise ValueError(
                f"magicbrush {path}: expected a folder with edit_sessions.json; see its download"
            )
        sessions = read_settings_file(self.folder / SESSIONS)
        captions = read_captions(self.folder)
        self.edits = dict(edits or {})
        self.notes: list[str] = []
        self.outputs: list[Output] = []
        for image, turns in sessions.items():
            try:
                for editor in (*self.edits, TARGET, UNCHANGED):
                    self.outputs += outputs_of(editor, image, turns, captions.get(image, {}))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self.outputs = [one for one in self.outputs if one.image != image]
                self.notes.append(f"{SESSIONS}: {image} is left out: {error or type(error).__name__}")
        if not self.outputs:
            raise ValueError(self.notes[0] if self.notes else f"magicbrush {path}: holds no session")

    def rows(self) -> Items:
        return self._items(None)

    def rows_for(self, scorer: str) -> Items:
        """The outputs as the released code brings them to one size; as they are for other scorers."""
        return self._items(scorer if scorer in self.scorers else None)

    def _items(self, view: str | None) -> Items:
        folders = {**self.edits, TARGET: self.folder / "images", UNCHANGED: self.folder / "images"}
        read = partial(_sample, self.folder / "images", folders, self.outputs, view)
        return Items([one.id for one in self.outputs], [one.image for one in self.outputs], read)

    def tables(self, scores: ItemScores, options: Options) -> list[Table]:
        require_compat(options, self.about)
        last = last_turns(self.outputs)
        single = [one for one in self.outputs if not one.turn.startswith("iter")]
        multi = [one for one in self.outputs if last[one.editor, one.image] == one.turn]
        columns = list(map(Column, scores.values))
        tables = []
        for title, outputs in (("All turns (single-turn)", single), ("Final turn (multi-turn)", multi)):
            lines = []
            for editor in dict.fromkeys(one.editor for one in outputs):
                of_editor = [one for one in outputs if one.editor == editor]
                cells = {name: _mean(scores, name, of_editor, options) for name in scores.values}
                lines.append(Line(editor, cells, "baseline" if editor in (TARGET, UNCHANGED) else "measured"))
            for name, values in PUBLISHED[title].items():
                figures = dict(zip(self.scorers, values, strict=True))
                known = {column: value for column, value in figures.items() if column in scores.values}
                if known:
                    lines.append(published(name, SOURCE, **known))
            tables.append(Table(title, columns, lines, self.notes))
        return tables

    def overlap(self, trained_on: Sequence[TrainingData]) -> set[str]:
        """All outputs, if MagicBrush's dev or test split was trained on."""
        on_magicbrush = any(data.name == "magicbrush" and data.split != "train" for data in trained_on)
        return {one.id for one in self.outputs} if on_magicbrush else set()


def _mean(scores: ItemScores, name: str, outputs: Sequence[Output], options: Options) -> Cell:
    values = scores.array(name, [one.id for one in outputs])
    if name in DISTANCES:
        values = 1 - values
    cell = Cell.of(clustered_mean(values, [one.image for one in outputs], options.seed))
    missing = int(np.isnan(values).sum())
    if not missing or cell.reason:
        return cell
    return Cell(cell.value, cell.ci95, cell.n, f"{missing} of {len(values)} outputs have no score")


def _sample(
    images: Path, folders: Mapping[str, Path], outputs: Sequence[Output], view: str | None, index: int
) -> EditSample:
    one = outputs[index]
    name = {TARGET: one.target, UNCHANGED: one.source}.get(one.editor, one.name)
    edited = load_pil(find_image(folders[one.editor], name)).convert("RGB")
    target = load_pil(find_image(images, one.target)).convert("RGB")
    if view is None:
        source = load_pil(find_image(images, one.source))
    else:
        edited, target = seen_by(view, edited, target)
        source = target  # which the scorers do not read: it sets the size
    return EditSample(
        one.id, source, one.instruction, edited, target=target, target_caption=one.caption or None
    )


def seen_by(view: str, edited: Image.Image, target: Image.Image) -> tuple[Image.Image, Image.Image]:
    """The two images as a metric of the released code reads them."""
    if view in DISTANCES:
        return edited.resize(target.size, Image.Resampling.BICUBIC), target
    return _cropped(edited, SHORTER[view]), _cropped(target, SHORTER[view])


def _cropped(image: Image.Image, shorter: int, side: int = 224) -> Image.Image:
    """Resizes the shorter side by bicubic and cuts the middle out, as torchvision does."""
    w, h = image.size
    size = (shorter, int(shorter * h / w)) if w <= h else (int(shorter * w / h), shorter)
    image = image.resize(size, Image.Resampling.BICUBIC)
    left = round((size[0] - side) / 2)
    top = round((size[1] - side) / 2)
    return image.crop((left, top, left + side, top + side))
