"""The derived views: none crosses an episode, none masks a time limit, none invents an observation."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from offrl.data import Dataset
from offrl.errors import UserError


def make(lengths=(3, 2, 4), terminal=(True, False, False), known=(True, True, False), seed=0) -> Dataset:
    """Observation values say where they come from: 100 * episode + step."""
    random = np.random.default_rng(seed)
    steps, lengths = sum(lengths), np.array(lengths)
    blocks = [100.0 * episode + np.arange(length + 1) for episode, length in enumerate(lengths)]
    for block, is_known in zip(blocks, known, strict=True):
        if not is_known:
            block[-1] = block[-2]
    ends = np.cumsum(lengths) - 1
    terminations, truncations = np.zeros(steps, bool), np.zeros(steps, bool)
    terminations[ends], truncations[ends] = terminal, ~np.array(terminal)
    return Dataset(
        name="test",
        observations=np.repeat(np.concatenate(blocks)[:, None], 2, axis=1).astype(np.float32),
        actions=random.uniform(-2, 2, (steps, 1)).astype(np.float32),
        rewards=np.arange(1, steps + 1, dtype=np.float32),
        terminations=terminations,
        truncations=truncations,
        lengths=lengths,
        final_observation_known=np.array(known),
        action_low=np.array([-2], np.float32),
        action_high=np.array([2], np.float32),
    )


def test_next_observations_never_come_from_another_episode():
    data = make()
    view = data.transitions()
    assert (view.next_observations - view.observations == 1).all()
    assert (view.next_observations // 100 == view.observations // 100).all()


def test_truncated_steps_stay_and_bootstrap_and_only_terminals_are_masked():
    data = make(known=(True, True, True))
    view = data.transitions()
    assert len(view.rewards) == data.steps
    np.testing.assert_array_equal(view.terminations, [0, 0, 1, 0, 0, 0, 0, 0, 0])


def test_a_truncated_step_without_its_next_observation_is_left_out_but_a_terminal_one_stays():
    data = make(terminal=(True, False, False), known=(False, True, False))
    np.testing.assert_array_equal(data.transition_rows, [0, 1, 2, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(data.dynamics_rows, [0, 1, 3, 4, 5, 6, 7])
    assert len(data.transitions().rewards) == 8
    assert (data.dynamics().next_observations - data.dynamics().observations == 1).all()


def test_the_terminal_transition_of_the_dynamics_view_has_its_own_next_observation():
    view = make().dynamics()
    row = np.flatnonzero(view.terminations)
    np.testing.assert_array_equal(view.next_observations[row, 0], [3.0])


def test_next_actions_are_known_inside_episodes_only():
    data = make()
    view = data.transitions()
    np.testing.assert_array_equal(view.next_action_known, [1, 1, 0, 1, 0, 1, 1, 1])
    inside = view.next_action_known == 1
    np.testing.assert_allclose(view.next_actions[inside] * 2, data.actions[data.transition_rows + 1][inside], rtol=1e-6)
    assert (view.next_actions[~inside] == 0).all()


def test_views_are_float32_and_actions_in_the_unit_box():
    view = make().transitions()
    assert all(array.dtype == np.float32 for array in view[:-1])
    assert np.abs(view.actions).max() <= 1


def test_returns_to_go_stop_at_the_end_of_their_episode():
    data = make()
    expected = []
    for start, length in zip(data.starts, data.lengths, strict=True):
        rewards = data.rewards[start : start + length].astype(float)
        expected += [sum(0.9**k * reward for k, reward in enumerate(rewards[t:])) for t in range(length)]
    np.testing.assert_allclose(data.returns_to_go(0.9), expected, rtol=1e-6)
    np.testing.assert_allclose(data.returns_to_go()[data.starts], data.returns)


def test_sequences_stay_inside_episodes_and_are_masked_after_them():
    data = make()
    view = data.sequences(3)
    assert view.observations.shape == (data.steps, 3, 2)
    np.testing.assert_array_equal(view.mask.sum(axis=1), [3, 2, 1, 2, 1, 3, 3, 2, 1])
    filled = view.mask == 1
    np.testing.assert_array_equal(view.observations[..., 0][filled] % 100, view.timesteps[filled])
    same = view.observations[..., 0] // 100 == view.observations[:, :1, 0] // 100
    assert same[filled].all()
    for array in (view.observations, view.actions, view.rewards, view.returns_to_go, view.timesteps):
        assert (array[~filled] == 0).all()


def test_sequences_of_a_stride_cover_every_step_once():
    view = make().sequences(3, stride=3)
    assert view.mask.sum() == 9
    assert sorted(view.rewards[view.mask == 1]) == list(range(1, 10))


def test_splits_are_by_episode_and_disjoint():
    data = make(lengths=(3,) * 10, terminal=(False,) * 10, known=(True,) * 10)
    train, validation = data.split(0.3, seed=1)
    assert (train.episodes, validation.episodes) == (7, 3)
    seen = [set((part.observations[:, 0] // 100).tolist()) for part in (train, validation)]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(range(10))
    assert data.split(0.3, seed=1)[1].fingerprint == validation.fingerprint
    assert data.split(0.3, seed=2)[1].fingerprint != validation.fingerprint
    with pytest.raises(UserError, match="between 0 and 1"):
        data.split(1.5, seed=0)


def test_selected_episodes_keep_their_blocks():
    data = make()
    part = data.select_episodes([2, 0])
    np.testing.assert_array_equal(part.lengths, [4, 3])
    np.testing.assert_array_equal(part.observations[:, 0], [200, 201, 202, 203, 203, 0, 1, 2, 3])
    np.testing.assert_array_equal(part.final_observation_known, [False, True])


def test_top_fraction_takes_whole_episodes_of_best_return_and_early_ones_among_equals():
    data = make(lengths=(3,) * 4, terminal=(False,) * 4, known=(True,) * 4)
    data = replace(data, rewards=np.array([0, 0, 1, 5, 0, 0, 0, 0, 5, 1, 0, 0], np.float32))
    np.testing.assert_array_equal(data.top_fraction(0.25).observations[0, 0], 100)
    np.testing.assert_array_equal(data.top_fraction(0.75).observations[::4, 0], [0, 100, 200])
    # discounting prefers the early five over the late one
    np.testing.assert_array_equal(data.top_fraction(0.25, discount=0.5).observations[0, 0], 100)
    assert data.top_fraction(0.5, discount=0.1).observations[4, 0] == 300


def test_the_fingerprint_is_of_the_content_alone():
    data = make()
    assert make().fingerprint == data.fingerprint
    assert replace(data, name="other", transforms=(), warnings=("x",)).fingerprint == data.fingerprint
    assert len(data.fingerprint) == 16
    assert make(seed=1).fingerprint != data.fingerprint
    assert make(terminal=(True, True, False)).fingerprint != data.fingerprint


def test_a_dataset_is_not_changed_by_accident():
    with pytest.raises(ValueError, match="read-only"):
        make().rewards[0] = 5


def test_importing_the_data_part_imports_neither_jax_nor_environments():
    code = "import offrl.data, sys; print([m for m in ('jax', 'gymnasium', 'minari', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
