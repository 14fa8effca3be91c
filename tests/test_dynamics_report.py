"""The reports on a run's dynamics: their numbers where the truth is known, and both commands on a run."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy.stats import spearmanr
from test_dynamics import LEARNER, NOISE, learned, linear_system, stacked
from tiny_environments import episode_length

import offrl.data
from offrl.algorithm import Spec
from offrl.algorithms import mopo
from offrl.errors import UserError
from offrl.learning.models import dynamics, penalties
from offrl.learning.models.rollouts import Steps
from offrl.protocol import dynamics_report, penalty_study
from offrl.reporting import dynamics as written
from offrl.runs.checkpoints import Checkpoints
from offrl.runs.configuration import option_defaults
from offrl.runs.description import describe
from offrl.runs.run import Run

ENV = "tiny_environments:Tiny-v0"
QUIET = Console(quiet=True)


def named(numbers):
    return {(part, quantity, horizon): value for part, quantity, horizon, value in numbers}


def test_a_good_model_of_a_known_system_is_reported_as_such():
    _, ensemble, *_ = learned()
    _, held_out = linear_system().split(LEARNER.holdout_fraction, 0)
    train_part, _ = linear_system().split(LEARNER.holdout_fraction, 0)
    numbers, _ = dynamics_report.one_step_numbers(ensemble, LEARNER, train_part, held_out)
    found = named(numbers)
    assert found["one step", "rows", ""] == held_out.steps
    assert found["one step", "coverage of the 50% interval, observations", ""] == pytest.approx(0.5, abs=0.06)
    assert found["one step", "coverage of the 90% interval, observations", ""] == pytest.approx(0.9, abs=0.04)
    assert found["one step", "coverage of the 90% interval, rewards", ""] > 0.9  # they have no noise
    likelihood = found["one step", "negative log-likelihood per dimension", ""]
    assert likelihood < found["one step", "the same of a single Gaussian (baseline)", ""] - 0.5
    change = np.asarray(dynamics.targets_of(dynamics_report.steps_of(train_part)))[:, :2].std(0)
    noise = np.sqrt(np.mean((NOISE / change) ** 2))
    assert found["one step", "error of observations / std of their change", ""] == pytest.approx(noise, rel=0.1)
    assert found["terminations", "terminal steps", ""] == held_out.terminations.sum()
    assert found["terminations", "precision, of the true next step", ""] > 0.8
    assert found["terminations", "recall, of the true next step", ""] > 0.8
    numbers, errors = dynamics_report.open_loop_numbers(ensemble, LEARNER, train_part, held_out)
    found = named(numbers)
    assert errors.shape == (10, 2)
    for h in (1, 5, 10):
        assert found["open loop", "error / std of observations", h] == errors[h - 1, 0]
    scale = train_part.transitions().observations.std(0)
    assert errors[0, 0] == pytest.approx(np.sqrt(np.mean((NOISE / scale) ** 2)), rel=0.1)
    assert errors[0, 0] < errors[0, 1]
    assert (np.diff(errors[:, 0]) > 0).all()  # the noise adds up


def test_likelihood_and_coverage_are_of_the_elites_mixture():
    config, random = LEARNER.replace(ensemble_size=3, elites=2), np.random.default_rng(0)
    ensemble = stacked(1, config, Spec(2, 1, 1)).replace(elites=jnp.array([2, 0]))
    batch = Steps(*(random.normal(size=shape).astype("f4") for shape in ((6, 2), (6, 1), (6,), (6, 2), (6,))))
    found = jax.jit(dynamics_report.quantiles)(ensemble, batch, config)
    mean, log_var = (np.asarray(part)[[2, 0]] for part in dynamics.predict(ensemble, *batch[:2], config))
    truth, std = np.asarray(dynamics.targets_of(batch)), np.exp(0.5 * log_var)
    density = np.exp(-0.5 * ((truth - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(np.exp(found["log_density"]), density.mean(0), rtol=1e-3, atol=1e-6)
    below = (mean[:, None] + std[:, None] * random.normal(size=(2, 20000, 6, 3)) < truth).mean((0, 1))
    np.testing.assert_allclose(found["distribution"], below, atol=0.02)
    np.testing.assert_allclose(found["error"], truth - mean.mean(0), rtol=1e-4, atol=1e-5)


def test_rank_correlations_are_spearmans_and_their_error_is_over_episodes():
    random = np.random.default_rng(0)
    x = random.normal(size=400)
    y = x + random.normal(size=400)
    alone, error = penalty_study.rank_correlation(x, y, np.arange(400))
    assert alone == pytest.approx(spearmanr(x, y).statistic, abs=1e-6)
    assert error == pytest.approx((1 - alone**2) / 20, rel=0.25)
    repeated = np.repeat(np.arange(40), 10)
    twins = np.repeat(x[:40], 10) + 1e-6 * random.normal(size=400)
    assert penalty_study.rank_correlation(twins, np.repeat(y[:40], 10), repeated)[1] > 2 * error
    assert np.isnan(penalty_study.rank_correlation(x, y, np.zeros(400))[1])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of MOPO on episodes of Tiny-v0, with random parameters in its checkpoint."""
    random = np.random.default_rng(0)
    lengths = [min(episode_length(seed), 20) for seed in range(8)]
    observations, following, ends = [], [], []
    for seed, length in enumerate(lengths):
        path = np.stack([np.arange(length + 1) / 10, np.full(length + 1, episode_length(seed) / 10)], 1)
        observations.append(path[:-1])
        following.append(path[1:])
        ends += [0] * (length - 1) + [1]
    actions = random.uniform(-2, 2, (sum(lengths), 2))
    np.savez(
        tmp_path / "log.npz",
        observations=np.concatenate(observations),
        next_observations=np.concatenate(following),
        actions=actions,
        rewards=1 + 2 * actions[:, 0],
        terminals=np.array(ends, bool),
    )
    data = offrl.data.load(f"file:{tmp_path / 'log.npz'}", env_id=ENV, env_kwargs={}, action_low=[-2, -2],
                           action_high=[2, 2], time_limit=20)  # fmt: skip
    train_part, _ = data.split(0.25, 0)
    small = {"ensemble_size": 2, "elites": 2, "dynamics_hidden_dims": [8], "hidden_dims": [8], "rollout_batch_size": 5}
    algorithm = offrl.algorithm.load("mopo")
    options = {"name": "mopo", "file": None, **option_defaults(algorithm), **small}
    path, spec = tmp_path / "run", Spec(2, 2, 10)
    path.mkdir()
    info = {
        "algorithm": {"name": "mopo", "file": None, "options": options},
        "phases": [{"name": "train", "updates": 30}],
        "spec": spec._asdict(),
        "protocol": {"evaluation_seed": 3, "validation_fraction": 0.25, "split_seed": 0},
        "identity": {"data": {"columns": {}, "clip_actions": False, "steps": None}},
        "dataset": describe(data, train_part, ENV, {}, []),
        "members": [{"member": 0, "seed": 0, "values": {}, "diverged_at": None}],
        "finished": True,
    }
    (path / "run.json").write_text(json.dumps(info))
    config = Run.open(path).member_configs[0]
    shapes = jax.eval_shape(lambda: mopo.init(jax.random.key(0), config, spec))
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    state = state.replace(ensemble=state.ensemble.replace(params=stacked(0, config, spec).params))
    statistics = state.ensemble.statistics._replace(input_std=np.ones(4, "f4"), observation_std=np.ones(2, "f4"))
    state = state.replace(ensemble=state.ensemble.replace(statistics=statistics))
    store = Checkpoints(path / "checkpoints")
    states = jax.tree.map(lambda leaf: np.asarray(leaf)[None], state)
    store.save(10, {"states": states, "diverged_at": np.full(1, -1, np.int32)})
    store.finish()
    return Run.open(path)


def test_both_commands_write_their_tables_for_a_run(run: Run):
    report = written.report(run.path, console=QUIET)
    assert (run.path / "dynamics" / "report.csv").exists()
    assert (run.path / "dynamics" / "report.png").exists()
    assert set(report["part"]) == {"one step", "terminations", "open loop"}
    assert set(report["step"]) == {10}

    study = written.study(run.path, episodes=3, console=QUIET)
    assert (run.path / "assisted" / "penalty_study.csv").exists()
    assert set(study["penalty"]) == set(penalties.PENALTIES)
    assert study[study["states"] == "visited by the policy"]["rows"].iloc[0] == sum(
        min(episode_length(seed), 20) for seed in (3, 4, 5)
    )


def test_the_steps_of_the_policy_are_as_the_environment_made_them(run: Run):
    visited = penalty_study.visit(run, 0, 10, 2, print)
    steps = visited.steps
    first = visited.episodes == 0
    length = min(episode_length(3), 20)
    assert first.sum() == length
    np.testing.assert_allclose(steps.observations[first][:, 0], np.arange(length) / 10, atol=1e-6)
    np.testing.assert_allclose(steps.next_observations[first][:, 0], np.arange(1, length + 1) / 10, atol=1e-6)
    np.testing.assert_allclose(steps.rewards, 1 + 2 * 2 * steps.actions[:, 0], atol=1e-5)  # the box is [-2, 2]
    assert steps.terminations[first][-1] == (episode_length(3) <= 20)


def test_a_run_without_dynamics_or_without_unseen_episodes_is_refused(run: Run):
    info = json.loads((run.path / "run.json").read_text())
    info["protocol"]["validation_fraction"] = 0
    (run.path / "run.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="held no episode out"):
        written.report(run.path, console=QUIET)
    options = {"name": "bc", "file": None, **option_defaults(offrl.algorithm.load("bc"))}
    info["algorithm"] = {"name": "bc", "file": None, "options": options}
    (run.path / "run.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="bc has no dynamics"):
        written.report(run.path, console=QUIET)
