"""Members of .tar files and images of every format that is read, damaged by Hypothesis: a row that cannot be
read has a reason, and the rows beside it are read.

120 cases in the suite, the same each time; 10,000 others in the slow one.
"""

import contextlib
import io
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image, features

from rewardedit.data import DataConfig, open_rows
from rewardedit.data.stream import stream_rows
from rewardedit.images import load_image, load_mask
from tests.test_fuzz import BYTES, check, read_all

FORMATS = ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "JPEG2000", "PPM"]
FORMATS += ["AVIF"] if features.check("avif") else []
FEW = 60  # of each of the two
MANY = 5000
both = pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


@cache
def whole(kind: str, mode: str) -> bytes:
    """A small image of a format, in a mode as near as the format has."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 17, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    out = io.BytesIO()
    try:
        image.save(out, kind)
    except (OSError, ValueError):  # a mode that the format has not
        image.convert("RGB").save(out, kind)
    return out.getvalue()


CHANGES = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 255), st.sampled_from(["set", "cut", "insert", "zero"])),
    min_size=1,
    max_size=6,
)


def damaged(content: bytes, changes: list[tuple[int, int, str]]) -> bytes:
    for place, byte, kind in changes:
        at = place % max(1, len(content))
        if kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + bytes([byte]) * (byte % 9) + content[at:]
        else:
            content = content[:at] + bytes([byte if kind == "set" else 0]) + content[at + 1 :]
    return content


@both
@pytest.mark.filterwarnings("ignore:mask. its values up to")
def test_damaged_images_of_every_format(cases):
    def read(case: Any, folder: Path) -> None:
        kind, mode, changes, load = case
        content = damaged(whole(kind, mode), changes)
        (folder / "a.png").write_bytes(content)
        for file in (folder / "a.png", io.BytesIO(content)):
            with contextlib.suppress(ValueError):
                found = load(file)
                assert found.isfinite().all()
                assert 0 <= found.min() <= found.max() <= 1

    modes = st.sampled_from(["RGB", "L", "RGBA", "P", "CMYK", "1"])
    loads = st.sampled_from([load_image, load_image, load_mask])
    check(cases, st.tuples(st.sampled_from(FORMATS), modes, CHANGES, loads), read)


ENDS = st.sampled_from(
    [
        "source.png",
        "source.PNG",
        "target.jpg",
        "edited.webp",
        "mask.png",
        "json",
        "cls",
        "pyd",
        "pth",
        "npz",
        "mp",
    ]
)
TEXT = json.dumps({"instruction": "make it night"}).encode()
CONTENTS = st.one_of(BYTES, BYTES, st.just(TEXT), st.binary(max_size=20), st.just(b"[" * 9000))
MEMBERS = st.lists(
    st.tuples(st.sampled_from(["a", "a", "b", "x/c", ".d", "e.f", "", "/g"]), ENDS, CONTENTS), max_size=8
)


@both
def test_members_of_tar_files(cases):
    def read(case: Any, folder: Path) -> None:
        members, changes, kind = case
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            good = {"good.source.png": whole("PNG", "RGB"), "good.target.png": whole("PNG", "RGB")}
            everything = [*good.items(), ("good.json", TEXT)]
            everything += [(f"{key}.{end}", content) for key, end, content in members]
            for name, content in everything:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                info.type = kind if name.startswith("b") else tarfile.REGTYPE
                tar.addfile(info, io.BytesIO(content))
        (folder / "train-0.tar").write_bytes(damaged(out.getvalue(), changes or []))
        data = DataConfig("webdataset", str(folder), size=16)
        with contextlib.suppress(ValueError) if changes else contextlib.nullcontext():
            rows = open_rows(data)  # a good row is there
            read_all(rows)
            assert len(list(stream_rows(data))) == len(rows)

    kinds = st.sampled_from(
        [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
    )
    check(cases, st.tuples(MEMBERS, st.one_of(st.none(), CHANGES), kinds), read)
