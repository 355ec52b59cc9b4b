"""The small detector of the shapes world: a transformers `OwlViTForObjectDetection` on the small CLIP's
towers, trained on scenes and the names of their objects.

Loss: after OWL-ViT's (Minderer et al. 2022, Sec. 3.2), with Deformable DETR's weights: each object is
matched with the patch whose box and class cost least; matched boxes get an L1 and a generalised-IoU loss, and
a sigmoid focal loss says of every patch and every name whether that is what stands there. All names of the
world are asked for in every image, so that each image holds what it is asked for and much that it is not.

Its towers stay a CLIP, for BPM's directional similarity: crops of objects learn the names without a size that
fit them, and crops of the background none, by SigLIP's pairwise sigmoid loss (Zhai et al. 2023).

Half of the images go through the editor's autoencoder, and all are blurred, shifted in colour or noisy at
random, as edited images are no clean renderings.

Command: rewardedit train shapes-detector
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    CLIPModel,
    CLIPTokenizer,
    OwlViTConfig,
    OwlViTForObjectDetection,
    OwlViTImageProcessorPil,
)

from rewardedit import devices
from rewardedit.assets import resolve_model
from rewardedit.data.shapes import Shapes
from rewardedit.data.shapes.objects import NAMES, SceneObjects, scene_objects
from rewardedit.data.shapes.vocabulary import SIZE
from rewardedit.diffusion.editors import load_editor
from rewardedit.files import write_json
from rewardedit.images import resize
from rewardedit.regions.boxes import corners, pairwise_iou
from rewardedit.regions.detector import Detector
from rewardedit.scorers.bpm_parts import crop
from rewardedit.training import run
from rewardedit.training.detection_loss import detection_loss
from rewardedit.training.image_defects import spoil
from rewardedit.training.small import SmallTrainConfig, count, fit

UNSIZED = [i for i, name in enumerate(NAMES) if len(name.split()) < 3]  # a crop does not show a size
TEXT_TOKENS = 16  # of every name, as OWL-ViT's
CROP_CONTEXT = 1.5  # how much larger than its box an object is cut out, as BPM's code does it
CROP_WEIGHT = 1.0  # of the loss of crops beside that of detection
FOUND = 0.5  # IoU from which a box is that of an object


@dataclass(frozen=True)
class Config:
    """Data and training of the detector."""

    name: str  # of the run, and of its folder in runs/
    clip: str = "shapes-clip"  # the CLIP whose towers it starts with
    editor: str = "shapes-editor"  # whose autoencoder half of the images go through
    samples: int = 12_600  # of the shapes world, each with source and target
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # of the samples in turn
    crops: int = 32  # a step, a quarter of them of the background
    evaluate_n: int = 560  # val images
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def ends_last(tokenizer: CLIPTokenizer) -> tuple[CLIPTokenizer, Tensor]:
    """The tokenizer with its two special tokens at the end of the vocabulary, where CLIP's own has them, and
    the place in the old vocabulary that each token had.

    OWL-ViT takes a text's feature at its largest token, and a text that begins with token 0 for padding.
    """
    import json

    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    special = [tokenizer.bos_token, tokenizer.eos_token]
    words = sorted(state["vocab"], key=state["vocab"].__getitem__)
    ordered = [word for word in words if word not in special] + special
    old = torch.tensor([state["vocab"][word] for word in ordered])
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in state["merges"]]
    vocab = {word: i for i, word in enumerate(ordered)}
    made = CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=TEXT_TOKENS, pad_token=special[1])
    return made, old


def make_model(config: Config) -> tuple[OwlViTForObjectDetection, CLIPTokenizer]:
    """OWL-ViT with CLIP's towers and fresh heads, and its tokenizer.

    Raises:
        ValueError: where the CLIP model is not there.
    """
    try:
        clip = CLIPModel.from_pretrained(resolve_model(config.clip), dtype=torch.float32)
        tokenizer, old = ends_last(CLIPTokenizer.from_pretrained(resolve_model(config.clip)))
    except OSError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"clip {config.clip!r}: {message}; train it first: shapes-clip") from error
    text = clip.config.text_config.to_dict() | {
        "max_position_embeddings": TEXT_TOKENS,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    kept = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act")
    text = {key: text[key] for key in (*kept, "max_position_embeddings", "vocab_size")} | {
        key: text[key] for key in text if key.endswith("_token_id")
    }
    seen = clip.config.vision_config.to_dict()
    vision = {key: seen[key] for key in (*kept, "image_size", "patch_size")}
    model = OwlViTForObjectDetection(
        OwlViTConfig(text_config=text, vision_config=vision, projection_dim=clip.config.projection_dim)
    )
    weights = clip.state_dict()
    words = "text_model.embeddings.token_embedding.weight"
    places = "text_model.embeddings.position_embedding.weight"
    weights[words] = weights[words][old]
    weights[places] = weights[places][:TEXT_TOKENS]
    # The two classes name one layer differently, and OWL-ViT counts no positions among its weights.
    renamed = {name.replace("pre_layrnorm", "pre_layernorm"): value for name, value in weights.items()}
    left = model.owlvit.load_state_dict(renamed, strict=False)
    missing = [name for name in left.missing_keys if "position_ids" not in name]
    if missing or left.unexpected_keys:
        raise ValueError(f"clip {config.clip!r}: its weights do not fit OWL-ViT: {missing or left}")
    # Names stand nowhere, at first: otherwise the loss of the many that are not there drowns all else.
    for layer, value in ((model.class_head.logit_scale, 9.0), (model.class_head.logit_shift, -0.5)):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, value)  # 10 × (cosine − 0.5)
    return model, tokenizer


def plan(config: Config) -> list[str]:
    model, _ = make_model(config)
    return [f"detector: {count(model)}, {2 * config.samples} images, {config.train.max_steps} steps"]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves the detector to `folder/detector`; metrics.json says how much it finds on val, and the
    threshold that is saved with it is the best there.
    """
    run.start(folder, config, resume)
    torch.manual_seed(config.train.seed)
    device = devices.default_device()
    model, tokenizer = make_model(config)
    words = tokenizer(NAMES, padding="max_length", max_length=TEXT_TOKENS, return_tensors="pt").to(device)
    images, objects = pictures(config)
    ends = torch.bincount(objects.row, minlength=len(images)).cumsum(0)
    boxes = objects.boxes / SIZE
    pairs = CropPairs()

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(images), (config.train.batch_size,), generator=generator)
        pixels = spoil(images[rows].float() / 255, generator)
        of_rows = [torch.arange(int(ends[i - 1]) if i else 0, int(ends[i])) for i in rows.tolist()]
        truth = [(boxes[of].to(model.device), objects.names[of].to(model.device)) for of in of_rows]
        names = text_features(model, words)
        logits, found = predict(model, 2 * pixels.to(model.device) - 1, names)
        cut, named = random_crops(
            pixels, [(boxes[of] * SIZE, objects.names[of]) for of in of_rows], config.crops, generator
        )
        seen = model.owlvit.get_image_features(pixel_values=2 * cut.to(model.device) - 1).pooler_output
        loss = detection_loss(logits, found, truth)
        return loss + CROP_WEIGHT * pairs.loss(seen, names[UNSIZED], named.to(model.device)[:, UNSIZED])

    fit(config.train, {"owlvit": model, "pairs": pairs}, loss_of, folder, resume)
    out = folder / "detector"
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    OwlViTImageProcessorPil(
        size={"height": SIZE, "width": SIZE}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ).save_pretrained(out)
    write_json(folder / "metrics.json", evaluate(out, config.evaluate_n))
    return out


def pictures(config: Config) -> tuple[Tensor, SceneObjects]:
    """Sources and targets as bytes (n, 3, 64, 64), every second one from the editor's autoencoder, and their
    objects.
    """
    editor = load_editor(config.editor, device=devices.default_device(), dtype=torch.float32)
    world = Shapes(backdrops=config.backdrops)
    images: list[Tensor] = []
    parts: list[SceneObjects] = []
    for first in range(0, config.samples, 1400):
        batch = world.batch(first, min(1400, config.samples - first))
        for scenes, drawn in ((batch.before, batch.source), (batch.after, batch.target)):
            drawn = drawn.clone()
            for rows in torch.arange(0, len(drawn), 2).split(140):
                drawn[rows] = editor.family.reconstruct(editor.pipe, drawn[rows])
            found = scene_objects(scenes)
            row = found.row + sum(map(len, images))
            parts.append(SceneObjects(row, found.coverage, found.origin, found.names))
            images.append((drawn.clamp(0, 1) * 255).round().byte())
    whole = [
        torch.cat([getattr(part, name) for part in parts]) for name in ("row", "coverage", "origin", "names")
    ]
    return torch.cat(images), SceneObjects(*whole)


def text_features(model: Any, words: Any) -> Tensor:
    """(names, d), of unit length."""
    return F.normalize(model.owlvit.get_text_features(**words).pooler_output, dim=-1)


def predict(model: Any, pixels: Tensor, names: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (b, patches, names) and boxes (b, patches, 4), xyxy in shares of the image, of normalised
    images, for names (names, d) that are the same for all of them.
    """
    features, _ = model.image_embedder(pixel_values=pixels)
    b, height, width, d = features.shape
    patches = features.reshape(b, height * width, d)
    logits, _ = model.class_predictor(patches, names.expand(b, -1, -1), None)
    return logits.float(), corners(model.box_predictor(patches, features).float())


class CropPairs(nn.Module):
    """SigLIP's loss of crops and names; its scale and bias are thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.bias = nn.Parameter(torch.tensor(-5.0))

    def loss(self, seen: Tensor, names: Tensor, fits: Tensor) -> Tensor:
        """Of features of crops (n, d), names of unit length (m, d) and which of them fit, (n, m)."""
        logits = self.scale * F.normalize(seen, dim=-1) @ names.T + self.bias
        error = F.binary_cross_entropy_with_logits(logits.float(), fits.float(), reduction="none")
        return error.sum(1).mean()


def random_crops(
    images: Tensor, objects: list[tuple[Tensor, Tensor]], n: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """About n crops (k, 3, 64, 64) of images in [0, 1], three quarters of them of their objects and the
    others of places where none is, and which of all names fit each (k, names).

    Args:
        objects: of each image the boxes of its objects in pixels, and their names.
    """
    cut: list[Tensor] = []
    named: list[Tensor] = []
    for number in range(n):
        i = int(torch.randint(len(images), (), generator=generator))
        boxes, names = objects[i]
        shift = torch.rand(4, generator=generator)
        if number % 4 and len(boxes):
            k = int(torch.randint(len(boxes), (), generator=generator))
            box = boxes[k] + 3 * shift - 1.5  # about as exact as a detector
            fits = names[k]
        else:
            side = 8 + 12 * shift[:1]
            corner = shift[1:3] * (SIZE - side)
            box = torch.cat([corner, corner + side])
            if len(boxes) and pairwise_iou(box[None], boxes).max() > 0:
                continue
            fits = torch.zeros(len(NAMES), dtype=torch.bool)
        square = crop(images[i], box.tolist(), CROP_CONTEXT)
        cut.append(resize(square[None], (SIZE, SIZE)))
        named.append(fits)
    return torch.cat(cut), torch.stack(named)


def evaluate(folder: Path, n: int) -> dict[str, Any]:
    """What the saved detector finds in val's targets when it is asked for each object by colour and shape,
    and for as many that are not there; the threshold at which most of both are right is saved with it.
    """
    samples = Shapes("val", backdrops=("plain", "plain", "textured", "photo")).batch(0, n)
    objects = scene_objects(samples.after)
    generator = torch.Generator().manual_seed(0)
    # "red circle", and a name of the same kind that no object of the image has.
    plain = torch.tensor([len(name.split()) == 2 for name in NAMES])
    asked: list[tuple[int, str, Tensor | None]] = []
    for i, box in enumerate(objects.boxes):
        row = int(objects.row[i])
        absent = plain & ~objects.names[objects.row == row].any(0)
        wrong = int(torch.multinomial(absent.float(), 1, generator=generator))
        asked.append((row, NAMES[int((objects.names[i] & plain).nonzero()[0])], box))
        asked.append((row, NAMES[wrong], None))
    detector = Detector.from_pretrained(str(folder), threshold=0.0, single=True).to(devices.default_device())
    sure: list[float] = []
    overlaps: list[float] = []
    for first in range(0, len(asked), 280):
        part = asked[first : first + 280]
        images = samples.target[[row for row, _, _ in part]].to(devices.default_device())
        for (boxes, confidence), (_, _, box) in zip(
            detector(images, [n for _, n, _ in part]), part, strict=True
        ):
            sure.append(float(confidence[0]))
            overlaps.append(0.0 if box is None else float(pairwise_iou(boxes[:1].cpu(), box[None])))
    confidence = torch.tensor(sure)
    there = torch.tensor([box is not None for _, _, box in asked])
    right = torch.tensor(overlaps) >= FOUND
    grid = torch.arange(0.02, 0.9, 0.02)
    rates = [
        float(torch.where(there, right & (confidence >= t), confidence < t).float().mean()) for t in grid
    ]
    best = max(range(len(grid)), key=rates.__getitem__)
    threshold = round(float(grid[best]), 2)
    write_json(folder / Detector.SETTINGS, {"threshold": threshold})
    return {
        "n": len(asked) // 2,
        "threshold": threshold,
        "found": float((right & (confidence >= threshold))[there].float().mean()),
        "not_seen_where_absent": float((confidence < threshold)[~there].float().mean()),
        "mean_iou_of_found": float(torch.tensor(overlaps)[there & right].mean()),
    }


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the weights are."""
    print(f"detector: {train(config, folder, resume)}")
