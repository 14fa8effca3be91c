"""The training-curve workflow (Kumar, Singh, Tian, Finn & Levine 2021, arXiv:2109.10813): B1, B2, B4 of the catalogue.

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

from offrl.selection.diagnostics import critic, keeping, support
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, not_applicable, spread, without_error
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
GAP_ROWS, GAP_ACTIONS = 800, 10

OVERFITTED = "add dropout or an information bottleneck to the critic, or train shorter; take the checkpoint at the peak"
UNDERFITTED = "more capacity for the critic (wider, deeper, residual), or a weaker conservative penalty; train longer"
WELL_FITTED = "nothing: take the last checkpoint"
OVERFITTED_OTHER = "regularise (weight decay, dropout, layer norm), or train shorter; let a selector choose the step"
UNDERFITTED_OTHER = "more capacity for the critic (wider, deeper), a higher learning rate, or train longer"
WELL_FITTED_OTHER = "nothing about the critic's fit, which says nothing of the policy: let a selector choose the step"

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


# The curve of every checkpoint

DATASET_Q = (
    Diagnostic("dataset_q", "flag", "average Q(s, a) over training rows, in the critic's reward units (B1)"),
    Diagnostic("dataset_q_validation", "flag", "average Q(s, a) over held-out rows (B1)"),
)


def dataset_q(pool: Pool) -> dict[str, Scores]:
    """B1: E[Q(s, a)] over the dataset: a point of the curve, which means nothing by itself."""
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
    Diagnostic("td_explained", "flag", "1 - squared TD error over the variance of its target, training rows (B2)"),
    Diagnostic("conservative_gap", "flag", "log mean exp Q(s, uniform) - Q(s, a), over the spread of Q (B2)"),
)


def underfit(pool: Pool) -> dict[str, Scores]:
    """B2: what the critic has made of its two losses, on training rows and free of scale.

    The gap is CQL's penalty with ten uniform actions per state: above 0 the critic still values actions at random above
    the data's.
    """
    if reason := none_applies(pool):
        return all_not_applicable(pool, UNDERFIT, reason)
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


FIT = (
    Diagnostic(
        "fit_error", "flag", "squared error of Q to its own target, over the target's variance, training rows (B4)"
    ),
    Diagnostic("fit_error_validation", "flag", "the same on held-out rows (B4)"),
)


def fit(pool: Pool) -> dict[str, Scores]:
    """B4: E[(Q(s, a) - y)^2] / Var[y] on training and on held-out rows, y being what the critic itself learns from.

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
    error = float(spread(replicates[at] - replicates[-1]))
    noise = float(np.sqrt((np.diff(curve, 2) ** 2).mean() / 6))
    threshold = max(2 * error, LEAST_DECLINE * float(np.ptp(fitted)), NOISE * noise)
    return Peak(at, float(fitted[top] - fitted[-1]), threshold)


# The verdict

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
    known = {m.name: m for family in (critic, support) for m in family.MEASUREMENTS} | {m.name: m for m in MEASUREMENTS}
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
    if reason := no_rule(first):
        verdict = {"reason": reason}
    elif not enough:
        verdict = {"reason": f"{len(healthy)} healthy checkpoints; a curve needs {LEAST_CHECKPOINTS}"}
    elif not_conservative(first):
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
        invalid = not_conservative(pool.candidates[places[0]])
        for i in places:
            if invalid or verdict["verdict"] == "unknown":
                reasons[i] = invalid or verdict["reason"]
            else:
                value[i] = abs(int(np.searchsorted(steps, step[i]) - np.searchsorted(steps, verdict["step"])))
    return {"dataset_q_peak": without_error(value, reasons)}


MEASUREMENTS = (
    Measurement("dataset_q", DATASET_Q, dataset_q),
    Measurement("underfit", UNDERFIT, underfit),
    Measurement("fit", FIT, fit),
    Measurement("workflow", PEAK, dataset_q_peak, per_policy=False),
)
