import numpy as np
import pytest
import torch
from skimage import data
from transformers import (
    AutoProcessor,
    CLIPModel,
    CLIPTokenizer,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
)

from rewardedit import EditBatch, load_scorer
from rewardedit.images import to_pil
from rewardedit.models import resolve_model
from rewardedit.shapes import Shapes
from tests.models import small_tokenizer


@pytest.fixture(scope="module")
def samples():
    return Shapes("val").batch(0, 8)


def test_clip_d_equals_transformers_with_its_own_processor(samples):
    path = resolve_model("shapes/clip")
    model = CLIPModel.from_pretrained(path, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(path)

    def image(pictures) -> torch.Tensor:
        inputs = processor(images=[to_pil(p) for p in pictures], return_tensors="pt")
        return torch.nn.functional.normalize(model.get_image_features(**inputs).pooler_output, dim=-1)

    def text(texts) -> torch.Tensor:
        inputs = processor(text=texts, return_tensors="pt", padding=True)
        return torch.nn.functional.normalize(model.get_text_features(**inputs).pooler_output, dim=-1)

    with torch.no_grad():
        seen = image(samples.target) - image(samples.source)
        wanted = torch.cosine_similarity(seen, text(samples.target_caption) - text(samples.source_caption))
    batch = EditBatch(
        samples.source,
        samples.instruction,
        samples.target,
        source_caption=samples.source_caption,
        target_caption=samples.target_caption,
    )
    torch.testing.assert_close(
        load_scorer("clip_d", checkpoint="shapes/clip")(batch).score, wanted, rtol=1e-4, atol=1e-4
    )


def test_where_pictures_coincide_it_is_zero_with_zero_gradient(samples):
    edited = samples.source.clone().requires_grad_(True)
    scores = load_scorer("clip_d", checkpoint="shapes/clip")(
        EditBatch(samples.source, samples.instruction, edited)
    )
    scores.mean().backward()
    assert scores.score.tolist() == [0.0] * 8
    assert edited.grad is not None
    assert edited.grad.abs().max() == 0


def test_rows_without_captions_take_the_instruction(samples):
    scorer = load_scorer("clip_d", checkpoint="shapes/clip")
    bare = scorer(EditBatch(samples.source, samples.instruction, samples.target))
    written = scorer(
        EditBatch(
            samples.source,
            ["unused"] * 8,
            samples.target,
            source_caption=[""] * 8,
            target_caption=list(samples.instruction),
        )
    )
    torch.testing.assert_close(bare.score, written.score)


def test_pictures_of_any_size_are_taken():
    scorer = load_scorer("clip_d", checkpoint="shapes/clip")
    photo = torch.rand(1, 3, 50, 80)
    assert scorer(EditBatch(photo, ["make it red"], photo.flip(1))).valid.all()


def test_clip_t_and_clip_i_equal_transformers_with_its_own_processor(samples):
    path = resolve_model("shapes/clip")
    model = CLIPModel.from_pretrained(path, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(path)
    with torch.no_grad():
        text = model.get_text_features(
            **processor(text=samples.target_caption, return_tensors="pt", padding=True)
        )
        edited, target = (
            model.get_image_features(
                **processor(images=[to_pil(p) for p in pictures], return_tensors="pt")
            ).pooler_output
            for pictures in (samples.source, samples.target)
        )
    batch = EditBatch(
        samples.source,
        samples.instruction,
        samples.source,
        samples.target,
        target_caption=samples.target_caption,
    )
    for name, wanted in (("clip_t", text.pooler_output), ("clip_i", target)):
        score = load_scorer(name, checkpoint=path)(batch).score
        torch.testing.assert_close(score, torch.cosine_similarity(edited, wanted), rtol=1e-4, atol=1e-4)


def test_clip_d_may_subtract_raw_features(samples):
    path = resolve_model("shapes/clip")
    model = CLIPModel.from_pretrained(path, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(path)
    with torch.no_grad():
        before, after = (
            model.get_image_features(
                **processor(images=[to_pil(p) for p in pictures], return_tensors="pt")
            ).pooler_output
            for pictures in (samples.source, samples.target)
        )
        start, to = (
            model.get_text_features(**processor(text=texts, return_tensors="pt", padding=True)).pooler_output
            for texts in ([""] * 8, samples.instruction)
        )
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    raw = load_scorer("clip_d", checkpoint="shapes/clip", normalise=False)(batch).score
    torch.testing.assert_close(raw, torch.cosine_similarity(after - before, to - start), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(raw, load_scorer("clip_d", checkpoint="shapes/clip")(batch).score, atol=1e-3)


def test_clip_d_may_take_the_instruction_where_there_are_captions(samples):
    plain = EditBatch(samples.source, samples.instruction, samples.target)
    captions = {"source_caption": samples.source_caption, "target_caption": samples.target_caption}
    captioned = EditBatch(samples.source, samples.instruction, samples.target, **captions)
    wanted = load_scorer("clip_d", checkpoint="shapes/clip")(plain).score
    scorer = load_scorer("clip_d", checkpoint="shapes/clip", text="instruction")
    torch.testing.assert_close(scorer(captioned).score, wanted)
    assert not torch.allclose(
        load_scorer("clip_d", checkpoint="shapes/clip")(captioned).score, wanted, atol=1e-2
    )
    with pytest.raises(ValueError, match="text: expected one of caption, instruction; got 'words'"):
        load_scorer("clip_d", checkpoint="shapes/clip", text="words")


def test_clip_t_takes_the_instruction_where_there_is_no_caption(samples):
    scorer = load_scorer("clip_t", checkpoint="shapes/clip")
    captions = ["", *samples.target_caption[1:]]
    mixed = scorer(
        EditBatch(samples.source, samples.instruction, samples.target, target_caption=captions)
    ).score
    bare = scorer(EditBatch(samples.source, samples.instruction, samples.target)).score
    torch.testing.assert_close(mixed[:1], bare[:1])
    assert not torch.allclose(mixed[1:], bare[1:])


@pytest.fixture(scope="module")
def tiny_siglip(tmp_path_factory) -> str:
    torch.manual_seed(0)
    folder = str(tmp_path_factory.mktemp("siglip"))
    tokenizer = small_tokenizer(model_max_length=64)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 16, "projection_size": 32, **shape}
    vision = {"image_size": 64, "patch_size": 8, **shape}
    SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def test_siglip_equals_transformers_with_its_own_processor(tiny_siglip):
    model = SiglipModel.from_pretrained(tiny_siglip)
    processor = SiglipImageProcessorPil.from_pretrained(tiny_siglip)
    tokenizer = CLIPTokenizer.from_pretrained(tiny_siglip)
    # stretched, not cropped
    photo = torch.from_numpy(data.astronaut()[:300, :400] / np.float32(255)).permute(2, 0, 1)
    photos = photo.expand(2, -1, -1, -1)
    pixels = processor(to_pil(photo), return_tensors="pt").pixel_values
    texts = ["make it red", "a very " + "long " * 40 + "text"]
    tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=16, return_tensors="pt")
    with torch.no_grad():
        image = model.get_image_features(pixels).pooler_output
        text = model.get_text_features(**tokens).pooler_output
    scores = load_scorer("clip_t", checkpoint=tiny_siglip)(EditBatch(photos, texts, photos))
    torch.testing.assert_close(scores.score, torch.cosine_similarity(image, text), rtol=0, atol=5e-3)


def test_a_model_without_texts_is_refused(tiny_dino):
    with pytest.raises(ValueError, match="expected CLIP or SigLIP; got Dinov2Model"):
        load_scorer("clip_t", checkpoint=tiny_dino)
