"""Direct preference optimisation: the editor learns to prefer the better of two edits of a source.

Method: Diffusion-DPO (Wallace et al. 2023, Eq. 14). Both edits of a pair get the same noise at the same time
step; the loss −log σ(−β/2 · [(e_w − e_w,ref) − (e_l − e_l,ref)]) lowers the preferred edit's error of
prediction against the rejected one's, each compared with the reference: the starting model, which is the
editor with its LoRA off. Source and instruction are the condition of both.

Pairs are a data set's or a table's own, or the best and the worst of several scored edits of a source.

Deviations from the paper's code: a LoRA is trained; optionally the errors are weighed by a region, and the
preferred edits' diffusion loss is added.

Command: rewardedit train instruct-pix2pix-dpo
"""

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.data import DataConfig, open_rows, require_size
from rewardedit.data.bad_rows import require_few, require_share, unreadable_rows
from rewardedit.data.preferences import Preferences, has_preferences, preferences
from rewardedit.data.worlds import Samples
from rewardedit.evaluation.compare import compare
from rewardedit.evaluation.evaluate_config import EvaluateConfig, require_judge, require_variants
from rewardedit.evaluation.held_out import comparison_data, comparison_plan, require_comparison
from rewardedit.files import replaced, write_json
from rewardedit.models import EDITOR
from rewardedit.processes import print_on_main, processes
from rewardedit.relabel import RelabelConfig, relabel
from rewardedit.scorer_spec import ScorerSpec, resolve_spec, spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scorers.load import families
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import variants
from rewardedit.synthesis.candidates import CandidatesConfig, candidate_rows
from rewardedit.training import estimate, memory, run
from rewardedit.training.finetune import Finetuning
from rewardedit.training.interpolation import WEIGHTS, evaluate_interpolations
from rewardedit.training.monitor import (
    HackingMonitor,
    Monitor,
    MonitorConfig,
    fixed_prompts,
    require_fields,
    training_data,
    watched,
)
from rewardedit.training.preferences import (
    PairBatch,
    PairCache,
    PreferenceConfig,
    make_pair_cache,
    preference_loss,
    record_pairs,
    reference,
)
from rewardedit.training.savers import fit_to_this_gpu, fit_training, memory_of_feedback
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base

Variant = Literal["dpo", "winners_only"]
# what a variant changes of the recipe's loss
CHANGES: dict[str, dict[str, Any]] = {"winners_only": {"weight": 0.0, "diffusion_weight": 1.0}}
MADE_OF = (
    "base",
    "data",
    "reward",
    "candidates",
    "preference",
    "train",
    "monitor",
)  # settings that a result depends on


@dataclass(frozen=True)
class Config:
    """One direct preference optimisation, or a comparison with fine-tuning on the preferred edits."""

    name: str  # name of the run and of its folder in runs/
    data: DataConfig  # pairs, or several edits of each source
    # scorer that should agree with the preferences: it ranks the edits of rows without pairs or scores, and
    # the monitor watches it
    reward: ScorerSpec
    base: str = EDITOR  # the editor to start from: hub name, pipeline folder or run folder
    # editors whose edits are ranked beside the data's own; null: the data's own alone
    candidates: CandidatesConfig | None = None
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)  # the loss
    # the optimizer, the loop and the LoRA
    train: TrainConfig = field(default_factory=lambda: TrainConfig(lora_rank=32))
    # evaluation on fixed prompts for reward hacking
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    # the first is the result; winners_only is fine-tuned on the preferred edits
    variants: tuple[Variant, ...] = ("dpo",)
    # comparison of base and result on held-out rows; null: none
    evaluate: EvaluateConfig | None = None
    bad_rows: float = 0.01  # more than this share of pairs that cannot be read stops the run

    def __post_init__(self) -> None:
        object.__setattr__(self, "reward", resolve_spec(self.reward))
        require_share(self.bad_rows)
        require_size(self.data)
        require_variants(self.variants)
        require_judge(self.evaluate, (self.reward, self.monitor.held_out))
        held_out = spec_name(self.monitor.held_out)
        for shared in families(self.reward) & families(self.monitor.held_out):
            raise ValueError(
                f"monitor.held_out: {held_out} is of the family {shared}, as is the reward; take another, "
                "such as ssim (pixel), clip_i (clip) or dino_i (dino)"
            )
        if self.monitor.stop and not self.train.validate_every:
            raise ValueError(
                "monitor.stop: has no effect without train.validate_every; give updates between two checks"
            )
        require_pairs_training(self.train)


def require_pairs_training(train: TrainConfig) -> None:
    """Raises ValueError for settings of fine-tuning that a training on pairs does not have."""
    if train.lora_rank is None:
        raise ValueError(
            "train.lora_rank: expected a rank, as the reference is the editor with its LoRA off; got none; "
            "set it, such as 32"
        )
    if train.null_text_target != "edited" or train.min_snr is not None:
        raise ValueError(
            "train.null_text_target, train.min_snr: have no effect on pairs of edits; leave them out"
        )


@dataclass
class SharedInputs:
    """Inputs that all variants are trained on."""

    scorers: dict[str, Scorer]  # the reward first, then the held-out one
    cache: PairCache
    labels: RewardLabels


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is not there."""
    data = data_without_held_out(config)
    editor, scorers = models_of_plan(config)

    def rows() -> list[str]:
        require_fields(fixed_prompts(data, config.monitor)[0], scorers())
        require_comparison(config.evaluate, data, scorers())
        lines = [pairs_plan(config, data), f"variants: {', '.join(config.variants)}"]
        return [*lines, *comparison_plan(config.evaluate)]

    fitted = Lazy(
        lambda: fit_training(
            config.train, memory_of_feedback(config, editor, scorers, memory.preference_memory)
        )
    )

    def training() -> list[str]:
        settings, lines = fitted()
        count = processes().num_processes
        calls = [
            estimate.pair_calls(settings, loss_of(config, name).weight > 0, count) for name in config.variants
        ]
        return [*lines, *estimate.plan_updates(editor(), settings, calls)]

    def needed() -> str:
        base, judges, settings = editor(), scorers(), replace(config, train=fitted()[0])
        return estimate.memory_line(lambda count: memory.preference_memory(settings, base, judges, count))

    return estimate.plan_of(rows, training, needed)


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Ranks the edits where pairs are not given, caches the pairs, trains one variant at a time and evaluates
    them.

    Returns:
        The folder of the first variant's result: lora/.
    """
    needed = memory_of_feedback(config, *models_of_plan(config), memory.preference_memory)
    fitted = fit_to_this_gpu(config.train, needed)
    estimate.require_trainable(fitted, config.base, require_size(config.data))
    # Source images of watched prompts and of the comparison are not trained on.
    data = data_without_held_out(config)
    run.start(folder, config, resume)
    config = replace(config, data=data)

    scorers = {name: scorer.to(devices.default_device()) for name, scorer in load_watching(config).items()}
    require_comparison(config.evaluate, config.data, scorers)
    prompts = fixed_prompts(config.data, config.monitor)
    require_fields(prompts[0], scorers)

    # Stages, each kept in the run's folder: scores, where rows have none → latents of the pairs.
    found = find_pairs(config, folder)
    print_on_main(str(found))
    editor = load_base(config.base, devices.default_device())
    pairs_of = {
        "reward": config.reward,
        "candidates": config.candidates,
        "min_gap": config.preference.min_gap,
    }
    cache = make_pair_cache(
        found.pairs, config.data, editor, folder / "cache", pairs_of, config.train.encode_batch_size
    )
    del editor
    require_few(folder, unreadable_rows(cache.unreadable), len(found), config.bad_rows)
    shared = SharedInputs(scorers, cache, RewardLabels(None, [0] * len(found)))

    def train_one(variant: str, settings: Path) -> None:
        print_on_main(f"variant {variant}: {config.train.max_steps} steps")
        train_variant(replace(config, train=fitted), variant, shared, prompts, settings, resume)

    made_of = {name: getattr(config, name) for name in MADE_OF}
    results = variants(config.variants, folder, config.train.result, made_of, train_one)

    if config.evaluate is not None:
        metrics = compare(config.evaluate, config.base, results, scorers, folder, config.data)
        if metrics is not None:
            write_json(folder / "metrics.json", {**metrics, "monitor": watched(results)})
    return results[config.variants[0]]


def models_of_plan(config: Config) -> tuple[Lazy[memory.Blueprint], Lazy[dict[str, Scorer]]]:
    """The editor without weights and the scorers, from which memory is estimated."""
    editor = Lazy(lambda: estimate.load_blueprint(config.base, require_size(config.data)))
    return editor, Lazy(lambda: load_watching(config))


def load_watching(config: Config) -> dict[str, Scorer]:
    """The reward first, then the held-out one, by their names."""
    return {spec_name(spec): load_scorer(spec) for spec in (config.reward, config.monitor.held_out)}


def data_without_held_out(config: Config) -> DataConfig:
    """Returns the training data without the source images of watched prompts and of the comparison."""
    return training_data(comparison_data(config.evaluate, config.data), config.monitor)


def find_pairs(config: Config, folder: Path) -> Preferences:
    """The rows' own pairs, or the best against the worst by their own scores or by the reward."""
    rows: Any = open_rows(config.data)
    if config.candidates is not None:
        rows = candidate_rows(config.candidates, config.data, folder / "candidates")
    scores = None
    if not has_preferences(rows):
        ranked = RelabelConfig(config.reward)
        scores = relabel(ranked, rows, config.data, folder / "relabelled", config.candidates).score
    return preferences(rows, scores, config.preference.min_gap)


def pairs_plan(config: Config, data: DataConfig) -> str:
    """Line with the number of pairs, as far as it is known before rows are scored."""
    rows = open_rows(data)
    if config.candidates is None and has_preferences(rows):
        return str(preferences(rows, min_gap=config.preference.min_gap))
    return (
        f"rows: {len(rows)}; pairs: the best and the worst edit of each source by {spec_name(config.reward)}"
    )


def loss_of(config: Config, variant: str) -> PreferenceConfig:
    """The recipe's loss with what the variant changes of it."""
    return replace(config.preference, **CHANGES.get(variant, {}))


def train_variant(
    config: Config,
    variant: str,
    shared: SharedInputs,
    prompts: tuple[EditBatch, Samples | None],
    folder: Path,
    resume: bool,
) -> None:
    """Trains one variant, the monitor watching, and says in monitor.json and monitor.html what it saw."""
    every = config.train.validate_every or config.train.max_steps
    checks = -(-config.train.max_steps // every) + len(WEIGHTS)
    monitor = HackingMonitor(*prompts, shared.scorers, folder, config.monitor, checks, config.base)
    result = finetune(config.train, config.base, loss_of(config, variant), shared, monitor, folder, resume)
    if monitor.stopped and processes().is_main_process:
        with replaced(result) as aside:
            shutil.copytree(monitor.best_folder, aside)
    processes().wait_for_everyone()  # until the result is saved
    monitor.report(evaluate_interpolations(config.base, result, monitor))


def finetune(
    config: TrainConfig,
    base: str,
    preference: PreferenceConfig,
    shared: SharedInputs,
    monitor: Monitor,
    folder: Path,
    resume: bool = False,
) -> Path:
    """Fine-tunes `base` on pairs.

    Returns:
        The folder of the result: `lora/`.

    Raises:
        TrainingStopped: where the loss is not a number.
    """
    tuning = Finetuning(config, base, shared.cache, shared.labels, folder, resume)
    family, scheduler = tuning.editor.family, tuning.scheduler
    denoiser = family.denoiser(tuning.editor.pipe)  # not wrapped: nothing is exchanged between processes
    beta = preference.beta_of(scheduler)
    monitor.check(tuning.current_editor(), 0)  # the base, which later checks are compared with

    loop = tuning.loop
    for step in loop.steps():
        for micro in tuning.micro_batches(step):
            with loop.accumulate():
                with loop.autocast():
                    if preference.weight:
                        # Winners and losers with the same noise at the same time step, seen by both models.
                        pairs = PairBatch.make(tuning, micro, shared.cache.rejected_latents(micro.rows))
                        with reference(denoiser):
                            before = pairs.predict(family, denoiser, scheduler)
                        after = pairs.predict(family, tuning.unet, scheduler)
                        errors = pairs.errors(family, scheduler, after)
                        expected = pairs.errors(family, scheduler, before)
                        margin = errors.margin(expected, beta)
                        loss = preference.weight * preference_loss(margin)
                        loss = loss + preference.diffusion_weight * errors.unmasked.mean()
                        record_pairs(loop, margin, errors, expected, after, before)
                    else:
                        loss = preference.diffusion_weight * tuning.diffusion_loss(micro)
                loop.backward(loss, micro.ids)
        loop.update()

        if tuning.is_validation_step() or loop.is_last():
            with loop.ema_weights():
                if tuning.is_validation_step():
                    tuning.save_previews()
                if monitor.check(tuning.current_editor(), step + 1):
                    break
    return tuning.save()


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    print_on_main(
        f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited"
    )
