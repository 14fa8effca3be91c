"""Training curves: how well a critic fits, at every checkpoint; `workflow` judges them.

Which rule applies to an algorithm's critic is decided here too: the conservative critics' (`not_conservative`), that of
the critic's own error (`no_own_target`), or none (`no_rule`).
"""

from __future__ import annotations

import numpy as np

from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, not_applicable
from offrl.selection.diagnostics.critic import (
    NOT_HELD_OUT,
    all_not_applicable,
    critic_rows,
    explained,
    no_critic,
    none_applies,
    of_candidates,
    of_means,
    own_q,
    td_parts,
)
from offrl.selection.pool import Candidate, Pool
from offrl.selection.selectors import BC

GAP_ROWS, GAP_ACTIONS = 800, 10

POLICY_TARGET = ("td3_bc", "rebrac", "awac", "crr", "sac_n", "edac", "prdc", "spot")
"""Algorithms whose critic learns from r + discount Q(s', pi(s')), but for smoothing, sampling and entropy."""
VALUE_TARGET = ("iql",)
"""Those whose critic learns from r + discount V(s')."""
OTHER_TARGET = {
    "mcep": "its critic is that of the policy it is trained with, not of the one it deploys",
    "bppo": "its critic is that of the behaviour, fitted to logged next actions",
    "uni_o4": "its critic is that of the behaviour, fitted to logged next actions",
    **dict.fromkeys(
        ("mopo", "mobile", "rambo", "morel"),
        "its critic learns from rollouts of a model too, whose errors logged rows do not show",
    ),
}


def not_conservative(candidate: Candidate) -> str:
    """Why the workflow does not apply to the candidate's algorithm, or an empty string."""
    name = candidate.run.algorithm.name
    if reason := no_critic(candidate):
        return reason
    penalised = name == "rebrac" and float(candidate.config.critic_penalty) > 0  # BRAC's value penalty
    if name in ("cql", "combo") or penalised:
        return ""
    return f"the rule is for conservative critics (CQL, COMBO, ReBRAC with a critic penalty); {name}'s is not"


def no_own_target(candidate: Candidate) -> str:
    """Why the critic's target cannot be told from logged rows, or an empty string."""
    name = candidate.run.algorithm.name
    if (reason := no_critic(candidate)) or name in POLICY_TARGET + VALUE_TARGET:
        return reason
    return f"{name}: {OTHER_TARGET.get(name, 'what its critic learns from is not known here')}"


def no_rule(candidate: Candidate) -> str:
    """Why neither the conservative critics' rule, nor that of the critic's own error, nor that of clones applies."""
    if candidate.run.algorithm.name == BC or not not_conservative(candidate):
        return ""
    return no_own_target(candidate)


DATASET_Q = (
    Diagnostic("dataset_q", "flag", "average Q(s, a) over training rows, in the critic's reward units"),
    Diagnostic("dataset_q_validation", "flag", "average Q(s, a) over held-out rows"),
)


def dataset_q(pool: Pool) -> dict[str, Scores]:
    """E[Q(s, a)] over the dataset: a point of the curve, which means nothing by itself."""
    if reason := none_applies(pool):
        return all_not_applicable(pool, DATASET_Q, reason)
    result = {}
    for diagnostic, split in zip(DATASET_Q, ("train", "validation"), strict=True):
        if split == "validation" and pool.validation is None:
            result[diagnostic.name] = not_applicable(pool, NOT_HELD_OUT)
            continue
        q, reasons = of_candidates(pool, lambda c, split=split: own_q(pool, c, f"{split}/data")[:1])  # type: ignore[misc]
        result[diagnostic.name] = explained(of_means(pool, [(critic_rows(pool, split), q)], lambda mean: mean), reasons)
    return result


UNDERFIT = (
    Diagnostic("td_explained", "flag", "1 - squared TD error over the variance of its target, training rows"),
    Diagnostic("conservative_gap", "flag", "log mean exp Q(s, uniform) - Q(s, a), over the spread of Q"),
)


def underfit(pool: Pool) -> dict[str, Scores]:
    """What the critic has made of its two losses, on training rows and free of scale.

    The gap is CQL's penalty with ten uniform actions per state, or with all of them where they are discrete: above 0
    the critic still values actions at random above the data's.
    """
    if reason := none_applies(pool):
        return all_not_applicable(pool, UNDERFIT, reason)
    rows = critic_rows(pool, "train")
    thin = np.linspace(0, len(rows) - 1, min(len(rows), GAP_ROWS)).astype(int)
    part = rows.take(thin)
    count = pool.dataset.action_dim if pool.dataset.discrete else GAP_ACTIONS
    if pool.dataset.discrete:
        actions = np.tile(np.eye(count), (len(part), 1))
    else:
        actions = np.random.default_rng(pool.seed).uniform(-1, 1, (len(part) * count, rows.actions.shape[1]))
    states = np.repeat(part.observations, count, 0)

    def td(candidate: Candidate) -> np.ndarray:
        error, target = td_parts(pool, candidate, "train")
        centred = target - target.mean()
        return np.stack([error**2, centred, centred**2])

    def gap(candidate: Candidate) -> np.ndarray:
        data = own_q(pool, candidate, "train/data")[0].astype(np.float64)
        q = pool.q(candidate, states, actions.astype(np.float32))
        assert q is not None
        random = q.min(0).astype(np.float64).reshape(-1, count)
        highest = random.max(1, keepdims=True)
        soft = highest[:, 0] + np.log(np.exp(random - highest).mean(1))
        return np.stack([(soft - data[thin]) / data.std()])

    with np.errstate(all="ignore"):
        moments, reasons = of_candidates(pool, td)
        gaps, _ = of_candidates(pool, gap)
    explained_share = of_means(pool, [(rows, moments)], lambda e, y, yy: 1 - e / (yy - y**2))
    return {
        "td_explained": explained(explained_share, reasons),
        "conservative_gap": explained(of_means(pool, [(part, gaps)], lambda g: g), list(reasons)),
    }


FIT = (
    Diagnostic("fit_error", "flag", "squared error of Q to its own target, over the target's variance, training rows"),
    Diagnostic("fit_error_validation", "flag", "the same on held-out rows"),
)


def fit(pool: Pool) -> dict[str, Scores]:
    """E[(Q(s, a) - y)^2] / Var[y] on training and on held-out rows, y being what the critic itself learns from.

    y = r + discount V(s') for an algorithm whose critic does (IQL), as `td_parts` for the others.
    """
    if reason := none_applies(pool, no_own_target):
        return all_not_applicable(pool, FIT, reason)

    def errors(candidate: Candidate, split: str) -> np.ndarray:
        error, target = td_parts(pool, candidate, split)
        if candidate.run.algorithm.name in VALUE_TARGET:
            rows = critic_rows(pool, split)
            following = pool.value(candidate, rows.next_observations)
            assert candidate.discount is not None
            assert following is not None
            rewards = pool.rewards_of(candidate, rows.rewards).astype(np.float64)
            own = rewards + candidate.discount * (1 - rows.terminations) * following
            error, target = error + target - own, own
        centred = target - target.mean()
        return np.stack([error**2, centred, centred**2])

    result = {}
    for diagnostic, split in zip(FIT, ("train", "validation"), strict=True):
        if split == "validation" and pool.validation is None:
            result[diagnostic.name] = not_applicable(pool, NOT_HELD_OUT)
            continue
        moments, reasons = of_candidates(pool, lambda c, split=split: errors(c, split), no_own_target)  # type: ignore[misc]
        scores = of_means(pool, [(critic_rows(pool, split), moments)], lambda e, y, yy: e / (yy - y**2))
        result[diagnostic.name] = explained(scores, reasons)
    return result


MEASUREMENTS = (
    Measurement("dataset_q", DATASET_Q, dataset_q, images=True),
    Measurement("underfit", UNDERFIT, underfit, images=True),
    Measurement("fit", FIT, fit, images=True),
)
