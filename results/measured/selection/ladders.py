"""Off-policy estimates of the 26 snapshots of two public TRPO runs, against their measured returns.

    PYTHONPATH=tests python results/measured/selection/ladders.py hopper reacher

with the published snapshots in ../shared/data/policies and minari:trpo/hopper/mixed-v0 in $MINARI_DATASETS_PATH.
The data are of snapshots 0, 20, 40, 60 and 100, one snapshot per episode, actions drawn and then clipped: hopper's are
the published log, reacher's are rolled out here. Estimators are not told which episode is of which snapshot.

Writes into ladders/ beside this file, per environment: NAME_truth.csv (roll-outs), NAME.csv (one row per snapshot and
estimator), and for all of them summary.csv and ladders.png; the summary is also printed. What is there already is
not made anew: delete it first.
"""

import sys
import tempfile
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pools import made_pool, made_run
from scipy.special import logsumexp

import offrl.algorithm
import offrl.data
from offrl.algorithm import Spec
from offrl.data.dataset import Dataset
from offrl.data.transforms import actions_to_unit_box
from offrl.playing import simulators
from offrl.reporting.pictures import INK, colour, style
from offrl.selection.diagnostics import measure
from offrl.selection.diagnostics.fitted_q_evaluation import FQE_HEADS
from offrl.selection.diagnostics.fitting import DISCOUNT, HEADS
from offrl.selection.diagnostics.importance_sampling import (
    ESS_STEP,
    LEAST_ESS,
    logged_episodes,
    weighted_importance_sampling,
)
from offrl.selection.pool import Pool, in_chunks
from offrl.statistics import spearman

HERE = Path(__file__).resolve().parent
TRPO = HERE.parents[2] / "tests" / "toys" / "trpo.py"
POLICIES = HERE.parents[3] / "shared" / "data" / "policies"
IN_DATA = (0, 20, 40, 60, 100)
TRUTH_SEED, LOG_SEED = 100_000, 0  # of the first reset; the first is hopper's
LOG_EPISODES = 400
"""Of each snapshot in reacher's log."""
HOPPER = "minari:trpo/hopper/mixed-v0"
FOLDER = HERE / "ladders"
MEASURED = ["fqe", "lstd", "model_value", "behaviour_advantage", "importance_sampling", "doubly_robust"]
NOISY = ("noisy",)
TRUTHS = {  # what is estimated: by which actions, and which sum of rewards
    "fqe": ("mean", "for_ever"),
    "fqe_heads": ("mean", "for_ever"),
    "lstd": ("mean", "for_ever"),
    "model_value": ("mean", "for_ever"),
    "model_value_min": ("mean", "for_ever"),
    "importance_sampling": NOISY,
    "doubly_robust": NOISY,
    "exact_importance_sampling": ("drawn", "discounted"),
}
ESTIMATORS = (*TRUTHS, "behaviour_advantage")
FLAGS = ("fqe_stability", "effective_sample_size")
COLUMNS = ["snapshot", "estimator", "value", "standard_error", "reason"]


class Ladder(NamedTuple):
    env_id: str
    file: str
    limit: int
    """Steps of an episode."""
    for_ever: int
    """Steps after which what is still to come is discounted to under 1 %."""
    episodes: int
    """Played with mean actions, per snapshot; as many with drawn ones."""


LADDERS = {
    "hopper": Ladder("Hopper-v5", "trpo_ladder_Hopper.h5", 1000, 1000, 20),
    "reacher": Ladder("Reacher-v5", "trpo_ladder_Reacher.h5", 50, 500, 50),
}
ALGORITHM = offrl.algorithm.load(str(TRPO))


def snapshots(ladder: Ladder) -> dict[int, Any]:
    return ALGORITHM.init.__globals__["snapshots"](POLICIES / ladder.file)


# Roll-outs


class Played(NamedTuple):
    """Episodes one per row; what is beyond the end of one is 0."""

    observations: np.ndarray
    """float32 [episodes, steps + 1, dim]."""
    actions: np.ndarray
    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray

    def returns(self, steps: int, discount: float = 1.0) -> np.ndarray:
        """Of the first `steps` steps."""
        return self.rewards[:, :steps] @ discount ** np.arange(min(steps, self.rewards.shape[1]))


@cache
def _environments(env_id: str, limit: int, count: int) -> list[Any]:
    return [simulators.make(env_id, {"max_episode_steps": limit}) for _ in range(count)]


@cache
def _program(env_id: str, noise: tuple[float, ...] | None) -> Any:
    """(key, state, observations) -> actions: the policy's own draws, or its mean action and so much noise."""
    spaces = simulators.spaces(env_id, {})
    policy = ALGORITHM.policy(ALGORITHM.Config(), Spec(spaces.observation_dim, len(spaces.action_low), 0))
    if noise is None:
        return jax.jit(policy.sample)

    def noisy(key: jax.Array, state: Any, observations: jax.Array) -> jax.Array:
        actions = policy.act(state, observations)
        return jax.numpy.clip(actions + np.asarray(noise) * jax.random.normal(key, actions.shape), -1, 1)

    return jax.jit(noisy)


def play(env_id: str, state: Any, seeds: np.ndarray, limit: int, noise: tuple[float, ...] | None = None) -> Played:
    """One episode from each reset seed; actions are drawn, or with `noise` [action_dim] the mean action and that much
    noise."""
    episodes = len(seeds)
    environments, act = _environments(env_id, limit, episodes), _program(env_id, noise)
    resets = [e.reset(seed=int(seed))[0] for e, seed in zip(environments, seeds, strict=True)]
    now = np.stack(resets).astype(np.float32)
    dims = now.shape[1], environments[0].action_space.shape[0]
    observations = np.zeros((episodes, limit + 1, dims[0]), np.float32)
    actions, rewards = np.zeros((episodes, limit, dims[1]), np.float32), np.zeros((episodes, limit))
    lengths, terminated = np.zeros(episodes, int), np.zeros(episodes, bool)
    observations[:, 0], alive, key = now, np.ones(episodes, bool), jax.random.key(int(seeds[0]))
    for t in range(limit):
        drawn = np.asarray(act(jax.random.fold_in(key, t), state, observations[:, t]))
        for i in np.flatnonzero(alive):
            actions[i, t] = drawn[i]
            observations[i, t + 1], rewards[i, t], terminated[i], truncated, _ = environments[i].step(actions[i, t])
            lengths[i], alive[i] = t + 1, not (terminated[i] or truncated)
        if not alive.any():
            break
    return Played(observations, actions, rewards, lengths, terminated)


def truth(ladder: Ladder, states: dict[int, Any]) -> pd.DataFrame:
    """One row per snapshot, way of acting ("mean", "drawn"), and what is summed up: `return` (undiscounted) and
    `discounted` within the time limit, and `for_ever` (discounted, episodes not cut off at the limit)."""
    dim, seeds = simulators.spaces(ladder.env_id, {}).action_low.shape[0], truth_seeds(ladder)
    rows = []
    for iteration, state in states.items():
        for acting, noise in (("mean", (0.0,) * dim), ("drawn", None)):
            limit = ladder.for_ever if acting == "mean" else ladder.limit
            played = play(ladder.env_id, state, seeds, limit, noise)
            rows += truth_rows(iteration, acting, played, ladder)
        print(iteration, *(f"{row[2]} {row[3]:.4g}±{row[4]:.2g}" for row in rows[-5:]), flush=True)
    return pd.DataFrame(rows, columns=["snapshot", "acting", "sum", "value", "standard_error", "episodes"])


def truth_rows(iteration: int, acting: str, played: Played, ladder: Ladder) -> list[tuple]:
    sums = {
        "return": played.returns(ladder.limit),
        "discounted": played.returns(ladder.limit, DISCOUNT),
        "for_ever": played.returns(ladder.for_ever, DISCOUNT),
    }
    if acting == "drawn":  # not needed, and not played that long on reacher
        del sums["for_ever"]
    errors = {name: truth_error(ladder, played, x) for name, x in sums.items()}
    return [(iteration, acting, name, x.mean(), errors[name], len(x)) for name, x in sums.items()]


def truth_seeds(ladder: Ladder) -> np.ndarray:
    """Reset seeds of the roll-outs. Reacher's returns depend on how far the target is, so there they are a systematic
    sample of those of the log, in the order of that distance."""
    if ladder.env_id != "Reacher-v5":
        return TRUTH_SEED + np.arange(ladder.episodes)
    (environment,) = _environments(ladder.env_id, ladder.limit, 1)
    count = LOG_EPISODES * len(IN_DATA)
    order = np.argsort([_distance(environment.reset(seed=LOG_SEED + i)[0]) for i in range(count)])
    step = count // ladder.episodes
    return LOG_SEED + order[step // 2 :: step]


def _distance(observations: np.ndarray) -> np.ndarray:
    """Of the fingertip to the target."""
    return np.linalg.norm(observations[..., 8:10], axis=-1)


def truth_error(ladder: Ladder, played: Played, sums: np.ndarray) -> float:
    """The standard error of the mean of `sums` [episodes]; on reacher of what is left beside a quadratic in the
    distance, which the sample does not leave to chance."""
    if ladder.env_id != "Reacher-v5":
        return float(sums.std(ddof=1) / np.sqrt(len(sums)))
    x = _distance(played.observations[:, 0])
    left = sums - np.polyval(np.polyfit(x, sums, 2), x)
    return float(np.sqrt((left**2).sum() / (len(x) - 3) / len(x)))


def log(ladder: Ladder, states: dict[int, Any], episodes: int = LOG_EPISODES, at_once: int = 50) -> Dataset:
    """Episodes of the snapshots IN_DATA with drawn actions, `episodes` of each, of an environment that never ends."""
    parts = [
        play(ladder.env_id, states[iteration], LOG_SEED + place * episodes + first + np.arange(at_once), ladder.limit)
        for place, iteration in enumerate(IN_DATA)
        for first in range(0, episodes, at_once)
    ]
    whole = Played(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    count, limit, action_dim = whole.actions.shape
    assert not whole.terminated.any()
    return Dataset(
        name="trpo ladder, reacher",
        observations=whole.observations.reshape(-1, whole.observations.shape[-1]),
        actions=whole.actions.reshape(-1, action_dim),
        rewards=whole.rewards.reshape(-1).astype(np.float32),
        terminations=np.zeros(count * limit, bool),
        truncations=np.tile(np.arange(limit) == limit - 1, count),
        lengths=whole.lengths,
        final_observation_known=np.ones(count, bool),
        action_low=np.full(action_dim, -1, np.float32),
        action_high=np.full(action_dim, 1, np.float32),
    )


# Exact densities


def log_densities(pool: Pool, inside: np.ndarray) -> np.ndarray:
    """Of all logged actions under each candidate's drawn ones, float64 [candidates, episodes, steps]; 0 beyond the
    ends."""
    dataset = pool.dataset
    observations = dataset.observations[dataset.observation_rows]
    actions = actions_to_unit_box(dataset.transforms, dataset.actions)
    run = pool.candidates[0].run
    program = jax.jit(run.policy.log_prob)
    found = np.zeros((len(pool), *inside.shape))
    for i, candidate in enumerate(pool.candidates):
        found[i][inside] = in_chunks(partial(program, pool.state(candidate)), observations, actions)
    return found


def mixture_weights(log_likelihoods: np.ndarray, rounds: int = 100) -> np.ndarray:
    """Shares of the behaviour policies by expectation maximisation, from log p(episode | policy), [policies, n]."""
    shares = np.full(len(log_likelihoods), 1 / len(log_likelihoods))
    for _ in range(rounds):
        joint = np.log(shares)[:, None] + log_likelihoods
        shares = np.exp(joint - logsumexp(joint, 0)).mean(1)
    return shares


def exact_ratios(densities: np.ndarray, behaviours: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Per-step log ratios [candidates, episodes, steps] to the mixture of `behaviours`, and its shares.

    One behaviour policy acts for a whole episode, so what has the density of the data is not a mixture of actions but
    of beginnings of episodes: sum_k w_k prod_s pi_k(a_s | s_s). The ratios of a step are those by which it changes.
    """
    prefixes = densities[behaviours].cumsum(-1)
    shares = mixture_weights(prefixes[:, :, -1])
    with np.errstate(divide="ignore"):
        behaviour = logsumexp(prefixes + np.log(shares)[:, None, None], axis=0)
    return np.diff(densities.cumsum(-1) - behaviour, axis=-1, prepend=0.0), shares


def exact_importance_sampling(pool: Pool) -> pd.DataFrame:
    """Weighted, per decision, refused as the package's is; of all episodes, since nothing was fitted to any."""
    dataset = pool.dataset
    steps = np.arange(dataset.lengths.max())
    inside = steps < dataset.lengths[:, None]
    rewards = np.zeros(inside.shape)
    rewards[inside] = dataset.rewards
    densities = log_densities(pool, inside)
    ratios, shares = exact_ratios(densities, [i for i, c in enumerate(pool.candidates) if c.step in IN_DATA])
    print("shares of the snapshots in the data:", shares.round(4))
    terminated = dataset.terminations[dataset.ends]
    weights = np.concatenate([np.ones((1, dataset.episodes)), pool.episode_weights])
    at, rows = min(ESS_STEP, len(steps) - 1), []
    for candidate, own in zip(pool.candidates, ratios, strict=True):
        found = weighted_importance_sampling(own, rewards, dataset.lengths, terminated, DISCOUNT, weights)
        size, value, error, reason = found.effective_sample_size[0, at], np.nan, np.nan, ""
        if size < LEAST_ESS:
            reason = f"effective sample size {size:.1f} of {dataset.episodes} episodes at step {at}"
        else:
            value, error = found.value[0], found.value[1:].std(ddof=1)
        rows += [
            (candidate.step, "exact_importance_sampling", value, error, reason),
            (candidate.step, "exact_effective_sample_size", size, np.nan, ""),
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


# Estimates


def estimates(pool: Pool) -> pd.DataFrame:
    """What the package says; `fqe_heads` is the mean of FQE's heads also where it refuses because they disagree."""
    table, _ = measure(pool, MEASURED, lambda *now: print(*now, flush=True))
    table = table.rename(columns={"step": "snapshot", "diagnostic": "estimator"})[COLUMNS]
    heads, replicates = measure(pool, ["fqe_heads"])
    values = heads.value.to_numpy().reshape(HEADS, -1)
    over_episodes = np.stack([replicates[name] for name in FQE_HEADS]).mean(0).std(1, ddof=1)
    error = np.hypot(over_episodes, values.std(0, ddof=1) / np.sqrt(HEADS))
    rows = {
        "snapshot": pool.table.step,
        "estimator": "fqe_heads",
        "value": values.mean(0),
        "standard_error": error,
        "reason": "",
    }
    return pd.concat([table[table.estimator.isin([*ESTIMATORS, *FLAGS])], pd.DataFrame(rows)])


def with_truth(found: pd.DataFrame, true: pd.DataFrame, pool: Pool, ladder: Ladder) -> pd.DataFrame:
    """Every estimate beside the roll-outs of what it estimates; empty for what is no value.

    `importance_sampling` and `doubly_robust` value the mean action with the data's noise around it (reacher's within
    the time limit, and for ever): played for those snapshots that they do not refuse.
    """
    by_name = true.set_index(["acting", "sum", "snapshot"])
    found = found.assign(in_data=found.snapshot.isin(IN_DATA), truth=np.nan, truth_se=np.nan)
    for place, row in enumerate(found.itertuples()):
        name = TRUTHS.get(row.estimator)
        if name == NOISY and not np.isnan(row.value):
            summed = {"importance_sampling": ladder.limit, "doubly_robust": ladder.for_ever}[row.estimator]
            logged = pool.once("held-out episodes with behaviour density", lambda: logged_episodes(pool))
            (candidate,) = [c for c in pool.candidates if c.step == row.snapshot]
            noise = tuple(logged.deviations.tolist())
            played = play(ladder.env_id, pool.state(candidate), truth_seeds(ladder), summed, noise)
            returns = played.returns(summed, DISCOUNT)
            known = returns.mean(), truth_error(ladder, played, returns)
        elif name is None or name == NOISY:
            continue
        else:
            known = tuple(by_name.loc[(*name, row.snapshot), ["value", "standard_error"]])
        found.iloc[place, [found.columns.get_loc("truth"), found.columns.get_loc("truth_se")]] = known
    return found[["snapshot", "in_data", *COLUMNS[1:], "truth", "truth_se"]]


def measured_pool(name: str) -> Pool:
    ladder = LADDERS[name]
    states = snapshots(ladder)
    data = offrl.data.load(HOPPER, quiet=True) if name == "hopper" else log(ladder, states)
    path = Path(tempfile.gettempdir()) / f"offrl-ladder-{name}"  # an interrupted command goes on
    steps = {iteration: [state] for iteration, state in states.items()}
    return made_pool(data, made_run(data, steps, algorithm=str(TRPO), path=path))


# Summary


def summarise(found: pd.DataFrame, true: pd.DataFrame) -> pd.DataFrame:
    """One row per estimator, over the snapshots that it gives a value.

    `covered` is the share of truths within two standard errors of the estimate, where the error is the stated one and
    the roll-outs' own together. `regret@1` is of the measured return of the mean actions, undiscounted: 0 is the best
    of the 26 snapshots, 1 the worst.
    """
    returns = true[(true.acting == "mean") & (true["sum"] == "return")].set_index("snapshot").value
    value = true[(true.acting == "mean") & (true["sum"] == "for_ever")].set_index("snapshot").value
    rows = []
    for name in ESTIMATORS:
        given = found[(found.estimator == name) & found.value.notna()].set_index("snapshot")
        row: dict[str, Any] = {"estimator": name, "given": len(given)}
        if len(given):
            known = given.truth if name in TRUTHS else value[given.index]
            chosen = returns[given.value.idxmax()]
            row["spearman"] = spearman(given.value, known)
            row["regret@1"] = (returns.max() - chosen) / np.ptp(returns)
        if len(given) and name in TRUTHS:
            error = given.value - given.truth
            covered = error.abs() <= 2 * np.hypot(given.standard_error, given.truth_se)
            row |= {"error": error.mean(), "covered": covered.mean()}
            if given.in_data.any():
                row |= {"error in data": error[given.in_data].mean(), "covered in data": covered[given.in_data].mean()}
        rows.append(row)
    random_pick = (returns.max() - returns.mean()) / np.ptp(returns)
    rows.append({"estimator": "random pick", "given": len(returns), "regret@1": random_pick})
    columns = ["estimator", "given", "spearman", "error", "error in data", "covered", "covered in data", "regret@1"]
    return pd.DataFrame(rows, columns=columns)


def markdown(table: pd.DataFrame) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "" if np.isnan(value) else f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
        return str(value)

    lines = [table.columns, ["---"] * table.shape[1], *table.itertuples(index=False)]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


DRAWN = ("fqe_heads", "lstd", "model_value", "behaviour_advantage", "exact_importance_sampling")


def picture(everything: dict[str, pd.DataFrame], true: dict[str, pd.DataFrame], file: Path) -> None:
    """Estimate against truth: filled are snapshots in the data, bars two standard errors; the line is equality."""
    with style():
        figure = Figure(figsize=(2.5 * len(DRAWN), 2.7 * len(everything)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(everything), len(DRAWN), squeeze=False)
        for row, (name, found) in zip(grid, everything.items(), strict=True):
            values = true[name][(true[name].acting == "mean") & (true[name]["sum"] == "for_ever")]
            for axes, estimator in zip(row, DRAWN, strict=True):
                given = found[(found.estimator == estimator) & found.value.notna()]
                x = given.truth if estimator in TRUTHS else values.set_index("snapshot").value[given.snapshot]
                for inside in (True, False):
                    chosen = (given.in_data == inside).to_numpy()
                    axes.errorbar(
                        x.to_numpy()[chosen], given.value[chosen], 2 * given.standard_error[chosen], fmt="o",
                        color=colour(0), markersize=4, elinewidth=0.8,
                        markerfacecolor=colour(0) if inside else "none",
                    )  # fmt: skip
                if estimator in TRUTHS:
                    ends = [min(x.min(), given.value.min()), max(x.max(), given.value.max())]
                    axes.plot(ends, ends, color=INK, linewidth=0.8)
                low, high = given.value.min(), given.value.max()
                axes.set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))  # LSTD-Q's bars are far longer
                axes.set_title(f"{name}: {estimator.replace('_', ' ')}", fontsize=8.5)
                axes.grid()
            row[0].set_ylabel("estimate")
        for axes in grid[-1]:
            axes.set_xlabel("measured discounted return")
        figure.savefig(file, dpi=110, metadata={"Software": "offrl"})


def once(file: Path, make: Any) -> pd.DataFrame:
    """What `make()` returns, and keeps in the file; read from there if it is there."""
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        make().to_csv(file, index=False, float_format="%.6g")
    return pd.read_csv(file)


def main(names: list[str]) -> None:
    everything, true, summaries = {}, {}, []
    for name in names:
        ladder = LADDERS[name]
        true[name] = once(FOLDER / f"{name}_truth.csv", lambda ladder=ladder: truth(ladder, snapshots(ladder)))

        def make(name: str = name, ladder: Ladder = ladder) -> pd.DataFrame:
            pool = measured_pool(name)
            found = pd.concat([exact_importance_sampling(pool), estimates(pool)])
            return with_truth(found, true[name], pool, ladder)

        everything[name] = once(FOLDER / f"{name}.csv", make)
        summary = summarise(everything[name], true[name])
        print(f"\n{name}\n\n{markdown(summary)}")
        summaries.append(summary.assign(environment=name))
    pd.concat(summaries).to_csv(FOLDER / "summary.csv", index=False, float_format="%.4g")
    picture(everything, true, FOLDER / "ladders.png")


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    main(sys.argv[1:] or list(LADDERS))
