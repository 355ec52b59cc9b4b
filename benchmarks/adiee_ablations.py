"""What the parts of the ADIEE scorer do (ADIEE Table 5):
python benchmarks/adiee_ablations.py [RUNS] [SETTING=VALUE …]

Every variant is trained on a third of the sources with all their rows, for the same number of steps: the
recipe shapes-adiee-scorer changed in one thing. Rank correlation with the oracle on test edits by the two
editors that no scorer is trained on. A variant that RUNS/adiee-ablations holds already is not trained again.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bpm import scored
from edits import best_settings_of, editors_in, edits_of
from rate_editors import UNSEEN
from record import keep
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.cli import quiet
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import open_rows
from rewardedit.data.bad_rows import usable_rows
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.encoded import Encoded
from rewardedit.evaluation.statistics import spearman
from rewardedit.files import write_json
from rewardedit.scorers import Scorer
from rewardedit.scorers.adiee import Adiee
from rewardedit.scorers.adiee_text import turns
from rewardedit.scorers.vlm import Vlm, load_vlm
from rewardedit.trainers import adiee_scorer
from rewardedit.trainers.adiee_scorer import Config, read_step, require_label
from rewardedit.training.ahead import ReadAhead
from rewardedit.training.small import SmallTrainConfig, fit

N = 560  # test samples
SHARE = ["data.share=0.3333333", "train.max_steps=800", "held_out=null"]
TURNS = ["turns_all", "turns_none", "turns_some", "turns_too_many"]
METHODS = [
    "source", "augmented_source", "target", "another_image", "another_instruction",
    "no_progress", "unlike_target", "weak_method", "partly_done",
]  # fmt: skip
VARIANTS = {
    "as it ships": [],
    "methods alone": [f"data.edit_types=[{', '.join(METHODS)}]"],
    "turns alone": [f"data.edit_types=[{', '.join(TURNS)}]"],
    "side by side": ["layout=concat"],
    "three classes": ["head=classes"],
}
IN_TEXT = "no token, no head"
Trained = Callable[[], Scorer]


class ScoreInText(Scorer):
    """The number in what a vision-language model answers; NaN where there is none."""

    range = (0.0, 10.0)

    def __init__(self, vlm: Vlm) -> None:
        super().__init__()
        self.vlm = vlm
        self.model = vlm.model

    def score(self, batch: EditBatch, prepared: Encoded) -> Scores:
        images = torch.stack([batch.source, batch.edited], dim=1)
        prompts = [self.vlm.prompt(turns(0, text, "pair")) for text in batch.instruction]
        said = self.vlm.answer(prompts, images, max_new_tokens=8)
        return Scores.make(torch.tensor([number_in(text) for text in said]))


def number_in(answer: str) -> float:
    """The first number of an answer; digits may stand apart, as small tokenizers write them."""
    found = re.search(r"\d+(\.\d+)?", answer.replace(" ", ""))
    return float(found[0]) if found else float("nan")


def tokens_of(answers: list[str], inputs: dict[str, Tensor], vlm: Vlm) -> Tensor:
    """(b, n) Where the answers are, which end the texts of a batch that is padded on the right."""
    tokenizer = vlm.processor.tokenizer
    lengths = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in answers]
    ends = inputs["attention_mask"].sum(1)[:, None]
    place = torch.arange(inputs["input_ids"].shape[1], device=ends.device)
    return (place < ends) & (place >= ends - torch.tensor(lengths, device=ends.device)[:, None])


def train_in_text(config: Config, folder: Path) -> Path:
    """The same model and batches without token and head: it learns to write "It is 6.7."."""
    torch.manual_seed(config.train.seed)
    rows = open_rows(config.data)
    usable = usable_rows(rows, config.data, require_label, folder, config.bad_rows)
    vlm = load_vlm(config.model, device=devices.default_device())
    for module in (vlm.model.model.get_decoder(), vlm.model.get_output_embeddings()):
        module.requires_grad_(True)
    steps = config.train.max_steps
    batches = ReadAhead(lambda step: read_step(config, rows, usable, step), steps)
    end = vlm.processor.tokenizer.eos_token

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        [(edits, labels, _, questions)] = batches(step)
        images = torch.stack([edits.source, edits.edited], dim=1)
        asked = zip(edits.instruction, questions, strict=True)
        prompts = [vlm.prompt(turns(question, text, "pair")) for text, question in asked]
        answers = [f" It is {label:.1f}.{end}" for label in labels[:, 0].tolist()]
        texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        inputs = vlm.inputs(texts, images, padding_side="right")
        wanted = tokens_of(answers, inputs, vlm)
        ids = inputs["input_ids"]
        hidden = vlm.model.model(**inputs, use_cache=False).last_hidden_state
        logits = vlm.model.lm_head(hidden[:, :-1][wanted[:, 1:]])
        return F.cross_entropy(logits.float(), ids[:, 1:][wanted[:, 1:]])

    own = config.train
    small = SmallTrainConfig(
        max_steps=steps, batch_size=own.batch_size, lr=own.lr, ema=own.ema, checkpoint_every=steps
    )
    fit(small, {"vlm": vlm.model}, loss_of, folder, resume=False)
    batches.close()
    vlm.model.half().save_pretrained(folder / "scorer")
    vlm.processor.save_pretrained(folder / "scorer")
    return folder / "scorer"


@torch.no_grad()
def measure(scorer: Scorer, samples: ShapesBatch, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Spearman's ρ with the oracle over all editors' edits, and how many have no score."""
    scores = [scored(scorer, samples, images).score for images in edits.values()]
    truth = [ShapesOracle().rate(samples, images).score for images in edits.values()]
    found = torch.cat(scores)
    unscored = int(found.isnan().sum())
    ranks = spearman(found.nan_to_num(-1.0).numpy(), torch.cat(truth).numpy(), samples.id * len(edits))
    return {**ranks.as_dict(), "unscored": unscored}


def main(runs: Path, words: list[str]) -> dict[str, Any]:
    out = runs / "adiee-ablations"
    paths = {name: path for name, path in editors_in(runs).items() if name.endswith(UNSEEN)}
    samples = Shapes("test").batch(0, N)
    with torch.no_grad():
        edits = edits_of(paths, best_settings_of(list(paths)), "test", N, runs)
    figures = {}
    for name, change in {**VARIANTS, IN_TEXT: []}.items():
        folder = out / name.replace(" ", "-").replace(",", "")
        config: Config = load_recipe("shapes-adiee-scorer", [*SHARE, *words, *change])[1]
        config = replace(config, name=folder.name)
        made = folder / "scorer"
        kept = folder / "figures.json"
        if not kept.is_file():
            if name == IN_TEXT:
                train_in_text(config, folder)
                scorer: Scorer = ScoreInText(load_vlm(str(made)))
            else:
                adiee_scorer.train(config, folder, resume=folder.is_dir())
                scorer = Adiee.from_pretrained(str(made))
            write_json(kept, measure(scorer.to(devices.default_device()), samples, edits))
        figures[name] = json.loads(kept.read_text())
        print(f"{name:<20}{figures[name]['rho']:.3f}", flush=True)
    return {"n": figures[IN_TEXT]["n"], "settings": [*SHARE, *words], "spearman": figures}


if __name__ == "__main__":
    quiet()
    given = sys.argv[1:]
    folder = Path(given.pop(0)) if given and "=" not in given[0] else Path("runs")
    found = main(folder, given)
    keep("adiee-ablations", " ".join(["python benchmarks/adiee_ablations.py", *sys.argv[1:]]), found)
