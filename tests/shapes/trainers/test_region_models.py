"""The small detector and segmenter: what they start from, what they learn from, and their losses."""

import pytest
import torch
from transformers import CLIPModel

from rewardedit.models import resolve_model
from rewardedit.regions.boxes import pairwise_iou
from rewardedit.shapes import Shapes
from rewardedit.shapes.detection import is_right
from rewardedit.shapes.detection_loss import detection_loss, generalised_iou, match
from rewardedit.shapes.image_defects import add_artifacts, bent, damage
from rewardedit.shapes.objects import BACKGROUND_NAMES, NAMES, background_names, scene_objects
from rewardedit.shapes.scenes import CELLS
from rewardedit.shapes.trainers import detector as shapes_detector
from rewardedit.shapes.trainers import segmenter as shapes_segmenter
from rewardedit.shapes.trainers.detector import (
    CropPairs,
    damage_some,
    random_crops,
)
from rewardedit.shapes.trainers.segmenter import jittered, mask_iou, mask_loss
from rewardedit.shapes.vocabulary import BACKGROUNDS
from tests.models import small_tokenizer

pytestmark = pytest.mark.world


@pytest.fixture(scope="module")
def samples():
    return Shapes("val", seed=3).batch(0, 140)


def test_objects_have_their_masks_boxes_and_names(samples):
    objects = scene_objects(samples.after)
    assert objects.row.tolist() == sorted(objects.row.tolist())
    for i, kind in enumerate(samples.edit_type[:70]):
        if kind in ("remove", "background"):
            continue
        name = NAMES.index(" ".join(str(samples.parsed[i].target).split()[-2:]))
        found = ((objects.row == i) & objects.names[:, name]).nonzero().flatten()
        if kind == "resize":  # what is resized may be named by its shape alone
            continue
        assert len(found) == 1, samples.instruction[i]
        assert objects.boxes[found[0]].tolist() == samples.boxes[i, 1].tolist()
        inside = samples.mask[i, 0] > 0
        assert (objects.masks(found)[0] <= inside).all()
    count = samples.after.present.sum() + samples.after.has_inner.sum()
    assert len(objects.row) == count
    assert samples.after.has_inner.any()


def test_a_name_says_what_the_object_is(samples):
    objects = scene_objects(samples.before)
    first = objects.names[0]
    row = int(objects.row[0])
    cell = next(c for c in range(CELLS) if samples.before.present[row, c])
    assert int(first.sum()) == 3  # with size, colour and shape; colour and shape; shape
    words = [NAMES[int(i)] for i in first.nonzero()]
    assert sorted(len(name.split()) for name in words) == [1, 2, 3]
    described = samples.source_caption[row].split(",")[0]
    assert all(word in described for word in max(words, key=len).split())
    assert 0 <= cell < CELLS


def test_the_detector_starts_as_the_small_clip():
    model, tokenizer = shapes_detector.make_model(shapes_detector.Config("x"))
    clip = CLIPModel.from_pretrained(resolve_model("shapes/clip"), dtype=torch.float32).eval()
    before = small_tokenizer()
    model.eval()
    names = ["small red circle", "star"]
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        said = model.owlvit.get_text_features(
            **tokenizer(names, padding="max_length", max_length=16, return_tensors="pt")
        ).pooler_output
        expected = clip.get_text_features(**before(names, padding=True, return_tensors="pt")).pooler_output
        seen = model.owlvit.get_image_features(pixel_values=pixels).pooler_output
        shown = clip.get_image_features(pixel_values=pixels).pooler_output
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(seen, shown, rtol=1e-4, atol=1e-4)
    ids = tokenizer("red circle").input_ids
    assert ids[0] > 0  # 0 would stand for padding
    assert ids[-1] == max(ids) == len(tokenizer) - 1


def test_a_detector_without_its_clip_says_what_to_train(tmp_path):
    with pytest.raises(ValueError, match="train it first: shapes/clip"):
        shapes_detector.make_model(shapes_detector.Config("x", clip=str(tmp_path)))


def test_generalised_iou():
    a = torch.tensor([[0.0, 0, 2, 2], [0, 0, 1, 1], [0, 0, 2, 2]])
    b = torch.tensor([[0.0, 0, 2, 2], [3, 0, 4, 1], [1, 0, 3, 2]])
    # the same; a hull of 4 with 2 empty of it; 2 of 6, in a hull of 6
    assert generalised_iou(a, b).tolist() == pytest.approx([1, -0.5, 2 / 6])


def test_each_object_is_matched_with_its_own_patch():
    boxes = torch.tensor([[0.1, 0.1, 0.3, 0.3], [0.6, 0.6, 0.9, 0.9]])
    names = torch.tensor([[True, False], [False, True]])
    found = torch.tensor([[0.6, 0.6, 0.9, 0.9], [0.0, 0.0, 1.0, 1.0], [0.1, 0.1, 0.3, 0.3]])
    logits = torch.full((3, 2), -5.0)
    patches, objects = match(logits, found, boxes, names)
    assert dict(zip(objects.tolist(), patches.tolist(), strict=True)) == {0: 2, 1: 0}
    # Of two patches with the same box the one that has the right name.
    found[1] = boxes[0]
    logits[1, 0] = 3.0
    patches, objects = match(logits, found, boxes, names)
    assert dict(zip(objects.tolist(), patches.tolist(), strict=True)) == {0: 1, 1: 0}


def test_the_detection_loss_falls_with_either_error():
    boxes = torch.tensor([[0.1, 0.1, 0.3, 0.3]])
    truth = [(boxes, torch.tensor([[True, False]])), (boxes[:0], torch.zeros(0, 2, dtype=torch.bool))]
    found = torch.tensor([[0.1, 0.1, 0.3, 0.3], [0.5, 0.5, 0.8, 0.8]]).repeat(2, 1, 1)
    right = torch.full((2, 2, 2), -8.0)
    right[0, 0, 0] = 8.0
    least = detection_loss(right, found, truth)
    assert least < 0.01
    wrong_name = right.clone()
    wrong_name[0, 0] = torch.tensor([-8.0, 8.0])
    assert detection_loss(wrong_name, found, truth) > least + 1
    seen_where_nothing_is = right.clone()
    seen_where_nothing_is[1, 1, 1] = 8.0
    assert detection_loss(seen_where_nothing_is, found, truth) > least + 1
    assert detection_loss(right, found + 0.1, truth) > least + 0.5


def test_crops_show_objects_or_nothing(samples):
    objects = scene_objects(samples.after)
    per_image = [
        (objects.boxes[objects.row == i], objects.names[objects.row == i]) for i in range(len(samples))
    ]
    grounds = background_names(samples.after)
    generator = torch.Generator().manual_seed(0)
    cut, fits, known = random_crops(samples.target, per_image, grounds, 80, generator)
    assert cut.shape[1:] == (3, 64, 64)
    assert len(cut) == len(fits) == len(known)
    assert not (fits & ~known).any()
    of_objects, of_grounds = fits[:, : len(NAMES)].any(1), known[:, len(NAMES) :].any(1)
    assert (of_objects != of_grounds).all(), "a crop of an object says nothing of the background"
    whole = of_grounds & ~known[:, : len(NAMES)].any(1)
    empty = of_grounds & ~whole
    assert int(whole.sum()) == 10
    assert 2 <= int(empty.sum()) <= 10
    spread = cut.flatten(1).std(1)
    assert spread[of_objects].min() > spread[empty].median()
    for i in torch.cat([whole.nonzero(), empty.nonzero()]).flatten():  # the colour that is said is seen
        (colour,) = fits[i, len(NAMES) + 1 :].nonzero().flatten().tolist()
        corner = cut[i, :, :2, :2].mean((1, 2)) * 255
        assert torch.allclose(corner, torch.tensor(list(BACKGROUNDS.values())[colour]).float(), atol=8)


def test_textures_and_photographs_have_no_colour_of_their_own():
    samples = Shapes("val", backdrops=("plain", "textured", "photo")).batch(0, 21)
    fits, known = background_names(samples.before)
    for caption, own, told in zip(samples.source_caption, fits, known, strict=True):
        said = [name for name in BACKGROUND_NAMES[1:] if f"on a {name}" in caption]
        assert [BACKGROUND_NAMES[i] for i in own.nonzero().flatten()] == ["background", *said]
        assert told.all() if said else told.sum() == 1
    assert len(set(fits.sum(1).tolist())) == 2


def test_a_new_detector_s_boxes_lie_about_their_patches():
    model, tokenizer = shapes_detector.make_model(shapes_detector.Config("x"))
    words = tokenizer(NAMES[:4], padding="max_length", max_length=16, return_tensors="pt")
    with torch.no_grad():
        names = shapes_detector.text_features(model, words)
        _, boxes = shapes_detector.predict(model, torch.rand(2, 3, 64, 64) * 2 - 1, names)
    side = round(boxes.shape[1] ** 0.5)
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2 * side
    line = torch.arange(side) + 0.5
    places = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).flatten(0, 1)
    assert (centres - places).abs().max() < 2.5
    assert (boxes[..., 2:] - boxes[..., :2] > 0.01).all()


def test_a_new_segmenter_tells_places_that_are_far_from_those_that_are_near():
    model = shapes_segmenter.make_model(shapes_segmenter.Config("x"))
    at = torch.tensor([20.0, 20.25, 40.0])
    boxes = torch.stack([at, at, at + 8, at + 8], 1)[None]
    with torch.no_grad():
        prompts = model.prompt_encoder(None, None, boxes, None)[0][0].flatten(1)
    near, far = torch.nn.functional.cosine_similarity(prompts[:1], prompts[1:]).tolist()
    assert near > 0.95
    assert far < near - 0.1


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ([[True, False], [False, True]], True),
        ([[True, True], [False, False]], False),
        ([[True, False]], False),
        ([[True], [True]], False),
    ],
)
def test_an_answer_is_right_where_every_object_has_its_box_and_none_is_left_over(found, right):
    assert is_right(torch.tensor(found)) == right
    assert is_right(torch.zeros(0, 0, dtype=torch.bool))
    assert not is_right(torch.zeros(0, 1, dtype=torch.bool))


def test_crops_learn_the_names_that_fit():
    names = torch.eye(3)
    fits = torch.tensor([[True, False, False], [False, False, False]])
    right = torch.tensor([[9.0, 0, 0], [-1, -1, -1]])
    wrong = torch.tensor([[0.0, 9, 0], [-1, -1, -1]])
    pairs = CropPairs()
    known = torch.ones_like(fits)
    assert pairs.loss(right, names, fits, known) < pairs.loss(wrong, names, fits, known) - 2
    nothing = torch.zeros_like(fits)
    assert pairs.loss(wrong, names, fits, nothing) == 0


def test_the_mask_loss_falls_with_either_error():
    true = torch.zeros(1, 8, 8, dtype=torch.bool)
    true[0, 2:6, 2:6] = True
    right = torch.where(true, 9.0, -9.0)
    said = torch.ones(1)
    least = mask_loss(right, said, true)
    assert least < 0.05
    assert mask_loss(-right, torch.zeros(1), true) > least + 1
    assert mask_loss(right, torch.zeros(1), true) == pytest.approx(float(least) + 1, abs=1e-3)
    assert mask_iou(true, true.roll(2, 2)).tolist() == pytest.approx([8 / 24])


def test_boxes_are_shifted_by_a_share_of_their_sides():
    boxes = torch.tensor([[10.0, 10, 20, 50]]).expand(4000, 4)
    moved = jittered(boxes, 0.1, torch.Generator().manual_seed(0)) - boxes
    assert moved.std(0).tolist() == pytest.approx([1, 4, 1, 4], rel=0.1)
    assert moved.mean(0).abs().max() < 0.2


def test_defects_stay_within_the_image_and_differ():
    images = torch.full((64, 3, 16, 16), 0.5)
    images[:, :, 4:12, 4:12] = 0.9
    made = add_artifacts(images, torch.Generator().manual_seed(0))
    assert ((made >= 0) & (made <= 1)).all()
    assert len({round(float(image.mean()), 4) for image in made}) > 50
    assert (made - images).abs().mean() < 0.08
    again = add_artifacts(images, torch.Generator().manual_seed(0))
    assert torch.equal(made, again)


@pytest.mark.slow
def test_detector_and_segmenter_are_trained_and_saved(tmp_path, monkeypatch):
    """Saved models can be loaded and used."""
    from rewardedit.cli import main
    from rewardedit.regions.grounded_sam import GroundedSam

    monkeypatch.chdir(tmp_path)
    short = [
        "train.max_steps=3",
        "train.batch_size=8",
        "samples=70",
        "evaluate_n=14",
        "train.lr_warmup_steps=1",
    ]
    assert main(["train", "shapes/detector", *short, "crops=4"]) == 0
    assert main(["train", "shapes/segmenter", *short]) == 0
    finder = GroundedSam.from_pretrained("runs/shapes-detector/detector", "runs/shapes-segmenter/segmenter")
    batch = Shapes("val").batch(0, 4)
    found = finder.find(batch.target, ["red circle"] * 4)
    assert len(found) == 4
    assert all(
        float(pairwise_iou(instances.boxes, instances.boxes).max()) == pytest.approx(1)
        for instances in found
        if len(instances)
    )


def test_damage_leaves_little_of_what_an_object_is():
    crops = torch.zeros(400, 3, 32, 32)
    crops[:, 2] = 0.8
    crops[:, :, 8:24, 8:24] = torch.tensor([0.9, 0.1, 0.1])[:, None, None]
    crops[1::2, :, 8:24, 8:24] = torch.tensor([0.1, 0.9, 0.1])[:, None, None]
    made = damage(crops, torch.Generator().manual_seed(0))
    assert ((made >= 0) & (made <= 1)).all()
    assert torch.equal(made, damage(crops, torch.Generator().manual_seed(0)))
    moved = (made - crops).abs().amax(1) > 0.2
    assert moved.flatten(1).any(1).float().mean() > 0.97
    middle = made[:, :, 14:18, 14:18].flatten(2).mean(2)
    red, green = crops[0, :, 16, 16], crops[1, :, 16, 16]
    mixed = (middle - (red + green) / 2).abs().amax(1) < 0.1
    faded = (middle - (crops[:, :, 16, 16] + torch.tensor([0.0, 0.0, 0.8])) / 2).abs().amax(1) < 0.1
    for share in (mixed, faded):
        assert 0.15 < share.float().mean() < 0.35
    shape = (made[:, 2] > 0.5) != (crops[:, 2] > 0.5)  # bent or half erased, of the others
    assert shape[~mixed & ~faded].flatten(1).float().mean(1).median() > 0.04


def test_of_the_crops_of_objects_some_are_damaged_and_fit_no_name():
    cut = torch.rand(200, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    fits = torch.zeros(200, len(shapes_detector.TEXTS), dtype=torch.bool)
    fits[:100, 0] = True  # objects
    fits[100:, -1] = True  # backgrounds
    made, found = damage_some(cut, fits, 0.25, torch.Generator().manual_seed(0))
    changed = (made != cut).flatten(1).any(1)
    assert 10 <= int(changed[:100].sum()) <= 40
    assert not changed[100:].any()
    assert torch.equal(found.any(1), ~changed)
    none, kept = damage_some(cut, fits, 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(none, cut)
    assert torch.equal(kept, fits)


def test_what_is_bent_keeps_its_colours():
    crops = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(1)).repeat_interleave(8, 2)
    crops = crops.repeat_interleave(8, 3)
    made = bent(crops, torch.Generator().manual_seed(0))
    assert (made.amin((2, 3)) >= crops.amin((2, 3)) - 1e-5).all()
    assert (made.amax((2, 3)) <= crops.amax((2, 3)) + 1e-5).all()
    assert (made - crops).abs().mean() > 0.05
