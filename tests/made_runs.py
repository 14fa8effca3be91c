"""Run directories written by hand: run.json, empty checkpoints and an oracle table, as offrl.train would leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from offrl.playing.returns import DTYPES
from offrl.runs.run import Run

REFERENCE = {"random": 0.0, "expert": 200.0, "source": "made up"}


def make_run(
    path: Path,
    returns: dict[int, dict[int, list[float]]],
    algorithm: str = "iql",
    dataset: str = "builtin:hopper/medium",
    fingerprint: str = "aaaa",
    env: str | None = "Hopper-v5",
    reference: dict[str, Any] | None = REFERENCE,
    options: dict[str, Any] | None = None,
    values: list[dict[str, Any]] | None = None,
    seeds: list[int] | None = None,
    checkpoints: tuple[int, ...] = (10, 20, 30),
    finished: bool = True,
    diverged: dict[int, int] | None = None,
    data_return: float = 40.0,
    identity: dict[str, Any] | None = None,
    **protocol: Any,
) -> Run:
    """A run whose oracle table has `returns`: member -> step -> the return of each episode."""
    members = max([*returns, *(range(len(seeds or [0])))]) + 1
    seeds = seeds or list(range(members))
    info = {
        "offrl": "0.1.0",
        "versions": {},
        "device": "cpu",
        "algorithm": {"name": algorithm, "file": None, "options": {"name": algorithm, "file": None, **(options or {})}},
        "phases": [{"name": "train", "updates": 30}],
        "spec": {"observation_dim": 11, "action_dim": 3, "updates": 30},
        "protocol": {
            "name": "smoke",
            "updates": 30,
            "checkpoint_every": 10,
            "log_every": 10,
            "episodes": 2,
            "evaluation_seed": 100,
            "validation_fraction": 0.1,
            "split_seed": 0,
            **protocol,
        },
        "identity": identity or {"algo": {"name": algorithm, "file": None, **(options or {})}, "seeds": members},
        "dataset": {
            "name": dataset,
            "fingerprint": fingerprint,
            "episodes": 7,
            "steps": 70,
            "env_id": env,
            "env_kwargs": {},
            "reference": reference,
            "action_low": [-1.0] * 3,
            "action_high": [1.0] * 3,
            "transforms": [],
            "returns": {"mean": data_return, "min": 10.0, "max": 150.0},
            "warnings": [],
        },
        "members": [
            {
                "member": i,
                "seed": seeds[i],
                "values": (values or [{}] * members)[i],
                "diverged_at": (diverged or {}).get(i),
            }
            for i in range(members)
        ],
        "finished": finished,
    }
    for step in checkpoints:
        (path / "checkpoints" / str(step)).mkdir(parents=True)
    run = Run(path, info)
    run.write_info()
    rows = ["phase,step,member,seed,metric,value,seconds"]
    for step in checkpoints:
        rows += [f"train,{step},{i},{seeds[i]},critic_loss,{1 / step},{step / 10}" for i in range(members)]
    (path / "metrics.csv").write_text("\n".join(rows) + "\n")
    write_oracle(run, returns)
    return run


def write_oracle(run: Run, returns: dict[int, dict[int, list[float]]], env: str | None = None) -> None:
    reference = run.info["dataset"]["reference"] if env is None else None
    env = env or run.info["dataset"]["env_id"]
    protocol = run.info["protocol"]
    rows = [
        {
            "algorithm": run.info["algorithm"]["name"],
            "dataset": run.info["dataset"]["name"],
            "fingerprint": run.info["dataset"]["fingerprint"],
            "env": env,
            "member": member,
            "seed": run.members[member]["seed"],
            "step": step,
            "episode": episode,
            "reset_seed": protocol["evaluation_seed"] + episode,
            "return": value,
            "length": 10,
            "success": float("nan"),
            "normalized_score": 100 * (value - reference["random"]) / (reference["expert"] - reference["random"])
            if reference
            else float("nan"),
            "reference_random": reference["random"] if reference else float("nan"),
            "reference_expert": reference["expert"] if reference else float("nan"),
            "protocol": protocol["name"],
            "version": "0.1.0",
        }
        for member, steps in returns.items()
        for step, values in steps.items()
        for episode, value in enumerate(values)
    ]
    (run.path / "oracle").mkdir(exist_ok=True)
    pd.DataFrame(rows, columns=list(DTYPES)).to_csv(run.path / "oracle" / "returns.csv", index=False)


def make_selection(folder: Path, ranked: list[tuple[Run, int, int, float | None]]) -> Path:
    """What offrl.select leaves: candidates with their scores (None: vetoed), best first; those not named are vetoed."""
    folder.mkdir(parents=True)
    named = {(run.path, member, step) for run, member, step, _ in ranked}
    members = {(run.path, member): run for run, member, *_ in ranked}
    ranked = ranked + [
        (run, member, step, None)
        for (path, member), run in members.items()
        for step in run.checkpoints()
        if (path, member, step) not in named
    ]
    rows = [
        {
            "candidate": f"{run.path.name}/{member}/{step}",
            "run": str(run.path),
            "algorithm": run.info["algorithm"]["name"],
            "setting": "",
            "member": member,
            "seed": run.members[member]["seed"],
            "step": step,
            "dataset": run.info["dataset"]["name"],
            "fingerprint": run.info["dataset"]["fingerprint"],
            "score": score,
            "veto": "" if score is not None else "actions out of range",
        }
        for run, member, step, score in ranked
    ]
    table = pd.DataFrame(rows).sort_values("score", ascending=False, kind="stable")
    table.to_csv(folder / "candidates.csv", index=False)
    first = table["candidate"].iloc[0]
    (folder / "selection.json").write_text(
        json.dumps({"dataset": rows[0]["dataset"], "selector": "test", "deploy": [first], "top": [first]})
    )
    return folder
