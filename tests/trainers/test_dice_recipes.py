"""DICE's full-size recipes from their first stage to a scorer, on tiny models (Idefics3, DINO, an inpainting
pipeline) and a few images in COCO's format.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionInpaintPipeline
from safetensors.torch import load_file
from transformers import Idefics3Model

from rewardedit import EditBatch
from rewardedit.cli import main
from rewardedit.images import to_pil
from rewardedit.regions.differences import Difference
from rewardedit.scorers.dice_models import ModelOptions, load_dice
from rewardedit.scorers.dice_vlm import VlmCoherence, VlmDetector
from tests.models import save_dino, save_vlm, tiny_pipeline

SHORT = ["train.max_steps=2", "train.batch_size=2", "train.checkpoint_every=1", "train.mixed_precision=no"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_vlm(str(folder / "idefics3"), "idefics3")
    save_dino(str(folder / "dino"))
    parts = {name: part for name, part in tiny_pipeline(9).components.items() if name != "image_encoder"}
    StableDiffusionInpaintPipeline(**parts, requires_safety_checker=False).save_pretrained(folder / "inpaint")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Six images with two objects each, in COCO's format, and judged differences in that of DICE-D."""
    folder = tmp_path_factory.mktemp("images")
    boxed = []
    annotations = []
    judged = []
    for i in range(6):
        picture = torch.rand(3, 32, 64, generator=torch.Generator().manual_seed(i))
        to_pil(picture).save(folder / f"{i}.png")
        boxed.append({"id": i, "file_name": f"{i}.png", "width": 64, "height": 32})
        for kind, left in ((1, 4), (2 + i % 3, 40)):
            box = [left, 8, 16, 16]
            annotations.append({"id": len(annotations), "image_id": i, "category_id": kind, "bbox": box})
        record = {"original_path": f"{i}.png", "edited_path": f"{(i + 1) % 6}.png", "operation": "ADD"}
        record |= {"bbox": [0.1, 0.1, 0.5, 0.5], "complete_difference": "ADD: dog", "gt_prompt": "add a dog"}
        record |= {"reason": "a dog was asked for."} if i else {}
        judged.append({**record, "coherent": i % 2 == 0})
    names = [{"id": i, "name": name} for i, name in enumerate(("", "dog", "cup", "cat", "chair"))]
    whole = {"images": boxed, "annotations": annotations, "categories": names}
    (folder / "boxes.json").write_text(json.dumps(whole))
    (folder / "judged.json").write_text(json.dumps(judged))
    return folder


@pytest.mark.slow
def test_the_detector_is_trained_in_both_stages(models, images, tmp_path):
    words = [
        *SHORT,
        f"model={models / 'idefics3'}",
        f"pairs.annotations={images / 'boxes.json'}",
        f"pairs.root={images}",
        f"phase-1.pairs.similar={{encoder: {models / 'dino'}, min_similarity: -1.0}}",
        f"phase-2.pairs.inpainted.method.model={models / 'inpaint'}",
        "phase-2.pairs.inpainted.method.num_inference_steps=1",
    ]
    assert main(["train", "dice-detector", *words, "--out", str(tmp_path)]) == 0
    dice = load_dice(str(tmp_path / "phase-2" / "dice"))
    batch = torch.rand(1, 3, 32, 64)
    (detection,) = VlmDetector(dice, max_new_tokens=4).detect(EditBatch(batch, ["x"], batch))
    assert detection.reason is not None, "a random model writes no list"


@pytest.mark.slow
def test_the_estimator_is_trained_on_marked_differences(models, images, tmp_path, monkeypatch):
    encode = Idefics3Model.get_image_features
    carry = []

    def watched(self: Any, *values: Any, **options: Any) -> Any:
        features = encode(self, *values, **options)
        carry.extend(part.requires_grad for part in features.pooler_output)
        return features

    monkeypatch.setattr(Idefics3Model, "get_image_features", watched)
    words = [*SHORT, f"model={models / 'idefics3'}", f"data.coherence.path={images / 'judged.json'}"]
    assert main(["train", "dice-coherence", *words, "--out", str(tmp_path)]) == 0
    dice = load_dice(str(tmp_path / "dice"))
    assert dice.format.rationale
    assert VlmCoherence(dice).dice.format.base == str(models / "idefics3")
    assert carry
    assert not any(carry), "no gradient reaches the frozen tower"


@pytest.mark.slow
def test_phases_on_a_base_in_four_bits(images, tmp_path):
    """A second phase goes on with the first one's LoRA, on the same rounded weights."""
    pytest.importorskip("bitsandbytes")
    save_vlm(str(tmp_path / "model"), "idefics3", width=64)  # bitsandbytes packs rows of 64
    words = [
        *SHORT,
        f"model={tmp_path / 'model'}",
        f"data.coherence.path={images / 'judged.json'}",
        "quantize=4bit",
        "extend_vocabulary=true",
        "answers={prompts: short, decimals: 2, rationale: false}",
        "train.lr=1e-2",
    ]
    folders = [tmp_path / phase / "dice" for phase in ("first", "second")]
    for folder, adapter in zip(folders, ("null", folders[0]), strict=True):
        own = [f"adapter={adapter}", "--out", str(folder.parent)]
        assert main(["train", "dice-coherence", *words, *own]) == 0
    first, second = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert any("embed_tokens" in name for name in first)
    assert any(not torch.equal(second[name], weight) for name, weight in first.items())

    dice = load_dice(str(folders[1]), ModelOptions(quantize="4bit"))
    kinds = {type(module).__name__ for module in dice.vlm.model.model.text_model.layers.modules()}
    assert "Linear4bit" in kinds
    embeddings = dice.vlm.model.get_input_embeddings()
    assert embeddings.weight.shape[0] == len(dice.vlm.processor.tokenizer)
    learned = next(weight for name, weight in second.items() if "embed_tokens" in name)
    torch.testing.assert_close(embeddings.weight.float(), learned.float(), rtol=0, atol=0)
    batch = torch.rand(1, 3, 32, 64)
    difference = Difference("ADD", "dog", (0.1, 0.1, 0.5, 0.5))
    verdicts = VlmCoherence(dice, 4).judge(batch[0], batch[0], "add a dog", [difference])
    assert len(verdicts) == 1
