"""The small CLIP of the shapes world: a transformers `CLIPModel`, trained on images and their captions.

Loss: symmetric InfoNCE over images and captions, where each source is next to its target, so that the hardest
negatives differ by one edit; and the same over directions, target minus source,
which CLIP-D measures.

Command: rewardedit train shapes/clip
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from rewardedit.instructions import join_instructions
from rewardedit.language.texts import tokenize
from rewardedit.reward_prompt import PRESETS
from rewardedit.shapes import Shapes
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

DIRECTION_SCALE = 10.0  # inverse temperature of the directions

VOCABULARY = 1024  # most tokens of the tokenizer


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the CLIP model and its tokenizer."""

    name: str  # name of the run and of its folder in runs/
    width: int = 128  # width of both transformers and of the embedding
    text_layers: int = 3  # transformer layers of the text encoder
    vision_layers: int = 4  # transformer layers of the image encoder
    samples: int = 22_400  # training samples of the shapes world, each with source and target
    backdrops: tuple[str, ...] = ("plain", "plain", "plain", "textured", "photo")  # backgrounds, in turn
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def make_tokenizer(texts: list[str]) -> CLIPTokenizer:
    """A byte-level BPE tokenizer of CLIP's kind, trained on `texts`."""
    characters = sorted(ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(characters)}
    vocab |= {f"{c}</w>": i + len(characters) for i, c in enumerate(characters)}
    vocab |= {"<|startoftext|>": len(vocab), "<|endoftext|>": len(vocab) + 1}
    blank = CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)
    return blank.train_new_from_iterator(texts, vocab_size=VOCABULARY, length=len(texts))


def make_model(config: Config, tokenizer: CLIPTokenizer) -> CLIPModel:
    shared = {
        "hidden_size": config.width,
        "intermediate_size": 3 * config.width,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
    }
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    text = {
        **shared,
        **ids,
        "vocab_size": len(tokenizer),
        "num_hidden_layers": config.text_layers,
        "max_position_embeddings": 77,
    }
    vision = {**shared, "num_hidden_layers": config.vision_layers, "image_size": 64, "patch_size": 8}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=config.width))


def plan(config: Config) -> list[str]:
    tokenizer = make_tokenizer(["a red circle"])
    return [
        f"CLIP: {count(make_model(config, tokenizer))}, {config.samples} pairs, {config.train.max_steps} "
        "steps"
    ]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains tokenizer and model and saves both, with the image processor, to `folder/clip`."""
    run.start(folder, config, resume, alone=True)
    torch.manual_seed(config.train.seed)
    world = Shapes(backdrops=config.backdrops)
    pictures = []
    before = []
    after = []
    instructions = []
    for first in range(0, config.samples, 2800):
        batch = world.batch(first, min(2800, config.samples - first))
        pictures.append((torch.stack([batch.source, batch.target], dim=1) * 255).round().byte())
        before = before + batch.source_caption
        after = after + batch.target_caption
        instructions += batch.instruction
    images = torch.cat(pictures)
    # The tokenizer includes the words of reward prompts, as CLIP's does; no model is trained on them here.
    rewards = []
    for name in ("adiee", "hive"):
        prompt = PRESETS[name]()
        rewards += [prompt.write("", label) for label in range(5)]
    joint = [join_instructions(instructions[i : i + 3]) for i in range(0, min(900, len(instructions)), 3)]
    tokenizer = make_tokenizer(instructions[:8000] + after[:4000] + joint + rewards * 60)
    tokens = tokenize(tokenizer, before + after, tokenizer.model_max_length, "CLIP", padding=True)
    ids = torch.stack(tokens["input_ids"].chunk(2), dim=1)
    mask = torch.stack(tokens["attention_mask"].chunk(2), dim=1)
    model = make_model(config, tokenizer)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(images), (config.train.batch_size,), generator=generator)
        length = int(mask[rows].sum(-1).max())
        pixels = images[rows].flatten(0, 1).to(model.device).float() / 127.5 - 1
        words = ids[rows, :, :length].flatten(0, 1).to(model.device)
        read = mask[rows, :, :length].flatten(0, 1).to(model.device)
        vision = model.get_image_features(pixel_values=pixels)
        text = model.get_text_features(input_ids=words, attention_mask=read)
        seen = F.normalize(vision.pooler_output.float(), dim=-1)
        said = F.normalize(text.pooler_output.float(), dim=-1)
        directions = (F.normalize(v[1::2] - v[::2], dim=-1) for v in (seen, said))
        return info_nce(seen, said, model.logit_scale.exp().clamp(max=100)) + info_nce(
            *directions, torch.tensor(DIRECTION_SCALE)
        )

    fit(config.train, {"clip": model}, loss_of, folder, resume)
    out = folder / "clip"
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    half = [0.5, 0.5, 0.5]
    size = {"height": 64, "width": 64}
    CLIPImageProcessorPil(
        size={"shortest_edge": 64}, crop_size=size, image_mean=half, image_std=half, do_convert_rgb=True
    ).save_pretrained(out)
    return out


def info_nce(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """Symmetric InfoNCE of paired unit vectors (b, d)."""
    logits = scale * a @ b.T
    targets = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the weights."""
    print(f"CLIP: {train(config, folder, resume)}")
