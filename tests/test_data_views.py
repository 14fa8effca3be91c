"""The derived views: none crosses an episode, none masks a time limit, none invents an observation."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from offrl.data import Dataset, episode_labels, episode_steps, preferences, windows_from, windows_until
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


def test_windows_are_cut_at_both_ends_of_their_episode():
    """Against loops, for every step, of numpy and within a jitted function, columns of the user's own among them."""
    data = make()
    costs = np.arange(data.steps, dtype=np.float32) + 1
    data = replace(data, extra={"costs": costs, "forces": np.stack([costs, -costs], axis=1)})
    steps = episode_steps(data, discount=0.9, extra=("forces",), to_go=("costs",))
    view, length = data.transitions(), 3
    for cut, offsets in ((windows_from, range(length)), (windows_until, range(1 - length, 1))):
        found = cut(steps, np.arange(data.steps), length)
        for step in range(data.steps):
            episode = data.episode_of_step[step]
            for place, offset in enumerate(offsets):
                row = step + offset
                inside = data.starts[episode] <= row <= data.ends[episode]
                assert found.mask[step, place] == inside
                values = {**found._asdict(), **found.extra}
                for name, column in {**steps._asdict(), **steps.extra}.items():
                    if name not in ("lengths", "extra"):
                        np.testing.assert_array_equal(values[name][step, place], column[row] if inside else 0)
        compiled = jax.jit(cut, static_argnums=2)(jax.tree.map(jnp.asarray, steps), jnp.arange(data.steps), length)
        jax.tree.map(np.testing.assert_array_equal, compiled, found)
        assert compiled.mask.dtype == bool
    np.testing.assert_array_equal(steps.actions[data.transition_rows], view.actions)
    np.testing.assert_array_equal(steps.rewards, data.rewards)


def test_costs_to_go_are_sums_to_the_end_of_the_episode():
    data = make()
    costs = np.random.default_rng(1).uniform(0, 1, data.steps).astype(np.float32)
    steps = episode_steps(replace(data, extra={"costs": costs}), discount=0.9, to_go=("costs",))
    expected = [
        sum(0.9**k * cost for k, cost in enumerate(costs[step : data.ends[data.episode_of_step[step]] + 1]))
        for step in range(data.steps)
    ]
    np.testing.assert_allclose(steps.extra["costs_to_go"], expected, rtol=1e-6)
    np.testing.assert_array_equal(steps.returns_to_go, data.returns_to_go(0.9))


def test_windows_of_images_stay_bytes():
    data = make()
    images = np.random.default_rng(0).integers(0, 256, (data.steps + data.episodes, 2, 2, 3), np.uint8)
    found = windows_from(episode_steps(replace(data, observations=images)), np.array([1]), 4)
    assert found.observations.dtype == np.uint8
    np.testing.assert_array_equal(found.observations[0, :2], images[1:3])
    assert not found.observations[0, 2:].any()


def test_a_label_of_an_episode_is_the_same_in_all_its_steps():
    data = make()
    data = replace(data, extra={"quality": np.repeat([5, 6, 7], data.lengths), "costs": np.arange(9.0)})
    assert episode_labels(data, "quality").tolist() == [5, 6, 7]
    with pytest.raises(UserError, match="column costs is no label of episodes: it changes within episode 0"):
        episode_labels(data, "costs")


@pytest.mark.parametrize("column", [None, "costs"])
def test_of_two_windows_the_one_of_larger_sum_is_preferred(column):
    data = make(lengths=(3, 1, 4), known=(True, True, True))
    data = replace(data, extra={"costs": np.array([3, 1, 2, 9, 2, 2, 1, 3], np.float32)})
    values = data.rewards if column is None else data.extra["costs"]
    found = preferences(data, 50, seed=0, length=2, column=column)
    starts = [0, 1, 4, 5, 6]  # of windows within an episode; the second has one step only
    assert set(found.first.tolist()) == set(found.second.tolist()) == set(starts)
    assert (found.first != found.second).all()
    for first, second, preferred in zip(*found, strict=True):
        one, other = values[first : first + 2].sum(), values[second : second + 2].sum()
        assert preferred == (0.5 if one == other else one > other)
    assert (0.5 in found.first_preferred) == (column == "costs")
    assert windows_from(episode_steps(data), found.first, 2).mask.all()
    again = preferences(data, 50, seed=0, length=2, column=column)
    jax.tree.map(np.testing.assert_array_equal, again, found)


def test_of_two_episodes_the_one_of_larger_return_or_label_is_preferred():
    data = make()
    data = replace(data, extra={"quality": np.repeat([3, 1, 2], data.lengths)})
    for column, order in ((None, data.returns), ("quality", np.array([3, 1, 2]))):
        found = preferences(data, 30, seed=1, column=column)
        first, second = (np.searchsorted(data.starts, steps) for steps in (found.first, found.second))
        np.testing.assert_array_equal(found.first_preferred, order[first] > order[second])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 5}, "0 windows of 5 steps, too few for pairs"),
        ({"column": "costs"}, "no label of episodes"),
        ({"column": "forces", "length": 2}, "has 2 numbers per step; one is needed"),
        ({"column": "nothing", "length": 2}, r"no column nothing was loaded \(there are: costs, forces\)"),
    ],
)
def test_preferences_that_cannot_be_made_say_why(options, message):
    data = replace(make(), extra={"costs": np.arange(9.0), "forces": np.zeros((9, 2))})
    with pytest.raises(UserError, match=message):
        preferences(data, 5, seed=0, **options)


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
    with pytest.raises(ValueError, match="read-only"):
        replace(make(), extra={"costs": np.zeros(9)}).extra["costs"][0] = 5


def test_importing_the_data_part_imports_neither_jax_nor_environments():
    code = "import offrl.data, sys; print([m for m in ('jax', 'gymnasium', 'minari', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
