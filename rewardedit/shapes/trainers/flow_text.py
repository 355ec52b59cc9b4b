"""The text encoder of the small flow-matching editor: a narrow Qwen3, taught to parse instructions.

Linear layers, discarded afterwards, predict the parts of the parsed instruction from what the denoiser reads
of the tokens at and after its end: the hidden states of three layers, side by side.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM, Qwen3Model

from rewardedit import devices
from rewardedit.language.texts import tokenize
from rewardedit.shapes.flow_architecture import READ_LAYERS, TOKENS
from rewardedit.shapes.trainers.text_encoder import INSTRUCTION_ANSWERS, answer_loss, share_right
from rewardedit.training.fit import SmallTrainConfig, fit


@dataclass(frozen=True)
class Words:
    """Instructions as tokens."""

    ids: Int[Tensor, "n t"]
    mask: Int[Tensor, "n t"]  # 1 at an instruction's own tokens, 0 after its end

    def take(self, rows: Int[Tensor, " b"]) -> "Words":
        """Some of the instructions."""
        return Words(self.ids[rows], self.mask[rows])


def read_words(tokenizer: Any, texts: list[str]) -> Words:
    """Tokens of instructions, as the pipeline makes them."""
    tokens = tokenize(tokenizer, texts, TOKENS, "the text encoder", padding="max_length")
    return Words(tokens.input_ids, tokens.attention_mask)


def hidden_states(model: Qwen3Model, words: Words) -> Float[Tensor, "n t d"]:
    """Hidden states of the layers that the pipeline reads, side by side, as the denoiser gets them."""
    output = model(
        input_ids=words.ids.to(model.device),
        attention_mask=words.mask.to(model.device),
        output_hidden_states=True,
        use_cache=False,
    )
    return torch.cat([output.hidden_states[layer] for layer in READ_LAYERS], -1)


class InstructionReader(nn.Module):
    """The text encoder's layers with the heads that train them."""

    def __init__(self, model: Qwen3Model) -> None:
        super().__init__()
        self.model = model
        width = len(READ_LAYERS) * model.config.hidden_size
        self.answers = nn.ModuleList([nn.Linear(width, n) for n in INSTRUCTION_ANSWERS])

    def states(self, words: Words, later: Int[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """Hidden states so many tokens after the end of each instruction."""
        place = (words.mask.sum(1) - 1 + later).clamp(max=words.ids.shape[1] - 1)
        return hidden_states(self.model, words)[torch.arange(len(place)), place]

    def loss(self, words: Words, labels: Int[Tensor, "b a"], later: Int[Tensor, " b"]) -> Tensor:
        """Cross-entropy of the parsed instruction's parts."""
        states = self.states(words, later).float()
        return answer_loss(self.answers, states, labels.to(states.device))

    @torch.no_grad()
    def read_right(self, words: Words, labels: Int[Tensor, "n a"]) -> float:
        """Share of instructions that are parsed right in every part; moves the heads to the CPU."""
        states = []
        for rows in torch.arange(len(labels)).split(280):
            states.append(self.states(words.take(rows), torch.zeros_like(rows)).float().cpu())
        return share_right(self.answers, torch.cat(states), labels)


def train_text_encoder(
    config: SmallTrainConfig,
    text_encoder: Qwen3ForCausalLM,
    words: Words,
    labels: Int[Tensor, "n a"],
    folder: Path,
    resume: bool,
) -> InstructionReader:
    """Trains the text encoder in place on instructions and their parts."""
    reader = InstructionReader(text_encoder.model).to(devices.default_device())

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(labels), (config.batch_size,), generator=generator)
        later = torch.randint(0, 3, (config.batch_size,), generator=generator)
        return reader.loss(words.take(rows), labels[rows], later)

    fit(config, {"reader": reader}, loss_of, folder, resume)
    return reader
