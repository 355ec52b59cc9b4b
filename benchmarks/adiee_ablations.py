"""What the parts of the ADIEE scorer do (ADIEE Table 5):
python benchmarks/adiee_ablations.py [RUNS] [SETTING=VALUE …]

Every variant is trained on as many rows as a third of the recipe's, or nearly, and for as many steps: the
scorer's first leg, the recipe shapes-adiee-scorer-first, changed in one thing. Rank correlation with the
oracle on test edits by the two editors that no scorer is trained on, and, to choose by, on val edits of the
others. RUNS/adiee-ablations keeps what is made: a program that was broken off goes on. Where pictures stand
side by side, the model has seen none such before.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from edits import best_settings_of, editors_in, edits_of
from rate_editors import UNSEEN
from record import keep
from rivals import scored
from torch import Tensor
from variants import figures_of, run_of

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.cli import quiet
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import open_named
from rewardedit.data.bad_rows import usable_rows
from rewardedit.data.datasets import images_of
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.encoded import Encoded
from rewardedit.evaluation.statistics import spearman
from rewardedit.scorers import Scorer
from rewardedit.scorers.adiee import Adiee
from rewardedit.scorers.adiee_text import QUESTIONS, turns
from rewardedit.scorers.vlm import Vlm, load_vlm
from rewardedit.trainers import adiee_scorer
from rewardedit.trainers.adiee_scorer import Config, read_steps, require_label
from rewardedit.training.small import SmallTrainConfig, fit

N = 560  # test samples
VAL_N = 280


EQUAL = ["train.max_steps=1200", "held_out=null"]
DAMAGED = "data.damaged={name: labelled, path: runs/shapes-adiee-data-damaged/rows, size: 64}"
# The labelled outputs of editing methods, of which the first leg has none.
OUTPUTS = "data.outputs={name: labelled, path: runs/shapes-adiee-data/rows, size: 64}"
COMPARED = "data.compared={name: labelled, path: runs/shapes-adiee-data-compared/rows, size: 64}"
TURNS = ["turns_all", "turns_none", "turns_some", "turns_too_many", "another_turn"]
OWN = ["source", "augmented_source", "target", "another_image", "another_instruction", "another_object"]
VARIANTS = {
    "the first leg": [],
    "single edits alone": [f"data.more.edit_types=[{', '.join(OWN)}]"],
    "turns alone": [f"data.more.edit_types=[{', '.join(TURNS)}]"],
    "damaged targets as well": [DAMAGED],
    "methods' outputs as well": [OUTPUTS],
    "an editor's outputs, compared with targets, as well": [COMPARED],
    "every question for itself": ["train.questions_per_edit=1"],
    "side by side": ["layout=concat"],
    "one number": ["head=scalar"],
}
IN_TEXT = "no token, no head"


class ScoreInText(Scorer):
    """The mean number in what a vision-language model answers to the four questions, in [0, 10]."""

    range = (0.0, 10.0)

    def __init__(self, vlm: Vlm) -> None:
        super().__init__()
        self.vlm = vlm
        self.model = vlm.model

    def score(self, batch: EditBatch, prepared: Encoded) -> Scores:
        images = torch.stack([batch.source, batch.edited], dim=1)
        found = []
        for question in range(len(QUESTIONS)):
            prompts = [self.vlm.prompt(turns(question, text, "pair")) for text in batch.instruction]
            said = self.vlm.answer(prompts, images, max_new_tokens=12)
            found.append(torch.tensor([number_in(text) for text in said]))
        score = torch.stack(found).nanmean(0).clamp(0, 10)
        reasons = ["no answer has a number" if value.isnan() else None for value in score]
        return Scores.make(score, reason=reasons)


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
    rows = open_named(config.data)
    usable = usable_rows(rows, images_of(config.data), require_label, folder, config.bad_rows, config.data)
    vlm = load_vlm(config.model, device=devices.default_device())
    for module in (vlm.model.model.get_decoder(), vlm.model.get_output_embeddings()):
        module.requires_grad_(True)
    steps = config.train.max_steps
    batches = read_steps(config, rows, usable)
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
        max_steps=steps,
        batch_size=own.batch_size,
        lr=own.lr,
        lr_warmup_steps=own.lr_warmup_steps,
        beta2=own.beta2,
        weight_decay=own.weight_decay,
        max_grad_norm=own.max_grad_norm,
        mixed_precision=own.mixed_precision,
        ema=own.ema,
        seed=own.seed,
        log_every=own.log_every,
        checkpoint_every=steps,
    )
    vlm.model.set_attn_implementation("eager")  # whose backward pass is faster on a CPU than SDPA's
    fit(small, {"vlm": vlm.model}, loss_of, folder, resume=True)
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
    paths = editors_in(runs)
    settings = best_settings_of(list(paths))
    unseen = {name: path for name, path in paths.items() if name.endswith(UNSEEN)}
    seen = {name: path for name, path in paths.items() if name not in unseen}
    val, test = Shapes("val").batch(0, VAL_N), Shapes("test").batch(0, N)
    with torch.no_grad():
        early = edits_of(seen, settings, "val", VAL_N, runs)
        edits = edits_of(unseen, settings, "test", N, runs)
    figures = {}
    rows = len(open_named(config_of("the first leg", words).data)) // 3
    for name in (*VARIANTS, IN_TEXT):
        config = of_so_many(config_of(name, words), rows)
        folder = runs / "adiee-ablations" / config.name

        def make(folder: Path, name: str = name, config: Config = config) -> dict[str, Any]:
            scorer = trained(name, config, folder).to(devices.default_device())
            rows = len(open_named(config.data))
            return {"rows": rows, "val": measure(scorer, val, early), **measure(scorer, test, edits)}

        figures[name] = figures_of(folder, run_of(config, config.model, early | edits), make)
        print(f"{name:<20}{figures[name]['rho']:.3f}", flush=True)
    return {"n": figures[IN_TEXT]["n"], "settings": [*EQUAL, *words], "spearman": figures}


def config_of(name: str, words: list[str]) -> Config:
    """The recipe's settings, changed as the variant wants."""
    config: Config = load_recipe("shapes-adiee-scorer-first", [*EQUAL, *VARIANTS.get(name, []), *words])[1]
    train = replace(config.train, micro_batch_size=None)
    return replace(config, name=re.sub(r"\W+", "-", name), train=train)


def of_so_many(config: Config, rows: int) -> Config:
    """The same on so many rows, as far as there are: of all data the same share of the source images."""
    share = min(1.0, rows / len(open_named(config.data)))
    return replace(config, data={name: replace(data, share=share) for name, data in config.data.items()})


def trained(name: str, config: Config, folder: Path) -> Scorer:
    """The variant's scorer, as it was saved."""
    if name == IN_TEXT:
        return ScoreInText(load_vlm(str(train_in_text(config, folder))))
    return Adiee.from_pretrained(str(adiee_scorer.train(config, folder, resume=True)))


if __name__ == "__main__":
    quiet()
    given = sys.argv[1:]
    folder = Path(given.pop(0)) if given and "=" not in given[0] else Path("runs")
    found = main(folder, given)
    keep("adiee-ablations", " ".join(["python benchmarks/adiee_ablations.py", *sys.argv[1:]]), found)
