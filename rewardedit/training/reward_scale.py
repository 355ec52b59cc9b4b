"""The mapping of a reward's scores before the loss, fitted to the rows of a training."""

from pathlib import Path

from rewardedit.data import DataConfig, Rows, leading_rows
from rewardedit.relabel import RelabelConfig, relabel
from rewardedit.reward_prompt import RewardScale
from rewardedit.scorers import Scorer
from rewardedit.training.reward import RewardConfig, chosen_scale, require_effect, reward_mapping

EFFECT_CHECK_ROWS = 256  # rows that show whether an unmapped score has an effect


def fit_reward_scale(
    reward: RewardConfig, rows: Rows, data: DataConfig, folder: Path, scorer: Scorer
) -> RewardScale | None:
    """Returns the mapping of the score before the loss; None if the loss takes it as it is.

    The scores of the rows, on which the mapping or the check of its effect depends, are kept in `folder`.

    Raises:
        ValueError: if no row can be scored, or the reward has no effect on them.
    """
    scale = chosen_scale(reward, scorer)
    if scale == "none" and reward.loss == "linear":
        return None
    if scale in ("none", "range"):
        rows = leading_rows(rows, EFFECT_CHECK_ROWS)

    scores = RelabelConfig(
        scorer=reward.scorer,
        scale="range" if scale == "range" else "quantiles",
        batch_size=reward.score_batch_size,
    )
    relabelled = relabel(scores, rows, data, folder)
    mapping = reward_mapping(reward, scorer, relabelled.score)
    require_effect(reward, mapping, relabelled.score)
    return mapping
