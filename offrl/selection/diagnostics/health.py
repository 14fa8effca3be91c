"""Is the candidate sound? Divergence, values that no policy can have, and networks that have lost their neurons.

These are vetoes and warnings, not rankings.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from offrl.algorithm import Algorithm, Spec
from offrl.data.transforms import transform_observations
from offrl.selection.diagnostics.base import Diagnostic, Measurement, Scores, over_episodes, without_error
from offrl.selection.diagnostics.critic import critic_rows, no_critic, own_q
from offrl.selection.diagnostics.support import split_name, split_rows
from offrl.selection.pool import Candidate, Pool

WIDENED = 0.2
"""Of its width, that the range of values is widened by on either side."""
FEATURE_ROWS = 1024
FEATURE_CRITICS = 10
"""The first so many critics of an ensemble are looked into."""
DORMANT = 0.025
"""A neuron is dormant if its mean activity is at most this share of its layer's (0.025 in ReDo's paper; 0 in its code
finds the dead ones only)."""
RANK_DELTA = 0.01


def non_finite(pool: Pool) -> dict[str, Scores]:
    """1 where training has recorded a divergence by that step, or a parameter, an action or a Q is not a number."""
    split_rows(pool)  # made once, before the subsets
    flags = []
    for i, candidate in enumerate(pool.candidates):
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(pool.state(candidate))]
        bad = candidate.diverged or any(
            np.isnan(leaf).any() for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)
        )
        bad = bad or not np.isfinite(pool.subset([i]).actions(split_name(pool))).all()
        if not bad and not no_critic(candidate):
            bad = not np.isfinite(own_q(pool, candidate, f"{split_name(pool)}/policy")).all()
        flags.append(float(bad))
    return {"non_finite": without_error(flags)}


def value_range(pool: Pool, candidate: Candidate) -> tuple[float, float]:
    """What a value can be, in the units of the candidate's critic, before widening.

    A value is a discounted sum of 0 or more rewards of the data's range, as episodes may end at any time; so
    min(rmin, 0) / (1 - discount) to max(rmax, 0) / (1 - discount). At discount 1 the longest episode is the horizon.
    """
    rewards = pool.rewards_of(candidate, pool.dataset.rewards)
    assert candidate.discount is not None
    horizon = float(pool.dataset.lengths.max()) if candidate.discount >= 1 else 1 / (1 - candidate.discount)
    return min(float(rewards.min()), 0.0) * horizon, max(float(rewards.max()), 0.0) * horizon


def out_of_range(pool: Pool) -> dict[str, Scores]:
    """The share of (s, pi(s)) whose Q, the lowest of the critics, no policy can have; not a number counts.

    In the critic's own reward units, `value_range` widened by 20 % of its width on either side. Soft actor-critics add
    an entropy to rewards, which this leaves to the widening; a strongly conservative critic may be out below.
    """
    rows, outside, reasons = critic_rows(pool, split_name(pool)), [], []
    for candidate in pool.candidates:
        reasons.append(no_critic(candidate))
        if reasons[-1]:
            outside.append(np.full(len(rows), np.nan))
            continue
        low, high = value_range(pool, candidate)
        margin = WIDENED * (high - low)
        q = own_q(pool, candidate, f"{split_name(pool)}/policy")[0]
        outside.append(~((low - margin <= q) & (q <= high + margin)))
    scores = over_episodes(pool, rows, np.stack(outside))
    scores.reasons = reasons
    return {"out_of_range": scores}


# Looking into a critic


def hidden_activations(q_values: Any, observations: jax.Array, actions: jax.Array) -> tuple[list[Any], list[Any]]:
    """The hidden activations of any critic, by following what is computed from (s, a) through its program.

    What a matrix product with parameters takes in is a layer's input, and a hidden activation if it has itself come
    through such a product; `max(x, constant)` of such a thing is the output of a ReLU. Works for whatever framework or
    hand the network is written in; convolutions and loops are not looked into.

    Returns:
        inputs of layers and outputs of ReLUs, each a list of [critics, n, width] in the order of computation.
    """
    inputs: list[Any] = []
    relus: list[Any] = []
    closed = jax.make_jaxpr(q_values)(observations, actions)

    def run(jaxpr: Any, constants: Any, arguments: list[Any], depths: list[int]) -> tuple[list[Any], list[int]]:
        """Depth: 0 does not depend on (s, a); 1 does; 2 has come through a layer."""
        known: dict[Any, tuple[Any, int]] = {}

        def read(variable: Any) -> tuple[Any, int]:
            return (variable.val, 0) if isinstance(variable, jax.extend.core.Literal) else known[variable]

        known.update(zip(jaxpr.constvars, ((c, 0) for c in constants), strict=True))
        known.update(zip(jaxpr.invars, zip(arguments, depths, strict=True), strict=True))
        for equation in jaxpr.eqns:
            values, levels = zip(*map(read, equation.invars), strict=True) if equation.invars else ((), ())
            level = max(levels, default=0)
            name = equation.primitive.name
            inner = next((equation.params[k] for k in ("jaxpr", "call_jaxpr") if k in equation.params), None)
            if inner is not None and name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"):
                results, found = run(inner.jaxpr, inner.consts, list(values), list(levels))
            else:
                bound = equation.primitive.get_bind_params(equation.params)
                subfuns, parameters = bound if isinstance(bound, tuple) else ((), bound)  # jax before 0.10, and since
                results = equation.primitive.bind(*subfuns, *values, **parameters)
                results = results if equation.primitive.multiple_results else [results]
                if name == "dot_general" and sorted(map(bool, levels)) == [False, True]:
                    side = int(levels[1] > 0)
                    if level == 2:
                        inputs.append(_rows_first(values[side], side, equation.params["dimension_numbers"]))
                    level = 2
                if name == "max" and sorted(levels) == [0, 2] and results[0].ndim >= 2:
                    relus.append(results[0])
                found = [level] * len(results)
            known.update(zip(equation.outvars, zip(results, found, strict=True), strict=True))
        outputs = [read(variable) for variable in jaxpr.outvars]
        return [value for value, _ in outputs], [level for _, level in outputs]

    run(closed.jaxpr, closed.consts, [observations, actions], [1, 1])
    shapes = {layer.shape[1:] for layer in inputs}  # a normalisation bounds its variances by max(x, 0), too
    return inputs, [r.reshape(-1, *r.shape[-2:]) for r in relus if r.shape[-2:] in shapes]


def _rows_first(x: jax.Array, side: int, dimension_numbers: Any) -> jax.Array:
    """A product's operand as [critics, n, width]: its batch dimensions, the others, those summed over."""
    summed, batch = (tuple(dimensions[side]) for dimensions in dimension_numbers)
    others = tuple(d for d in range(x.ndim) if d not in summed + batch)
    width = int(np.prod([x.shape[d] for d in summed]))
    critics = int(np.prod([x.shape[d] for d in batch]))
    return x.transpose(batch + others + summed).reshape(critics, -1, width)


@partial(jax.jit, static_argnames=("algorithm", "spec"))
def _look_into(
    algorithm: Algorithm, spec: Spec, config: Any, state: Any, observations: jax.Array, actions: jax.Array
) -> tuple[list[jax.Array], jax.Array | None]:
    """Per hidden layer the neurons' mean absolute activity [critics, width]; the last layer's [critics, n, width]."""
    q_values = algorithm.policy(config, spec).q_values
    assert q_values is not None
    inputs, relus = hidden_activations(lambda o, a: q_values(state, o, a), observations, actions)
    layers = relus or inputs  # where a normalisation follows the ReLU, a dead neuron does not show in a layer's input
    return [jnp.abs(layer).mean(1) for layer in layers], inputs[-1][:FEATURE_CRITICS] if inputs else None


FEATURES = (
    Diagnostic("dormant_fraction", "flag", "share of the critics' hidden neurons that hardly ever respond"),
    Diagnostic("effective_rank", "flag", "dimensions that hold 99 % of the critics' last features"),
    Diagnostic("feature_dot", "flag", "mean product of the features of (s, a) and (s', pi(s')), DR3's penalty"),
    Diagnostic("feature_cosine", "flag", "mean cosine of the same: towards 1 they are no longer told apart"),
)


def features(pool: Pool) -> dict[str, Scores]:
    """Means over critics: a health warning, rising products and falling rank above all.

    Dormancy: mean activity over a batch at most 0.025 of the layer's mean. Effective rank: the fewest singular values
    that make 99 % of their sum. With a normalisation and no ReLU before it, dormancy says nothing and is near 0.
    """
    names = [diagnostic.name for diagnostic in FEATURES]
    found, reasons = [], []
    rows = split_rows(pool)
    thin = np.linspace(0, len(rows) - 1, min(len(rows), FEATURE_ROWS)).astype(int)
    for i, candidate in enumerate(pool.candidates):
        reasons.append(no_critic(candidate))
        values = [np.nan] * len(names)
        if not reasons[-1]:
            next_actions = pool.subset([i]).actions(f"{split_name(pool)}_next")[0]
            pairs = [(rows.observations, rows.actions), (rows.next_observations, next_actions)]
            (activity, at), (_, following) = (_inside(pool, candidate, o[thin], a[thin]) for o, a in pairs)
            if at is None:
                reasons[-1] = f"{candidate.run.algorithm.name}'s critic has no hidden layer that can be looked into"
            elif not np.isfinite(at).all() or not np.isfinite(following).all():
                reasons[-1] = "the features are not finite"
            else:
                values = _summarise(activity, at, following)
        found.append(values)
    columns = np.array(found).T
    return {name: without_error(column, list(reasons)) for name, column in zip(names, columns, strict=True)}


def _inside(pool: Pool, candidate: Candidate, observations: np.ndarray, actions: np.ndarray) -> Any:
    run = candidate.run
    seen = transform_observations(run.info["dataset"]["transforms"], observations)
    found = _look_into(run.algorithm, run.spec, candidate.config, pool.state(candidate), seen, actions)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


def _summarise(activity: list[np.ndarray], at: np.ndarray, following: np.ndarray) -> list[float]:
    dormant = [layer <= DORMANT * layer.mean(-1, keepdims=True) for layer in activity]
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(at.transpose(0, 2, 1) @ at)[:, ::-1], 0))
    share = singular.cumsum(1) / np.maximum(singular.sum(1, keepdims=True), 1e-300)
    rank = (share < 1 - RANK_DELTA).sum(1) + 1
    dot = (at * following).sum(-1)
    norms = np.linalg.norm(at, axis=-1) * np.linalg.norm(following, axis=-1)
    cosine = (dot / np.maximum(norms, 1e-300)).mean()
    return [float(np.concatenate([d.ravel() for d in dormant]).mean()), float(rank.mean()), float(dot.mean()), cosine]


MEASUREMENTS = (
    Measurement(
        "finite",
        (Diagnostic("non_finite", "flag", "1 where training diverged, or a parameter, action or value is no number"),),
        non_finite,
        images=True,
    ),
    Measurement(
        "range",
        (Diagnostic("out_of_range", "flag", "share of (s, pi(s)) whose Q no policy can have; veto above 1 %"),),
        out_of_range,
        images=True,
    ),
    Measurement("features", FEATURES, features, images=True),
)
