"""Statistics of scores against people: means, correlations and raters' reliability, with intervals over
source images.
"""

from rewardedit.evaluation.statistics.bootstrap import Comparison, Estimate
from rewardedit.evaluation.statistics.bradley_terry import bradley_terry
from rewardedit.evaluation.statistics.correlation import correlation, spearman, spearman_difference
from rewardedit.evaluation.statistics.groups import (
    GroupedCorrelation,
    correlation_by_group,
    difference_by_group,
    fisher_mean,
    rater_agreement,
)
from rewardedit.evaluation.statistics.means import (
    clustered_mean,
    clustered_means,
    difference_of_groups,
    paired_bootstrap,
    valid_means,
)
from rewardedit.evaluation.statistics.raters import Reliability, reliability

__all__ = [
    "Comparison",
    "Estimate",
    "GroupedCorrelation",
    "Reliability",
    "bradley_terry",
    "clustered_mean",
    "clustered_means",
    "correlation",
    "correlation_by_group",
    "difference_by_group",
    "difference_of_groups",
    "fisher_mean",
    "paired_bootstrap",
    "rater_agreement",
    "reliability",
    "spearman",
    "spearman_difference",
    "valid_means",
]
