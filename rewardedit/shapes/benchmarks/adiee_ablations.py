"""Ablations of the ADIEE scorer (ADIEE Table 5):
python rewardedit/shapes/benchmarks/adiee_ablations.py [RUNS] [SETTING=VALUE …]

Every variant is trained for the same number of steps and, if available, of rows: the first phase of the
recipe shapes/adiee-scorer, with one change, on rows of a third of its sources. Rank correlation with the
oracle on test edits by the two editors that no scorer is trained on. Results, including the rows, are kept in
RUNS/adiee-ablations, so that an interrupted program can be resumed. The variant with images side by side
starts from a model that has not seen such images.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import same_labels
import torch
import torch.nn.functional as F
from common import read_command_line
from edits import best_settings_of, editors_in, edits_of
from rate_editors import UNSEEN
from rivals import AskedVlm, scored
from torch import Tensor
from variants import figures_of, run_of

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.cli import quiet
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import open_named
from rewardedit.data.bad_rows import usable_rows
from rewardedit.data.datasets import images_of
from rewardedit.evaluation.statistics import spearman
from rewardedit.language.answers import text_of
from rewardedit.language.vlm import load_vlm
from rewardedit.prepared import Prepared
from rewardedit.scorers import Scorer
from rewardedit.scorers.adiee import Adiee
from rewardedit.scorers.adiee_text import IMAGES, QUESTIONS, turns
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.stages.stage import MADE_OF
from rewardedit.trainers import adiee_data, adiee_scorer
from rewardedit.trainers.adiee_scorer import Config, make_scorer, read_steps
from rewardedit.training.fit import SmallTrainConfig, fit
from rewardedit.training.labels import require_label
from rewardedit.training.shared_images import encode_images_once

N = 560  # test samples
# Parts of the recipe shapes/adiee-data, on a third of their sources.
ROWS = {
    "more": ("more", ["data.shapes.limit=4000", "sequences.shapes.limit=800"]),
    "outputs": ("edited", ["data.shapes.limit=800", "sequences.shapes.limit=200"]),
}
# Labelled outputs of editing methods, which the first phase does not have.
OUTPUTS = "data.outputs={name: labelled, path: outputs, size: 64}"
TURNS = ["turns_all", "turns_none", "turns_some", "turns_too_many", "another_turn"]
OWN = ["source", "augmented_source", "target", "another_image", "another_instruction", "another_object"]
BY_METHOD = ["no_progress", "unlike_target", "weak_method", "partly_done"]
# Words of the questions become tokens, which makes questions a third shorter.
EQUAL = ["train.max_steps=600", "held_out=null", "add_question_tokens=true"]
NO_TURNS = [
    f"data.more.edit_types=[{', '.join(OWN)}]",
    f"data.outputs.edit_types=[{', '.join(OWN[:-1] + BY_METHOD)}]",
]
VARIANTS = {
    "the first phase": [],
    "turns alone": [f"data.more.edit_types=[{', '.join(TURNS)}]"],
    "methods' outputs as well": [OUTPUTS],
    "methods' outputs as well, no turns": [OUTPUTS, *NO_TURNS],
    "side by side": ["layout=concat"],
    "one number": ["head=scalar"],
}
IN_TEXT = "no token, no head"
SAME_LABELS = "ViFi-CLIP with a head"


class ScoreInText(AskedVlm):
    """Mean of the numbers in a vision-language model's answers to the four questions, in [0, 10]."""

    range = (0.0, 10.0)

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        images = torch.stack([batch.source, batch.edited], dim=1)
        numbers = []
        for question in range(len(QUESTIONS)):
            prompts = [self.vlm.prompt(turns(question, text, "pair")) for text in batch.instruction]
            said = self.vlm.answer(prompts, images, max_new_tokens=12)
            numbers.append(torch.tensor([number_in(text_of(answer)) for answer in said]))
        score = torch.stack(numbers).nanmean(0).clamp(0, 10)
        reasons = ["no answer has a number" if value.isnan() else None for value in score]
        return Scores.make(score, reason=reasons)


def number_in(answer: str) -> float:
    """First number in an answer; digits may be separated by spaces, as small tokenizers write them."""
    match = re.search(r"\d+(\.\d+)?", answer.replace(" ", ""))
    return float(match[0]) if match else float("nan")


def tokens_of(answers: list[str], texts: list[str], tokenizer: Any) -> Tensor:
    """Mask (b, n) of the answers' tokens; answers end the texts, which are padded on the right."""
    lengths, ends = (
        torch.tensor([len(tokenizer(text, add_special_tokens=False).input_ids) for text in some])[:, None]
        for some in (answers, texts)
    )
    place = torch.arange(int(ends.max()))
    return (place < ends) & (place >= ends - lengths)


def train_in_text(config: Config, folder: Path) -> Path:
    """Trains the same model on the same batches without head and token: it learns to write "It is 6.7."."""
    torch.manual_seed(config.train.seed)
    rows = open_named(config.data)
    usable = usable_rows(rows, images_of(config.data), require_label, folder, config.bad_rows, config.data)
    scorer, _ = make_scorer(config)
    vlm, per_edit = scorer.vlm, config.train.questions_per_edit
    batches = read_steps(config, rows, usable)
    end = vlm.processor.tokenizer.eos_token

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        [(edits, labels, _, questions)] = batches(step)
        edits = edits.to(vlm.model.device)
        asked = zip(edits.instruction, questions, strict=True)
        answers = [f" It is {label:.1f}.{end}" for label in labels[:, 0].tolist()]
        prompts = [scorer.prompt(text, question) for text, question in asked]
        texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        hidden, ids = encode_images_once(scorer, texts, edits.source[::per_edit], edits.edited[::per_edit])
        after = [scorer.split(text, IMAGES[config.layout])[1] for text in texts]
        wanted = tokens_of(answers, after, vlm.processor.tokenizer).to(ids.device)
        logits = vlm.model.lm_head(hidden[:, :-1][wanted[:, 1:]])
        return F.cross_entropy(logits.float(), ids[:, 1:][wanted[:, 1:]])

    settings = config.train
    small = SmallTrainConfig(
        max_steps=settings.max_steps,
        batch_size=settings.batch_size,
        lr=settings.lr,
        muon_lr=settings.muon_lr,
        lr_warmup_steps=settings.lr_warmup_steps,
        beta2=settings.beta2,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        mixed_precision=settings.mixed_precision,
        ema=settings.ema,
        seed=settings.seed,
        log_every=settings.log_every,
        checkpoint_every=settings.max_steps,
    )
    fit(small, {"vlm": vlm.model}, loss_of, folder, resume=True)
    batches.close()
    vlm.model.half().save_pretrained(folder / "scorer")
    vlm.processor.save_pretrained(folder / "scorer")
    return folder / "scorer"


@torch.no_grad()
def measure(scorer: Scorer, samples: ShapesBatch, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Spearman's ρ with the oracle over all editors' edits, the mean of ρ within single editors' edits, and
    the number of edits without a score.
    """
    scores = torch.stack([scored(scorer, samples, images).score for images in edits.values()])
    truth = torch.stack([ShapesOracle().rate(samples, images).score for images in edits.values()])
    unscored = int(scores.isnan().sum())
    scores = scores.nan_to_num(-1.0)
    within = [spearman(*both, samples.id).value for both in zip(scores.numpy(), truth.numpy(), strict=True)]
    ranks = spearman(scores.flatten().numpy(), truth.flatten().numpy(), samples.id * len(edits))
    mean = float(np.mean(within)) if np.isfinite(within).all() else None
    return {**ranks.as_dict("rho"), "within_editors": mean, "unscored": unscored}


def make_rows(name: str, folder: Path) -> None:
    """Makes labelled rows in folder/rows-name, from methods that need only shipped weights."""
    part, words = ROWS[name]
    config = load_recipe(f"shapes/adiee-data/{part}", words)[1]
    methods = {key: method for key, method in config.methods.items() if not method.model.startswith("runs/")}
    adiee_data.train(replace(config, methods=methods), folder / f"rows-{name}", resume=True)


def main(runs: Path, words: list[str]) -> dict[str, Any]:
    kept = runs / "adiee-ablations"
    for name in ROWS:
        make_rows(name, kept)
    unseen = {name: path for name, path in editors_in(runs).items() if name.endswith(UNSEEN)}
    samples = Shapes("test").batch(0, N)
    with torch.no_grad():
        edits = edits_of(unseen, best_settings_of(list(unseen)), "test", N, runs)
    figures = {}
    rows = len(open_named(config_of("the first phase", words, kept).data))
    made_of = {name: json.loads((kept / f"rows-{name}" / "rows" / MADE_OF).read_text()) for name in ROWS}
    for name in (*VARIANTS, IN_TEXT, SAME_LABELS):
        config = of_so_many(config_of(name, words, kept), rows)

        def make(folder: Path, name: str = name, config: Config = config) -> dict[str, Any]:
            scorer = trained(name, config, folder).to(devices.default_device())
            return {"rows": len(open_named(config.data)), **measure(scorer, samples, edits)}

        start = same_labels.START if name == SAME_LABELS else config.model
        figures[name] = figures_of(kept / config.name, [*run_of(config, start, edits), made_of], make)
        print(f"{name:<36}{figures[name]['rho']:.3f}", flush=True)
    steps = config_of("the first phase", words, kept).train.max_steps
    return {"n": figures[IN_TEXT]["n"], "steps": steps, "settings": [*EQUAL, *words], "spearman": figures}


def config_of(name: str, words: list[str], folder: Path) -> Config:
    """The recipe's settings, with the variant's changes, on the rows in a folder."""
    config: Config = load_recipe("shapes/adiee-scorer/phase-1", [*EQUAL, *VARIANTS.get(name, []), *words])[1]
    train = replace(config.train, micro_batch_size=None)
    data = {
        key: replace(data_config, path=str(folder / f"rows-{key}" / "rows"))
        for key, data_config in config.data.items()
    }
    return replace(config, name=re.sub(r"\W+", "-", name), data=data, train=train)


def of_so_many(config: Config, rows: int) -> Config:
    """The same on at most the given number of rows: the same share of the source images of all data."""
    share = min(1.0, rows / len(open_named(config.data)))
    return replace(config, data={name: replace(data, fraction=share) for name, data in config.data.items()})


def trained(name: str, config: Config, folder: Path) -> Scorer:
    """Trains the variant and loads its saved scorer."""
    if name == IN_TEXT:
        return ScoreInText(load_vlm(str(train_in_text(config, folder))))
    if name == SAME_LABELS:
        return same_labels.load_same_labels(same_labels.train(config, folder))
    return Adiee.from_pretrained(str(adiee_scorer.train(config, folder, resume=True)))


if __name__ == "__main__":
    quiet()
    line = read_command_line(__doc__, "FOLDER key=value")
    given = list(line.words)
    folder = Path(given.pop(0)) if given and "=" not in given[0] else Path("runs")
    figures = main(folder, given)
    line.keep("adiee-ablations", figures)
