"""The compiled loop: members beside each other are what they are alone, failures stay with their member, stretches."""

from pathlib import Path

import jax
import numpy as np
import pytest
from plain import random_dataset

import offrl.algorithm
from offrl.algorithm import Phase, Spec
from offrl.learning.population import NEVER, Population
from offrl.runs.training import schedule

TOYS = Path(__file__).parent / "toys"
SPEC = Spec(observation_dim=3, action_dim=2, updates=60)
MAPPINGS = ("devices", "vmap", "map")


def population(name: str, seeds=(0,), mapping=None, options=None, **shared) -> Population:
    """Members of those seeds on the random dataset; `options`: what each of them has of its own."""
    algorithm = offrl.algorithm.load(name)
    configs = [algorithm.Config(**shared, **own) for own in options or [{}] * len(seeds)]
    data = algorithm.prepare(random_dataset(lengths=(20, 30), terminal=(True, False)), configs[0])
    return Population(algorithm, configs, list(seeds), SPEC, data, mapping)


def trained(some: Population, updates: int, stretch: int = 10) -> tuple[dict, list[dict]]:
    """The states after that many updates of the only phase, and the metrics of every stretch."""
    metrics = [some.train(some.phases[0], first, stretch) for first in range(0, updates, stretch)]
    return some.save(), metrics


def member(saved: dict, i: int) -> list[np.ndarray]:
    return [leaf[i] for leaf in jax.tree.leaves(saved["states"])]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 0.0) -> None:
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "mapping", "options", "shared"),
    [
        *((str(TOYS / "linear.py"), mapping, [{}, {}, {"learning_rate": 0.2}], {}) for mapping in MAPPINGS),
        ("td3_bc", "vmap", [{}, {}, {"alpha": 1.0}], {"hidden_dims": (16, 16), "batch_size": 16}),
    ],
)
def test_members_of_one_program_equal_members_trained_alone(name, mapping, options, shared):
    seeds = (0, 7, 7)
    saved, metrics = trained(population(name, seeds, mapping, options, **shared), 20)
    assert (saved["diverged_at"] == NEVER).all()
    for i, (seed, own) in enumerate(zip(seeds, options, strict=True)):
        one, one_metrics = trained(population(name, [seed], "map", [own], **shared), 20)
        assert_same(member(saved, i), member(one, 0), tolerance=1e-5 if mapping == "vmap" else 0)
        for stretch, one_stretch in zip(metrics, one_metrics, strict=True):
            for metric, values in stretch.items():
                np.testing.assert_allclose(values[i], one_stretch[metric][0], rtol=1e-4)
    assert not np.array_equal(member(saved, 0)[1], member(saved, 1)[1])  # another seed
    assert not np.array_equal(member(saved, 1)[1], member(saved, 2)[1])  # another option


def test_the_same_seed_gives_the_same_numbers_however_the_updates_are_cut():
    first, _ = trained(population(str(TOYS / "linear.py"), [3]), 30, stretch=30)
    again, _ = trained(population(str(TOYS / "linear.py"), [3]), 30, stretch=3)
    assert_same(member(first, 0), member(again, 0))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_member_that_diverges_stops_at_that_step_and_the_others_do_not_notice(mapping):
    linear = str(TOYS / "linear.py")
    healthy, metrics = trained(population(linear, (0, 1, 2), mapping), 30)
    some = population(linear, (0, 1, 2), mapping, [{}, {"fails_at": 17.0}, {}])
    before, _ = trained(some, 10)
    assert (before["diverged_at"] == NEVER).all()
    metrics = [metrics[0], some.train(some.phases[0], 10, 10), some.train(some.phases[0], 20, 10)]
    saved = some.save()
    assert saved["diverged_at"].tolist() == [NEVER, 17, NEVER]
    for i in (0, 2):
        assert_same(member(saved, i), member(healthy, i))
    assert_same(member(saved, 1), member(before, 1))  # as it was at the last report before
    assert [np.isnan(stretch["loss"]).tolist() for stretch in metrics] == [
        [False, False, False],
        [False, True, False],
        [False, True, False],
    ]


def test_a_restored_population_goes_on_as_if_it_had_never_stopped():
    linear, seeds = str(TOYS / "linear.py"), (0, 1, 2)
    whole, _ = trained(population(linear, seeds), 30)
    half, _ = trained(population(linear, seeds), 20)
    other = population(linear, seeds)
    other.restore(half)
    other.train(other.phases[0], 20, 10)
    for i in range(3):
        assert_same(member(other.save(), i), member(whole, i))


def test_metrics_are_means_over_the_updates_of_a_stretch():
    one, several = (population(str(TOYS / "linear.py"), (0,)) for _ in range(2))
    each = [one.train(one.phases[0], i, 1)["loss"][0] for i in range(8)]
    np.testing.assert_allclose(several.train(several.phases[0], 0, 8)["loss"][0], np.mean(each), rtol=1e-6)


def test_the_beginning_of_a_phase_runs_once_for_every_healthy_member_with_draws_of_its_own():
    some = population(str(TOYS / "two_phases.py"), (0, 1, 2))
    some.restore({**some.save(), "diverged_at": np.array([NEVER, 3, NEVER], np.int32)})
    some.begin(some.phases[1], 25)
    states = some.save()["states"]
    assert states.begun.tolist() == [1, 0, 1]
    assert (states.noise[1] == 0).all()
    assert not np.array_equal(states.noise[0], states.noise[2])
    again = population(str(TOYS / "two_phases.py"), (2,))
    again.begin(again.phases[1], 25)
    np.testing.assert_array_equal(again.save()["states"].noise[0], states.noise[2])


def cut(phases: tuple[Phase, ...], **protocol) -> list[tuple[str, int, int, bool]]:
    return [(phase.name, *rest) for phase, *rest in schedule(phases, protocol)]


def test_the_schedule_stops_at_every_report_checkpoint_and_end_of_a_phase():
    phases = (Phase("first", lambda: None, updates=25), Phase("last", lambda: None))
    stretches = cut(phases, updates=40, log_every=20, checkpoint_every=30)
    assert stretches == [
        ("first", 0, 20, False),
        ("first", 20, 5, True),  # the end of a phase is a checkpoint
        ("last", 25, 5, True),
        ("last", 30, 10, False),
        ("last", 40, 20, True),
        ("last", 60, 5, True),
    ]


def test_the_schedule_makes_every_update_once():
    phases = (
        Phase("first", lambda: None, updates=7),
        Phase("none", lambda: None, updates=0),
        Phase("half", lambda: None, updates=lambda protocol: protocol // 2),
        Phase("last", lambda: None),
    )
    stretches = cut(phases, updates=100, log_every=9, checkpoint_every=13)
    steps = [step for _, first, count, _ in stretches for step in range(first, first + count)]
    assert steps == list(range(157))
    assert {name for name, *_ in stretches} == {"first", "half", "last"}
