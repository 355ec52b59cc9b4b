"""The text encoder of the shapes world's diffusion models: the small CLIP's, trained to parse.

At the scale of these models a UNet's loss alone does not teach a text encoder which object an instruction
means. So it learns from heads that are later discarded: at the end of an instruction, linear layers predict
the parts of the parsed instruction (edit type, source, target and reference object, size, position,
background) and every word of the text; at the end of each phrase of a caption, that object's colour, shape
and size. In half of the instructions random words follow after a full stop, so that later text, whatever its
content, neither hides the instruction nor is ignored. It never sees reward text.

Command: rewardedit train shapes/text-encoder
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPModel, CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from rewardedit.files import write_json
from rewardedit.instructions import ParsedEdit
from rewardedit.instructions.parsed import RELATIONS
from rewardedit.language.texts import tokenize
from rewardedit.models import pretrained, resolve_model
from rewardedit.shapes import EDIT_TYPES, Shapes
from rewardedit.shapes.vocabulary import BACKGROUNDS, COLOURS, PLACES, SHAPES, SIZES
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

TOKENS = 77  # tokens of every text, as in CLIP
POSITIONS = (*PLACES, *RELATIONS)
SIZE_STATES = ("unchanged", "larger", "smaller")
# Number of classes of each answer of `instruction_labels`.
INSTRUCTION_ANSWERS = (7, 9, 7, 9, 7, 4, 7, 9, 7, 16, 3)
PHRASE_ANSWERS = (len(COLOURS), len(SHAPES), len(SIZES))
WORDS_WEIGHT = 0.2  # weight of the words' error relative to that of the parsed instruction


@dataclass(frozen=True)
class Config:
    """Data and training of the text encoder."""

    name: str  # name of the run and of its folder in runs/
    clip: str = "shapes/clip"  # CLIP model whose text encoder and tokenizer are trained further
    samples: int = 112_000  # training samples of the shapes world, each an instruction and a caption
    suffix_share: float = 0.5  # share of instructions with random words after them
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def make_model(config: Config) -> tuple[CLIPTextModel, CLIPTokenizer]:
    """CLIP's text encoder and tokenizer.

    Raises:
        ValueError: if the CLIP model is missing.
    """
    try:
        clip = pretrained.load(CLIPModel, resolve_model(config.clip), dtype=torch.float32)
        tokenizer = pretrained.load(CLIPTokenizer, resolve_model(config.clip), model_max_length=TOKENS)
    except OSError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"clip {config.clip!r}: {message}; train it first: shapes/clip") from error
    text_encoder = CLIPTextModel(CLIPTextConfig(**clip.config.text_config.to_dict()))
    text_encoder.load_state_dict(clip.text_model.state_dict())
    return text_encoder, tokenizer


def plan(config: Config) -> list[str]:
    text_encoder, _ = make_model(config)
    return [f"text encoder: {count(text_encoder)}, {config.samples} samples, {config.train.max_steps} steps"]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves `folder/text_encoder` and `folder/tokenizer`; metrics.json holds the share of texts
    parsed correctly on val.
    """
    run.start(folder, config, resume, alone=True)
    torch.manual_seed(config.train.seed)
    text_encoder, tokenizer = make_model(config)
    reader = Reader(text_encoder, tokenizer)
    instructions, labels, captions, phrases = _texts(tokenizer, "train", config.samples)
    tails = RandomSuffix(tokenizer, config.suffix_share)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        b = config.train.batch_size
        rows = torch.randint(len(labels), (b,), generator=generator)
        later = torch.randint(0, 3, (b,), generator=generator)
        asked = reader.instruction_loss(tails(instructions[rows], generator), labels[rows], later)
        rows = rows[: b // 2]
        return asked + reader.caption_loss(captions[rows], phrases[rows])

    fit(config.train, {"reader": reader}, loss_of, folder, resume)
    write_json(folder / "metrics.json", {"read_right": reader.read_right(*_texts(tokenizer, "val", 1400))})
    text_encoder.half().save_pretrained(folder / "text_encoder")
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder


def _texts(tokenizer: CLIPTokenizer, split: str, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token ids of instructions (n, 77) with their labels (n, answers), and of captions (n, 77) with the
    labels of their phrases (n, 77, 3), -1 where no phrase ends.
    """
    parts: list[list[Tensor]] = [[], [], [], []]
    comma = tokenizer.get_vocab()[",</w>"]
    for first in range(0, n, 2800):
        batch = Shapes(split, backdrops=("plain", "plain", "textured", "photo")).batch(
            first, min(2800, n - first)
        )
        instruction_tokens = _tokens(tokenizer, batch.instruction)
        caption_tokens = _tokens(tokenizer, batch.target_caption)
        phrases = torch.full((*caption_tokens.shape, len(PHRASE_ANSWERS)), -1)
        scenes = batch.after
        # The token before a comma ends a phrase.
        row, place = (caption_tokens[:, 1:] == comma).nonzero().unbind(1)
        cell = torch.from_numpy(scenes.present).nonzero()  # in reading order, as in captions
        at = cell[:, 0].numpy(), cell[:, 1].numpy()
        answers = [torch.from_numpy(values[at]) for values in (scenes.colour, scenes.shape, scenes.size)]
        phrases[row, place] = torch.stack(answers, dim=1)
        labels = torch.tensor(list(map(instruction_labels, batch.parsed)))
        for out, values in zip(parts, (instruction_tokens, labels, caption_tokens, phrases), strict=True):
            out.append(values)
    instructions, labels, captions, phrases = map(torch.cat, parts)
    return instructions, labels, captions, phrases


def _tokens(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    return tokenize(tokenizer, texts, TOKENS, "the text encoder", padding="max_length").input_ids


def instruction_labels(parsed: ParsedEdit) -> list[int]:
    """The parsed instruction as class indices; 0 stands for "not mentioned"."""

    def find(words: str | None, vocabulary: Collection[str]) -> int:
        return next((list(vocabulary).index(w) + 1 for w in (words or "").split() if w in vocabulary), 0)

    return [
        EDIT_TYPES.index(parsed.edit_type),
        find(parsed.source, COLOURS),
        find(parsed.source, SHAPES),
        find(parsed.target, COLOURS),
        find(parsed.target, SHAPES),
        find(parsed.target, SIZES),
        find(parsed.target, BACKGROUNDS),
        find(parsed.reference, COLOURS),
        find(parsed.reference, SHAPES),
        POSITIONS.index(parsed.position) + 1 if parsed.position in POSITIONS else 0,
        SIZE_STATES.index(parsed.size),
    ]


class Reader(nn.Module):
    """The text encoder with the heads that train it."""

    def __init__(self, text_encoder: CLIPTextModel, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        self.text_encoder = text_encoder
        self.end = tokenizer.eos_token_id
        width = text_encoder.config.hidden_size
        self.answers = nn.ModuleList([nn.Linear(width, n) for n in INSTRUCTION_ANSWERS])
        self.words = nn.Linear(width, text_encoder.config.vocab_size)
        self.phrases = nn.ModuleList([nn.Linear(width, n) for n in PHRASE_ANSWERS])

    def states(self, tokens: Tensor) -> Tensor:
        return self.text_encoder(tokens).last_hidden_state

    def instruction_loss(self, tokens: Tensor, labels: Tensor, later: Tensor) -> Tensor:
        """Cross-entropy of the parsed instruction's parts, and binary cross-entropy of each word of the
        vocabulary, read `later` (b,) tokens after the text's end.
        """
        device = self.text_encoder.device
        tokens = tokens.to(device)
        end = ((tokens == self.end).int().argmax(1) + later.to(device)).clamp(max=tokens.shape[1] - 1)
        state = self.states(tokens)[torch.arange(len(tokens), device=device), end]
        parsed = answer_loss(self.answers, state, labels.to(device))
        logits = self.words(state).float()
        present = torch.zeros_like(logits).scatter_(1, tokens, 1.0)
        spelled = F.binary_cross_entropy_with_logits(logits, present, reduction="none").sum(1).mean()
        return parsed + WORDS_WEIGHT * spelled

    def caption_loss(self, tokens: Tensor, phrases: Tensor) -> Tensor:
        """Cross-entropy of the colour, shape and size of each object, read where its phrase ends."""
        device = self.text_encoder.device
        phrases = phrases.to(device)
        ends = phrases[..., 0] >= 0
        return answer_loss(self.phrases, self.states(tokens.to(device))[ends], phrases[ends])

    @torch.no_grad()
    def read_right(
        self, instructions: Tensor, labels: Tensor, captions: Tensor, phrases: Tensor
    ) -> dict[str, float]:
        """Shares of instructions, and of phrases in captions, with every part predicted correctly."""
        place = torch.arange(len(instructions)), (instructions == self.end).int().argmax(1)
        ends = phrases[..., 0] >= 0
        return {
            "instructions": share_right(self.answers, self._states_on_cpu(instructions)[place], labels),
            "phrases": share_right(self.phrases, self._states_on_cpu(captions)[ends], phrases[ends]),
        }

    def _states_on_cpu(self, tokens: Tensor) -> Tensor:
        """States of many texts."""
        device = self.text_encoder.device
        return torch.cat([self.states(chunk.to(device)) for chunk in tokens.split(280)]).cpu()


def answer_loss(heads: nn.ModuleList, state: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropies of all answers, a head and a column of `labels` each."""
    losses = [F.cross_entropy(head(state), labels[:, i]) for i, head in enumerate(heads)]
    return torch.stack(losses).sum()


def share_right(heads: nn.ModuleList, state: Tensor, labels: Tensor) -> float:
    """Share of rows with every answer predicted correctly; moves the heads to the CPU."""
    heads = heads.cpu()
    right = [head(state).argmax(1) == labels[:, i] for i, head in enumerate(heads)]
    return float(torch.stack(right).all(0).float().mean())


class RandomSuffix:
    """Appends a full stop and random words of the tokenizer's vocabulary to instructions."""

    def __init__(self, tokenizer: CLIPTokenizer, share: float) -> None:
        vocabulary = tokenizer.get_vocab()
        self.share = share
        self.end = tokenizer.eos_token_id
        self.stop = vocabulary[".</w>"]
        self.words = torch.tensor(
            [i for word, i in vocabulary.items() if len(word) > len("a</w>") and word.endswith("</w>")]
        )

    def __call__(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """Token ids (b, n), a share of them (`share`) continued by 4 to 12 tokens,
        as far as there is room before the last end token.
        """
        b, n = tokens.shape
        # 0 at the end of the instruction
        place = torch.arange(n) - (tokens == self.end).int().argmax(1, keepdim=True)
        length = torch.randint(4, 13, (b, 1), generator=generator)
        length[torch.rand(b, generator=generator) >= self.share] = 0
        words = self.words[torch.randint(len(self.words), (b, n), generator=generator)]
        inside = (place >= 0) & (place < length) & (torch.arange(n) < n - 1)
        return torch.where(inside, torch.where(place == 0, self.stop, words), tokens)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the weights."""
    print(f"text encoder: {train(config, folder, resume)}")
