"""Split, select, retrain: the configuration that is best on average over several splits of the data."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from offrl.errors import UserError
from offrl.runs import averaging, configuration
from offrl.runs.run import Run, differing_options, flat
from offrl.selection import selectors
from offrl.selection.decision import rank
from offrl.selection.pool import Pool, held_out_episodes
from offrl.statistics import kendall_w


class Configurations(NamedTuple):
    """Which configuration is best over several splits of the data."""

    dataset: str
    fingerprint: str
    selector: str
    splits: list[int]
    """The split seeds."""
    table: pd.DataFrame
    """One row per configuration, best first: algorithm, setting, score (mean over splits of the mean over members),
    spread (standard deviation over splits), reason (why it must not be chosen), and the score of each split."""
    agreement: float
    """Kendall's W between the splits' orders of the configurations."""
    abstains: str
    """Why behaviour cloning is to be trained instead; empty where it is not."""
    command: str
    """What trains the chosen configuration on all data; empty where none is chosen."""
    seconds: float


def split_seeds(runs: Sequence[str | Path]) -> list[int]:
    """The split seeds of those runs, ascending."""
    return sorted({Run.open(path).info["protocol"]["split_seed"] for path in runs})


def select_configuration(
    runs: Sequence[str | Path],
    selector: str = selectors.DEFAULT,
    names: Sequence[str] | None = None,
    rows: int = 20_000,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Configurations:
    """Split-select-retrain (Nie, Flet-Berliac, Jordan, Steenbergen & Brunskill 2022).

    Each configuration, which is an algorithm with its settings, has been trained on several random splits of the data
    by episode. The selector scores the last policies of each split on what that split holds out; the configuration of
    the best mean is to be trained anew, on all data. One split's luck does not decide, and no data are left out in the
    end. Where the selector abstains on most splits, behaviour cloning is that configuration.

    Raises:
        UserError: a configuration was not trained on every split, or a run holds no episode out.
    """
    started = time.monotonic()
    trained = [path for path in runs if not averaging.is_average(Run.open(path))]  # an average cannot be retrained
    whole = Pool.open(trained, checkpoints=1, rows=rows)
    frame = whole.table[["candidate", "algorithm"]].copy()
    protocols = [candidate.run.info["protocol"] for candidate in whole.candidates]
    frame["split"] = [protocol["split_seed"] for protocol in protocols]
    for candidate, protocol in zip(whole.candidates, protocols, strict=True):
        if not protocol["validation_fraction"] > 0:
            raise UserError(f"{candidate.run.path}: holds no episode out to select by; leave it out, or give it alone")
    for _, group in frame.groupby("algorithm"):
        options = [
            {**whole.candidates[i].run.options(whole.candidates[i].member), "updates": protocols[i]["updates"]}
            for i in group.index
        ]
        frame.loc[group.index, "setting"] = differing_options(options)
    splits = sorted(frame["split"].unique().tolist())
    for (algorithm, setting), group in frame.groupby(["algorithm", "setting"]):
        if missing := sorted(set(splits) - set(group["split"])):
            named = f"{algorithm} {setting}".strip()
            raise UserError(
                f"{named}: not trained with protocol.split_seed={missing[0]}; train it there too, or leave it out, as "
                "means over different splits cannot be compared"
            )

    abstaining: list[str] = []
    for split, group in frame.groupby("split"):
        candidates = [whole.candidates[i] for i in group.index]
        held_out = np.logical_and.reduce([held_out_episodes(c.run, whole.dataset) for c in candidates])
        pool = Pool(whole.dataset, candidates, held_out, rows, whole.seed)
        found = rank(pool, selector, names, lambda name, *done, split=split: progress(f"split {split}: {name}", *done))  # type: ignore[misc]
        if found.choice.abstains:
            abstaining.append(found.choice.abstains)
        frame.loc[group.index, "score"] = found.choice.ranking.reindex(group["candidate"]).to_numpy()
        reasons = selectors.vetoes(found.scores)[group["candidate"]]
        frame.loc[group.index, "reason"] = [reason and f"{name}: {reason}" for name, reason in reasons.items()]

    groups = frame.groupby(["algorithm", "setting"])
    by_split = frame.groupby(["algorithm", "setting", "split"])["score"].apply(lambda s: s.mean(skipna=False)).unstack()
    table = pd.DataFrame({
        "score": by_split.mean(axis=1, skipna=False),
        "spread": by_split.std(axis=1),
        "reason": groups["reason"].agg(lambda reasons: next(filter(None, reasons), "")),
    })  # fmt: skip
    table = table.join(by_split.rename(columns=lambda split: f"split {split}"))
    table = table.reset_index().sort_values(["score", "algorithm", "setting"], ascending=[False, True, True])
    abstains = abstaining[0] if 2 * len(abstaining) > len(splits) else ""
    eligible = table[table["algorithm"] == selectors.BC] if abstains else table[table["score"].notna()]
    command = ""
    if len(eligible):
        best = eligible.iloc[0]
        first = whole.candidates[groups.get_group((best["algorithm"], best["setting"])).index[0]]
        command = training_command(first.run, first.member)
    return Configurations(
        whole.dataset.name,
        whole.dataset.fingerprint,
        selector,
        splits,
        table.reset_index(drop=True),
        float(kendall_w(by_split.to_numpy().T)),
        abstains,
        command,
        time.monotonic() - started,
    )


def training_command(run: Run, member: int) -> str:
    """What trains a member's configuration on all the data of its run, with the seeds that the run had."""
    identity, protocol = run.info["identity"], run.info["protocol"]
    arguments = {"algo": run.info["algorithm"]["file"] or run.info["algorithm"]["name"], "dataset": identity["dataset"]}
    env = identity.get("env")
    if env is None or identity["env_name"] != "from_dataset":
        arguments["env"] = identity["env_name"] if env else None
    elif env["id"]:
        arguments["env.id"] = env["id"]
    arguments |= {f"env.kwargs.{name}": value for name, value in (env or {}).get("kwargs", {}).items()}
    arguments |= {f"data.columns.{name}": value for name, value in identity["data"]["columns"].items()}
    arguments |= {f"data.{name}": value for name, value in identity["data"].items() if name != "columns" and value}
    arguments |= {"protocol": protocol["name"], "protocol.validation_fraction": 0}
    arguments |= {f"protocol.{name}": protocol[name] for name in ("updates", "checkpoint_every", "log_every")}
    arguments["seeds"] = [m["seed"] for m in run.members if m["values"] == run.members[member]["values"]]
    defaults = flat(configuration.option_defaults(run.algorithm))
    chosen = {name: value for name, value in run.options(member).items() if name not in ("name", "file")}
    arguments |= {f"algo.{name}": value for name, value in chosen.items() if value != defaults.get(name)}
    arguments["tuned"] = False  # every value is here

    def text(value: Any) -> str:
        return configuration.quoted(value) if isinstance(value, str) else json.dumps(value, separators=(",", ":"))

    return shlex.join(["python", "-m", "offrl.train", *(f"{name}={text(value)}" for name, value in arguments.items())])
