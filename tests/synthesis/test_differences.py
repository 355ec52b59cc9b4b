"""Pairs with differences made of images with boxes: similar images, and inpainted ones."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import (
    DDPMScheduler,
    KandinskyV22InpaintCombinedPipeline,
    PriorTransformer,
    StableDiffusionInpaintPipeline,
    UnCLIPScheduler,
    UNet2DConditionModel,
    VQModel,
)
from transformers import (
    CLIPImageProcessorPil,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

from rewardedit.data.boxed_images import BoxedImage, BoxedObject, read_boxed_images
from rewardedit.images import to_pil, to_tensor
from rewardedit.synthesis.difference_settings import DifferencePairsConfig, InpaintedConfig, SimilarConfig
from rewardedit.synthesis.differences import differences_of, make_pairs, match_images
from rewardedit.synthesis.inpainting import fill, load_inpainter, object_mask, recoloured
from rewardedit.synthesis.methods import MethodConfig, load_method
from tests.models import save_dino, small_tokenizer, text_config, tiny_pipeline

ANY = SimilarConfig(min_similarity=-1.0)


def thing(name: str, *box: float) -> BoxedObject:
    return BoxedObject(name, (box[0], box[1], box[2], box[3]))


def image(name: str, *things: BoxedObject) -> BoxedImage:
    return BoxedImage(name, f"{name}.png", things)


@pytest.fixture(scope="module")
def coco(tmp_path_factory) -> str:
    """Six images of 48 × 32 pixels with two objects each, in COCO's format."""
    folder = tmp_path_factory.mktemp("coco")
    images = []
    annotations = []
    for i in range(6):
        picture = torch.rand(3, 32, 48, generator=torch.Generator().manual_seed(i)) * 0.2 + 0.4
        for left in (6, 30):
            colour = torch.rand(3, 1, 1, generator=torch.Generator().manual_seed(9 * i + left))
            picture[:, 8:24, left : left + 12] = colour
        to_pil(picture).save(folder / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 48, "height": 32})
        for kind, box in ((1, [6, 8, 12, 16]), (2 + i % 3, [30, 8, 12, 16])):
            annotations.append({"id": len(annotations), "image_id": i, "category_id": kind, "bbox": box})
    annotations.append({"id": 99, "image_id": 0, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 1})
    categories = [{"id": i, "name": name} for i, name in enumerate(("", "dog", "red_cup", "cat", "chair"))]
    whole = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(whole))
    return str(folder / "boxes.json")


def test_boxes_are_read_as_shares(coco):
    images = read_boxed_images(Path(coco))
    assert len(images) == 6
    assert images[0].objects == (
        thing("dog", 6 / 48, 8 / 32, 18 / 48, 24 / 32),
        thing("red cup", 30 / 48, 8 / 32, 42 / 48, 24 / 32),
    )


def test_a_broken_record_is_named(tmp_path):
    (tmp_path / "boxes.json").write_text('{"images": [], "annotations": [{"bbox": 3}], "categories": []}')
    with pytest.raises(ValueError, match=r"boxes\.json: expected images, annotations and categories"):
        read_boxed_images(tmp_path / "boxes.json")


def test_classes_and_boxes_make_the_differences():
    first = image(
        "a", thing("dog", 0, 0, 0.5, 0.5), thing("cup", 0.5, 0.5, 1, 1), thing("cat", 0, 0.6, 0.2, 1)
    )
    second = image(
        "b", thing("dog", 0, 0, 0.4, 0.4), thing("vase", 0.5, 0.55, 1, 1), thing("bird", 0.7, 0, 1, 0.2)
    )
    found = differences_of(first, second, ANY)
    assert [(one.command, one.subject) for one in found] == [
        ("EDIT", "cup"),
        ("REMOVE", "cat"),
        ("ADD", "bird"),
    ]
    assert found[0].box == (0.5, 0.5, 1, 1)
    assert differences_of(first, image("c", thing("bird", 0, 0, 1, 1)), ANY) == [], "no class in common"
    few = SimilarConfig(max_other=3)
    assert differences_of(first, second, few) == [], "too many other classes"


def test_the_most_similar_image_that_fits_is_taken_once():
    images = [
        image("a", thing("dog", 0, 0, 1, 1)),
        image("b", thing("dog", 0, 0, 1, 1), thing("cat", 0, 0, 1, 1)),
    ]
    images.append(image("c", thing("dog", 0, 0, 1, 1)))
    features = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0.2], [1, -3]]), dim=1)
    read = torch.ones(3, dtype=torch.bool)
    records = match_images(images, features, read, SimilarConfig())
    assert [record["id"] for record in records] == ["a-b"], "c is unlike both"
    read[1] = False
    assert match_images(images, features, read, SimilarConfig()) == []


def test_similar_images_become_pairs(coco, tmp_path):
    save_dino(str(tmp_path / "dino"))
    similar = SimilarConfig(encoder=str(tmp_path / "dino"), min_similarity=-1.0)
    pairs = make_pairs(DifferencePairsConfig(coco, similar=similar), tmp_path / "pairs", 0.0)
    assert len(pairs) >= 3
    first = pairs[0]
    assert [one.command for one in first.differences] == ["EDIT"], "another object at the same place"
    assert to_tensor(first.source, 3).shape == (3, 32, 48)


def test_objects_are_inpainted(coco, tmp_path):
    config = DifferencePairsConfig(coco, inpainted=InpaintedConfig(edit_share=0.5))
    pairs = make_pairs(config, tmp_path / "pairs", 0.0)
    assert len(pairs) == 6
    for i in range(6):
        (one,) = pairs[i].differences
        source, edited = (to_tensor(picture, 3) for picture in (pairs[i].source, pairs[i].edited))
        changed = ((source - edited).abs() > 0.02).any(0).nonzero()
        x0, y0, x1, y1 = one.box
        assert len(changed)
        assert changed[:, 0].min() >= 32 * y0 - 2
        assert changed[:, 1].max() <= 48 * x1 + 2
        assert changed[:, 0].max() <= 32 * y1 + 2
        assert changed[:, 1].min() >= 48 * x0 - 2
    again = make_pairs(config, tmp_path / "again", 0.0)
    assert [again[i].differences for i in range(6)] == [pairs[i].differences for i in range(6)]


def test_an_unreadable_image_is_counted(coco, tmp_path):
    whole = json.loads(Path(coco).read_text())
    whole["images"][0]["file_name"] = "nowhere.png"
    (tmp_path / "boxes.json").write_text(json.dumps(whole))
    config = DifferencePairsConfig(
        str(tmp_path / "boxes.json"), str(Path(coco).parent), inpainted=InpaintedConfig()
    )
    with pytest.raises(ValueError, match="1 of 6 rows cannot be used"):
        make_pairs(config, tmp_path / "pairs", 0.0)


def test_a_hole_is_filled_from_around():
    picture = torch.zeros(3, 16, 16)
    picture[:, :, 8:] = 1
    mask = torch.zeros(1, 16, 16)
    mask[:, 4:8, 1:5] = 1
    spoiled = torch.where(mask > 0, torch.full_like(picture, 0.7), picture)
    assert (fill(spoiled, mask) - picture).abs().max() < 0.2
    painted = recoloured(spoiled, mask, (0.0, 0.0, 1.0))
    assert torch.equal(painted[:, mask[0] == 0], spoiled[:, mask[0] == 0])
    assert painted[2, 5, 2] > painted[0, 5, 2]
    outline = BoxedObject("x", (0, 0, 1, 1), ((0, 0, 1, 0, 0, 1),))
    assert 0.4 < float(object_mask(outline, 20, 20).mean()) < 0.6, "half of the square"


def test_a_pipeline_inpaints_the_mask_alone(tmp_path):
    parts = {name: part for name, part in tiny_pipeline(9).components.items() if name != "image_encoder"}
    StableDiffusionInpaintPipeline(**parts, requires_safety_checker=False).save_pretrained(tmp_path)
    method = MethodConfig(kind="inpainting", model=str(tmp_path), num_inference_steps=1)
    picture = torch.rand(3, 32, 48)
    mask = torch.zeros(1, 32, 48)
    mask[:, 8:16, 8:16] = 1
    made = load_inpainter(method)(picture, mask, "a dog", 0)
    assert torch.equal(made[:, mask[0] == 0], picture[:, mask[0] == 0])
    assert not torch.equal(made, picture)
    with pytest.raises(ValueError, match="inpainting needs a mask"):
        load_method(method)


def save_kandinsky(folder: Path) -> None:
    """Kandinsky 2.2's parts for inpainting at tiny size, with its eightfold autoencoder."""
    torch.manual_seed(0)
    tokenizer = small_tokenizer(model_max_length=32)
    text = text_config(tokenizer, width=16, layers=1, heads=2, projection_dim=16)
    eye = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        projection_dim=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    prior = PriorTransformer(2, 8, 1, embedding_dim=16, num_embeddings=32, additional_embeddings=4)
    movq = VQModel(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        norm_num_groups=4,
        num_vq_embeddings=8,
        vq_embed_dim=4,
    )
    unet = UNet2DConditionModel(
        in_channels=9,
        out_channels=8,
        addition_embed_type="image",
        block_out_channels=(8, 16),
        cross_attention_dim=16,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        encoder_hid_dim=16,
        encoder_hid_dim_type="image_proj",
        norm_num_groups=4,
        attention_head_dim=8,
        layers_per_block=1,
        resnet_time_scale_shift="scale_shift",
    )
    KandinskyV22InpaintCombinedPipeline(
        unet=unet,
        scheduler=DDPMScheduler(),
        movq=movq,
        prior_prior=prior,
        prior_image_encoder=CLIPVisionModelWithProjection(eye),
        prior_text_encoder=CLIPTextModelWithProjection(text),
        prior_tokenizer=tokenizer,
        prior_scheduler=UnCLIPScheduler(prediction_type="sample", clip_sample_range=5.0),
        prior_image_processor=CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16),
    ).save_pretrained(folder)


def test_photographs_of_any_shape_are_inpainted(tmp_path):
    save_kandinsky(tmp_path)
    inpaint = load_inpainter(MethodConfig(kind="inpainting", model=str(tmp_path), num_inference_steps=1))
    for height, width in ((427, 640), (640, 480), (333, 500)):
        picture = torch.rand(3, height, width)
        mask = torch.zeros(1, height, width)
        mask[:, 100:200, 100:200] = 1
        made = inpaint(picture, mask, "a dog", 0)
        assert torch.equal(made[:, mask[0] == 0], picture[:, mask[0] == 0])
        assert not torch.equal(made, picture)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (SimilarConfig, {"edit_iou": -1.0}, "edit_iou: expected above 0 and at most 1"),
        (SimilarConfig, {"edit_iou": 0.0}, "edit_iou: expected above 0"),
        (SimilarConfig, {"min_similarity": 1.5}, "min_similarity: expected a cosine from -1 to 1; got 1.5"),
        (SimilarConfig, {"batch_size": 0}, "batch_size: expected at least 1; got 0"),
        (SimilarConfig, {"neighbours": 0}, "neighbours: expected at least 1; got 0"),
        (InpaintedConfig, {"edit_share": 1.1}, "edit_share: expected a share from 0 to 1; got 1.1"),
        (InpaintedConfig, {"colour_share": -0.1}, "colour_share: expected a share from 0 to 1"),
        (InpaintedConfig, {"max_area": 2.0}, "max_area: expected a share from 0 to 1; got 2.0"),
        (InpaintedConfig, {"min_area": 0.5}, r"min_area: expected at most max_area, 0\.4; got 0\.5"),
    ],
)
def test_settings_without_sense_are_refused(config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_objects_need_names_that_a_model_can_write(coco, tmp_path):
    config = DifferencePairsConfig(coco, inpainted=InpaintedConfig(edit_share=0.0))
    with pytest.raises(ValueError, match="nothing is left of 'dog' without the model's own tokens"):
        make_pairs(config, tmp_path / "pairs", 0.0, ["dog"])
    whole = json.loads(Path(coco).read_text())
    whole["categories"][1]["name"] = "{}"
    (tmp_path / "boxes.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=r"category 1: expected a name; got '\{\}'"):
        read_boxed_images(tmp_path / "boxes.json")


def test_one_way_to_make_pairs_is_named(coco):
    with pytest.raises(ValueError, match="expected either similar or inpainted"):
        DifferencePairsConfig(coco)
    with pytest.raises(ValueError, match=r"method\.kind: expected inpainting; got editor"):
        InpaintedConfig(MethodConfig(model="x"))
