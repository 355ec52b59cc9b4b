"""The small editor of the shapes world: a stock `StableDiffusionInstructPix2PixPipeline` from scratch.

Three legs, because on two cores the usual one alone does not learn to find the object in question:
1. The text encoder, started from the small CLIP's, learns to read: linear heads on its last token name the
parsed
   instruction (kind, old and new object, size, place, background) and every word of the prompt.
2. The UNet learns the mean edit: at the last time step alone, where its input is pure noise, and from right
targets. 3. It learns to denoise at every step, on data of mixed quality, as InstructPix2Pix's was: right,
untouched, half-done,
   over-done and wrong targets in stated shares. A third of each batch stays at the last time step, and where
   the latents of a pair differ, errors weigh more until the end comes near.

The UNet predicts the sample itself. Most of an edited image is its source, which stands in the UNet's input,
so that it can be carried over as it is at every step; a velocity would have to hold the noise too, and with
as few weights as these its errors add up: trained alike,
three steps of right targets rated 2.6 with velocities and 4.4 with samples.

With `unasked: source` a row whose text is dropped has its source as target: without an instruction the editor
leaves the image as it is, and that is where guidance starts from. InstructPix2Pix keeps the edited image
there. In half of the prompts random words follow the instruction after a full stop, so that later text,
whatever it says, neither hides the instruction nor goes unread. The UNet also gets the text through its time
embedding (`addition_embed_type="text"`), which stock pipelines support. It never sees reward text.

Command: rewardedit train shapes-editor
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPModel, CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from rewardedit import devices
from rewardedit.assets import resolve_model
from rewardedit.data.shapes import MIXED, Shapes, candidates
from rewardedit.data.shapes.language import ParsedEdit
from rewardedit.data.shapes.vocabulary import BACKGROUNDS, COLOURS, EDIT_TYPES, PLACES, SHAPES, SIZES
from rewardedit.diffusion.editors import EditConfig, Editor, save_editor
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.noising import conditioning_dropout
from rewardedit.evaluation.by_edit_type import rating_by_edit_type
from rewardedit.files import write_json
from rewardedit.training import run
from rewardedit.training.small import LossOf, SmallTrainConfig, count, fit

CHANGED = 0.5  # distance of scaled latents from which a place counts as edited
WORDS_WEIGHT = 0.2  # of the words' error beside that of the parsed instruction
ANSWERS = (7, 9, 7, 9, 7, 4, 7, 10, 3)  # classes of each answer of `_label`


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the editor."""

    name: str  # of the run, and of its folder in runs/
    vae: str = "runs/shapes-autoencoder-2/vae"  # folder of the trained autoencoder
    clip: str = "shapes-clip"  # the CLIP whose text encoder the editor starts with
    channels: tuple[int, ...] = (64, 128)  # of each level of the UNet
    tokens: int = 48  # the longest prompt
    samples: int = 56_000  # of the shapes world, each a source with an edit of some quality
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # of the samples in turn
    # of each quality among the samples' edits
    shares: dict[str, float] = field(default_factory=lambda: dict(MIXED))
    right: int = 28_000  # of the samples, how many the second leg sees with their right targets
    text_lr: tuple[float, ...] = (3e-4, 2e-4)  # of the text encoder: second, third leg
    conditioning_dropout: float = 0.05  # share of rows whose text is dropped
    null_text_target: Literal["edited", "source"] = "edited"  # what a row is to become whose text is dropped
    tail: float = 0.5  # share of prompts with random words after the instruction
    last: float = 1 / 3  # of the third leg's rows, how many stay at the last time step
    # how much more errors weigh where the pair differs: second, third leg
    changed_weight: tuple[float, ...] = (4.0, 2.0)
    # sampling settings that are saved with the editor
    ask: EditConfig = field(default_factory=lambda: EditConfig(2, 1.4, 1.0))
    evaluate_n: int = 560  # test edits a backdrop
    # first leg: the text encoder learns to read instructions
    read: SmallTrainConfig = field(default_factory=SmallTrainConfig)
    # second leg: the UNet learns the mean edit
    mean_edit: SmallTrainConfig = field(default_factory=SmallTrainConfig)
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # third leg: the UNet learns to denoise


def make_unet(config: Config, text_width: int) -> UNet2DConditionModel:
    n = len(config.channels)
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=8,
        out_channels=4,
        down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * (n - 1)),
        up_block_types=(*("CrossAttnUpBlock2D",) * (n - 1), "UpBlock2D"),
        block_out_channels=config.channels,
        layers_per_block=1,
        cross_attention_dim=text_width,
        attention_head_dim=tuple(c // 32 for c in config.channels),
        norm_num_groups=16,
        addition_embed_type="text",
        addition_embed_type_num_heads=8,
        resnet_time_scale_shift="scale_shift",
    )


def make_pipeline(config: Config) -> Any:
    """The pipeline with a trained autoencoder, CLIP's text encoder and a fresh UNet.

    Raises:
        ValueError: where the autoencoder or CLIP model is not there.
    """
    try:
        vae = AutoencoderKL.from_pretrained(config.vae)
        clip = CLIPModel.from_pretrained(resolve_model(config.clip), dtype=torch.float32)
        tokenizer = CLIPTokenizer.from_pretrained(resolve_model(config.clip), model_max_length=config.tokens)
    except OSError as error:
        raise ValueError(
            f"vae {config.vae!r}, clip {config.clip!r}: {str(error).splitlines()[0]}; train them first"
        ) from error
    text_encoder = CLIPTextModel(CLIPTextConfig(**clip.config.text_config.to_dict()))
    text_encoder.load_state_dict(clip.text_model.state_dict())
    scheduler = DDIMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        clip_sample=False,  # latents are not confined to ±1
        set_alpha_to_one=False,
        prediction_type="sample",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
    )
    return StableDiffusionInstructPix2PixPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=make_unet(config, text_encoder.config.hidden_size),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def plan(config: Config) -> list[str]:
    pipe = make_pipeline(config)
    parts = ", ".join(f"{name} {count(getattr(pipe, name))}" for name in ("vae", "text_encoder", "unet"))
    steps = " + ".join(str(leg.max_steps) for leg in (config.read, config.mean_edit, config.train))
    return [f"editor: {parts}; {config.samples} pairs, {steps} steps"]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains UNet and text encoder, saves fp16 weights to `folder/pipeline` and a table by kind to
    metrics.json.
    """
    run.start(folder, config, resume)
    torch.manual_seed(config.train.seed)
    pipe = make_pipeline(config).to(devices.default_device())
    source, edited, right, instructions, parsed = _latents(config, pipe)
    # The VAE's latents are brought to unit variance, as the noise schedule expects.
    scale = 1 / float(edited.std())
    pipe.vae.register_to_config(scaling_factor=scale)
    pipe.vae.requires_grad_(False)
    tokens = pipe.tokenizer(
        [*instructions, ""], padding="max_length", truncation=True, return_tensors="pt"
    ).input_ids

    family = family_of(pipe)
    unet = pipe.unet.to(memory_format=torch.channels_last)
    text_encoder = pipe.text_encoder
    scheduler = pipe.scheduler
    tails = Tails(pipe.tokenizer, config.tail)
    learn_to_read(config.read, text_encoder, tokens[: config.right], parsed, tails, folder / "read", resume)
    predict = torch.compile(unet) if config.train.compile else unet
    last = scheduler.config.num_train_timesteps - 1

    def loss_of(leg: SmallTrainConfig, targets: Tensor, changed_weight: float, mean_only: bool) -> LossOf:
        def loss(step: int, generator: torch.Generator) -> Tensor:
            b = leg.batch_size
            rows = torch.randint(len(targets), (b,), generator=generator)
            # high noise more often: that is where the edit is decided
            late = torch.rand(b, generator=generator).sqrt()
            times = (late * (last + 1)).long()
            times[torch.rand(b, generator=generator) < (1.0 if mean_only else config.last)] = last
            noise = torch.randn(b, *targets.shape[1:], generator=generator)
            share = 0.0 if mean_only else config.conditioning_dropout
            no_text, no_image = conditioning_dropout(torch.rand(b, generator=generator), share)
            words = torch.where(no_text[:, None], tokens[-1], tails(tokens[rows], generator))
            image = source[rows] * (~no_image)[:, None, None, None]
            null_text_target = (no_text & ~no_image & (config.null_text_target == "source"))[
                :, None, None, None
            ]
            latents = torch.where(null_text_target, source[rows], targets[rows]) * scale
            changed = ((latents - source[rows] * scale).norm(dim=1, keepdim=True) > CHANGED).float()
            fading = min(1.0, max(0.0, (0.9 - step / leg.max_steps) / 0.3))
            weight = 1 + changed_weight * fading * changed
            # Everything is drawn and chosen on the CPU, the same on every device; one batch goes to the
            # models' own.
            inputs = (tensor.to(unet.device) for tensor in (latents, image, noise, times, weight, words))
            latents, image, noise, times, weight, words = inputs
            embeds = text_encoder(words).last_hidden_state
            cond = Conditioning(embeds, image)
            return family.loss(predict, scheduler, latents, noise, times, cond, weight=weight).mean()

        return loss

    # Three legs: reading, the mean edit at the last time step, then all time steps.
    modules = {"unet": unet, "text_encoder": text_encoder}
    first, second = config.changed_weight
    lrs = [{"text_encoder": lr} for lr in config.text_lr]
    fit(
        config.mean_edit,
        modules,
        loss_of(config.mean_edit, right, first, True),
        folder / "mean_edit",
        resume,
        lrs[0],
    )
    fit(config.train, modules, loss_of(config.train, edited, second, False), folder, resume, lrs[1])

    pipe.set_progress_bar_config(disable=True)
    editor = Editor(pipe, config.ask)
    write_json(
        folder / "metrics.json",
        {"n": config.evaluate_n, "oracle": rating_by_edit_type(editor, config.evaluate_n)},
    )
    pipe.to(dtype=torch.float16)
    save_editor(dataclasses.replace(editor, pipe=pipe), folder / "pipeline")
    return folder / "pipeline"


class Tails:
    """Random words of the tokenizer's, put after an instruction and a full stop."""

    def __init__(self, tokenizer: CLIPTokenizer, share: float) -> None:
        vocabulary = tokenizer.get_vocab()
        self.share = share
        self.end = tokenizer.eos_token_id
        self.stop = vocabulary[".</w>"]
        self.words = torch.tensor(
            [i for word, i in vocabulary.items() if len(word) > len("a</w>") and word.endswith("</w>")]
        )

    def __call__(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """Token ids (b, n), of which `share` now go on for 4 to 12 places,
        if there is room before the last end token.
        """
        b, n = tokens.shape
        # 0 where the instruction ends
        place = torch.arange(n) - (tokens == self.end).int().argmax(1, keepdim=True)
        length = torch.randint(4, 13, (b, 1), generator=generator)
        length[torch.rand(b, generator=generator) >= self.share] = 0
        words = self.words[torch.randint(len(self.words), (b, n), generator=generator)]
        inside = (place >= 0) & (place < length) & (torch.arange(n) < n - 1)
        return torch.where(inside, torch.where(place == 0, self.stop, words), tokens)


def learn_to_read(
    config: SmallTrainConfig,
    text_encoder: CLIPTextModel,
    tokens: Tensor,
    parsed: list[ParsedEdit],
    tails: Tails,
    folder: Path,
    resume: bool,
) -> None:
    """Teaches the text encoder what instructions ask and which words there are,
    with linear heads at the end or soon after.

    Cross-entropy of the parsed instruction's parts, and binary cross-entropy of each word of the vocabulary.
    """
    labels = torch.tensor([_label(p) for p in parsed])
    width = text_encoder.config.hidden_size
    vocabulary = text_encoder.config.vocab_size
    heads = nn.ModuleList([nn.Linear(width, n) for n in (*ANSWERS, vocabulary)])

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        b = config.batch_size
        rows = torch.randint(len(tokens), (b,), generator=generator)
        words = tails(tokens[rows], generator)
        end = (words == tails.end).int().argmax(1) + torch.randint(0, 3, (b,), generator=generator)
        words, end, answers = (tensor.to(text_encoder.device) for tensor in (words, end, labels[rows]))
        places = torch.arange(b, device=words.device)
        state = text_encoder(words).last_hidden_state[places, end.clamp(max=words.shape[1] - 1)]
        losses = [F.cross_entropy(head(state), answers[:, i]) for i, head in enumerate(heads[:-1])]
        present = torch.zeros(b, vocabulary, device=words.device).scatter_(1, words, 1.0)
        spelled = (
            F.binary_cross_entropy_with_logits(heads[-1](state).float(), present, reduction="none")
            .sum(1)
            .mean()
        )
        return torch.stack(losses).sum() + WORDS_WEIGHT * spelled

    fit(config, {"text_encoder": text_encoder, "heads": heads}, loss_of, folder, resume)


def _label(parsed: ParsedEdit) -> list[int]:
    """The parsed instruction as class numbers; 0 stands for "not said"."""

    def find(words: str | None, vocabulary: Collection[str]) -> int:
        return next((list(vocabulary).index(w) + 1 for w in (words or "").split() if w in vocabulary), 0)

    said = [find(parsed.original, COLOURS), find(parsed.original, SHAPES), find(parsed.edited, COLOURS)]
    said += [find(parsed.edited, v) for v in (SHAPES, SIZES, BACKGROUNDS)]
    place = PLACES.index(parsed.position) + 1 if parsed.position in PLACES else 0
    return [
        EDIT_TYPES.index(parsed.edit_type),
        *said,
        place,
        ("unchanged", "bigger", "smaller").index(parsed.size),
    ]


@torch.no_grad()
def _latents(config: Config, pipe: Any) -> tuple[Tensor, Tensor, Tensor, list[str], list[ParsedEdit]]:
    """Unscaled latents of sources, candidate edits and (of the first) right targets; instructions,
    parsed and not.
    """
    world = Shapes(backdrops=config.backdrops)
    source = []
    edited = []
    right = []
    instructions = []
    parsed = []
    for first in range(0, config.samples, 2800):
        batch = world.batch(first, min(2800, config.samples - first))
        _, made = candidates(batch, config.shares, seed=first)
        wanted = batch.target[: max(0, config.right - first)]
        for out, images in ((source, batch.source), (edited, made), (right, wanted)):
            out += [
                family_of(pipe).encode_images(pipe, part).cpu() for part in images.split(256) if len(part)
            ]
        instructions += batch.instruction
        parsed += batch.parsed
    return torch.cat(source), torch.cat(edited), torch.cat(right), instructions, parsed[: config.right]


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the pipeline is."""
    print(f"editor: {train(config, folder, resume)}")
