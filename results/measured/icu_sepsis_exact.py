"""The exact expected return, by the tables, of the last policies of runs on ICU-Sepsis, beside the optimum.

python results/measured/icu_sepsis_exact.py RUN...

Also that of value iteration on the counts of the first run's data, over the actions seen often enough in a state:
what a tabular method gets out of the same steps.
"""

import sys

import numpy as np

import offrl.data
from offrl.datasets.environments import DEATH, SepsisTables, sepsis_tables
from offrl.datasets.scripted import expected_return, optimum
from offrl.runs.run import Run

LEAST_COUNTS = (1, 5, 10, 30)


def from_counts(name: str, tables: SepsisTables, least: int) -> np.ndarray:
    """The policy [states, actions] of value iteration on a dataset's counts; actions seen less than `least` times are
    not taken, unless the state has no others."""
    data = offrl.data.load(name, quiet=True)
    rows = data.observation_rows
    states, nexts = (data.observations[rows + i].argmax(axis=1) for i in (0, 1))
    counts = np.zeros_like(tables.transitions)
    np.add.at(counts, (states, data.actions[:, 0], nexts), 1)
    seen = counts.sum(axis=2)
    values = optimum(tables._replace(transitions=counts / np.maximum(seen, 1)[..., None]))
    most = seen == seen.max(axis=1, keepdims=True)  # where no action was seen often
    allowed = np.where((seen >= least).any(axis=1, keepdims=True), seen >= least, most)
    policy = np.eye(seen.shape[1])[np.where(allowed, values, -1).argmax(axis=1)]
    policy[DEATH:] = 0
    return policy


def main() -> None:
    tables = sepsis_tables()
    states, actions, _ = tables.transitions.shape
    best = expected_return(tables, np.eye(actions)[optimum(tables).argmax(axis=1)])
    uniform = expected_return(tables, np.full((states, actions), 1 / actions))
    clinicians = expected_return(tables, tables.clinicians)
    print(f"uniform {uniform:.4f}  clinicians {clinicians:.4f}  optimum {best:.4f}")
    name = Run.open(sys.argv[1]).info["dataset"]["name"]
    for least in LEAST_COUNTS:
        value = expected_return(tables, from_counts(name, tables, least))
        print(f"value iteration on the counts of {name}, actions seen {least} times or more: {value:.4f}")
    for path in sys.argv[1:]:
        run = Run.open(path)
        values = []
        for member in run.members:
            step = run.last_checkpoint(member["member"])
            assert step is not None, f"{path}: member {member['member']} has no healthy checkpoint"
            chosen = run.actor(step, member["member"])(np.eye(states, dtype=np.float32))[:, 0]
            policy = np.eye(actions)[chosen]
            policy[DEATH:] = 0  # an episode has ended there
            values.append(expected_return(tables, policy))
        scores = 100 * (np.array(values) - uniform) / (best - uniform)
        print(f"{path}: {', '.join(f'{value:.4f}' for value in values)}; mean {np.mean(values):.4f}, "
              f"normalised {scores.mean():.1f} (sd of the members {scores.std(ddof=1):.1f})")  # fmt: skip


if __name__ == "__main__":
    main()
