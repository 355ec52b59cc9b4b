"""The small vision-language model of the shapes world, which stands for a pretrained one: a transformers
`LlavaNextForConditionalGeneration` with the small CLIP's vision tower.

It learns to answer questions about one image or two, and sees no score: the caption of an image; the caption
of the second image of two; the instruction that leads from the first to the second. The vision tower stays as
it is; projector and language model are trained on the answers' tokens.

Command: rewardedit train shapes-vlm
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers.decoders import BPEDecoder
from torch import Tensor
from transformers import (
    CLIPModel,
    CLIPTokenizer,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    PreTrainedTokenizerFast,
)

from rewardedit import devices
from rewardedit.assets import resolve_model
from rewardedit.data.shapes import Shapes
from rewardedit.data.shapes.vocabulary import SIZE
from rewardedit.files import replaced, write_json
from rewardedit.scorers.vlm import Vlm
from rewardedit.training import run
from rewardedit.training.small import SmallTrainConfig, count, fit

IMAGE = "<image>"
CHAT = (
    "{% for turn in messages %}{% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% if turn['role'] == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} :{% endif %}"
)
TASKS = ("what is in this image?", "what is in the second image?", "what was changed?")
FURTHER = '0123456789?:"'  # characters of prompts and answers
CONTEXT = 512  # tokens, of which an image has about 140


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the model."""

    name: str  # of the run, and of its folder in runs/
    clip: str = "shapes-clip"  # whose vision tower and tokenizer it has
    width: int = 160  # of the language model
    layers: int = 4  # of the language model
    samples: int = 42_000  # of the shapes world, each a source, a target and an instruction
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # of the samples in turn
    evaluate_n: int = 280  # val samples
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def make_vlm(config: Config) -> Vlm:
    """The model with CLIP's vision tower and a fresh language model, and its processor.

    Raises:
        ValueError: where the CLIP model is not there.
    """
    try:
        clip = CLIPModel.from_pretrained(resolve_model(config.clip), dtype=torch.float32)
        known = CLIPTokenizer.from_pretrained(resolve_model(config.clip))
    except OSError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"clip {config.clip!r}: {message}; train it first: shapes-clip") from error
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=known.backend_tokenizer,
        eos_token=known.eos_token,
        pad_token=known.eos_token,
        model_max_length=CONTEXT,
    )
    tokenizer.backend_tokenizer.decoder = BPEDecoder(suffix="</w>")  # CLIP's own class does it in Python
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    # CLIP's texts have none of these: they would all be the token that ends a text.
    tokenizer.add_tokens(list(FURTHER))
    tokenizer.chat_template = CHAT
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        intermediate_size=3 * config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    grid = [[SIZE, SIZE], [SIZE, 2 * SIZE]]  # one image, or two side by side
    model = LlavaNextForConditionalGeneration(
        LlavaNextConfig(
            vision_config=clip.config.vision_config,
            text_config=text,
            image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
            image_grid_pinpoints=grid,
            vision_feature_layer=-1,
            projector_hidden_act="gelu",
        )
    )
    tower = model.model.vision_tower
    inner = getattr(tower, "vision_model", tower)
    inner.load_state_dict(clip.vision_model.state_dict())
    half = [0.5, 0.5, 0.5]
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_grid_pinpoints=grid,
        image_mean=half,
        image_std=half,
    )
    processor = LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=clip.config.vision_config.patch_size,
        vision_feature_select_strategy="default",
        chat_template=CHAT,
        num_additional_image_tokens=1,
    )
    model.set_attn_implementation("eager")  # whose backward pass is faster than SDPA's on a CPU
    return Vlm(model, processor)


def plan(config: Config) -> list[str]:
    return [
        f"vision-language model: {count(make_vlm(config).model)}, {config.samples} samples, "
        f"{config.train.max_steps} steps"
    ]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves in fp16 to `folder/vlm`; metrics.json says what share of val's answers' tokens are
    right, by task, each after the true ones before it.
    """
    run.start(folder, config, resume)
    spent = run.minutes_spent(folder)
    torch.manual_seed(config.train.seed)
    vlm = make_vlm(config)
    vlm.model.to(devices.default_device())
    vlm.model.model.vision_tower.requires_grad_(False)
    samples = _samples(config, "train", config.samples)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        if step % config.train.checkpoint_every == 0:
            spent()
        b = config.train.batch_size
        task = step % len(TASKS)
        rows = torch.randint(len(samples["instruction"]), (b,), generator=generator)
        logits, wanted = answers(vlm, samples, rows, task, generator)
        return F.cross_entropy(logits, wanted)

    fit(config.train, {"vlm": vlm.model}, loss_of, folder, resume)
    vlm.model.half()
    out = folder / "vlm"
    with replaced(out) as aside:
        vlm.model.save_pretrained(aside)
        vlm.processor.save_pretrained(aside)
    vlm.model.float()  # with the values that are saved
    right = right_tokens(vlm, config)
    write_json(folder / "metrics.json", {"n": config.evaluate_n, "right_tokens": right, "minutes": spent()})
    return out


def _samples(config: Config, split: str, n: int) -> dict[str, Any]:
    """Images as bytes (n, 2, 3, 64, 64), source and target, with captions and instructions."""
    world = Shapes(split, backdrops=config.backdrops)
    images: list[Tensor] = []
    texts: dict[str, list[str]] = {name: [] for name in ("instruction", "source_caption", "target_caption")}
    for first in range(0, n, 2800):
        batch = world.batch(first, min(2800, n - first))
        pair = torch.stack([batch.source, batch.target], dim=1)
        images.append((pair * 255).round().byte())
        for name, values in texts.items():
            values += getattr(batch, name)
    return {"images": torch.cat(images), **texts}


def answers(
    vlm: Vlm, samples: dict[str, Any], rows: Tensor, task: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Logits (tokens, words) of the answers of some rows, and the tokens that are wanted.

    Task 0 shows one image, source or target in turn; the others both.
    """
    images = samples["images"][rows].float() / 255
    said = {0: "source_caption", 1: "target_caption", 2: "instruction"}[task]
    texts = [samples[said][i] for i in rows.tolist()]
    if task == 0:
        second = torch.rand(len(rows), generator=generator) < 0.5
        images = torch.where(second[:, None, None, None], images[:, 1], images[:, 0])[:, None]
        texts = [
            samples["target_caption"][i] if late else text
            for i, late, text in zip(rows.tolist(), second.tolist(), texts, strict=True)
        ]
    shown: list[dict[str, str]] = [{"type": "image"} for _ in range(images.shape[1])]
    question = [{"role": "user", "content": [*shown, {"type": "text", "text": TASKS[task]}]}]
    prompt = vlm.prompt(question)
    end = vlm.processor.tokenizer.eos_token
    inputs = vlm.inputs([f"{prompt} {text}{end}" for text in texts], images, padding_side="right")
    ids = inputs["input_ids"]
    mask = inputs.pop("attention_mask")  # padding comes last: nothing sees it
    asked = vlm.inputs([prompt], images[:1], padding_side="right")["input_ids"].shape[1]
    wanted = (torch.arange(ids.shape[1], device=ids.device) >= asked) & (mask > 0)
    hidden = vlm.model.model(**inputs, use_cache=False).last_hidden_state
    logits = vlm.model.lm_head(hidden[:, :-1][wanted[:, 1:]])
    return logits.float(), ids[:, 1:][wanted[:, 1:]]


@torch.no_grad()
def right_tokens(vlm: Vlm, config: Config) -> dict[str, float]:
    """The share of val's tokens that are the likeliest, by task."""
    samples = _samples(config, "val", config.evaluate_n)
    generator = torch.Generator().manual_seed(0)
    found = {}
    for task, name in enumerate(("caption", "second_caption", "instruction")):
        right: list[Tensor] = []
        for rows in torch.arange(config.evaluate_n).split(56):
            logits, wanted = answers(vlm, samples, rows, task, generator)
            right.append((logits.argmax(1) == wanted).float())
        found[name] = float(torch.cat(right).mean())
    return found


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the model is."""
    print(f"vision-language model: {train(config, folder, resume)}")
