"""SEED-Data-Edit Part 2 (Ge et al. 2024): 52,000 edits that people made and explained on the web.

The folder real_editing of "AILab-CVC/SEED-Data-Edit-Part2-3" holds annotations/split_0001.jsonl to
split_0006.jsonl and images/images.tar.gz, which has to be unpacked in place. A line has source_image,
target_image and instruction, as the authors show it for their reader of single edits (SEED-X, issues 13 and
16); images are named relative to images/, as public code that trains on Part 2 reads them. No line of Part 2
itself could be inspected. Part 3, edits in a row, is in `rewardedit.data.sequences`.
"""

from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image, read_lines, read_object, require_text
from rewardedit.untrusted import open_image

WITHIN = ("", "images")
PART = "real_editing"  # Part 2's folder


class SeedRealEdits(Sequence):
    """Rows of Part 2; a line that lacks something is refused when it is read.

    Raises:
        ValueError: if there are no annotations, or on another split than train.
    """

    def __init__(self, path: str, split: str = "train", root: str | None = None) -> None:
        if split != "train":
            raise ValueError(f"split: SEED-Data-Edit Part 2 has only train; got {split!r}")
        self.folder = Path(path) / PART if (Path(path) / PART).is_dir() else Path(path)
        self.lines = read_lines(self.folder, "SEED-Data-Edit Part 2")
        self.images = self.folder if root is None else Path(root)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        name, line = self.lines[index]
        record = read_object(line, name)
        source = find_image(self.images, require_text(record, "source_image", name), WITHIN)
        target = find_image(self.images, require_text(record, "target_image", name), WITHIN)
        instruction = require_text(record, "instruction", name)
        return EditSample(name, open_image(source), instruction, target=open_image(target))

    def id_of(self, index: int) -> str:
        """The name of a row's line, also if it cannot be read."""
        return self.lines[index][0]

    def source_ids(self) -> list[str]:
        """The name of each row's source image; for a line without one, the line's own name."""
        return list(starmap(_source, self.lines))


def _source(name: str, line: str) -> str:
    try:
        return require_text(read_object(line, name), "source_image", name)
    except ValueError:
        return name
