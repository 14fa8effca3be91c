"""Statistics on plain arrays, by kind: intervals, profiles, budgets, correlations, tests.

They know nothing about runs or datasets; selection, protocol and reporting all use them.
"""

from offrl.statistics.budgets import (
    bandit_curve,
    evaluations_worth,
    expected_best_of_top,
    expected_online_performance,
    pool_normalized,
    top_probabilities,
)
from offrl.statistics.correlations import (
    Reliability,
    kendall,
    kendall_w,
    reliability_from_errors,
    spearman,
    split_half_reliability,
)
from offrl.statistics.intervals import (
    FEW_DATASETS,
    Interval,
    aggregate_interval,
    bootstrap_interval,
    coverage_warning,
    episode_error,
    hierarchical_interval,
    hierarchical_means,
    improvement_interval,
    member_spread,
    standard_error,
    stratified_interval,
)
from offrl.statistics.profiles import (
    interquartile_mean,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    profile_band,
)
from offrl.statistics.tests import holm, permutation_p, sign_flip_p

__all__ = [
    "FEW_DATASETS",
    "Interval",
    "Reliability",
    "aggregate_interval",
    "bandit_curve",
    "bootstrap_interval",
    "coverage_warning",
    "episode_error",
    "evaluations_worth",
    "expected_best_of_top",
    "expected_online_performance",
    "hierarchical_interval",
    "hierarchical_means",
    "holm",
    "improvement_interval",
    "interquartile_mean",
    "kendall",
    "kendall_w",
    "member_spread",
    "optimality_gap",
    "performance_profile",
    "permutation_p",
    "pool_normalized",
    "probability_of_improvement",
    "profile_band",
    "reliability_from_errors",
    "sign_flip_p",
    "spearman",
    "split_half_reliability",
    "standard_error",
    "stratified_interval",
    "top_probabilities",
]
