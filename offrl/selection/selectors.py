"""Selectors: from a table of diagnostics to an order of the candidates.

A selector is a function

    selector(scores, candidates) -> Series indexed as both tables, higher is better, nan = not to be chosen

    scores      [candidates x diagnostics], values as measured; nan where a diagnostic does not apply.
                scores.attrs may hold "coverage" (the data's, 0 narrow ... 1 broad), "standard_error" (a table of
                the same shape) and "reasons" (why a candidate lacks diagnostics, text by candidate).
    candidates  [candidates x (run, algorithm, setting, member, seed, step)].

What it returns may carry attrs: "abstains" (why behaviour cloning is recommended instead; the order is given all the
same), "notes" (a list of what it had to do without) and "uses" (the diagnostics that it ranked by: what it cost). A
selector sees nothing else: no environment, no return.

Ranks, not values, are combined: scales differ by orders of magnitude, and estimates diverge. A rank is the share of
the eligible candidates that a candidate beats, ties counted half, in (0, 1). Vetoed candidates are taken out before
ranking, so that adding a diverged one changes nothing for the rest. **A diagnostic that a candidate lacks counts as
the middle rank, 0.5**: not knowing neither helps nor harms, and never makes a score more extreme. A diagnostic that no
candidate has drops out of its group; a group that is left empty drops out of the mean. A candidate that lacks more
than half of the diagnostics ranked by, or every one of the table as a policy with memory does, is left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from offrl.errors import UserError, nearest
from offrl.selection.outvalued import ESTIMATORS, STANDARD_ERRORS, outvalued

Selector = Callable[[pd.DataFrame, pd.DataFrame], pd.Series]

DIRECTIONS = {
    "fqe": "high",
    "fqe_lcb": "high",
    "lstd": "high",
    "lstd_lcb": "high",
    "behaviour_advantage": "high",
    "behaviour_advantage_lcb": "high",
    "model_value": "high",
    "action_distance": "low",
    "behaviour_log_prob": "high",
    "ood_fraction": "low",
    "return_weighted_action_distance": "low",
    "td_error": "low",
    "ridge_bellman_error": "low",
    "rank_opc": "high",
    "non_finite": "flag",
    "out_of_range": "flag",
}
"""Which end of a diagnostic is better. `flag`: above its limit a candidate is vetoed."""

VETOES = {
    "non_finite": (0.0, "not finite: {:.3g}"),
    "out_of_range": (0.01, "{:.1%} of Q(s, π(s)) lie outside what the data's rewards allow"),
}
"""Health checks: the highest value that passes, and what to say of one that does not."""

VALUE = (("fqe_lcb", "lstd_lcb", "fqe", "lstd"), ("behaviour_advantage",), ("model_value",))
SUPPORT = (("action_distance", "behaviour_log_prob"), ("ood_fraction",), ("return_weighted_action_distance",))
FIT = (("td_error",), ("ridge_bellman_error",), ("rank_opc",))
"""Diagnostics of each group, each with its alternatives: of a tuple, the first that any candidate has is used."""

BC = "bc"


def bare(scores: pd.DataFrame) -> pd.DataFrame:
    """The table without its attrs, which pandas would carry into every result, and trips over where it concatenates."""
    scores = scores.copy(deep=False)
    scores.attrs = {}
    return scores


def vetoes(scores: pd.DataFrame) -> pd.Series:
    """Why each candidate must not be deployed, text by candidate; empty where nothing is known against it."""
    known, scores = scores.attrs.get("reasons", {}), bare(scores)
    reasons = pd.Series("", index=scores.index, dtype=object)
    measured = scores.notna().any(axis=1)
    for candidate in scores.index[~measured] if measured.any() else []:
        reasons[candidate] = known.get(candidate) or "no diagnostic applies to it"
    for name, (limit, text) in VETOES.items():
        if name in scores:
            for candidate in scores.index[scores[name] > limit]:
                reason = text.format(scores.at[candidate, name])
                reasons[candidate] = f"{reasons[candidate]}; {reason}" if reasons[candidate] else reason
    return reasons


def ranks(values: pd.Series, direction: str, eligible: pd.Series) -> pd.Series:
    """Share of the eligible candidates that each beats, ties half, in (0, 1); nan where it has no value or no right."""
    values = values.where(eligible)
    order = values.rank(method="average", ascending=direction != "low")
    return (order - 0.5) / values.notna().sum()


def group_rank(
    scores: pd.DataFrame, members: Iterable[tuple[str, ...]], eligible: pd.Series
) -> tuple[pd.Series | None, list[str]]:
    """Mean rank over a group's members, and the diagnostics that were used; None where no member is known."""
    scores = bare(scores)
    used = []
    for names in members:
        known = [name for name in names if name in scores and scores.loc[eligible, name].notna().any()]
        used += known[:1]
    if not used:
        return None, []
    parts = [ranks(scores[name], DIRECTIONS[name], eligible).fillna(0.5) for name in used]
    return pd.concat(parts, axis=1).mean(axis=1).where(eligible), used


def rank_mean(
    scores: pd.DataFrame,
    candidates: pd.DataFrame,
    *,
    value: float = 0.5,
    support: float = 0.5,
    fit: float = 0.0,
    veto: bool = True,
    estimates: bool = True,
    fallback: bool = True,
) -> pd.Series:
    """The "2+2 rank mean" (selection.md, section 6.3): value and support diagnostics, as ranks, each half of the score.

    Value scores fail on narrow data, where they bootstrap through actions that the data lacks; closeness to the data
    fails on broad or poor data, where it rewards imitating bad behaviour. The mean of their ranks insures against both.
    Where all estimators of value agree that a candidate is worth less than another one (`outvalued`), it stands behind
    all of which that is not so: 1 is taken from its score.

    Args:
        value, support, fit: weights of the groups; those of groups that nothing is known of go to the others.
        veto: take out what fails a health check.
        estimates: put candidates that are outvalued behind the others.
        fallback: abstain in favour of behaviour cloning where `prefers_cloning` says so.
    """
    reasons = vetoes(scores)
    eligible = (reasons == "") if veto else bare(scores).notna().any(axis=1)
    total, weights = pd.Series(0.0, index=scores.index), 0.0
    notes, uses = [], []
    for name, members, weight in (("value", VALUE, value), ("support", SUPPORT, support), ("fit", FIT, fit)):
        if weight <= 0:
            continue
        mean, used = group_rank(scores, members, eligible)
        if mean is None:
            notes.append(f"no {name} diagnostic")
            continue
        notes.append(f"{name}: {', '.join(used)}")
        uses += used
        total, weights = total + weight * mean, weights + weight
    # rounded, so that equal means of ranks tie whatever the order of their sums
    result = (total / weights).round(12).where(eligible) if weights else pd.Series(np.nan, index=scores.index)
    if uses and (few := eligible & (bare(scores)[uses].notna().mean(axis=1) < 0.5)).any():
        result = result.mask(few)
        notes.append(f"{few.sum()} left out: fewer than half of these diagnostics apply to them")
    if estimates and (behind := outvalued(scores, eligible)).any():
        result = result - behind
        agreeing = ", ".join(ESTIMATORS)
        notes.append(
            f"{behind.sum()} of {eligible.sum()} ranked behind the rest: {agreeing} agree that another is better"
        )
        uses += [name for name in ESTIMATORS if name not in uses]
    result.name = "score"
    result.attrs |= {"notes": notes, "uses": uses}
    if result.isna().all():
        result.attrs["abstains"] = (
            "every candidate is vetoed"
            if veto and not eligible.any()
            else f"no diagnostic to rank by{nothing_applies(scores)}"
        )
    elif fallback and (reason := prefers_cloning(result, scores, candidates)):
        result.attrs["abstains"] = reason
    return result


def prefers_cloning(ranking: pd.Series, scores: pd.DataFrame, candidates: pd.DataFrame) -> str:
    """Why to deploy behaviour cloning rather than the winner of `ranking`; empty where there is no reason to.

    Both must hold: the lower bound of the winner's advantage over the behaviour is not above 0, and the lower bound of
    its value is not above that of cloning as estimated by the same estimator (mean over the last checkpoints of the
    BC candidates). What is not known does not hold. The bound of the advantage is `behaviour_advantage_lcb`, or the
    mean less 1.645 standard errors, or, where these are not given, the mean.
    """
    cloned = cloning(candidates, scores)
    winners = ranking.index[ranking == ranking.max()]
    if not len(cloned) or len(winners.intersection(cloned)):
        return ""
    advantage = _advantage_bound(scores).reindex(winners)
    for estimator in ("fqe", "lstd"):
        bound = scores.get(f"{estimator}_lcb")
        if bound is None or bound[winners].isna().all():
            continue
        center = scores.get(estimator, bound)[cloned].mean()
        if (advantage <= 0).all() and (bound[winners] <= center).all():
            return (
                f"the winner's advantage over the behaviour may be {advantage.iloc[0]:.3g}, and its {estimator} value "
                f"{bound[winners].iloc[0]:.3g}, where cloning has {center:.3g}"
            )
        return ""
    return ""


def nothing_applies(scores: pd.DataFrame) -> str:
    """Why a table has no value at all, as the end of a sentence; empty where it has some, or no reason is known."""
    reasons = scores.attrs.get("reasons", {})
    if bare(scores).notna().any(axis=None) or not reasons:
        return ""
    return ": " + "; ".join(sorted({str(reasons[name]) for name in scores.index if name in reasons}))


def _advantage_bound(scores: pd.DataFrame) -> pd.Series:
    name = "behaviour_advantage"
    if f"{name}_lcb" in scores:
        return scores[f"{name}_lcb"]
    if name not in scores:
        return pd.Series(np.nan, index=scores.index)
    errors = scores.attrs.get("standard_error")
    scores = bare(scores)
    if errors is None or name not in errors:
        return scores[name]
    return scores[name] - STANDARD_ERRORS * errors[name].reindex(scores.index).fillna(0.0)


def last_checkpoints(candidates: pd.DataFrame) -> pd.Index:
    """The last checkpoint of every member of every run."""
    last = candidates.groupby(["run", "member"], dropna=False)["step"].transform("max")
    return candidates.index[(candidates["step"] == last) | candidates["step"].isna()]


def cloning(candidates: pd.DataFrame, scores: pd.DataFrame) -> pd.Index:
    """Last checkpoints of behaviour cloning that pass the health checks, deployed when a selector abstains; empty where
    the pool has none."""
    last = candidates.loc[last_checkpoints(candidates)]
    healthy = vetoes(scores).reindex(last.index, fill_value="") == ""
    return last.index[healthy & (last["algorithm"].astype(str).str.lower() == BC)]


def coverage_weighted(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """`rank_mean` with weight c for value and 1 - c for support, c being the data's coverage; equal where not known."""
    coverage = scores.attrs.get("coverage")
    if coverage is None or not np.isfinite(coverage):
        result = rank_mean(scores, candidates)
        result.attrs["notes"] = [*result.attrs["notes"], "the data's coverage is not known: equal weights"]
        return result
    coverage = float(np.clip(coverage, 0, 1))
    return rank_mean(scores, candidates, value=coverage, support=1 - coverage)


def with_fit(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """`rank_mean` with a third group of equal weight: how well the critic fits the data."""
    return rank_mean(scores, candidates, value=1 / 3, support=1 / 3, fit=1 / 3)


def value_only(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """Mean rank of the value diagnostics alone, with the vetoes, without the fallback."""
    return rank_mean(scores, candidates, support=0, estimates=False, fallback=False)


def support_only(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """Mean rank of the support diagnostics alone, with the vetoes, without the fallback."""
    return rank_mean(scores, candidates, value=0, estimates=False, fallback=False)


def without_fallback(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """`rank_mean` that never abstains: what the fallback is worth."""
    return rank_mean(scores, candidates, fallback=False)


def ranks_alone(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """`rank_mean` in which nobody is outvalued: what agreeing estimates are worth."""
    return rank_mean(scores, candidates, estimates=False)


def without_vetoes(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """`rank_mean` over all candidates, whatever their health: what the vetoes are worth."""
    return rank_mean(scores, candidates, veto=False)


DEFAULT = "rank_mean"
SELECTORS: dict[str, Selector] = {
    DEFAULT: rank_mean,
    "rank_mean_coverage": coverage_weighted,
    "rank_mean_fit": with_fit,
    "rank_mean_no_fallback": without_fallback,
    "rank_mean_no_vetoes": without_vetoes,
    "rank_mean_ranks_alone": ranks_alone,
    "value_only": value_only,
    "support_only": support_only,
}
"""Composites by name. A single diagnostic is a selector too: `single(name, direction)`."""


def single(name: str, direction: str) -> Selector:
    """One diagnostic and nothing else, no vetoes: the candidate at its better end wins."""
    sign = -1.0 if direction == "low" else 1.0

    def selector(scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
        if name not in scores:
            return pd.Series(np.nan, index=scores.index, name="score")
        result = (sign * bare(scores)[name]).rename("score")
        result.attrs["uses"] = [name]
        return result

    return selector


def available(scores: pd.DataFrame, directions: Mapping[str, str] | None = None) -> dict[str, Selector]:
    """Every selector that this table feeds: composites with anything to rank by, and each single diagnostic.

    `directions` adds to `DIRECTIONS`; a diagnostic whose direction is neither high nor low is not a selector.
    """
    known = {str(name) for name in scores if scores[name].notna().any()}
    directions = {**DIRECTIONS, **(directions or {})}
    groups = {
        label: sum(any(name in known for name in names) for names in members)
        for label, members in (("value", VALUE), ("support", SUPPORT), ("fit", FIT))
    }
    both = groups["value"] > 0 and groups["support"] > 0
    fed = {
        DEFAULT: both,
        "rank_mean_coverage": both and "coverage" in scores.attrs,
        "rank_mean_fit": both and groups["fit"] > 0,
        "rank_mean_no_fallback": both,
        "rank_mean_no_vetoes": both and any(name in known for name in VETOES),
        "rank_mean_ranks_alone": both and "standard_error" in scores.attrs,
        "value_only": groups["value"] > 1,  # of one diagnostic it would be no more than that diagnostic
        "support_only": groups["support"] > 1,
    }
    composites = {name: selector for name, selector in SELECTORS.items() if fed.get(name, True)}
    singles = {name: single(name, directions[name]) for name in sorted(known & set(directions))}
    return composites | {name: selector for name, selector in singles.items() if directions[name] in ("high", "low")}


def find(name: str, known: Mapping[str, Selector]) -> Selector:
    """A selector by name, or one of yours: `path/to/file.py:function`.

    Raises:
        UserError: no such selector, file or function.
    """
    if name in known:
        return known[name]
    path, colon, function = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UserError(f"selector {name}: not among those that this table feeds; {nearest(name, known)}")
    if not Path(path).is_file():
        raise UserError(f"selector {name}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"offrl_selector_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        raise UserError(f"selector {name}: {path} has no function {function}")
    return found


class Choice(NamedTuple):
    """What a selector says of a pool."""

    ranking: pd.Series
    """Score by candidate, best first, equal ones by candidate's name; vetoed and unranked ones are left out."""
    top: list[Any]
    """The first candidates of the ranking."""
    tied: int
    """How many candidates share the first place."""
    abstains: str
    """Why behaviour cloning is to be deployed instead; empty where it is not."""
    deploy: list[Any]
    """Candidates to deploy one of: the first place, or cloning's last checkpoints; empty where there are none."""
    notes: list[str]


def choose(scores: pd.DataFrame, candidates: pd.DataFrame, selector: Selector = rank_mean, top: int = 3) -> Choice:
    """Apply a selector. The order does not depend on that of the tables, and is the same every time."""
    result = apply(selector, scores, candidates)
    ordered = result.dropna()
    ordered = ordered.iloc[np.lexsort((ordered.index.astype(str), -ordered.to_numpy()))]
    first = list(ordered.index[ordered == ordered.iloc[0]]) if len(ordered) else []
    abstains = result.attrs.get("abstains", "") or ("" if len(ordered) else "no candidate has a score")
    deploy = list(cloning(candidates, scores)) if abstains else first[:1]
    notes = list(result.attrs.get("notes", []))
    return Choice(ordered, list(ordered.index[:top]), len(first), abstains, deploy, notes)


def apply(selector: Selector, scores: pd.DataFrame, candidates: pd.DataFrame) -> pd.Series:
    """What the selector returns, as floats in the order of `scores`.

    Raises:
        UserError: it does not score the candidates that it was given.
    """
    result = selector(scores, candidates)
    if not isinstance(result, pd.Series) or set(result.index) != set(scores.index) or len(result) != len(scores):
        name = getattr(selector, "__name__", "selector")
        raise UserError(f"{name}: must return a pandas Series with one score for each of the {len(scores)} candidates")
    attributes = dict(result.attrs)
    result = result.reindex(scores.index).astype(float)
    result.attrs = attributes
    return result
