"""Walls of images: the versions of each edit side by side, to be sorted, filtered and compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from rewardedit.images import to_pil
from rewardedit.untrusted import file_name

SMALL = 128  # pixels of the longer side up to which images are saved without loss
QUALITY = 90  # of JPEG


@dataclass
class WallImage:
    """One version of an edit: its pixels, which are saved beside the page, or a file that is linked; without
    both, its place stays empty.
    """

    label: str  # name below the image, e.g. "before"
    image: Float[Tensor, "3 h w"] | None = None  # RGB in [0, 1]; NaN is drawn grey
    file: str = ""  # path relative to the page
    thumbnail: str = ""  # a smaller file for the wall; none: `file`
    note: str = ""  # remark below the image, e.g. its score
    best: bool = False

    @property
    def href(self) -> str:
        """A relative address, whatever characters the file's name has."""
        return "./" + quote(self.file)

    @property
    def src(self) -> str:
        """The address of what the wall shows."""
        return "./" + quote(self.thumbnail or self.file)


@dataclass
class WallEdit:
    """One edit on a wall.

    `images` are shown large, those of `strip` small below them, and those of `hidden` only at full size.
    """

    title: str
    images: Sequence[WallImage]
    strip: Sequence[WallImage] = ()
    hidden: Sequence[WallImage] = ()
    kind: str = ""
    gain: float | None = None  # by which the wall is sorted
    change: str = ""  # the gain as text
    tone: str = ""  # its colour, see `tone`
    disagreement: float | None = None
    facts: Sequence[tuple[str, str]] = ()
    commands: Sequence[tuple[str, str]] = ()  # that draw the edit, by what they draw
    columns: Sequence[str] = ()  # columns of the table of scores
    scores: Sequence[tuple[str, Sequence[str]]] = ()
    values: Sequence[Sequence[float | None]] = ()  # by scorer and editor of the wall, to filter and sort by
    id: str = ""  # set by the wall

    @property
    def all_images(self) -> list[WallImage]:
        return [*self.images, *self.strip, *self.hidden]


@dataclass
class Wall:
    """Edits with their images; `left` and `right` are the labels of the two that are compared first."""

    edits: list[WallEdit] = field(default_factory=list)
    left: str = ""
    right: str = ""
    note: str = ""
    kind_name: str = "Kind of edit"
    orders: tuple[str, str] = ("greatest gain", "greatest loss")  # names of the two orders by gain
    editors: Sequence[str] = ()  # labels of images whose scores the edits' `values` are
    scorers: Sequence[str] = ()

    def add(self, edit: WallEdit) -> None:
        edit.id = f"edit-{len(self.edits) + 1}"
        # NaN has no place in an order.
        edit.gain = _finite(edit.gain)
        edit.disagreement = _finite(edit.disagreement)
        self.edits.append(edit)

    @property
    def kinds(self) -> list[str]:
        return sorted({edit.kind for edit in self.edits if edit.kind})

    @property
    def choices(self) -> list[tuple[str, str]]:
        """Orders that the edits have values for, with their names."""
        choices = [("", "order of the data")]
        if self.editors:
            choices += [("high", "highest score"), ("low", "lowest score")]
        if len(self.editors) > 1:
            choices += [("ahead", "largest lead"), ("behind", "smallest lead")]
        if any(edit.gain is not None for edit in self.edits):
            choices += zip(("gain", "loss"), self.orders, strict=True)
        if any(edit.disagreement is not None for edit in self.edits):
            choices.append(("disagreement", "disagreement of scorers"))
        return choices

    def extremes(self) -> list[tuple[str, WallEdit]]:
        """The edits of greatest gain and of greatest loss, each with what it is; without gains, the first."""
        ranked = [edit for edit in self.edits if edit.gain]
        ranked.sort(key=lambda edit: edit.gain or 0.0, reverse=True)
        if not ranked:
            return [("", edit) for edit in self.edits[:1]]
        gain, loss = self.orders
        ends = [(gain, ranked[0])] if ranked[0].tone == "better" else []
        return [*ends, (loss, ranked[-1])] if ranked[-1].tone == "worse" else ends

    @property
    def has_images(self) -> bool:
        images = chain.from_iterable(edit.all_images for edit in self.edits)
        return any(one.image is not None for one in images)

    def save_images(self, folder: Path, name: str, prefix: str) -> None:
        """Writes the images into `folder`, which the page will find as `name`."""
        digits = len(str(len(self.edits)))
        for number, edit in enumerate(self.edits, 1):
            for one in edit.all_images:
                if one.image is not None:
                    stem = f"{prefix}{number:0{digits}}-{file_name(one.label)}"
                    one.file = f"{name}/{save_image(one.image, folder / stem).name}"


def save_image(image: Float[Tensor, "3 h w"] | Image.Image, stem: Path) -> Path:
    """Saves an image as JPEG, or a small one as PNG, and returns its path."""
    drawn = image if isinstance(image, Image.Image) else to_pil(image.detach().float().cpu().nan_to_num(0.5))
    is_small = max(drawn.size) <= SMALL
    path = stem.with_name(stem.name + (".png" if is_small else ".jpg"))
    drawn.save(path, "PNG" if is_small else "JPEG", quality=QUALITY)
    return path


def tone(change: float | None) -> str:
    """The name of the colour of a change: "better", "worse", or "" for none."""
    if change is None or not math.isfinite(change) or change == 0:
        return ""
    return "better" if change > 0 else "worse"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
