"""Values of every kind, made up by Hypothesis: images of any type, range and size, NaN, nothing, any text.

Every scorer, best-of-N, editing, relabelling and a table's scoring end with finite scores, with invalid rows
that have a reason, or with one clear ValueError; there is never a NaN that is valid, and no other traceback.
220 cases in the suite, the same each time; 10,000 others in the slow one.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from rewardedit import EditBatch, EditSample, SamplingConfig, Scorer, best_of_n, load_scorer
from rewardedit.batch import Scores
from rewardedit.data import DataConfig
from rewardedit.data.edit_jobs import EditJob
from rewardedit.diffusion.editors import Editor
from rewardedit.editing import EditRunConfig, run_edits
from rewardedit.relabel import RelabelConfig, relabel
from rewardedit.scoring import score_rows
from tests.models import small, tiny_pipeline
from tests.shards import read_shards

CHEAP = ("l1", "l2", "psnr", "ssim", "clip_d:0.7,l1:0.3", "clip_t", "clip_i")  # milliseconds an edit
DEAR = ("vifi_clip", "bpm", "adiee")  # some of the cases
SHARES = {"scorers": 140, "dear": 20, "best_of_n": 20, "edit": 20, "relabel": 20}  # of 220
MANY = 46  # times as many in the slow suite
sizes = pytest.mark.parametrize("times", [1, pytest.param(MANY, marks=pytest.mark.slow)])


def check(name: str, times: int, strategy: Any, property_of: Callable[[Any], None]) -> None:
    @settings(
        max_examples=SHARES[name] * times,
        deadline=None,
        derandomize=times == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Any) -> None:
        property_of(case)

    run()


@contextlib.contextmanager
def one_clear_error() -> Iterator[None]:
    """Lets a ValueError of one sentence pass, and nothing else."""
    try:
        yield
    except ValueError as error:
        is_clear = type(error) is ValueError and 0 < len(str(error)) < 600 and "\n" not in str(error).strip()
        if not is_clear:
            raise AssertionError(f"not one clear sentence: {error!r}") from error


TYPES = ("float32", "float16", "bfloat16", "float64", "uint8", "int64", "bool", "complex64")
RANGES = ("unit",) * 6 + ("bytes", "signed", "normalised", "huge", "zero", "one")
HOLES = (None,) * 5 + ("nan", "inf", "-inf", "all")
TEXT = st.text(st.characters(exclude_categories=()), max_size=40) | st.sampled_from(
    ["make the circle white", "remove the red square", "", " ", "7" * 300, "half \ud83d", "\x00", "❤" * 90]
)
SIDES = st.sampled_from([0, 1, 2, 7, 11, 16, 24, 32, 33])
RARELY_OTHER = st.sampled_from([3] * 15 + [1, 4])  # channels


@st.composite
def tensors(
    draw: st.DrawFn, rows: int, h: int, w: int, channels: int = 3, is_sound: bool = False
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.rand(rows, channels, h, w, generator=generator, dtype=torch.float64)
    if is_sound:
        return values.to(getattr(torch, draw(st.sampled_from(TYPES[:4]))))
    kind = draw(st.sampled_from(RANGES))
    change = {
        "unit": lambda x: x,
        "bytes": lambda x: (x * 255).round(),
        "signed": lambda x: 2 * x - 1,
        "normalised": lambda x: (x - 0.45) / 0.22,
        "huge": lambda x: x * 1e30,
        "zero": torch.zeros_like,
        "one": torch.ones_like,
    }
    values = change[kind](values)
    hole = draw(st.sampled_from(HOLES))
    if hole and values.numel():
        at = slice(None) if hole == "all" else draw(st.integers(0, rows - 1))
        values[at, ..., 0] = float("nan" if hole == "all" else hole)
    dtype = getattr(torch, draw(st.sampled_from(TYPES[:1] * 6 + TYPES)))
    if not dtype.is_floating_point and not dtype.is_complex:
        values = values.nan_to_num(0, 0, 0).clamp(-1e6, 1e6)
    return values.to(dtype)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Batches, half of which have valid images, except for edited images that overflowed."""
    is_sound = draw(st.booleans())
    rows = draw(st.integers(1, 3) if is_sound else st.integers(0, 3))
    h = draw(SIDES) or 11 * is_sound
    w = draw(SIDES) or 11 * is_sound
    wide = draw(st.sampled_from([w] * 9 + [w if is_sound else w + 1]))
    edited = draw(tensors(rows, h, wide, is_sound=is_sound))
    if is_sound and draw(st.booleans()):
        edited[draw(st.integers(0, rows - 1)), 0, 0, 0] = draw(st.sampled_from([torch.nan, torch.inf]))
    texts = st.lists(TEXT, min_size=rows, max_size=rows)
    return {
        "source": draw(tensors(rows, h, w, 3 if is_sound else draw(RARELY_OTHER), is_sound)),
        "edited": edited,
        "instruction": draw(texts),
        "target": draw(st.none() | tensors(rows, h, w, is_sound=is_sound)),
        "mask": draw(st.none() | tensors(rows, h, w, 1, is_sound)),
        "source_caption": draw(st.none() | texts),
        "target_caption": draw(st.none() | texts),
        "gradient": draw(st.booleans()),
    }


def unchecked(**fields: Any) -> EditBatch:
    """A batch, past the type checker that the suite runs under and users do not."""
    batch = object.__new__(EditBatch)
    for name, value in fields.items():
        object.__setattr__(batch, name, value)
    batch.__post_init__()
    return batch


def require_sound(scores: Scores, rows: int) -> None:
    assert scores.score.shape == scores.valid.shape == (rows,)
    assert torch.equal(scores.score.isfinite(), scores.valid)
    assert [not reason for reason in scores.reason] == scores.valid.tolist()


@pytest.fixture(scope="module")
def scorers() -> dict[str, Scorer]:
    return {spec: load_scorer(small(spec)) for spec in (*CHEAP, *DEAR)}


@sizes
@pytest.mark.parametrize(("name", "specs"), [("scorers", CHEAP), ("dear", DEAR)])
def test_every_scorer(name, specs, times, scorers):
    def property_of(case: tuple[str, dict[str, Any]]) -> None:
        spec, fields = case
        scorer = scorers[spec]
        fields = dict(fields)
        gradient = fields.pop("gradient")
        edited = fields["edited"]
        if gradient and edited.is_floating_point():
            edited.requires_grad_(True)
        with one_clear_error():
            scores = scorer(unchecked(**fields))
            require_sound(scores, len(edited))
            if edited.requires_grad:
                (found,) = torch.autograd.grad(scores.mean(), edited, allow_unused=True)
                assert found is None or found.isfinite().all()

    check(name, times, st.tuples(st.sampled_from(specs), batches()), property_of)


class Erratic(Scorer):
    """A scorer of one's own that knows nothing of reasons: dark edits are NaN, bright ones infinite."""

    def score(self, batch: EditBatch, prepared: Any) -> Scores:
        mean = batch.edited.float().mean((1, 2, 3))
        mean = torch.where(mean < 0.3, torch.nan, mean)
        valid = torch.ones(len(batch), dtype=torch.bool)
        return Scores(torch.where(mean > 0.6, torch.inf, mean), {}, valid, [None] * len(batch))


@st.composite
def images(draw: st.DrawFn) -> Any:
    """An image as someone may hand it over."""
    is_sound = draw(st.booleans())
    h = draw(SIDES) or 11 * is_sound
    w = draw(SIDES) or 11 * is_sound
    tensor = draw(tensors(1, h, w, 3 if is_sound else draw(RARELY_OTHER), is_sound))
    form = draw(st.sampled_from(["tensor", "batch", "array", "pil", "list", "path"]))
    if form in ("tensor", "batch"):
        return tensor if form == "batch" else tensor[0]
    if form == "path":
        return draw(st.sampled_from(["nowhere.png", ""]))
    if form == "pil":
        mode = draw(st.sampled_from(["RGB", "L", "1", "P", "RGBA", "I", "F", "I;16", "CMYK"]))
        return Image.new(mode, (w, h), 1)
    array = tensor[0].permute(1, 2, 0)
    array = array.float().numpy() if tensor.dtype == torch.bfloat16 else array.numpy()
    return [array] if form == "list" else array


def of_a_row(image: Any) -> Any:
    """Image of a form that a row allows; other forms are converted or rejected before a row is made."""
    is_rgb = isinstance(image, torch.Tensor) and image.ndim == 3 and image.shape[0] == 3
    fits = isinstance(image, Image.Image) or (is_rgb and image.is_floating_point())
    return image if fits else Image.new("RGB", (9, 9), "red")


@pytest.fixture(scope="module")
def editor() -> Editor:
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return Editor(pipe, SamplingConfig(1))


@sizes
def test_best_of_n(times, editor):
    def property_of(case: tuple[Any, str, int]) -> None:
        image, text, n = case
        with one_clear_error():
            found = best_of_n(editor, Erratic(), image, text, n)
            require_sound(found.scores, n)
            assert found.scores.valid[found.ranking[0]]
            assert found.best.isfinite().all()

    check("best_of_n", times, st.tuples(images(), TEXT, st.integers(0, 3)), property_of)


MODES = st.sampled_from(["RGB", "L", "1", "RGBA", "P", "I;16", "I", "F"])


@sizes
def test_edits_of_files(times, editor, tmp_path):
    scorer = load_scorer("l1")
    config = EditRunConfig("own", SamplingConfig(1), scorer="l1", size=16)
    weights = editor.pipe.vae.decoder.conv_out.bias

    def property_of(case: tuple[str, int, int, str, str, bool]) -> None:
        mode, w, h, text, id, overflows = case
        with tempfile.TemporaryDirectory(dir=tmp_path) as name, torch.no_grad():
            folder = Path(name)
            suffix = "tif" if mode == "F" else "png"
            Image.new(mode, (w, h)).save(folder / f"in.{suffix}")
            kept = weights.clone()
            if overflows:
                weights.fill_(torch.nan)
            job = EditJob(id, folder / f"in.{suffix}", (text,))
            with one_clear_error():
                failed = run_edits(editor, scorer, [job], config, folder / "out")
                assert set(failed) <= {id}
                assert not overflows or failed
                records = list((folder / "out").glob("*.json"))
                assert len(records) == 1 - len(failed)
                for path in records:
                    (turn,) = json.loads(path.read_text(), parse_constant=pytest.fail)["turns"]
                    assert isinstance(turn["score"], float)
                    assert (folder / "out" / turn["image"]).is_file()
            weights.copy_(kept)

    side = st.sampled_from([1, 3, 16, 30])
    ids = st.text(st.characters(exclude_categories=()), min_size=1, max_size=300)
    check("edit", times, st.tuples(MODES, side, side, TEXT, ids, st.booleans()), property_of)


@sizes
def test_relabelling_and_scoring_a_table(times, tmp_path):
    data = DataConfig(name="table", path="rows.csv", size=16)
    config = RelabelConfig(scorer=f"{__name__}:Erratic")

    def property_of(case: list[tuple[Any, Any, str]]) -> None:
        rows = []
        for number, (source, edited, text) in enumerate(case):
            with one_clear_error():
                rows.append(EditSample(str(number), source, text, edited))
        for record in (r for found in score_rows(rows, {"own": Erratic()}, 16) for r in found):
            assert record["valid"] == (record["reason"] is None) == (record["score"] is not None)
            assert record["score"] is None or np.isfinite(record["score"])
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder, one_clear_error():
            found = relabel(config, rows, data, Path(folder))
            assert [label is None for label in found.label] == np.isnan(found.score).tolist()
            assert len(read_shards(Path(folder))) == len(rows)

    image = images().map(of_a_row)
    check("relabel", times, st.lists(st.tuples(image, image, TEXT), max_size=5), property_of)
