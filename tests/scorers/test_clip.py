import pytest
import torch
from transformers import AutoProcessor, CLIPModel

from rewardedit import EditBatch, load_scorer
from rewardedit.assets import resolve
from rewardedit.data.shapes import Shapes
from rewardedit.images import to_pil


@pytest.fixture(scope="module")
def samples():
    return Shapes("val").batch(0, 8)


def test_clip_d_equals_transformers_with_its_own_processor(samples):
    path = resolve("shapes-clip")
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
    torch.testing.assert_close(load_scorer("clip_d")(batch).score, wanted, rtol=1e-4, atol=1e-4)


def test_where_pictures_coincide_it_is_zero_with_zero_gradient(samples):
    edited = samples.source.clone().requires_grad_(True)
    scores = load_scorer("clip_d")(EditBatch(samples.source, samples.instruction, edited))
    scores.mean().backward()
    assert scores.score.tolist() == [0.0] * 8
    assert edited.grad is not None
    assert edited.grad.abs().max() == 0


def test_rows_without_captions_take_the_instruction(samples):
    scorer = load_scorer("clip_d")
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
    scorer = load_scorer("clip_d")
    photo = torch.rand(1, 3, 50, 80)
    assert scorer(EditBatch(photo, ["make it red"], photo.flip(1))).valid.all()
