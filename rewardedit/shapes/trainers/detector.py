"""The small detector of the shapes world: a transformers `OwlViTForObjectDetection` on the small CLIP's
towers, trained on scenes and the names of their objects.

Loss: after OWL-ViT's (Minderer et al. 2022, Sec. 3.2), with Deformable DETR's weights: each object is
matched with the patch whose box and class cost least; matched boxes get an L1 and a generalised-IoU loss, and
a sigmoid focal loss classifies every patch by every name. All names of the world are queries in every image,
so that each image has a few positive and many negative queries.

Its towers remain a CLIP, for BPM's directional similarity: crops of objects learn the names without a size
that fit them, and crops of the background and whole images those of their background, by SigLIP's pairwise
sigmoid loss (Zhai et al. 2023). No name fits a crop that is damaged beyond recognition (`damaged_share`).

Half of the images pass through the editor's autoencoder, and all get random blur, colour shifts or noise, as
edited images are not clean renderings.

Command: rewardedit train shapes/detector
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
from rewardedit.diffusion.editors import load_editor
from rewardedit.files import write_json
from rewardedit.images import resize
from rewardedit.models import pretrained, resolve_model
from rewardedit.regions.boxes import corners, pairwise_iou
from rewardedit.scorers.bpm.terms import crop
from rewardedit.shapes import Shapes
from rewardedit.shapes.detection import measure_detector
from rewardedit.shapes.detection_loss import detection_loss
from rewardedit.shapes.image_defects import add_artifacts, damage
from rewardedit.shapes.objects import (
    BACKGROUND_NAMES,
    NAMES,
    SceneObjects,
    background_names,
    scene_objects,
)
from rewardedit.shapes.vocabulary import SIZE
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

TEXTS = [*NAMES, *BACKGROUND_NAMES]
# indices of the texts that crops learn: those without a size, which a crop does not show
CROPPED = [i for i, text in enumerate(TEXTS) if i >= len(NAMES) or len(text.split()) < 3]
TEXT_TOKENS = 16  # tokens of every name, as in OWL-ViT
CROP_CONTEXT = 1.5  # size of an object's crop relative to its box, as in BPM's code
CROP_WEIGHT = 1.0  # weight of the crops' loss relative to that of detection


@dataclass(frozen=True)
class Config:
    """Data and training of the detector."""

    name: str  # name of the run and of its folder in runs/
    clip: str = "shapes/clip"  # CLIP model whose towers initialise the detector
    editor: str = "shapes/editor"  # editor whose autoencoder reconstructs half of the images
    samples: int = 12_600  # training samples of the shapes world, each with source and target
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # backdrops of successive samples
    crops: int = 40  # crops per step: three quarters objects, an eighth background, an eighth whole images
    damaged_share: float = 0.0  # share of the objects' crops that is damaged beyond recognition
    evaluate_n: int = 560  # validation images
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def ends_last(tokenizer: CLIPTokenizer) -> tuple[CLIPTokenizer, Tensor]:
    """The tokenizer with its two special tokens at the end of the vocabulary, as in CLIP's own, and the old
    index of each token.

    OWL-ViT reads a text's feature at its largest token, and takes texts that begin with token 0 for padding.
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
        ValueError: if the CLIP model is missing.
    """
    try:
        clip = pretrained.load(CLIPModel, resolve_model(config.clip), dtype=torch.float32)
        tokenizer, old = ends_last(pretrained.load(CLIPTokenizer, resolve_model(config.clip)))
    except OSError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"clip {config.clip!r}: {message}; train it first: shapes/clip") from error

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
    model.set_attn_implementation("eager")  # its backward pass is faster than SDPA's on a CPU

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

    # OWL-ViT's own initialisation has standard deviation 1, with which boxes saturate and learn nothing.
    for head in (model.box_head, model.class_head):
        for layer in head.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    # Initially no name is found anywhere: otherwise the loss of the many absent names dominates all else.
    for layer, value in ((model.class_head.logit_scale, 9.0), (model.class_head.logit_shift, -0.5)):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, value)  # 10 × (cosine − 0.5)
    return model, tokenizer


def plan(config: Config) -> list[str]:
    model, _ = make_model(config)
    return [f"detector: {count(model)}, {2 * config.samples} images, {config.train.max_steps} steps"]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves the detector to `folder/detector`; metrics.json holds its accuracy on val, and the
    threshold saved with it is the best there.
    """
    run.start(folder, config, resume, alone=True)
    torch.manual_seed(config.train.seed)
    device = devices.default_device()
    model, tokenizer = make_model(config)
    words = tokenizer(TEXTS, padding="max_length", max_length=TEXT_TOKENS, return_tensors="pt").to(device)
    images, objects, grounds = pictures(config)
    ends = torch.bincount(objects.row, minlength=len(images)).cumsum(0)
    boxes = objects.boxes / SIZE
    pairs = CropPairs()

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(images), (config.train.batch_size,), generator=generator)
        pixels = add_artifacts(images[rows].float() / 255, generator)
        truth = []
        in_pixels = []
        for i in rows.tolist():
            indices = torch.arange(int(ends[i - 1]) if i else 0, int(ends[i]))
            object_names = objects.names[indices]
            truth.append((boxes[indices].to(model.device), object_names.to(model.device)))
            in_pixels.append((boxes[indices] * SIZE, object_names))
        names = text_features(model, words)
        logits, predicted = predict(model, 2 * pixels.to(model.device) - 1, names[: len(NAMES)])
        cut, fits, known = random_crops(
            pixels,
            in_pixels,
            (grounds[0][rows], grounds[1][rows]),
            config.crops,
            generator,
        )
        cut, fits = damage_some(cut, fits, config.damaged_share, generator)
        seen = model.owlvit.get_image_features(pixel_values=2 * cut.to(model.device) - 1).pooler_output
        fits = fits[:, CROPPED].to(model.device)
        known = known[:, CROPPED].to(model.device)
        loss = detection_loss(logits, predicted, truth)
        return loss + CROP_WEIGHT * pairs.loss(seen, names[CROPPED], fits, known)

    fit(config.train, {"owlvit": model, "pairs": pairs}, loss_of, folder, resume)
    out = folder / "detector"
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    OwlViTImageProcessorPil(
        size={"height": SIZE, "width": SIZE}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ).save_pretrained(out)
    write_json(folder / "metrics.json", measure_detector(out, config.evaluate_n))
    return out


def pictures(config: Config) -> tuple[Tensor, SceneObjects, tuple[Tensor, Tensor]]:
    """Sources and targets as bytes (n, 3, 64, 64), every second one from the editor's autoencoder, their
    objects, and the names of their backgrounds (see `background_names`).
    """
    editor = load_editor(config.editor, device=devices.default_device(), dtype=torch.float32)
    world = Shapes(backdrops=config.backdrops)
    images: list[Tensor] = []
    parts: list[SceneObjects] = []
    grounds: list[tuple[Tensor, Tensor]] = []
    for first in range(0, config.samples, 1400):
        batch = world.batch(first, min(1400, config.samples - first))
        for scenes, drawn in ((batch.before, batch.source), (batch.after, batch.target)):
            drawn = drawn.clone()
            for rows in torch.arange(0, len(drawn), 2).split(140):
                drawn[rows] = editor.family.reconstruct(editor.pipe, drawn[rows])
            objects = scene_objects(scenes)
            row = objects.row + sum(map(len, images))
            parts.append(SceneObjects(row, objects.coverage, objects.origin, objects.names))
            images.append((drawn.clamp(0, 1) * 255).round().byte())
            grounds.append(background_names(scenes))
    whole = map(torch.cat, zip(*(vars(objects).values() for objects in parts), strict=True))
    fits, known = map(torch.cat, zip(*grounds, strict=True))
    return torch.cat(images), SceneObjects(*whole), (fits, known)


def text_features(model: Any, words: Any) -> Tensor:
    """Features of names (names, d), of unit length."""
    return F.normalize(model.owlvit.get_text_features(**words).pooler_output, dim=-1)


def predict(model: Any, pixels: Tensor, names: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (b, patches, names) and boxes (b, patches, 4), xyxy in shares of the image, for normalised
    images and names (names, d), which are the same for all images.
    """
    features, _ = model.image_embedder(pixel_values=pixels)
    b, height, width, d = features.shape
    patches = features.reshape(b, height * width, d)
    logits, _ = model.class_predictor(patches, names.expand(b, -1, -1), None)
    return logits.float(), corners(model.box_predictor(patches, features).float())


class CropPairs(nn.Module):
    """SigLIP's loss of crops and names; its scale and bias are discarded after training."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.bias = nn.Parameter(torch.tensor(-5.0))

    def loss(self, seen: Tensor, names: Tensor, fits: Tensor, known: Tensor) -> Tensor:
        """Loss of features of crops (n, d) and names of unit length (m, d); `fits` (n, m) is True for names
        that fit, `known` (n, m) for pairs that count.
        """
        logits = self.scale * F.normalize(seen, dim=-1) @ names.T + self.bias
        error = F.binary_cross_entropy_with_logits(logits.float(), fits.float(), reduction="none")
        return (error * known).sum(1).mean()


def random_crops(
    images: Tensor,
    objects: list[tuple[Tensor, Tensor]],
    grounds: tuple[Tensor, Tensor],
    n: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """About n crops (k, 3, 64, 64) of images in [0, 1]: three quarters show objects, an eighth background
    only, and an eighth are whole images; with them masks (k, texts) of the TEXTS that fit, and of those for
    which this is known: a crop of an object shows some background, and a whole image some objects.

    Args:
        objects: boxes in pixels and names of the objects of each image.
        grounds: result of `background_names` for the images.
    """
    cut: list[Tensor] = []
    named: list[Tensor] = []
    sure: list[Tensor] = []
    none = torch.zeros(len(NAMES), dtype=torch.bool)
    for number in range(n):
        i = int(torch.randint(len(images), (), generator=generator))
        boxes, names = objects[i]
        ground = grounds[0][i]
        ground_known = grounds[1][i]
        shift = torch.rand(4, generator=generator)

        if number % 8 == 4:
            box = torch.tensor([0.0, 0, SIZE, SIZE])
            fits, known = [none, ground], [none, ground_known]
        elif number % 8 and len(boxes):
            k = int(torch.randint(len(boxes), (), generator=generator))
            box = boxes[k] + 3 * shift - 1.5  # about as exact as a detector
            fits, known = [names[k], torch.zeros_like(ground)], [~none, torch.zeros_like(ground_known)]
        else:
            side = 8 + 12 * shift[:1]
            corner = shift[1:3] * (SIZE - side)
            box = torch.cat([corner, corner + side])
            if len(boxes) and pairwise_iou(box[None], boxes).max() > 0:
                continue
            fits, known = [none, ground], [~none, ground_known]

        square = crop(images[i], box.tolist(), CROP_CONTEXT)
        cut.append(resize(square[None], (SIZE, SIZE)))
        named.append(torch.cat(fits))
        sure.append(torch.cat(known))
    return torch.cat(cut), torch.stack(named), torch.stack(sure)


def damage_some(cut: Tensor, fits: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Damages a share of the objects' crops; returns the crops and the TEXTS that fit: none if damaged."""
    of_objects = fits[:, : len(NAMES)].any(1)
    damaged = of_objects & (torch.rand(len(cut), generator=generator) < share)
    return torch.where(damaged[:, None, None, None], damage(cut, generator), cut), fits & ~damaged[:, None]


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the weights."""
    print(f"detector: {train(config, folder, resume)}")
