"""Choose the policies that ship with offrl from the snapshots of a training run.

    python -m offrl.datasets.policies hopper RUN_DIR

RUN_DIR is what `python -m offrl.datasets.train_behaviour` wrote. Chosen are
- an expert: of the best snapshots of the training curve, the one with the highest mean return over 100 episodes without
  noise; of nearly equal ones, the best when sampled;
- a medium policy: of the last snapshots at a third to a half of the expert's normalised return, the one with the least
  spread. The last ones, because a run that falls back and recovers leaves a richer replay buffer;
- a ladder of snapshots from the start of training up to medium.
Their weights go to policies/ENV.npz in half precision (which is also what is scored), a thinned training curve to
policies/ENV_curve.csv, and the scores to cards/ENV.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offrl.data.recipes import ENVIRONMENTS, Reference
from offrl.datasets.rollout import Part, Workers, collect
from offrl.devices import cores
from offrl.errors import UserError, nearest, run_command

HERE = Path(__file__).parent
EPISODES = 100
EPISODES_FOR_LADDER = 10
EPISODES_TO_SCREEN = 30  # snapshots that may become medium
EXPERT_CANDIDATES = 3
EXPERT_MARGIN = 0.02  # of snapshots this close to the best without noise, the best when sampled makes better data
MEDIUM_CANDIDATES = 6
MEDIUM_FINALISTS = 3
MEDIUM_RANGE = (1 / 3, 1 / 2)  # of the expert's normalised return
LADDER = 16
CURVE_ROWS = 150
AIMS = {"hopper": 90, "walker2d": 80, "halfcheetah": 80}  # normalised return of the expert
SEED = 7  # of the episodes that score policies; datasets have another


class Policies(NamedTuple):
    """What ships for one environment."""

    metadata: dict[str, Any]  # "reference", "policies": name -> {"step", "deterministic", "sampled"}, "ladder", ...
    weights: dict[str, dict[str, np.ndarray]]  # name -> what a policy class in rollout.py takes, float16

    @property
    def reference(self) -> Reference:
        return Reference(**self.metadata["reference"])

    @property
    def ladder(self) -> list[tuple[str, float]]:
        """(policy, share of a replay buffer), in the order of training."""
        return [(name, share) for name, share in self.metadata["ladder"]]

    def digest(self, name: str) -> str:
        """Digest of one policy's weights, 16 hex digits."""
        content = hashlib.sha256()
        for key, array in sorted(self.weights[name].items()):
            content.update(key.encode() + array.tobytes())
        return content.hexdigest()[:16]


@cache
def load_policies(env: str) -> Policies | None:
    """The policies that ship for an environment in `ENVIRONMENTS`, None if there are none yet."""
    path = HERE / "policies" / f"{ENVIRONMENTS[env].policies or env}.npz"
    if not path.exists():
        return None
    weights: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path, allow_pickle=False) as file:
        metadata = json.loads(str(file["metadata"]))
        for key in file.files:
            name, _, layer = key.partition("/")
            if layer:
                weights.setdefault(name, {})[layer] = file[key]
    return Policies(metadata, weights)


def score(workers: Workers, env_id: str, candidates: dict[str, dict], mean_actions: float, episodes: int):
    """name -> [episodes] undiscounted returns of whole episodes; policies without weights act uniformly."""
    parts = [Part(name, weights, mean_actions, episodes=episodes) for name, weights in candidates.items()]
    collected = collect(workers, env_id, parts, SEED)
    return {
        part.policy: np.array([e.rewards.sum() for e in found]) for part, found in zip(parts, collected, strict=True)
    }


class Choice:
    """The choice among one run's snapshots; prints each of its steps."""

    def __init__(self, env: str, run: Path, workers: Workers, warm_up: int):
        import pandas as pd  # not at the top: loading policies should not wait for it

        self.environment, self.run, self.workers, self.warm_up = ENVIRONMENTS[env], run, workers, warm_up
        rows = pd.read_csv(run / "curve.csv")
        self.curve = rows.groupby("step").agg(
            seconds=("seconds", "first"),
            return_mean=("return", "mean"),
            return_std=("return", lambda r: r.std(ddof=0)),
            length_mean=("length", "mean"),
        )
        written = {int(path.stem) for path in (run / "snapshots").glob("*.npz")}
        self.curve = self.curve[self.curve.index.isin(written)]
        self.known: dict[tuple[str, float, int], np.ndarray] = {}
        random = self.score({"random": {}}, 0.0)["random"]
        self.random = summary(random)
        print(f"random {random.mean():.2f} +- {random.std():.2f}", flush=True)

    def weights(self, step: int) -> dict[str, np.ndarray]:
        with np.load(self.run / "snapshots" / f"{step:08d}.npz", allow_pickle=False) as file:
            return {key: file[key].astype(np.float16) for key in file.files}

    def score(self, candidates: dict[str, dict], mean_actions: float, episodes: int | None = None):
        """Like the function `score`, but nothing is scored twice."""
        episodes = episodes or EPISODES
        missing = {n: weights for n, weights in candidates.items() if (n, mean_actions, episodes) not in self.known}
        for name, returns in score(self.workers, self.environment.env_id, missing, mean_actions, episodes).items():
            self.known[name, mean_actions, episodes] = returns
        return {name: self.known[name, mean_actions, episodes] for name in candidates}

    def score_steps(self, steps: list[int], mean_actions: float, episodes: int | None = None) -> dict[int, np.ndarray]:
        found = self.score({str(step): self.weights(step) for step in steps}, mean_actions, episodes)
        for step, returns in found.items():
            print(f"step {step}: {returns.mean():.1f} +- {returns.std():.1f}"
                  f"{' deterministic' if mean_actions else ' sampled'}", flush=True)  # fmt: skip
        return {int(step): returns for step, returns in found.items()}

    def expert(self) -> int:
        top = self.curve.return_mean.nlargest(EXPERT_CANDIDATES).index.tolist()
        scores = self.score_steps(top, 1.0)
        means = {step: returns.mean() for step, returns in scores.items()}
        worst = max(means.values()) - EXPERT_MARGIN * (max(means.values()) - self.random["mean"])
        sampled = self.score_steps([step for step in top if means[step] >= worst], 0.0)
        best = max(sampled, key=lambda step: sampled[step].mean())
        # scored on other episodes than it was chosen by: the best of several means is biased upwards
        self.expert_return = float(self.score({"expert": self.weights(best)}, 1.0)["expert"].mean())
        self.reference = self.environment.reference or Reference(
            self.random["mean"], self.expert_return,
            f"measured here over {EPISODES} episodes: uniform actions, and the expert policy without noise",
        )  # fmt: skip
        # in reacher uniform actions cost so much that doing nothing scores most of the way to the expert
        still = {key: np.zeros_like(array) for key, array in self.weights(best).items()}
        idle = float(self.score({"idle": still}, 1.0, EPISODES_TO_SCREEN)["idle"].mean())
        self.idle = idle if self.reference.normalise(idle) > 10 else None
        self.floor = self.reference.random if self.idle is None else self.idle
        return best

    def share_of_expert(self, value):
        return (value - self.floor) / (self.expert_return - self.floor)

    def medium(self) -> int:
        low, high = MEDIUM_RANGE
        shares = self.share_of_expert(self.curve.return_mean)
        near = self.curve.index[(shares > 0.85 * low) & (shares < 1.15 * high)].tolist()[-MEDIUM_CANDIDATES:]
        if not near:
            raise UserError(f"{self.run}: no snapshot is at a third to a half of the expert; evaluate more often")

        def distance(returns: np.ndarray) -> float:
            """How far the mean is from the range."""
            share = self.share_of_expert(returns.mean())
            return max(low - share, share - high, 0.0)

        sampled = self.score_steps(near, 0.0, EPISODES_TO_SCREEN)
        near = sorted(reversed(near), key=lambda step: distance(sampled[step]))  # stable: of equals, the latest
        near = near[:MEDIUM_FINALISTS]
        without_noise = self.score_steps(near, 1.0, EPISODES_TO_SCREEN)
        off = {step: max(distance(sampled[step]), distance(without_noise[step])) for step in near}
        return min(near, key=lambda step: (max(off[step], 0.02), sampled[step].std()))  # up to 0.02 counts as within

    def ladder(self, medium: int) -> list[tuple[int, float]]:
        """(step, share of the steps from the warm-up's end to medium that are nearest to it), LADDER snapshots."""
        steps = self.curve.index[(self.curve.index > self.warm_up) & (self.curve.index <= medium)].to_numpy()
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, LADDER).round().astype(int))]
        edges = np.concatenate([[self.warm_up], (steps[1:] + steps[:-1]) / 2, [medium]])
        return list(zip(steps.tolist(), (np.diff(edges) / medium).tolist(), strict=True))


def summary(returns: np.ndarray) -> dict[str, float]:
    return {"mean": round(float(returns.mean()), 3), "std": round(float(returns.std()), 3), "episodes": len(returns)}


def choose(env: str, run: Path, workers: Workers) -> Policies:
    """Choose and score; prints what it finds.

    Raises:
        UserError: `run` is not a training run, or has no snapshot between a third and a half of its best.
    """
    from offrl.datasets.train_behaviour import RECIPES  # imports jax: in this process only, not in the workers

    if not (run / "curve.csv").exists():
        raise UserError(f"{run} has no curve.csv: give the folder that train_behaviour wrote with --out")
    recipe = RECIPES[env]
    choice = Choice(env, run, workers, recipe.warm_up)
    expert = choice.expert()
    medium = choice.medium()
    ladder = choice.ladder(medium)
    steps = {"expert": expert, "medium": medium}
    steps |= {f"ladder-{i}": step for i, (step, _) in enumerate(ladder[:-1])}  # its top is medium itself
    weights = {name: choice.weights(step) for name, step in steps.items()}
    scores: dict[str, dict[str, Any]] = {name: {"step": step} for name, step in steps.items()}
    for kind, mean_actions in (("deterministic", 1.0), ("sampled", 0.0)):
        for names, episodes in ((["expert", "medium"], None), (list(steps)[2:], EPISODES_FOR_LADDER)):
            for name, returns in choice.score({n: weights[n] for n in names}, mean_actions, episodes).items():
                scores[name][kind] = summary(returns)
    shares = [("random", recipe.warm_up / medium)]
    shares += [(name, share) for name, (_, share) in zip([*list(steps)[2:], "medium"], ladder, strict=True)]
    metadata = {
        "environment": env,
        "env_id": choice.environment.env_id,
        "command": f"python -m offrl.datasets.policies {env} RUN_DIR",
        "training": f"python -m offrl.datasets.train_behaviour {env} --out RUN_DIR",
        "trained_steps": int(choice.curve.index[-1]),
        "planned_steps": recipe.steps,
        "reference": choice.reference._asdict(),
        "random": choice.random,
        "idle": choice.idle,
        "policies": scores,
        "ladder": [(name, round(share, 4)) for name, share in shares],
        "curve": f"{env}_curve.csv",
    }
    stride = -(-len(choice.curve) // CURVE_ROWS)
    thinned = choice.curve.iloc[::-1].iloc[::stride].iloc[::-1].round(2)
    thinned.to_csv(HERE / "policies" / f"{env}_curve.csv")
    return Policies(metadata, weights)


def save(policies: Policies, text: str) -> Path:
    """Write policies/ENV.npz, and `text` to cards/ENV.md."""
    env = policies.metadata["environment"]
    path = HERE / "policies" / f"{env}.npz"
    arrays = {f"{name}/{key}": array for name, layers in policies.weights.items() for key, array in layers.items()}
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(file, metadata=np.array(json.dumps(policies.metadata)), **arrays)  # type: ignore[arg-type]
    part.replace(path)
    (HERE / "cards" / f"{env}.md").write_text(text)
    return path


def card(policies: Policies) -> str:
    """What the policies are and score, in Markdown."""
    metadata, reference = policies.metadata, policies.reference
    scale = 100 / (reference.expert - reference.random)

    def cells(found: dict[str, Any]) -> str:
        normalised = f"{reference.normalise(found['mean']):.1f} ± {found['std'] * scale:.1f}"
        return f"{found['mean']:,.1f} ± {found['std']:,.1f} | {normalised}"

    rows = [f"| random | | | | {cells(metadata['random'])} | {metadata['random']['episodes']} |"]
    shares = dict(metadata["ladder"])
    for name, found in sorted(metadata["policies"].items(), key=lambda item: item[1]["step"]):
        rows.append(f"| {name} | {found['step']:,} | {cells(found['deterministic'])} | {cells(found['sampled'])} | "
                    f"{found['deterministic']['episodes']} |")  # fmt: skip
    best, middle = (metadata["policies"][name]["deterministic"]["mean"] for name in ("expert", "medium"))
    expert, medium, idle = reference.normalise(best), reference.normalise(middle), metadata["idle"]
    lines = [f"The expert reaches {expert:.1f} normalised, medium {100 * medium / expert:.0f} % of that."]
    if idle is not None:
        lines.append(
            f"Doing nothing scores {idle:,.1f} ({reference.normalise(idle):.0f} normalised), so medium was "
            f"chosen between that and the expert, at {100 * (middle - idle) / (best - idle):.0f} % of the way."
        )
    aim = AIMS.get(metadata["environment"])
    if aim:
        lines.append(
            f"The aim was an expert of at least {aim}: " + ("reached." if expert >= aim else "**not reached**.")
        )
    if ENVIRONMENTS[metadata["environment"]].reference is None:
        lines.append("The reference is this expert itself: its 100 says nothing about how good a policy can be.")
    if metadata["trained_steps"] < 0.99 * metadata["planned_steps"]:
        done = f"{metadata['trained_steps']:,} of {metadata['planned_steps']:,} steps"
        lines.append(f"Training was stopped after {done}; train_behaviour continues in its folder where that is kept.")
    ladder = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
    return f"""# {metadata["environment"]} ({metadata["env_id"]})

Soft actor-critic, one seed, {metadata["trained_steps"]:,} steps; curve in `policies/{metadata["curve"]}`. Made by

    {metadata["training"]}
    {metadata["command"]}

Undiscounted returns, mean ± standard deviation over episodes, of the half-precision weights that ship. "Deterministic"
takes the mean action; "sampled" is how the recipes act. Normalised: 0 is {reference.random:,.2f} and 100 is
{reference.expert:,.2f} ({reference.source}).

| policy | training step | deterministic | normalised | sampled | normalised | episodes |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

{chr(10).join(lines)}

`medium-replay` consists of, in this order: {ladder} (random is the warm-up of training).
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m offrl.datasets.policies", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("env", metavar="ENV", help=", ".join(ENVIRONMENTS))
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="folder that train_behaviour wrote")
    parser.add_argument("--workers", type=int, default=cores(), help="simulator processes (default: one per core)")
    arguments = parser.parse_args()
    if arguments.env not in ENVIRONMENTS:
        raise UserError(f"unknown environment {arguments.env!r}: {nearest(arguments.env, ENVIRONMENTS)}")
    with Workers(arguments.workers) as workers:
        policies = choose(arguments.env, arguments.run, workers)
    print(f"wrote {save(policies, card(policies))}\n\n{card(policies)}")


if __name__ == "__main__":
    run_command(main)
