"""The training-curve workflow (Kumar, Singh, Tian, Finn & Levine 2021, arXiv:2109.10813): B1 and B2 of the catalogue.

A conservative critic that overfits gives the data's own actions lower and lower values: its average Q over the dataset
rises, then falls, and the checkpoint before the fall is the one to take. One that underfits has a high TD error and a
high conservative penalty to the end. Both rules speak of one member's curve, never across runs, and only of critics
trained to be conservative: others rise as they please (TD3+BC, SAC-N), or never ask for the policy's actions (IQL).
The paper gives no threshold; those here are ours. It judged images and sparse rewards, not locomotion.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import offrl.diagnostics
from offrl.diagnostics import Diagnostic, Measurement, Scores, not_applicable, without_error
from offrl.diagnostics.critic import (
    NOT_HELD_OUT,
    critic_rows,
    explained,
    no_critic,
    of_candidates,
    of_means,
    own_q,
    td_parts,
)
from offrl.diagnostics.pool import Candidate, Pool

SPAN = 0.2
"""Of a curve's checkpoints, that its smoothing looks at."""
LEAST_CHECKPOINTS = 6
LEAST_DECLINE = 0.05
NOISE = 3.0
"""A curve of mere noise falls by this many of its standard deviations from its smoothed peak in one case of twenty."""
LEAST_EXPLAINED = 0.5
"""A critic that leaves more than half of its target's variance unexplained on its own training rows has not fitted."""
GAP_ROWS, GAP_ACTIONS = 800, 10

OVERFITTED = "add dropout or an information bottleneck to the critic, or train shorter; take the checkpoint at the peak"
UNDERFITTED = "more capacity for the critic (wider, deeper, residual), or a weaker conservative penalty; train longer"
WELL_FITTED = "nothing: take the last checkpoint"


def not_conservative(candidate: Candidate) -> str:
    """Why the workflow does not apply to the candidate's algorithm, or an empty string."""
    name = candidate.run.algorithm.name
    if reason := no_critic(candidate):
        return reason
    penalised = name == "rebrac" and float(candidate.config.critic_penalty) > 0  # BRAC's value penalty
    if name in ("cql", "combo") or penalised:
        return ""
    return f"the rule is for conservative critics (CQL, COMBO, ReBRAC with a critic penalty); {name}'s is not"


# The curve of every checkpoint

DATASET_Q = (
    Diagnostic("dataset_q", "flag", "average Q(s, a) over training rows, in the critic's reward units (B1)"),
    Diagnostic("dataset_q_validation", "flag", "average Q(s, a) over held-out rows (B1)"),
)


def dataset_q(pool: Pool) -> dict[str, Scores]:
    """B1: E[Q(s, a)] over the dataset: a point of the curve, which means nothing by itself."""
    result = {}
    for diagnostic, split in zip(DATASET_Q, ("train", "validation"), strict=True):
        if split == "validation" and pool.validation is None:
            result[diagnostic.name] = not_applicable(pool, NOT_HELD_OUT)
            continue
        q, reasons = of_candidates(pool, lambda c, split=split: own_q(pool, c, f"{split}/data")[:1])  # type: ignore[misc]
        result[diagnostic.name] = explained(of_means(pool, [(critic_rows(pool, split), q)], lambda mean: mean), reasons)
    return result


UNDERFIT = (
    Diagnostic("td_explained", "flag", "1 - squared TD error over the variance of its target, training rows (B2)"),
    Diagnostic("conservative_gap", "flag", "log mean exp Q(s, uniform) - Q(s, a), over the spread of Q (B2)"),
)


def underfit(pool: Pool) -> dict[str, Scores]:
    """B2: what the critic has made of its two losses, on training rows and free of scale.

    The gap is CQL's penalty with ten uniform actions per state: above 0 the critic still values actions at random above
    the data's.
    """
    rows = critic_rows(pool, "train")
    thin = np.linspace(0, len(rows) - 1, min(len(rows), GAP_ROWS)).astype(int)
    part = rows.take(thin)
    actions = np.random.default_rng(pool.seed).uniform(-1, 1, (len(part) * GAP_ACTIONS, rows.actions.shape[1]))
    states = np.repeat(part.observations, GAP_ACTIONS, 0)

    def td(candidate: Candidate) -> np.ndarray:
        error, target = td_parts(pool, candidate, "train")
        centred = target - target.mean()
        return np.stack([error**2, centred, centred**2])

    def gap(candidate: Candidate) -> np.ndarray:
        data = own_q(pool, candidate, "train/data")[0].astype(np.float64)
        q = pool.q(candidate, states, actions.astype(np.float32))
        assert q is not None
        random = q.min(0).astype(np.float64).reshape(-1, GAP_ACTIONS)
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


# The peak test


def smooth(curve: np.ndarray) -> np.ndarray:
    """Robust lowess: local lines over the nearest 20 % of the points (at least 5), outliers weighed down."""
    n = len(curve)
    width = _width(n)
    x = np.arange(n)
    distances = np.abs(x[:, None] - x)
    reach = np.sort(distances, 1)[:, width - 1 : width] + 1.0
    near = np.maximum(1 - (distances / reach) ** 3, 0) ** 3
    trust = np.ones(n)
    for _ in range(4):
        weights = near * trust / (near * trust).sum(1, keepdims=True)
        at, level = weights @ x, weights @ curve
        offset = x - at[:, None]
        slope = (weights * offset * (curve - level[:, None])).sum(1) / (weights * offset**2).sum(1)
        fitted = level + slope * (x - at)
        residuals = np.abs(curve - fitted)
        scale = 6 * np.median(residuals)
        if scale <= 1e-9 * np.abs(curve).max():
            break
        trust = np.maximum(np.maximum(1 - (residuals / scale) ** 2, 0) ** 2, 1e-3)
    return fitted


def _width(n: int) -> int:
    return min(n, max(5, int(np.ceil(SPAN * n))))


class Peak(NamedTuple):
    at: int
    """Index of the highest point just before, or at, the smoothed curve's maximum."""
    decline: float
    """From that maximum to the end of the smoothed curve."""
    threshold: float

    @property
    def declines(self) -> bool:
        return self.decline > self.threshold


def find_peak(curve: np.ndarray, replicates: np.ndarray) -> Peak:
    """Does the curve rise and fall?

    The fall of the smoothed curve from its peak to its end counts if it is above all of: two standard errors, over
    episodes, of the difference of those two checkpoints; 5 % of the curve's range; and three standard deviations of the
    noise from one checkpoint to the next, estimated from second differences. Without the last, which is about training
    and not about episodes, nearly every curve of mere noise would have a peak.

    Args:
        curve: [checkpoints]. replicates: [checkpoints, resamples], the same on bootstrap samples of the episodes.
    """
    fitted = smooth(curve)
    top = int(np.argmax(fitted))
    before = max(0, top - _width(len(curve)) // 2)
    at = before + int(np.argmax(curve[before : top + 1]))
    error = float(np.std(replicates[at] - replicates[-1], ddof=1))
    noise = float(np.sqrt((np.diff(curve, 2) ** 2).mean() / 6))
    threshold = max(2 * error, LEAST_DECLINE * float(np.ptp(fitted)), NOISE * noise)
    return Peak(at, float(fitted[top] - fitted[-1]), threshold)


# The verdict

COLUMNS = (
    "run",
    "algorithm",
    "member",
    "seed",
    "verdict",
    "step",
    "advice",
    "reason",
    "checkpoints",
    "peak_step",
    "decline",
    "threshold",
    "decline_validation",
    "threshold_validation",
    "td_explained",
    "conservative_gap",
    "td_error_ratio",
    "action_distance_ratio",
)


def workflow(pool: Pool) -> pd.DataFrame:
    """Every member's verdict: overfitted, underfitted, well-fitted or unknown; the step to take; what to change next.

    Underfitted: over the last fifth of the checkpoints the critic explains less than half of its target's variance on
    its own training rows, and still values random actions above the data's. Overfitted: `find_peak` on training rows.
    Where the rules do not apply the step is the last healthy one and the numbers stand without a claim.
    """
    needed = ["dataset_q", "underfit", "td", "action_distances"]
    table, replicates = offrl.diagnostics.measure(pool, needed)
    values = table.pivot(index="candidate", columns="diagnostic", values="value").reindex(pool.table["candidate"])
    members: dict[Any, list[int]] = {}
    for i, candidate in enumerate(pool.candidates):
        members.setdefault((candidate.run.path, candidate.member), []).append(i)
    rows = []
    for places in members.values():
        places = sorted(places, key=lambda i: pool.candidates[i].step)
        rows.append(_verdict(pool, places, values, replicates))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _verdict(pool: Pool, places: list[int], values: pd.DataFrame, replicates: dict[str, np.ndarray]) -> dict[str, Any]:
    first, described = pool.candidates[places[0]], pool.table.iloc[places[0]]
    healthy = [i for i in places if not pool.candidates[i].diverged]
    reason = not_conservative(first)
    if not no_critic(first):
        healthy = [i for i in healthy if np.isfinite(values["dataset_q"].iloc[i])]
    last = pool.candidates[(healthy or places)[-1]].step
    row: dict[str, Any] = {
        **{name: described[name] for name in ("run", "algorithm", "member", "seed")},
        "verdict": "unknown",
        "step": last,
        "advice": "take the last healthy checkpoint, or let a selector choose",
        "checkpoints": len(healthy),
    }
    if healthy:
        late = healthy[-max(2, round(SPAN * len(healthy))) :]
        for name in ("td_explained", "conservative_gap", "td_error_ratio", "action_distance_ratio"):
            found = values[name].iloc[late]
            row[name] = float(found.mean()) if found.notna().any() else np.nan
    enough = len(healthy) >= LEAST_CHECKPOINTS
    peak = None
    for name, suffix in (("dataset_q_validation", "_validation"), ("dataset_q", "")):
        curve = values[name].iloc[healthy].to_numpy(np.float64)
        if enough and np.isfinite(curve).all():
            peak = find_peak(curve, replicates[name][healthy].astype(np.float64))
            row[f"decline{suffix}"], row[f"threshold{suffix}"] = peak.decline, peak.threshold
    if peak is not None:
        row["peak_step"] = pool.candidates[healthy[peak.at]].step
    if len(healthy) < len(places):
        row["reason"] = f"{len(places) - len(healthy)} of {len(places)} checkpoints have diverged"
    if not reason and peak is None:
        reason = f"{len(healthy)} healthy checkpoints; a curve needs {LEAST_CHECKPOINTS}"
    if reason:
        return {**row, "reason": "; ".join(filter(None, [row.get("reason"), reason]))}
    assert peak is not None
    fit = f"Q over the data falls by {peak.decline:.3g} from step {row['peak_step']}, threshold {peak.threshold:.3g}"
    if peak.declines:
        verdict = {"verdict": "overfitted", "step": row["peak_step"], "advice": OVERFITTED}
    elif row["td_explained"] < LEAST_EXPLAINED and row["conservative_gap"] > 0:
        verdict = {"verdict": "underfitted", "advice": UNDERFITTED}
        fit = f"the critic explains {row['td_explained']:.0%} of its target, gap {row['conservative_gap']:.2g}"
    else:
        verdict = {"verdict": "well-fitted", "advice": WELL_FITTED}
    return {**row, **verdict, "reason": "; ".join(filter(None, [row.get("reason"), fit]))}


PEAK = (
    Diagnostic(
        "dataset_q_peak", "low", "checkpoints from the one that the workflow takes: the peak, or the last (B1's rule)"
    ),
)


def dataset_q_peak(pool: Pool) -> dict[str, Scores]:
    """B1's rule as a score within a member; every member's choice has 0, so it does not compare members."""
    value, reasons = np.full(len(pool), np.nan), [""] * len(pool)
    run, member, step = (pool.table[name].to_numpy() for name in ("run", "member", "step"))
    for verdict in workflow(pool).to_dict("records"):
        places = np.flatnonzero((run == verdict["run"]) & (member == verdict["member"]))
        steps = np.sort(step[places])
        for i in places:
            if verdict["verdict"] == "unknown":
                reasons[i] = verdict["reason"]
            else:
                value[i] = abs(int(np.searchsorted(steps, step[i]) - np.searchsorted(steps, verdict["step"])))
    return {"dataset_q_peak": without_error(value, reasons)}


MEASUREMENTS = (
    Measurement("dataset_q", DATASET_Q, dataset_q),
    Measurement("underfit", UNDERFIT, underfit),
    Measurement("workflow", PEAK, dataset_q_peak, per_policy=False),
)
