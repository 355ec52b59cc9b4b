"""A tiny vision-language model that has learned one answer to each of DICE's two questions."""

from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken

from rewardedit.language.vlm import Vlm, load_vlm
from rewardedit.regions.differences import Difference
from rewardedit.scorers.dice_models import save_dice
from rewardedit.scorers.dice_text import DiceFormat, framed_pair
from rewardedit.scorers.dice_vlm import DiceVlm
from tests.models import save_vlm

CUP = Difference("ADD", "red cup", (0.25, 0.25, 0.5, 0.75))
FOUND = '["ADD: red cup, [0.25, 0.25, 0.5, 0.75]"]'
JUDGED = "Reasoning: a cup. Decision: YES"
PIECES = (
    *('["', '"]', ", [0.25, 0.25, 0.5, 0.75]", ": ", "ADD", "REMOVE", "EDIT", "YES", "NO"),
    *("Reasoning", "Decision", "red cup", "a cup. "),
)
SHORT = DiceFormat("short")
INSTRUCTION = "add a red cup"


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Source and edited image, each (1, 3, 40, 64)."""
    source = torch.full((1, 3, 40, 64), 0.5)
    edited = source.clone()
    edited[:, :, 10:30, 16:32] = torch.tensor([0.8, 0.1, 0.1])[:, None, None]
    return source, edited


def save_dice_vlm(folder: str, kind: str = "llava_next", steps: int = 45) -> str:
    """Saves a model that answers `FOUND` and `JUDGED`."""
    save_vlm(folder, kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    vlm = load_vlm(folder)
    teach(vlm, steps)
    save_dice(Path(folder), DiceVlm(vlm, SHORT, "tiny"))
    return folder


def teach(vlm: Vlm, steps: int) -> None:
    """Trains the model on both answers."""
    source, edited = images()
    dice = DiceVlm(vlm, SHORT, "tiny")
    pair = torch.stack([source[0], edited[0]])[None]
    shown = framed_pair(source[0], edited[0], CUP, SHORT)[None]
    asked = [
        (dice.detection_prompt(), pair, FOUND),
        (dice.coherence_prompt(INSTRUCTION, CUP), shown, JUDGED),
    ]
    model = vlm.model.requires_grad_(True).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    end = vlm.processor.tokenizer.eos_token
    examples = []
    for prompt, seen, answer in asked:
        begin = vlm.inputs([prompt], seen)["input_ids"].shape[1]
        examples.append((vlm.inputs([prompt + answer + end], seen), begin))
    for _ in range(steps):
        for inputs, begin in examples:
            logits = model(**inputs).logits[0, begin - 1 : -1]
            loss = torch.nn.functional.cross_entropy(logits, inputs["input_ids"][0, begin:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval().requires_grad_(False)
