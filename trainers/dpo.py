"""Direct preference optimisation: the editor learns to prefer the better of two edits of a source.

Method: Diffusion-DPO (Wallace et al. 2023, Eq. 14). Both edits of a pair get the same noise at the same time
step; the loss −log σ(−β/2 · [(e_w − e_w,ref) − (e_l − e_l,ref)]) lowers the preferred edit's error of prediction
against the rejected one's, each compared with the reference: the starting model, which is the editor with its
LoRA off. Source and instruction are the condition of both.

Pairs are a data set's or a table's own, or the best and the worst of several scored edits of a source.

Deviations from the paper's code: a LoRA is trained; optionally the errors are weighed by a region, and the
preferred edits' diffusion loss is added.

Command: rewardedit train instruct-pix2pix-dpo
"""

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.data import DataConfig, open_rows, require_size
from rewardedit.data.bad_rows import require_few, require_share, unreadable_rows
from rewardedit.data.preferences import Preferences, holds_pairs, preferences, stored_scores
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
    reference,
)
from rewardedit.training.savers import fit_to_this_gpu, fit_training
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base

Variant = Literal["dpo", "winners_only"]


@dataclass(frozen=True)
class Config:
    """One direct preference optimisation, or a comparison with fine-tuning on the preferred edits."""

    name: str  # name of the run and of its folder in runs/
    data: DataConfig  # pairs, or several edits of each source
    # scorer that should agree with the preferences: it ranks the edits of rows without pairs or scores, and the
    # monitor watches it
    reward: ScorerSpec
    base: str = EDITOR  # the editor to start from: hub name, pipeline folder or run folder
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
    editor = Lazy(lambda: estimate.load_blueprint(config.base, require_size(config.data)))
    scorers = Lazy(lambda: load_watching(config))

    def rows() -> list[str]:
        require_fields_of_prompts(fixed_prompts(data, config.monitor)[0], scorers())
        require_comparison(config.evaluate, data, scorers())
        return [
            *pairs_plan(config, data),
            f"variants: {', '.join(config.variants)}",
            *comparison_plan(config.evaluate),
        ]

    fitted = Lazy(lambda: fit_training(config.train, memory_of(config, editor, scorers)))

    def training() -> list[str]:
        settings, lines = fitted()
        calls = [estimate.pair_calls(settings, loss_of(config, v).weight > 0, processes().num_processes)
                 for v in config.variants]
        return [*lines, *estimate.plan_updates(editor(), settings, calls)]

    def needed() -> str:
        base, judges, settings = editor(), scorers(), replace(config, train=fitted()[0])
        return estimate.memory_line(lambda n: memory.preference_memory(settings, base, judges, n))

    return estimate.plan_of(rows, training, needed)
