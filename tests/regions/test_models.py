"""Detectors and segmenters of the real classes, small and untrained, against their own processors."""

import json

import numpy as np
import pytest
import torch
import transformers as t
from PIL import Image
from skimage import data
from tokenizers import normalizers

from rewardedit.images import resize, to_pil, to_tensor
from rewardedit.regions.canvas import Canvas
from rewardedit.regions.detector import Detector
from rewardedit.regions.grounded_sam import GroundedSam
from rewardedit.regions.load import load_locator
from rewardedit.regions.sam3 import Sam3
from rewardedit.regions.segmenter import Segmenter
from tests.region_models import DETECTORS, SEGMENTERS, save_detector, save_sam3, save_segmenter

NAMES = ["red circle", "small blue star"]
LEVEL = 1 / 255


@pytest.fixture(scope="module")
def photos() -> torch.Tensor:
    astronaut = to_tensor(Image.fromarray(data.astronaut()), 3)[None]
    chelsea = to_tensor(Image.fromarray(data.chelsea()), 3)[None]
    return torch.cat([resize(image, (60, 90)) for image in (astronaut, chelsea)])


@pytest.fixture(scope="module", params=DETECTORS)
def detector_folder(request, tmp_path_factory) -> tuple[str, str]:
    folder = str(tmp_path_factory.mktemp("detector"))
    save_detector(folder, request.param)
    return folder, request.param


@pytest.fixture(scope="module", params=SEGMENTERS)
def segmenter_folder(request, tmp_path_factory) -> tuple[str, str]:
    folder = str(tmp_path_factory.mktemp("segmenter"))
    save_segmenter(folder, request.param)
    return folder, request.param


def own_processor(folder: str, kind: str):
    images = t.AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    processors = {
        "owlvit": t.OwlViTProcessor,
        "owlv2": t.Owlv2Processor,
        "grounding-dino": t.GroundingDinoProcessor,
    }
    return processors[kind](images, tokenizer)


def test_a_detector_sees_and_finds_what_its_own_processor_would(detector_folder, photos):
    folder, kind = detector_folder
    processor = own_processor(folder, kind)
    pictures = [to_pil(photo) for photo in photos]
    text = [[name] for name in NAMES] if kind != "grounding-dino" else [f"{name}." for name in NAMES]
    padding = True if kind == "grounding-dino" else "max_length"
    inputs = processor(images=pictures, text=text, return_tensors="pt", padding=padding)
    detector = Detector.from_pretrained(folder, threshold=0.0)
    seen = detector.canvas(photos)
    assert seen.shape == inputs["pixel_values"].shape
    difference = (seen - inputs["pixel_values"]).abs().mean() * min(detector.canvas.std)
    assert difference < (6 * LEVEL if kind == "owlv2" else LEVEL)  # OWLv2's resizes with scipy's own blur

    with torch.no_grad():
        out = detector.model(**{**inputs, "pixel_values": seen})
    theirs = processor.post_process_grounded_object_detection(out, threshold=0.0, target_sizes=[(60, 90)] * 2)
    edges = torch.tensor([90.0, 60, 90, 60])
    for (boxes, confidence), expected in zip(detector(photos, NAMES), theirs, strict=True):
        assert len(boxes) >= 1
        assert confidence.tolist() == sorted(confidence.tolist(), reverse=True)
        assert ((boxes >= 0) & (boxes <= edges)).all()
        known = expected["boxes"].clamp_min(0).minimum(edges)
        for box, sure in zip(boxes, confidence, strict=True):
            away = (known - box).abs().amax(1) + (expected["scores"] - sure).abs()
            assert away.min() < 1e-3


def test_boxes_are_in_pixels_of_the_image_whatever_its_aspect(detector_folder, photos):
    canvas = Detector.from_pretrained(detector_folder[0]).canvas
    for h, w in ((60, 90), (90, 60), (48, 48)):
        boxes = torch.tensor([[3.0, 5, w - 7, h - 2]])
        torch.testing.assert_close(canvas.to_image(canvas.to_input(boxes, h, w), h, w), boxes)
        outer = canvas(photos.new_zeros(1, 3, h, w)).shape[-2:]
        assert tuple(outer) == canvas.outer(h, w)
        assert (canvas.to_input(boxes, h, w) <= torch.tensor([outer[1], outer[0]] * 2)).all()


def test_a_batch_finds_what_single_images_do(detector_folder, photos):
    detector = Detector.from_pretrained(detector_folder[0], threshold=0.0)
    together = detector(photos, NAMES)
    for i in range(2):
        (alone,) = detector(photos[i : i + 1], NAMES[i : i + 1])
        torch.testing.assert_close(alone[1][:3], together[i][1][:3], rtol=1e-3, atol=1e-4)


def test_a_threshold_leaves_out_what_is_unsure(detector_folder, photos):
    folder, _ = detector_folder
    every = Detector.from_pretrained(folder, threshold=0.0)(photos, NAMES)
    middle = float(torch.cat([confidence for _, confidence in every]).median())
    kept = Detector.from_pretrained(folder, threshold=middle)(photos, NAMES)
    assert 0 < sum(len(boxes) for boxes, _ in kept) < sum(len(boxes) for boxes, _ in every)
    assert all((confidence >= middle).all() for _, confidence in kept)
    surest = Detector.from_pretrained(folder, threshold=0.0, single=True)(photos, NAMES)
    assert [len(boxes) for boxes, _ in surest] == [1, 1]


def test_a_folder_s_own_threshold_holds_unless_another_is_given(tmp_path, photos):
    save_detector(str(tmp_path), "owlvit")
    assert Detector.from_pretrained(str(tmp_path)).threshold == 0.1
    every = Detector.from_pretrained(str(tmp_path), threshold=0.0)(photos, NAMES)
    middle = float(torch.cat([confidence for _, confidence in every]).median())
    (tmp_path / Detector.SETTINGS).write_text(json.dumps({"threshold": middle}))
    kept = Detector.from_pretrained(str(tmp_path))(photos, NAMES)
    assert 0 < sum(len(boxes) for boxes, _ in kept) < sum(len(boxes) for boxes, _ in every)
    assert Detector.from_pretrained(str(tmp_path), threshold=0.0).threshold == 0


def test_a_name_is_found_in_any_case(detector_folder, photos):
    """Also by a model whose tokenizer tells capitals apart."""
    detector = Detector.from_pretrained(detector_folder[0], threshold=0.0)
    detector.tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([])
    lower, upper = (detector(photos, names) for names in (["a bird", "a tree"], ["A Bird", "A TREE"]))
    for (boxes, _), (others, _) in zip(lower, upper, strict=True):
        assert torch.equal(boxes, others)


def test_what_a_detector_cannot_be_is_refused(segmenter_folder, tmp_path):
    with pytest.raises(ValueError, match="cannot be loaded"):
        Detector.from_pretrained(str(tmp_path))
    save_detector(str(tmp_path), "owlvit")
    with pytest.raises(ValueError, match="from 0 to 1"):
        Detector.from_pretrained(str(tmp_path), threshold=2.0)
    with pytest.raises(ValueError, match="place of the name"):
        Detector.from_pretrained(str(tmp_path), prompt="a photo")
    with pytest.raises(ValueError, match="expected one of sam, sam2; got a owlvit"):
        Segmenter.from_pretrained(str(tmp_path))


def test_a_segmenter_marks_what_its_own_processor_would(segmenter_folder, photos):
    folder, kind = segmenter_folder
    segmenter = Segmenter.from_pretrained(folder)
    boxes = [torch.tensor([[10.0, 10, 40, 50], [50, 5, 85, 30]]), torch.tensor([[0.0, 0, 45, 60]])]
    masks = segmenter(photos, boxes)
    assert [tuple(found.shape) for found in masks] == [(2, 60, 90), (1, 60, 90)]
    assert all(found.flatten(1).any(1).all() for found in masks)
    if kind == "sam2":
        return  # its own processor needs torchvision
    processor = t.SamProcessor(t.AutoImageProcessor.from_pretrained(folder, backend="pil"))
    inputs = processor(to_pil(photos[0]), input_boxes=[boxes[0].tolist()], return_tensors="pt")
    with torch.no_grad():
        out = segmenter.model(**inputs, multimask_output=False)
    theirs = processor.image_processor.post_process_masks(
        out.pred_masks, inputs["original_sizes"], inputs["reshaped_input_sizes"]
    )[0][:, 0]
    assert (masks[0] == theirs).float().mean() > 0.98


def test_an_image_without_boxes_has_no_masks(segmenter_folder, photos):
    segmenter = Segmenter.from_pretrained(segmenter_folder[0])
    none = torch.zeros(0, 4)
    first, second = segmenter(photos, [none, torch.tensor([[10.0, 10, 40, 50]])])
    assert tuple(first.shape) == (0, 60, 90)
    assert tuple(second.shape) == (1, 60, 90)
    assert [len(found) for found in segmenter(photos, [none, none])] == [0, 0]


def test_a_box_in_which_nothing_is_marked_is_its_mask(segmenter_folder, photos):
    segmenter = Segmenter.from_pretrained(segmenter_folder[0])
    decoder = segmenter.model.mask_decoder
    decoder.register_forward_hook(lambda module, args, out: (torch.full_like(out[0], -1.0), *out[1:]))
    (masks,) = segmenter(photos[:1], [torch.tensor([[10.0, 10, 40, 50]])])
    expected = np.zeros((60, 90), dtype=bool)
    expected[10:50, 10:40] = True
    assert (masks[0].numpy() == expected).all()


def test_detector_and_segmenter_are_called_once_for_all_images(tmp_path, photos, monkeypatch):
    save_detector(str(tmp_path / "d"), "owlvit")
    save_segmenter(str(tmp_path / "s"), "sam")
    finder = GroundedSam.from_pretrained(str(tmp_path / "d"), str(tmp_path / "s"), threshold=0.0, single=True)
    calls: list[int] = []
    for module in (finder.detector.model, finder.segmenter.model):
        module.register_forward_hook(lambda *args: calls.append(1))
    found = finder.find(photos, NAMES)
    assert len(calls) == 2
    assert [len(instances) for instances in found] == [1, 1]
    boxes_alone = GroundedSam(finder.detector, None).find(photos, NAMES)
    x0, y0, x1, y1 = boxes_alone[0].boxes[0].tolist()
    assert boxes_alone[0].mask.sum() == pytest.approx((x1 - x0) * (y1 - y0), rel=0.2)


def test_sam3_finds_what_its_own_processor_would(tmp_path, photos):
    save_sam3(str(tmp_path))
    finder = Sam3.from_pretrained(str(tmp_path), threshold=0.0)
    found = finder.find(photos, NAMES)
    # Its own processor needs torchvision; what it does afterwards is restated here.
    tokens = finder.tokenizer(NAMES, padding="max_length", max_length=32, return_tensors="pt")
    with torch.no_grad():
        out = finder.model(pixel_values=finder.canvas(photos), **tokens)
    sure = out.pred_logits.sigmoid() * out.presence_logits.sigmoid()
    edges = torch.tensor([90.0, 60, 90, 60])
    boxes = (out.pred_boxes * edges).clamp_min(0).minimum(edges)
    masks = torch.nn.functional.interpolate(out.pred_masks, (60, 90), mode="bilinear") > 0
    for row, instances in enumerate(found):
        assert 3 <= len(instances) <= 6
        assert instances.confidence.tolist() == sorted(instances.confidence.tolist(), reverse=True)
        for i, confidence in enumerate(instances.confidence):
            place = int((sure[row] - confidence).abs().argmin())
            torch.testing.assert_close(instances.boxes[i], boxes[row, place], rtol=1e-3, atol=1e-2)
            if masks[row, place].any():
                assert (instances.masks[i] == masks[row, place]).float().mean() > 0.95
    kept = Sam3.from_pretrained(str(tmp_path), threshold=float(found[0].confidence[2])).find(photos, NAMES)
    assert len(kept[0]) == 3
    torch.testing.assert_close(kept[0].boxes, found[0].boxes[:3])
    with pytest.raises(ValueError, match="from 0 to 1"):
        Sam3.from_pretrained(str(tmp_path), threshold=-1.0)
    assert load_locator("sam3", checkpoint=str(tmp_path)).finder.threshold == 0.3


def test_other_image_processors_are_refused():
    settings = {"image_processor_type": "X", "size": {"shortest_edge": 4}, "do_center_crop": True}
    with pytest.raises(ValueError, match="does not crop"):
        Canvas.from_config({**settings, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})


def test_sides_follow_the_shorter_one_until_the_longer_is_too_long():
    canvas = Canvas((0.5,) * 3, (0.5,) * 3, shorter=800, longer=1333)
    assert canvas.inner(480, 640) == (800, 1066)
    assert canvas.inner(480, 1600) == (400, 1333)
