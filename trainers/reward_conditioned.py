"""Reward-conditioned fine-tuning: the editor learns what a good edit is from scores written into its prompts.

Method: ADIEE Sec. 3.4 (after HIVE). Every row is scored, the score is written into its instruction, the
editor is fine-tuned on that, and at inference it is asked for the best. Stages, each kept in the run
directory and not done again: candidates (other editors' outputs beside the data's own targets) → relabel →
train, one variant at a time → evaluate.

Deviations from the paper's released code: the text is the same in training and inference; InstructPix2Pix's
conditioning dropout is on; no flips or rotations, which turn "left" into "right"; scores become labels by
quantiles, so that every label has its share of the rows.

Command: rewardedit train magicbrush-reward-conditioned
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rewardedit import devices
from rewardedit.config import require_unset
from rewardedit.data import DataConfig, require_size
from rewardedit.data.bad_rows import require_few, require_share, unreadable_rows
from rewardedit.data.worlds import WORLDS
from rewardedit.evaluation.compare import compare
from rewardedit.evaluation.evaluate_config import EvaluateConfig, require_judge, require_variants
from rewardedit.evaluation.held_out import comparison_data, require_comparison
from rewardedit.models import EDITOR
from rewardedit.processes import print_on_main
from rewardedit.relabel import RelabelConfig, Relabelled, relabel
from rewardedit.scorer_spec import ScorerSpec, spec_name
from rewardedit.scorers import load_scorer
from rewardedit.scorers.load import families
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import variants
from rewardedit.synthesis.candidates import CandidatesConfig, candidate_rows
from rewardedit.training import run
from rewardedit.training.estimate import plan, require_trainable
from rewardedit.training.finetune import Finetuning
from rewardedit.training.latents import LatentCache, make_cache
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.savers import fit_to_this_gpu, memory_of_pairs
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base

__all__ = ["Config", "RelabelConfig", "main", "plan", "train"]

# what variants are asked for
METRIC_NAMES = {
    "conditioned": "conditioned_five",
    "words": "words_five",
    "learned_embedding": "learned_embedding_five",
}
# A reward of another family than the labels' tells whether an editor has hacked its labels: the first of
# these for the offline world, and of those below for other rows, for which no small model is taken.
HELD_OUT: tuple[ScorerSpec, ...] = ("l1", "clip_i")
HELD_OUT_OF_OTHERS: tuple[ScorerSpec, ...] = ({"ssim": {"against": "target"}},)
Variant = Literal["conditioned", "unconditioned", "best_rows_only", "words", "learned_embedding"]
# variants that say the labels otherwise than the recipe
PROMPTS: dict[str, Literal["adiee", "learned"]] = {"words": "adiee", "learned_embedding": "learned"}


@dataclass(frozen=True)
class Config:
    """One reward-conditioned fine-tuning, or a comparison of several."""

    name: str  # name of the run and of its folder in runs/
    data: DataConfig  # the rows that are scored and trained on
    relabel: RelabelConfig  # labelling of the rows
    base: str = EDITOR  # editor to start from: hub name, folder or run; a LoRA must be fused (docs/refl.md)
    # editors whose outputs stand beside the data's own targets; None: the data's own rows alone
    candidates: CandidatesConfig | None = None
    train: TrainConfig = field(default_factory=TrainConfig)  # the optimizer, the loop and what is trained
    # the first is the result; the others are what it is compared with
    variants: tuple[Variant, ...] = ("conditioned",)
    # comparison of base and result on held-out rows; null: none
    evaluate: EvaluateConfig | None = None
    bad_rows: float = 0.01  # more than this share of rows that cannot be read stops the run

    def __post_init__(self) -> None:
        require_share(self.bad_rows)
        require_size(self.data)
        require_variants(self.variants)
        require_judge(self.evaluate, rewards_of(self).values())
        require_unset(self.train, ("graphs",), "without rollouts; leave it out", "train.")


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Runs all stages in `folder`; those that a resumed run finds whole are not done again.

    Returns:
        The folder of the first variant's result: pipeline/ (or lora/), with reward_prompt.json inside.
    """
    editor = Lazy(lambda: load_blueprint(config.base, require_size(config.data)))
    fitted = fit_to_this_gpu(config.train, memory_of_pairs(editor))
    require_trainable(fitted, config.base, require_size(config.data))
    data = comparison_data(config.evaluate, config.data)
    require_comparison(config.evaluate, data)
    run.start(folder, config, resume)
    # The rows of the comparison are not trained on: their source images are left out of the rows.
    config = replace(config, data=data)

    # ADIEE Sec. 3.4: candidates → scores → labels → latents.
    rows = candidate_rows(config.candidates, config.data, folder / "candidates")
    relabelled = relabel(config.relabel, rows, config.data, folder / "relabelled", config.candidates)
    editor = load_base(config.base, devices.default_device(), fitted.quantize)
    latents = make_cache(
        rows, config.data, editor, folder / "cache", config.candidates, config.train.encode_batch_size
    )
    del editor  # each variant loads its own
    require_few(folder, unreadable_rows(latents.unreadable), len(latents.ids), config.bad_rows)

    # → train, one variant at a time
    def train_one(variant: str, settings: Path) -> None:
        print_on_main(f"variant {variant}: {config.train.max_steps} steps")
        finetune(fitted, config.base, latents, variant_labels(config, variant, relabelled), settings, resume)

    made_of = {name: getattr(config, name) for name in ("base", "data", "candidates", "relabel", "train")}
    results = variants(config.variants, folder, config.train.result, made_of, train_one)

    # → evaluate
    if config.evaluate is not None:
        scorers = {}
        for name, spec in rewards_of(config).items():
            scorers[name] = load_scorer(spec)
        named = {METRIC_NAMES.get(variant, variant): path for variant, path in results.items()}
        compare(config.evaluate, config.base, named, scorers, folder, config.data, fitted.quantize)
    return results[config.variants[0]]


def rewards_of(config: Config) -> dict[str, ScorerSpec]:
    """The scorer of the labels, and one of another family that tells whether an editor has hacked it."""
    scorer_spec = config.relabel.scorer
    judges = config.evaluate.scorers if config.evaluate else ()
    usual = HELD_OUT if config.data.name in (*WORLDS, "labelled") else HELD_OUT_OF_OTHERS
    others = [spec for spec in (*judges, *usual) if not families(spec) & families(scorer_spec)]
    return {spec_name(spec): spec for spec in (scorer_spec, *others[:1])}


def finetune(
    config: TrainConfig,
    base: str,
    cache: LatentCache,
    labels: RewardLabels,
    folder: Path,
    resume: bool = False,
) -> Path:
    """Fine-tunes `base` on cached rows whose prompts say their labels (ADIEE Sec. 3.4).

    Returns:
        The folder of the result: `pipeline/`, which stock diffusers loads, or `lora/`.

    Raises:
        ValueError: where no row has a label.
        TrainingStopped: where the loss is not a number.
    """
    tuning = Finetuning(config, base, cache, labels, folder, resume)
    loop = tuning.loop
    for step in loop.steps():
        for micro in tuning.micro_batches(step):
            with loop.accumulate():
                with loop.autocast():
                    loss = tuning.diffusion_loss(micro)
                loop.backward(loss, micro.ids)
        loop.update()
        if tuning.is_validation_step():
            with loop.ema_weights():
                tuning.save_previews()
    return tuning.save()


def variant_labels(config: Config, variant: str, rows: Relabelled) -> RewardLabels:
    """Labels that a variant is trained on: of the same rows, in its own words or none."""
    if variant == "unconditioned":
        return RewardLabels(None, rows.label)
    if variant in PROMPTS:
        said = replace(config.relabel, prompt=PROMPTS[variant], template=None)
        return RewardLabels(said.reward_prompt(rows.scale), rows.label)
    prompt = config.relabel.reward_prompt(rows.scale)
    if variant == "best_rows_only":
        best = len(prompt.words) - 1
        return RewardLabels(prompt, [value if value == best else None for value in rows.label])
    return RewardLabels(prompt, rows.label)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    print_on_main(
        f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited"
    )
