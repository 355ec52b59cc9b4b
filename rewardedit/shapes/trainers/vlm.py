"""The small vision-language model of the shapes world, which stands for a pretrained one: a transformers
`LlavaNextForConditionalGeneration` with the small CLIP's vision tower.

It learns to answer questions about one or two images, and sees no score: the caption of an image; the caption
of the second of two images; the instruction that leads from the first to the second, in free words or as one
of two; the caption of the unseen image that an instruction makes of a given one; and which of several
instructions was followed. The vision tower is frozen; projector and language model are trained on the
answers' tokens. CLIP's patches encode colours and places well and shapes badly: a later training uses the
tower of the small detector, which was trained from the same CLIP (`tower`).

Command: rewardedit train shapes/vlm
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rewardedit import devices
from rewardedit.diffusion.editors import load_editor
from rewardedit.files import replaced, write_json
from rewardedit.language.vlm import Vlm, load_vlm
from rewardedit.shapes import Shapes
from rewardedit.shapes.image_defects import add_artifacts
from rewardedit.shapes.vlm_architecture import deepen, detector_tower, fresh_vlm, vision_of
from rewardedit.shapes.vlm_tasks import (
    QUESTIONS,
    Task,
    answer_logits,
    instructions_of,
    likelihood,
    make_examples,
    match_logits,
    match_loss,
    negative_instructions,
    replace_some_by_source,
    sample_phrasing,
)
from rewardedit.shapes.vocabulary import EDIT_TYPES
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

SAME_KIND = len(EDIT_TYPES)  # a draw of the world with the same sources and kinds of edit, but other edits


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the model."""

    name: str  # name of the run and of its folder in runs/
    clip: str = "shapes/clip"  # CLIP model whose vision tower and tokenizer are used
    # editor whose images the model learns to read: its autoencoder reconstructs half of the images, and in
    # training all get random blur, colour shifts or noise; None: clean renderings only
    editor: str | None = None
    init_from: str | None = None  # model of this trainer to train further; None: a fresh language model
    tasks: tuple[Task, ...] = (
        "caption",
        "choice",
        "second_caption",
        "instruction",
        "result",
    )  # tasks of successive steps
    match_size: int = 8  # pairs of images per step of the task match, each with several instructions
    vary_phrasing: bool = False  # true: the task match varies its questions and answers
    # share of word swaps in the task match that swap a shape, if there is one: shapes are learned last
    shape_swap_share: float = 0.0
    # detector of the trainer shapes_detector, trained from the same CLIP, whose vision tower replaces that of
    # the start model; None: the start model's tower stays
    vision_tower: str | None = None
    width: int = 160  # width of the language model
    layers: int = 4  # layers of the language model; layers beyond those of the start model are added on top
    samples: int = 42_000  # training samples of the shapes world, each a source, a target and an instruction
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # backdrops of successive samples
    evaluate_n: int = 280  # validation samples
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def make_vlm(config: Config) -> Vlm:
    """The model to train, and its processor: with CLIP's vision tower and a fresh language model, or the
    start model.

    Raises:
        ValueError: if the CLIP model, or the start model, is missing.
    """
    if config.init_from is None:
        vlm = fresh_vlm(config.clip, config.width, config.layers)
    else:
        vlm = load_initial_vlm(config.init_from, config)
    vlm.model.set_attn_implementation("eager")  # its backward pass is faster than SDPA's on a CPU
    return vlm


def load_initial_vlm(start: str, config: Config) -> Vlm:
    """A saved model, with more layers and another vision tower if the recipe says so."""
    vlm = load_vlm(start)
    deepen(vlm.model, config.layers)
    if config.vision_tower is not None:
        vision_of(vlm.model).load_state_dict(detector_tower(config.vision_tower))
    vlm.model.train().requires_grad_(True)
    return vlm


def plan(config: Config) -> list[str]:
    return [
        f"vision-language model: {count(make_vlm(config).model)}, {config.samples} samples, "
        f"{config.train.max_steps} steps"
    ]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves in fp16 to `folder/vlm`; metrics.json holds the share of right answers on val,
    by task, with each token predicted after the true ones.
    """
    run.start(folder, config, resume, alone=True)
    spent = run.minutes_spent(folder)
    torch.manual_seed(config.train.seed)
    vlm = make_vlm(config)
    vlm.model.to(devices.default_device())
    vlm.model.model.vision_tower.requires_grad_(False)
    samples = _samples(config, "train", config.samples)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        if step % config.train.checkpoint_every == 0:
            spent()
        task = config.tasks[step % len(config.tasks)]
        size = (config.match_size if task == "match" else config.train.batch_size,)
        rows = torch.randint(len(samples["instruction"]), size, generator=generator).tolist()
        if task == "match":
            images, followed = replace_some_by_source(samples["images"][rows].float() / 255, generator)
            instructions = instructions_of(samples, rows, generator, config.shape_swap_share)
            how = sample_phrasing(generator) if config.vary_phrasing else ()
            return match_loss(*match_logits(vlm, seen(images, generator), instructions, *how), followed)
        images, questions, texts = make_examples(samples, rows, task, generator)
        logits, wanted, _ = answer_logits(vlm, seen(images, generator), questions, texts)
        return F.cross_entropy(logits, wanted)

    def seen(images: Tensor, generator: torch.Generator) -> Tensor:
        """The images, with defects as in edited images if an editor is set."""
        if config.editor is None:
            return images
        return add_artifacts(images.flatten(0, 1), generator).unflatten(0, images.shape[:2])

    fit(config.train, {"vlm": vlm.model}, loss_of, folder, resume)
    vlm.model.half()
    out = folder / "vlm"
    with replaced(out) as aside:
        vlm.model.save_pretrained(aside)
        vlm.processor.save_pretrained(aside)
    vlm.model.float()  # the saved fp16 values, in fp32
    right = right_answers(vlm, config)
    write_json(folder / "metrics.json", {"n": config.evaluate_n, "right": right, "minutes": spent()})
    return out


def _samples(config: Config, split: str, n: int) -> dict[str, Any]:
    """Images as bytes (n, 2, 3, 64, 64), source and target, with captions, instructions, and for each source
    another instruction of the same kind, or None if its result is the same.
    """
    world = Shapes(split, backdrops=config.backdrops)
    again = Shapes(split, backdrops=config.backdrops, draw=SAME_KIND)
    images: list[Tensor] = []
    texts: dict[str, list] = {name: [] for name in ("instruction", "source_caption", "target_caption")}
    others: list[str | None] = []
    editor = None if config.editor is None else load_editor(config.editor, device=devices.default_device())
    for first in range(0, n, 2800):
        batch = world.batch(first, min(2800, n - first))
        pair = torch.stack([batch.source, batch.target], dim=1)
        if editor is not None:  # reconstructs in four rows: the source, the target, both, none
            for place, begins in ((0, (1, 2)), (1, (2, 3))):
                of_four = [i for i in range(len(pair)) if i % 4 in begins]
                for rows in torch.tensor(of_four, dtype=torch.long).split(140):
                    pair[rows, place] = editor.family.reconstruct(editor.pipe, pair[rows, place]).cpu()
        images.append((pair.clamp(0, 1) * 255).round().byte())
        for name, values in texts.items():
            values += getattr(batch, name)
        second = again.batch(first, len(batch))
        differs = (second.target != batch.target).flatten(1).any(1).tolist()
        others += [text if known else None for text, known in zip(second.instruction, differs, strict=True)]
    return {"images": torch.cat(images), **texts, "other_instruction": others}


@torch.no_grad()
def right_answers(vlm: Vlm, config: Config) -> dict[str, float]:
    """Share of the tokens of val's answers that are the likeliest, by task; for choices and matches, the
    share in which the right instruction is likelier than a wrong one for the same source, and in "altered"
    than itself with a word swapped.
    """
    samples = _samples(config, "val", config.evaluate_n)
    generator = torch.Generator().manual_seed(0)
    shares = {}
    altered: list[Tensor] = []

    for task in QUESTIONS:
        right: list[Tensor] = []
        for indices in torch.arange(config.evaluate_n).split(56):
            rows = indices.tolist()

            if task == "match":
                images = samples["images"][rows].float() / 255
                odds, _ = match_logits(vlm, images, instructions_of(samples, rows, generator))
                right.append((odds[:, 0] > odds[:, 1]).float())
                altered.append((odds[:, :1] > odds[:, 2:4]).float().flatten())
                continue

            images, questions, texts = make_examples(samples, rows, task, generator)
            if task != "choice":
                logits, wanted, _ = answer_logits(vlm, images, questions, texts)
                right.append((logits.argmax(1) == wanted).float())
                continue

            others = negative_instructions(samples, rows, [True] * len(rows))
            questions = [QUESTIONS[task].format(*pair) for pair in zip(texts, others, strict=True)]
            true_likelihood = likelihood(*answer_logits(vlm, images, questions, texts))
            other = likelihood(*answer_logits(vlm, images, questions, others))
            right.append((true_likelihood > other).float())
        shares[task] = float(torch.cat(right).mean())
    return {**shares, "altered": float(torch.cat(altered).mean())}


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the model."""
    print(f"vision-language model: {train(config, folder, resume)}")
