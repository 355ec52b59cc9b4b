"""Images and texts are checked once, where they enter."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from rewardedit import EditBatch, Scores, load_scorer
from rewardedit.batch import values as batch_values
from rewardedit.files import append_json_line, to_json, write_json
from rewardedit.images import load_mask, to_pil, to_tensor
from rewardedit.images.values import finite_rows
from rewardedit.untrusted import file_name
from tests.models import small


def photo(rows: int = 2) -> torch.Tensor:
    return torch.rand(rows, 3, 12, 16, generator=torch.Generator().manual_seed(0))


def altered(name: str, value: object) -> EditBatch:
    """A batch with another value, behind the back of the type checker that the suite runs under."""
    made = EditBatch(photo(), ["a", "b"], photo(), photo(), photo()[:, :1], ["c", "d"], ["e", "f"])
    object.__setattr__(made, name, value)
    made.__post_init__()
    return made


BYTES = (photo() * 255).round()
WRONG = {
    "bytes": (BYTES.byte(), r"got uint8 \d…25\d; divide by 255"),
    "long integers": (BYTES.long(), r"got int64 \d…25\d; divide by 255"),
    "bytes as floats": (BYTES, r"got [\d.]+…25\d; divide by 255"),
    "-1 to 1": (photo() * 2 - 1, r"got −0\.9\d+…0\.9\d+; map them by \(x \+ 1\) / 2"),
    "a model's input": ((photo() - 0.45) / 0.22, r"got −2\.\d+…2\.\d+; bring them to this range"),
    "booleans": (photo() > 0.5, r"got bool; convert it by .float\(\)"),
    "short labels": ((photo() > 0.5).short(), r"got int16 0…1; convert it by .float\(\)"),
    "no rows": (photo()[:0], "expected "),
    "no pixels": (photo()[..., :0], "expected "),
    "an array": (photo().numpy(), "expected a tensor; got ndarray; collate makes batches of images"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", ["source", "edited", "target"])
def test_a_batch_refuses_images_of_another_type_or_range(name, kind):
    value, message = WRONG[kind]
    with pytest.raises(ValueError, match=rf"^(source|{name}): .*{message}"):
        altered(name, value)


def test_resizing_may_overshoot_and_half_precision_may_round():
    batch = altered("edited", (photo() * 1.16 - 0.08).to(torch.bfloat16))
    assert batch.is_finite == (True, True)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_given_must_be_finite(bad):
    for name in ("source", "target", "mask"):
        value = photo()[:, :1] if name == "mask" else photo()
        value[1, 0, 2, 3] = bad
        with pytest.raises(ValueError, match=f"{name}: expected finite values"):
            altered(name, value)
        with pytest.raises(ValueError, match="expected finite values in"):
            to_tensor(value[1], len(value[1]))
        with pytest.raises(ValueError, match="expected a finite image"):
            to_pil(value[1].expand(3, -1, -1))


@pytest.mark.parametrize("spec", ["l1", "ssim:0.5,l1:2", "clip_d"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_edit_that_overflowed_is_invalid_and_takes_no_other_row_with_it(spec, bad):
    scorer = load_scorer(small(spec))
    brightness = torch.full((), 0.9, requires_grad=True)
    overflow = torch.ones(3)
    overflow[1] = bad
    source = photo(3)
    edited = source.flip(3) * brightness * overflow[:, None, None, None]
    texts = {"source_caption": ["a cat"] * 3, "target_caption": ["a red cat"] * 3}
    batch = EditBatch(source, ["make it red"] * 3, edited, **texts)
    prepared = scorer.prepare(batch.source, batch.instruction)
    scores = scorer(batch, prepared)
    assert scores.valid.tolist() == [True, False, True]
    assert str(scores.reason[1]).startswith("the edited image is not finite")
    assert all(part.isnan().tolist() == [False, True, False] for part in scores.parts.values())
    others = scorer(batch[[0, 2]])
    torch.testing.assert_close(scores.score[[0, 2]], others.score)
    (gradient,) = torch.autograd.grad(scores.mean(), edited)
    assert gradient.isfinite().all()
    assert not gradient[1].any()
    assert gradient[0].any()
    nothing = scorer(batch[[1]])
    assert nothing.valid.tolist() == [False]
    assert nothing.score.isnan().all()


@pytest.mark.parametrize("spec", ["ssim", "clip_d", "vifi_clip", "l2:0.5,clip_d:2"])
def test_what_was_prepared_in_inference_mode_does_for_a_gradient(spec):
    scorer = load_scorer(small(spec))
    with torch.inference_mode():
        source = photo()
        prepared = scorer.prepare(source, ["make it red"] * 2).take([1, 0])
    edited = photo().flip(2).requires_grad_(True)
    texts = {"source_caption": ["a cat"] * 2, "target_caption": ["a red cat"] * 2}
    scores = scorer(EditBatch(source, ["make it red"] * 2, edited, **texts), prepared)
    (gradient,) = torch.autograd.grad(scores.mean(), edited)
    assert gradient.flatten(1).any(1).all()


def test_no_scorer_gives_an_edit_that_overflowed_a_score():
    """One that counts dark pixels takes NaN for bright ones."""
    edited = photo()
    edited[0] = torch.nan
    dark = load_scorer(lambda batch: (batch.edited < 0.5).float().mean((1, 2, 3)))
    assert dark(EditBatch(photo(), ["a", "b"], edited)).valid.tolist() == [False, True]


def test_values_are_looked_at_once(monkeypatch):
    calls = []
    monkeypatch.setattr(batch_values, "finite_rows", lambda *images: calls.append(1) or finite_rows(*images))
    edited = photo().requires_grad_(True)
    made = EditBatch(photo(), ["a", "b"], edited).to("cpu")
    load_scorer("l1")(made[:1])
    load_scorer("ssim:0.5,l1:2")(made)
    assert len(calls) == 1


def test_a_batch_refuses_texts_that_are_none():
    for name in ("instruction", "source_caption", "target_caption"):
        with pytest.raises(ValueError, match=f"{name} of row 1: holds half of a surrogate pair"):
            altered(name, ["ok 😀", "half \ud83d"])
        with pytest.raises(ValueError, match=f"{name} of row 0: expected text; got float"):
            altered(name, [float("nan"), "a"])


def test_a_score_that_is_not_finite_is_invalid():
    scores = Scores.make(
        torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, 2.0]), reason=[None] * 4 + ["why"]
    )
    assert scores.valid.tolist() == [True, False, False, False, False]
    assert scores.reason == [None, *["the score is not finite"] * 3, "why"]
    assert scores.score.isnan().tolist() == [False, True, True, True, True]

    own = Scores(torch.tensor([torch.inf, 1.0]), {}, torch.tensor([True, True]), [None, None])
    assert own.valid.tolist() == [False, True]
    assert own.reason == ["the score is not finite", None]

    def broken(batch: EditBatch) -> torch.Tensor:
        return 1 / torch.arange(float(len(batch)))

    found = load_scorer(broken)(EditBatch(photo(3), ["a"] * 3, photo(3)))
    assert found.valid.tolist() == [False, True, True]


def test_no_json_holds_nan(tmp_path):
    values = {"a": float("nan"), "b": [1.5, (np.float64("inf"), 2)], "c": {"d": -float("inf"), "e": None}}
    clean = {"a": None, "b": [1.5, [None, 2]], "c": {"d": None, "e": None}}
    write_json(tmp_path / "a.json", values)
    append_json_line(tmp_path / "a.jsonl", values)
    for text in (to_json(values), *(path.read_text() for path in tmp_path.iterdir())):
        assert json.loads(text, parse_constant=pytest.fail) == clean


def stored(mode: str, values: np.ndarray) -> Image.Image:
    image = Image.fromarray(values.astype(np.uint8))
    if mode == "P":
        image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0] + [0] * 744 + [224, 224, 192])
    return image if mode in ("L", "P") else image.convert(mode)


@pytest.mark.filterwarnings("ignore:mask. its values")
@pytest.mark.parametrize(
    ("mode", "values"),
    [("L", [0, 1]), ("RGB", [0, 1]), ("L", [0, 20]), ("P", [0, 1]), ("P", [0, 2]), ("P", [0, 255])],
)
def test_labels_are_no_brightness(mode, values, tmp_path):
    """0/1 masks, class numbers, and VOC's palettes, whose colours stand for classes."""
    where = np.zeros((6, 8), int)
    where[1:3, 2:5] = 1
    stored(mode, np.array(values)[where]).save(tmp_path / "mask.png")
    assert torch.equal(load_mask(tmp_path / "mask.png"), torch.from_numpy(where)[None].float())


def test_labels_above_1_are_told(tmp_path):
    Image.fromarray(np.array([[0, 3]], np.uint8)).save(tmp_path / "mask.png")
    with pytest.warns(UserWarning, match="mask: its values up to 3 are read as labels"):
        load_mask(tmp_path / "mask.png")


def test_gray_palettes_and_faint_masks_are_brightness(tmp_path):
    gray = Image.fromarray(np.array([[0, 255, 64]], np.uint8))
    gray.convert("P").save(tmp_path / "gray.png")
    assert load_mask(tmp_path / "gray.png")[0, 0].tolist() == pytest.approx([0, 1, 64 / 255])
    assert not to_tensor(Image.new("L", (2, 2)), 1).any()


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int64, np.bool_, np.uint8, np.int32])
def test_masks_of_booleans_and_labels(kind):
    where = np.array([[0, 1, 0], [1, 1, 0]])
    if isinstance(kind, torch.dtype):
        found = to_tensor(torch.from_numpy(where)[None].to(kind), 1)
        whole = (photo()[:, :1] > 0.5).to(kind)
        assert torch.equal(altered("mask", whole).mask, whole.float())
    else:
        found = to_tensor(where.astype(kind), 1)
    assert found[0].tolist() == where.tolist()
    assert found.dtype == torch.float32


def test_arrays_are_images_too():
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    wanted = to_tensor(Image.fromarray(values), 3)
    assert torch.equal(to_tensor(values, 3), wanted)
    torch.testing.assert_close(to_tensor(values / 255, 3), wanted)
    deep = np.array([[0, 65535]], np.uint16)
    assert to_tensor(deep, 3)[:, 0].tolist() == [[0, 1]] * 3
    for wrong in (
        values.astype(np.float32),
        values.transpose(2, 0, 1),
        values[:0],
        values[..., 0].astype(str),
    ):
        with pytest.raises(ValueError, match="image: expected"):
            to_tensor(wrong, 3)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_whose_range_is_unknown_are_refused(mode):
    with pytest.raises(ValueError, match="whose range is unknown; save it in 8 or 16 bits"):
        to_tensor(Image.new(mode, (3, 2), 1), 3)


def test_any_id_names_a_file_that_lies_in_its_folder():
    ids = [
        "train-0-7",
        "a photo",
        "../x",
        "/etc/passwd",
        "",
        ".",
        ".hidden",
        "a/b",
        "a\\b",
        "é" * 200,
        "half \ud83d",
    ]
    names = [file_name(id) for id in ids]
    assert names[:2] == ids[:2]
    assert len(set(names)) == len(ids)
    for name in names:
        assert name == file_name(name)
        assert len(f"{name}-12-mask.png".encode()) < 255
        assert not name.startswith(".")
        assert not set("/\\") & set(name)
