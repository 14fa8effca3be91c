"""The built-in datasets by name: their environments, the recipes that make them, their ids in the Minari store.

`offrl.datasets` rolls them out.
"""

from __future__ import annotations

from typing import NamedTuple

from offrl.errors import UserError, nearest

VERSION = 0  # of the recipes: the -v0 of every id


class Reference(NamedTuple):
    """Undiscounted returns that correspond to normalised scores of 0 and 100."""

    random: float
    expert: float
    source: str

    def normalise(self, value: float) -> float:
        return 100 * (value - self.random) / (self.expert - self.random)


class Environment(NamedTuple):
    env_id: str
    steps: int  # default size of a dataset
    reference: Reference | None = None  # None: measured here, and kept with the policies
    policies: str = ""  # the environment whose policies act here; empty: its own


ENVIRONMENTS = {
    "hopper": Environment("Hopper-v5", 200_000, Reference(-20.272305, 3234.3, "D4RL")),
    "halfcheetah": Environment("HalfCheetah-v5", 200_000, Reference(-280.178953, 12135.0, "D4RL")),
    "walker2d": Environment("Walker2d-v5", 200_000, Reference(1.629008, 4592.3, "D4RL")),
    "pendulum": Environment("Pendulum-v1", 20_000),
    "reacher": Environment("Reacher-v5", 50_000),
    "swimmer": Environment("Swimmer-v5", 100_000),
    "inverted_double_pendulum": Environment("InvertedDoublePendulum-v5", 50_000),
    "pendulum_images": Environment("offrl.datasets.environments:PendulumImages-v0", 10_000, policies="pendulum"),
    "cartpole": Environment("CartPole-v1", 50_000),
    "icu_sepsis": Environment("offrl.datasets.environments:ICUSepsis-v0", 50_000),
}


class Recipe(NamedTuple):
    """Which policies act, for which share of the dataset, and how.

    The policies are those of `policies/ENV.npz`, "random" (uniform over all actions), and "ladder": the snapshots
    from the start of training up to medium, each for the share of the training steps nearest to it.
    """

    summary: str
    parts: tuple[tuple[str, float], ...]
    mean_actions: float = 0.0  # share of the actions that are the policy's mean; the others are sampled from it
    episodes: int | None = None  # a fixed number of whole episodes instead of a number of steps
    only: str = ""  # the one environment that has it; empty: all


_CONSERVATIVE = "medium policy, each action its mean with probability 0.8, else a sample (NeoRL)"

# NeoRL counts whole trajectories where D4RL counts steps. Its three sizes are recipes of their own, so that their name
# says everything; plain `conservative` has the same size in steps as the other recipes and compares with `medium`.
RECIPES = {
    "random": Recipe("uniformly random actions (D4RL)", (("random", 1.0),)),
    "medium": Recipe("the medium policy, sampled (D4RL)", (("medium", 1.0),)),
    "medium-replay": Recipe("snapshots from the start of training up to medium, in order, sampled: like a replay "
                            "buffer (D4RL)", (("ladder", 1.0),)),
    "medium-expert": Recipe("half the medium policy, half the expert, sampled (D4RL)",
                            (("medium", 0.5), ("expert", 0.5))),
    "expert": Recipe("the expert policy, sampled (D4RL)", (("expert", 1.0),)),
    "clinicians": Recipe("the policy estimated from what clinicians did (ICU-Sepsis)", (("clinicians", 1.0),),
                         only="icu_sepsis"),
    "conservative": Recipe(_CONSERVATIVE, (("medium", 1.0),), 0.8),
    "conservative-100": Recipe(f"100 episodes: {_CONSERVATIVE}", (("medium", 1.0),), 0.8, 100),
    "conservative-1000": Recipe(f"1,000 episodes: {_CONSERVATIVE}", (("medium", 1.0),), 0.8, 1_000),
    "conservative-10000": Recipe(f"10,000 episodes: {_CONSERVATIVE}", (("medium", 1.0),), 0.8, 10_000),
}  # fmt: skip


def recipes_of(env: str) -> list[str]:
    """The names of the recipes that an environment in `ENVIRONMENTS` has."""
    return [name for name, recipe in RECIPES.items() if recipe.only in ("", env)]


def split_name(rest: str) -> tuple[str, str]:
    """The environment and the recipe of "ENV/RECIPE", what follows `builtin:` in the name of a dataset."""
    env, _, recipe = rest.partition("/")
    if not recipe:
        raise UserError(f"dataset 'builtin:{rest}' lacks its recipe: builtin:ENV/RECIPE, e.g. builtin:hopper/medium")
    return env, recipe


def check_names(env: str, recipe: str) -> None:
    """Raises `UserError` with the nearest names for an environment or a recipe that does not exist."""
    if env not in ENVIRONMENTS:
        raise UserError(f"built-in data has no environment {env!r}: {nearest(env, ENVIRONMENTS)}")
    if recipe not in recipes_of(env):
        raise UserError(f"built-in data of {env} has no recipe {recipe!r}: {nearest(recipe, recipes_of(env))}")


def dataset_id(env: str, recipe: str, steps: int | None = None) -> str:
    """The Minari id of a dataset; a size other than the default has another id.

    Raises:
        UserError: an unknown name, `steps` below 1, or `steps` for a recipe that counts episodes.
    """
    check_names(env, recipe)
    size = ""
    if steps is not None:
        if RECIPES[recipe].episodes:
            raise UserError(f"{env}/{recipe} has {RECIPES[recipe].episodes:,} episodes, so steps={steps} cannot be "
                            "met; for a number of steps take the recipe conservative")  # fmt: skip
        if steps < 1:
            raise UserError(f"steps={steps}: a dataset has at least one step")
        if steps != ENVIRONMENTS[env].steps:
            size = f"-{steps // 1000}k" if steps % 1000 == 0 else f"-{steps}steps"
    return f"offrl/{env}/{recipe}{size}-v{VERSION}"
