"""The training-curve workflow (Kumar, Singh, Tian, Finn & Levine 2021, arXiv:2109.10813).

A conservative critic that overfits gives the data's own actions lower and lower values: its average Q over the dataset
rises, then falls, and the checkpoint before the fall is the one to take. One that underfits has a high TD error and a
high conservative penalty to the end. Both rules speak of one member's curve, never across runs, and only of critics
trained to be conservative: others rise as they please (TD3+BC, SAC-N), or never ask for the policy's actions (IQL).
The paper gives no threshold; those here are ours. It judged images and sparse rewards, not locomotion.

Of other critics, and of clones, only what supervised learning says of any regression is said: an error that rises on
held-out rows and not on training rows is overfitting, one that stays high on training rows is underfitting. (Held-out
TD error told overfitting apart in online learning: Li, Kumar, Kostrikov & Levine 2023, arXiv:2304.10466.) The error is
that to the critic's own target, which is not every algorithm's r + discount Q(s', pi(s')). It is a verdict on the fit
and not on the policy, so the checkpoint that it names is the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from offrl.selection.diagnostics import critic, curves, keeping, support
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, spread, without_error
from offrl.selection.diagnostics.critic import NOT_HELD_OUT, no_critic
from offrl.selection.pool import Pool
from offrl.selection.selectors import BC

SPAN = 0.2
"""Of a curve's checkpoints, that its smoothing looks at."""
LEAST_CHECKPOINTS = 6
LEAST_DECLINE = 0.05
NOISE = 3.0
"""A curve of mere noise falls by this many of its standard deviations from its smoothed peak in one case of twenty."""
LEAST_EXPLAINED = 0.5
"""A critic that leaves more than half of its target's variance unexplained on its own training rows has not fitted."""
LEAST_RISE = 0.05
"""Of a held-out error, as a share: many rows make a rise of 1 % significant, and it is no reason to change anything."""

OVERFITTED = "add dropout or an information bottleneck to the critic, or train shorter; take the checkpoint at the peak"
UNDERFITTED = "more capacity for the critic (wider, deeper, residual), or a weaker conservative penalty; train longer"
WELL_FITTED = "nothing: take the last checkpoint"
OVERFITTED_OTHER = "regularise (weight decay, dropout, layer norm), or train shorter; let a selector choose the step"
UNDERFITTED_OTHER = "more capacity for the critic (wider, deeper), a higher learning rate, or train longer"
WELL_FITTED_OTHER = "nothing about the critic's fit, which says nothing of the policy: let a selector choose the step"


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
    error = float(spread(replicates[at] - replicates[-1]))
    noise = float(np.sqrt((np.diff(curve, 2) ** 2).mean() / 6))
    threshold = max(2 * error, LEAST_DECLINE * float(np.ptp(fitted)), NOISE * noise)
    return Peak(at, float(fitted[top] - fitted[-1]), threshold)


LATE = (
    "td_explained",
    "conservative_gap",
    "td_error_ratio",
    "fit_error",
    "fit_error_validation",
    "action_distance_ratio",
)
"""Columns that are means over the last fifth of the checkpoints."""
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
    *LATE,
)


def workflow(pool: Pool) -> pd.DataFrame:
    """Every member's verdict: overfitted, underfitted, well-fitted or unknown; the step to take; what to change next.

    A conservative critic is underfitted where over the last fifth of the checkpoints it explains less than half of its
    target's variance on its own training rows, and still values random actions above the data's; overfitted where
    `find_peak` finds a peak on training rows. Of others see `_fit_verdict`. Where no rule applies the step is the last
    healthy one and the numbers stand without a claim.
    """
    needed = ["dataset_q", "underfit", "td", "fit", "action_distances"]
    known = {m.name: m for family in (critic, support, curves) for m in family.MEASUREMENTS}
    table, replicates = keeping.run(pool, [known[name] for name in needed])
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
        for name in LATE:
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
    diverged = ""
    if len(healthy) < len(places):
        diverged = f"{len(places) - len(healthy)} of {len(places)} checkpoints have diverged"
    if reason := curves.no_rule(first):
        verdict = {"reason": reason}
    elif not enough:
        verdict = {"reason": f"{len(healthy)} healthy checkpoints; a curve needs {LEAST_CHECKPOINTS}"}
    elif curves.not_conservative(first):
        verdict = _fit_verdict(pool, healthy, values, replicates, row)
    else:
        assert peak is not None
        verdict = _conservative_verdict(row, peak)
    return {**row, **verdict, "reason": "; ".join(filter(None, [diverged, verdict["reason"]]))}


def _conservative_verdict(row: dict[str, Any], peak: Peak) -> dict[str, Any]:
    fit = f"Q over the data falls by {peak.decline:.3g} from step {row['peak_step']}, threshold {peak.threshold:.3g}"
    if peak.declines:
        return {"verdict": "overfitted", "step": row["peak_step"], "advice": OVERFITTED, "reason": fit}
    if row["td_explained"] < LEAST_EXPLAINED and row["conservative_gap"] > 0:
        fit = f"the critic explains {row['td_explained']:.0%} of its target, gap {row['conservative_gap']:.2g}"
        return {"verdict": "underfitted", "advice": UNDERFITTED, "reason": fit}
    return {"verdict": "well-fitted", "advice": WELL_FITTED, "reason": fit}


def _fit_verdict(
    pool: Pool, healthy: list[int], values: pd.DataFrame, replicates: dict[str, np.ndarray], row: dict[str, Any]
) -> dict[str, Any]:
    """What the error of the critic to its own target says, or of a clone its distance to the logged actions.

    Underfitted: over the last fifth of the checkpoints the critic leaves more than half of its target's variance
    unexplained on its own training rows. Overfitted: `find_peak` finds that the logarithm of the held-out error falls
    and rises, by LEAST_RISE or more, and that of the training error does not. How much of the actions' variance a
    clone could explain is not known, so a clone is neither called underfitted nor well-fitted.
    """
    clones = row["algorithm"] == BC
    if not clones and row["fit_error"] > 1 - LEAST_EXPLAINED:
        text = f"the critic explains {1 - row['fit_error']:.0%} of its target on its own training rows"
        return {"verdict": "underfitted", "advice": UNDERFITTED_OTHER, "reason": text}
    if pool.validation is None:
        return {"reason": NOT_HELD_OUT}

    def logarithms(of: Callable[[str], np.ndarray]) -> list[np.ndarray]:
        """Of the held-out and the training error, negated: find_peak looks for their least."""
        held_out = of("action_distance" if clones else "fit_error_validation")
        training = held_out / of("action_distance_ratio") if clones else of("fit_error")
        return [-np.log(np.maximum(error, 1e-12)) for error in (held_out, training)]

    points = logarithms(lambda name: values[name].to_numpy()[healthy])
    drawn = logarithms(lambda name: replicates[name][healthy].astype(np.float64))
    held_out, training = (find_peak(*pair) for pair in zip(points, drawn, strict=True))
    rise = f"the held-out {'action distance' if clones else 'TD error'} rises by {np.expm1(held_out.decline):.0%} from "
    rise += f"step {pool.candidates[healthy[held_out.at]].step}"
    rises = held_out.declines and np.expm1(held_out.decline) >= LEAST_RISE
    if rises and training.declines:
        return {"reason": f"{rise}, but so does that on training rows: the target is unsteady"}
    if rises:
        reason = f"{rise}, while that on training rows does not"
        return {"verdict": "overfitted", "advice": OVERFITTED_OTHER, "reason": reason}
    if clones:
        unknown = "whether it underfits is not known, as the behaviour's own randomness is not"
        return {"reason": f"the held-out action distance does not rise by {LEAST_RISE:.0%}: not overfitted; {unknown}"}
    text = f"the critic explains {1 - row['fit_error']:.0%} of its target, "
    text += f"and the held-out TD error does not rise by {LEAST_RISE:.0%}"
    return {"verdict": "well-fitted", "advice": WELL_FITTED_OTHER, "reason": text}


PEAK = (Diagnostic("dataset_q_peak", "low", "checkpoints from the one that the workflow takes: the peak, or the last"),)


def dataset_q_peak(pool: Pool) -> dict[str, Scores]:
    """The rule of the peak as a score within a member; every member's choice has 0, so it does not compare members."""
    value, reasons = np.full(len(pool), np.nan), [""] * len(pool)
    run, member, step = (pool.table[name].to_numpy() for name in ("run", "member", "step"))
    for verdict in workflow(pool).to_dict("records"):
        places = np.flatnonzero((run == verdict["run"]) & (member == verdict["member"]))
        steps = np.sort(step[places])
        invalid = curves.not_conservative(pool.candidates[places[0]])
        for i in places:
            if invalid or verdict["verdict"] == "unknown":
                reasons[i] = invalid or verdict["reason"]
            else:
                value[i] = abs(int(np.searchsorted(steps, step[i]) - np.searchsorted(steps, verdict["step"])))
    return {"dataset_q_peak": without_error(value, reasons)}


MEASUREMENTS = (Measurement("workflow", PEAK, dataset_q_peak, per_policy=False, images=True),)
