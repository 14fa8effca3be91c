"""Choose a policy from the data alone: `python -m offrl.select RUN...`, or `select`.

The candidates are all checkpoints of all members of the runs. Diagnostics look at them and at the dataset; a selector
ranks them; the answer is one policy, or behaviour cloning where nothing is known to be better, with how far to trust
it. This module and everything under offrl/diagnostics open no environment and never read a run's oracle/ folder.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from offrl import command_line, devices
from offrl.errors import UserError, run_command
from offrl.runs import averaging, configuration
from offrl.runs.run import Run, differing_options, flat, write_whole
from offrl.selection import diagnostics, selectors
from offrl.selection.diagnostics import curves, data, evaluation, support
from offrl.selection.pool import Pool, held_out_episodes
from offrl.selection.selectors import Choice
from offrl.statistics import kendall_w

VALUE = ("behaviour_advantage", "fqe", "lstd", "model_value")
"""Estimates of how good a policy is, whose bootstrap samples say how sure a difference is."""
LOW_AGREEMENT = 0.3
"""Kendall's W below which the disagreement of the diagnostics is itself a warning (selection.md, section 4)."""
SHOWN = 12
LEAST_SPLITS = 3
TO_TRY = 5


class Selection(NamedTuple):
    """The answer, and what it rests on."""

    pool: Pool
    table: pd.DataFrame
    """Tidy: one row per candidate and diagnostic."""
    scores: pd.DataFrame
    """[candidates, diagnostics]."""
    candidates: pd.DataFrame
    """One row per candidate, best first: its score, and `veto`, the reason why it must not be deployed."""
    selector: str
    choice: Choice
    chances: pd.DataFrame
    """One row per estimate: the probability that the choice beats BC and beats the logged behaviour, over episodes."""
    agreement: float
    """Kendall's W between the diagnostics that the default selector ranks by; nan with fewer than two."""
    dissent: pd.DataFrame
    """One row per other selector: what it would have chosen, and where the choice stands in its order."""
    distinct: int
    """How many policies the pool has, where those that act alike count once."""
    to_try: list[str]
    """Whom a budget of evaluations should try, in this order: the best ranked that differ from those before."""
    workflow: pd.DataFrame
    checks: pd.DataFrame
    seconds: float


def select(
    runs: Sequence[str | Path],
    selector: str = selectors.DEFAULT,
    names: Sequence[str] | None = None,
    checkpoints: int | None = None,
    rows: int = 20_000,
    average: int | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Selection:
    """Measure the pool of some runs on one dataset, and choose.

    Args:
        selector: a name in `offrl.selectors`, a diagnostic's name, or `path/to/file.py:function`.
        names: the diagnostics or measurements to run; None runs all that need nothing but the data.
        checkpoints: at most so many per member, evenly spread, the last among them.
        rows: transitions of each split that are looked at.
        average: the mean of the weights of so many last checkpoints is one more candidate of every member.
        progress: called with (measurement, candidates done, candidates in all).

    Raises:
        UserError: unknown names, runs on different data, data that have changed.
    """
    started = time.monotonic()
    paths = [Path(path) for path in runs]
    if average is not None:
        made = [averaging.average(run, average) for run in map(Run.open, paths) if not averaging.is_average(run)]
        paths += [path for path in made if path not in paths]  # where an earlier call's were given too
    pool = Pool.open(paths, checkpoints, rows)
    table, replicates, scores, known, choice = rank(pool, selector, names, progress)
    described = pool.table.set_index("candidate")
    veto = selectors.vetoes(scores)
    ranked = described.assign(score=choice.ranking.reindex(described.index), veto=veto)
    ranked = ranked.sort_values(["score", "run", "member", "step"], ascending=[False, True, True, True])
    distances = support.policy_distances(pool)
    order = scores.index.get_indexer(ranked.index[ranked["score"].notna()])
    return Selection(
        pool,
        table,
        scores,
        ranked.reset_index(),
        selector,
        choice,
        chances(pool, choice, scores, replicates),
        agreement(scores, veto),
        dissent(scores, described, known, choice, selector),
        len(set(support.duplicates(distances))),
        [str(scores.index[i]) for i in support.diverse(distances, order.tolist(), TO_TRY)],
        curves.workflow(pool),
        data.checks(pool.dataset),
        time.monotonic() - started,
    )


class Ranked(NamedTuple):
    table: pd.DataFrame
    replicates: dict[str, np.ndarray]
    scores: pd.DataFrame
    known: dict[str, selectors.Selector]
    """Every selector that the scores feed."""
    choice: Choice


def rank(pool: Pool, selector: str, names: Sequence[str] | None, progress: Callable[[str, int, int], None]) -> Ranked:
    """Measure the candidates, and let the selector order them."""
    table, replicates = diagnostics.measure(pool, names, progress)
    scores = table.pivot(index="candidate", columns="diagnostic", values="value").reindex(pool.table["candidate"])
    errors = table.pivot(index="candidate", columns="diagnostic", values="standard_error").reindex(scores.index)
    scores.attrs = {"coverage": data.coverage(pool), "standard_error": errors}
    directions = {d.name: d.better for d in diagnostics.diagnostics().values()}
    known = selectors.available(scores, directions)
    choice = selectors.choose(scores, pool.table.set_index("candidate"), selectors.find(selector, known))
    return Ranked(table, replicates, scores, known, choice)


def chances(pool: Pool, choice: Choice, scores: pd.DataFrame, replicates: dict[str, np.ndarray]) -> pd.DataFrame:
    """How sure it is that the deployed policy beats BC, and the behaviour that made the data: estimate by estimate.

    All are resampled by the same episodes, so what two policies have in common cancels. They hold the estimator for
    true: what it gets wrong on both sides they do not know.
    """
    dataset = pool.dataset
    places = {name: i for i, name in enumerate(scores.index)}
    chosen = [places[name] for name in choice.deploy[:1]]
    cloned = [places[name] for name in selectors.cloning(pool.table.set_index("candidate"), scores)]
    rows = []
    for name in VALUE:
        if name not in replicates or not chosen or not np.isfinite(replicates[name][chosen]).all():
            continue
        drawn = replicates[name]
        mine = drawn[chosen[0]]
        row: dict[str, Any] = {"estimate": name, "choice": float(scores[name].iloc[chosen[0]])}
        if cloned and chosen[0] not in cloned and np.isfinite(drawn[cloned]).all():
            row["bc"] = float(scores[name].iloc[cloned].mean())
            row["beats_bc"] = chance(mine - drawn[cloned].mean(0))
        if name == "behaviour_advantage":  # an advantage over the behaviour: its own value is 0
            row["behaviour"], row["beats_behaviour"] = 0.0, chance(mine)
        else:
            logged = evaluation.continued_returns(dataset)[dataset.starts]  # as long as what it is compared with
            weights = pool.episode_weights
            row["behaviour"] = float(logged.mean())
            row["beats_behaviour"] = chance(mine - weights @ logged / weights.sum(1))
        rows.append(row)
    columns = ["estimate", "choice", "bc", "beats_bc", "behaviour", "beats_behaviour"]
    return pd.DataFrame(rows, columns=columns)


def chance(differences: np.ndarray) -> float:
    """Share of bootstrap differences above 0, ties half; never quite 0 or 1, which so many draws cannot show."""
    n = len(differences)
    return float(((differences > 0).sum() + 0.5 * (differences == 0).sum() + 0.5) / (n + 1))


def agreement(scores: pd.DataFrame, veto: pd.Series) -> float:
    """Kendall's W between the value and support diagnostics, over the candidates that are not vetoed."""
    kept = scores[veto == ""]
    columns = []
    for members in (*selectors.VALUE, *selectors.SUPPORT):
        name = next((n for n in members if n in kept and kept[n].notna().all()), None)
        if name is not None:
            columns.append(kept[name] * (-1 if selectors.DIRECTIONS[name] == "low" else 1))
    if len(columns) < 2 or len(kept) < 3:
        return float("nan")
    return float(kendall_w(np.stack([column.to_numpy() for column in columns])))


def dissent(
    scores: pd.DataFrame, described: pd.DataFrame, known: dict[str, selectors.Selector], choice: Choice, chosen: str
) -> pd.DataFrame:
    """What the other selectors would choose, and at which place of their order the choice stands."""
    rows = []
    for name, selector in known.items():
        if name == chosen:
            continue
        other = selectors.choose(scores, described, selector)
        if not len(other.ranking):
            continue
        place = np.nan
        if choice.deploy and choice.deploy[0] in other.ranking:
            place = int((other.ranking > other.ranking[choice.deploy[0]]).sum()) + 1
        rows.append(
            {
                "selector": name,
                "would_choose": other.top[0],
                "algorithm": described.loc[other.top[0], "algorithm"],
                "abstains": bool(other.abstains),
                "agrees": bool(set(other.deploy) & set(choice.deploy)),
                "place_of_choice": place,
                "of": len(other.ranking),
            }
        )
    return pd.DataFrame(rows)


# Split, select, retrain


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
    """Split-select-retrain (Nie, Flet-Berliac, Jordan, Steenbergen & Brunskill 2022; H1 of the catalogue).

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


def report_configurations(found: Configurations, console: Console) -> None:
    """The terminal's page of several splits."""
    console.print(f"[bold]{len(found.table)} configurations[/] on {len(found.splits)} splits of {found.dataset}; "
                  "the last policy of every member counts", highlight=False)  # fmt: skip
    table = Table(title=f"by {found.selector}", title_justify="left", box=None)
    columns = [f"split {split}" for split in found.splits]
    for name in ("", "algorithm", "setting", "score", *columns):
        table.add_column(name, justify="left" if name in ("algorithm", "setting") else "right")
    for place, row in found.table.head(SHOWN).iterrows():
        numbers = [f"{row['score']:.3f}±{row['spread']:.2g}", *(f"{row[name]:.3f}" for name in columns)]
        numbers = ["-" if number.startswith("nan") else number for number in numbers]
        table.add_row(str(int(place) + 1), row["algorithm"], row["setting"], *numbers)  # type: ignore[call-overload]
    console.print(table)
    for reason in filter(None, found.table["reason"]):
        console.print(f"[red]vetoed[/] {reason}", highlight=False)
    lines = [""]
    if len(found.splits) < LEAST_SPLITS:
        text = f"{len(found.splits)} splits show little of how much a split decides; take {LEAST_SPLITS} or more"
        lines.append(f"[yellow]{text}[/]")
    if not np.isnan(found.agreement):
        lines.append(f"  agreement of the splits: Kendall's W {found.agreement:.2f}")
    if found.abstains:
        lines.append(f"  the selector abstains on most splits, in favour of behaviour cloning: {found.abstains}")
    if found.command:
        lines += ["[bold]train the chosen configuration on all data, and deploy its last checkpoint[/]"]
    else:
        lines.append("no configuration can be chosen" + ("; train algo=bc on this dataset" if found.abstains else ""))
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    if found.command:
        console.print(f"  {found.command}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"  {found.seconds:.0f} s", highlight=False)


def write_configurations(found: Configurations, folder: Path) -> dict[str, Any]:
    """configurations.csv and configurations.json, whose content is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    found.table.to_csv(folder / "configurations.csv", index=False)
    answer = {
        **found._asdict(),
        "table": json.loads(found.table.to_json(orient="records", double_precision=12)),
        "agreement": None if np.isnan(found.agreement) else found.agreement,
        "seconds": round(found.seconds, 1),
    }
    write_whole(folder / "configurations.json", json.dumps(answer, indent=1))
    return answer


# What is printed and written


def report(selection: Selection, console: Console) -> None:
    """The terminal's page."""
    pool = selection.pool
    console.print(
        f"[bold]{len(pool)} candidates[/] of {pool.table['run'].nunique()} runs on {pool.dataset.name}; "
        f"{int(pool.held_out.sum())} of {pool.dataset.episodes} episodes held out; "
        f"coverage {selection.scores.attrs['coverage']:.2f}",
        highlight=False,
    )
    if not pool.held_out.any():
        console.print("[yellow]no episode is held out: nothing that needs held-out data was measured[/]; "
                      "train with protocol.validation_fraction=0.1", highlight=False)  # fmt: skip
    checks = selection.checks
    for _, check in checks[checks["level"] != "ok"].iterrows():
        console.print(f"[yellow]data: {check['check']}[/] {check['message']}", highlight=False)
    console.print(_candidates_table(selection))
    vetoed = selection.candidates[selection.candidates["veto"] != ""]
    for reason, group in vetoed.groupby("veto"):
        console.print(f"[red]vetoed[/] {len(group)}: {', '.join(group['candidate'][:4])}"
                      f"{', ...' if len(group) > 4 else ''}: {reason}", highlight=False)  # fmt: skip
    if len(selection.workflow):
        table = Table(title="workflow: what the curves say of each member", title_justify="left", box=None)
        for name in ("run", "member", "verdict", "step", "advice"):
            table.add_column(name)
        for _, row in selection.workflow.iterrows():
            table.add_row(Path(row["run"]).name, str(row["member"]), row["verdict"], f"{row['step']:,}", row["advice"])
        console.print(table)
    console.print(_decision(selection), highlight=False, soft_wrap=True)


def _candidates_table(selection: Selection) -> Table:
    shown = [name for name in ("behaviour_advantage", "fqe_lcb", "lstd", "action_distance", "ood_fraction", "td_error")
             if name in selection.scores and selection.scores[name].notna().any()]  # fmt: skip
    swept = (selection.candidates["setting"] != "").any()
    table = Table(title=f"by {selection.selector}", title_justify="left", box=None)
    for name in ("", "candidate", *(["setting"] if swept else []), "score", *shown):
        table.add_column(name.replace("_", " "), justify="left" if name in ("candidate", "setting") else "right")
    errors = selection.scores.attrs["standard_error"]
    for place, (_, row) in enumerate(selection.candidates.head(SHOWN).iterrows(), 1):
        cells = [row["setting"]] if swept else []
        cells.append("veto" if row["veto"] else "-" if np.isnan(row["score"]) else f"{row['score']:.3f}")
        for name in shown:
            value, error = (float(source.loc[row["candidate"], name]) for source in (selection.scores, errors))  # type: ignore[arg-type]
            cells.append("-" if np.isnan(value) else f"{value:.3g}" + (f"±{error:.2g}" if error == error else ""))
        style = "bold" if row["candidate"] in selection.choice.deploy else "red" if row["veto"] else ""
        table.add_row(str(place), row["candidate"], *cells, style=style)
    if len(selection.candidates) > SHOWN:
        table.caption = f"and {len(selection.candidates) - SHOWN} more in candidates.csv"
    return table


def _decision(selection: Selection) -> str:
    choice, lines = selection.choice, [""]
    if choice.abstains:
        target = f"behaviour cloning, {choice.deploy[0]}" if choice.deploy else (
            "behaviour cloning: the pool has none, train one with algo=bc on this dataset")  # fmt: skip
        lines.append(f"[bold]deploy {target}[/]\n  the selector abstains: {choice.abstains}")
    elif choice.deploy:
        ties = f" (shares the first place with {choice.tied - 1} more)" if choice.tied > 1 else ""
        lines.append(f"[bold]deploy {choice.deploy[0]}[/]{ties}")
    lines.append(f"  top {len(choice.top)}: {', '.join(choice.top)}; ranked by {'; '.join(choice.notes)}")
    lines.append(
        f"  {selection.distinct} of {len(selection.pool)} candidates act differently; where some can be evaluated, try "
        f"in this order: {', '.join(selection.to_try) or 'none'}"
    )
    if choice.deploy:
        row = selection.candidates.set_index("candidate").loc[choice.deploy[0]]
        lines.append(
            f"  in Python: act = offrl.runs.Run.open({row['run']!r}).actor(step={row['step']}, member={row['member']})"
        )
    for _, row in selection.chances.iterrows():
        known = [
            f"P(beats {what}) = {row[column]:.2f}"
            for what, column in (("BC", "beats_bc"), ("the logged behaviour", "beats_behaviour"))
            if np.isfinite(row[column])
        ]
        lines.append(f"  if {row['estimate']} is right: {', '.join(known)}")
    if not len(selection.chances):
        lines.append("  how likely it beats BC or the data is not known: no value estimate applies")
    if choice.deploy and not len(selectors.cloning(selection.candidates.set_index("candidate"), selection.scores)):
        lines.append("  no cloning among the candidates to compare with: train algo=bc on these data, and select again")
    if not np.isnan(selection.agreement):
        warning = ": they contradict each other, trust the order little" if selection.agreement < LOW_AGREEMENT else ""
        lines.append(f"  agreement of the diagnostics: Kendall's W {selection.agreement:.2f}{warning}")
    others = selection.dissent
    if len(others):
        against = others[~others["agrees"]]
        lines.append(f"  {len(others) - len(against)} of {len(others)} other selectors would deploy the same")
        for _, row in against.head(6).iterrows():
            place, count = row["place_of_choice"], row["of"]
            stands = f"the choice is its {place:.0f}. of {count}" if np.isfinite(place) else "it has no rank for it"
            lines.append(f"    {row['selector']} would choose {row['would_choose']}; {stands}")
    costs = diagnostics.seconds_spent(selection.table)
    dearest = ", ".join(f"{name} {costs[name]:.0f}" for name in sorted(costs, key=costs.__getitem__)[-3:][::-1])
    total = sum(costs.values())
    lines.append(f"  {selection.seconds:.0f} s; measuring, now or in earlier calls, took {total:.0f} s: {dearest}, ...")
    return "\n".join(lines)


def as_json(selection: Selection) -> dict[str, Any]:
    """Everything that was decided and why; nan becomes null."""
    pool, choice = selection.pool, selection.choice

    def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return json.loads(frame.to_json(orient="records", double_precision=12))

    return {
        "dataset": pool.dataset.name,
        "fingerprint": pool.dataset.fingerprint,
        "held_out_episodes": int(pool.held_out.sum()),
        "coverage": selection.scores.attrs["coverage"],
        "selector": selection.selector,
        "deploy": choice.deploy,
        "abstains": choice.abstains,
        "top": choice.top,
        "notes": choice.notes,
        "chances": records(selection.chances),
        "agreement": None if np.isnan(selection.agreement) else selection.agreement,
        "dissent": records(selection.dissent),
        "distinct": selection.distinct,
        "to_try": selection.to_try,
        "workflow": records(selection.workflow),
        "data_checks": records(selection.checks),
        "candidates": records(selection.candidates),
        "seconds": round(selection.seconds, 1),
        "measuring_seconds": diagnostics.seconds_spent(selection.table),
    }


def draw(selection: Selection, file: Path) -> None:
    """Two pictures: every candidate by value and by support, and where each selector places the choice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scores, described = selection.scores, selection.candidates.set_index("candidate")
    eligible = described["veto"].reindex(scores.index) == ""
    value, value_names = selectors.group_rank(scores, selectors.VALUE, eligible)
    support, support_names = selectors.group_rank(scores, selectors.SUPPORT, eligible)
    figure = Figure(figsize=(11, 4.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    scatter, bars = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.3, 1]})
    if value is not None and support is not None:
        for i, (algorithm, group) in enumerate(described.groupby("algorithm")):
            names = group.index[eligible[group.index]]
            scatter.scatter(support[names], value[names], s=26, color=f"C{i}", alpha=0.75, label=algorithm)
        chosen = [name for name in selection.choice.deploy if eligible[name]]
        scatter.scatter(support[chosen], value[chosen], s=170, facecolors="none", edgecolors="black",
                        linewidths=1.6, label="deployed")  # fmt: skip
        scatter.legend(frameon=False, fontsize=8, loc="best")
    scatter.set_xlabel(f"support rank ({', '.join(support_names)})", fontsize=8)
    scatter.set_ylabel(f"value rank ({', '.join(value_names)})", fontsize=8)
    scatter.set_title("1 is the best of the pool", fontsize=9)
    others = selection.dissent.dropna(subset=["place_of_choice"]) if len(selection.dissent) else selection.dissent
    if len(others):
        share = 1 - (others["place_of_choice"] - 1) / np.maximum(others["of"] - 1, 1)
        bars.barh(others["selector"], share, color="#1f5fa8")
        bars.invert_yaxis()
        bars.tick_params(axis="y", labelsize=7)
        bars.set_xlim(0, 1)
        bars.set_title("place of the choice in the other selectors' orders (1: first)", fontsize=9)
    figure.suptitle(f"selection on {selection.pool.dataset.name}", fontsize=11, x=0.01, ha="left", fontweight="bold")
    for axes in (scatter, bars):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def write(selection: Selection, folder: Path) -> None:
    """candidates.csv, diagnostics.csv, selection.json, selection.png."""
    folder.mkdir(parents=True, exist_ok=True)
    selection.candidates.to_csv(folder / "candidates.csv", index=False)
    dataset, coverage = selection.pool.dataset, selection.scores.attrs["coverage"]
    of_data = {"dataset": dataset.name, "fingerprint": dataset.fingerprint, "diagnostic": "coverage", "value": coverage}
    table = pd.concat([selection.table, pd.DataFrame([of_data])], ignore_index=True)
    table.to_csv(folder / "diagnostics.csv", index=False)
    write_whole(folder / "selection.json", json.dumps(as_json(selection), indent=1))
    draw(selection, folder / "selection.png")


@contextmanager
def progress_bar(console: Console):
    """A function (measurement, done, total) that shows how far the measuring is."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield show


WRITTEN = ("selection.json", "configurations.json")
"""Marks of a folder that this command wrote, which runs/* names beside the runs."""
OPTIONS = {
    "selector": f"who ranks: {', '.join(selectors.SELECTORS)}, any diagnostic, or FILE.py:FUNCTION",
    "diagnostics": "names with commas; default: all that need the data alone",
    "checkpoints": "at most so many per member, evenly spread, the last among them; default: all",
    "average": "K: the mean of the weights of the last K checkpoints is one more candidate of every member",
    "rows": "transitions of each split that are looked at; default 20000",
    "out": "folder for the tables, the picture and selection.json; default: selection, beside the first run",
}


def main() -> None:
    def command() -> None:
        parsed = command_line.parse(
            sys.argv[1:],
            "select",
            "Choose a policy from the data alone. The candidates are all checkpoints of all members of the runs,\n"
            "which must be on one dataset. No environment is opened, and no evaluation of the runs is read. What was\n"
            "measured is kept with the runs (RUN/diagnostics), so the command goes on where it was interrupted.\n\n"
            "Split-select-retrain: of runs with several values of protocol.split_seed the answer is a configuration,\n"
            "the best on average over what the splits hold out, and the command that trains it on all data.",
            OPTIONS,
            "  python -m offrl.select runs/builtin-hopper-medium-replay/*\n"
            "  python -m offrl.select runs/file-log/* selector=support_only checkpoints=5\n"
            "  python -m offrl.select RUN diagnostics=behaviour_advantage,action_distance --json\n\n"
            "  python -m offrl.train -m algo=iql,td3_bc,bc dataset=file:log.h5 env=null runs=splits \\\n"
            "    protocol.validation_fraction=0.5 protocol.split_seed=0,1,2\n"
            "  python -m offrl.select splits/file-log/*                 split-select-retrain",
        )
        devices.set_up()
        options = parsed.options
        runs = [path for path in parsed.paths if not any((path / name).is_file() for name in WRITTEN)]
        names = options["diagnostics"].split(",") if options.get("diagnostics") else None
        numbers = {name: command_line.whole_number(name, options[name])
                   for name in ("checkpoints", "rows", "average") if name in options}  # fmt: skip
        console = command_line.page(stderr=parsed.json)
        folder = Path(options.get("out") or parsed.paths[0].parent / "selection")
        selector = options.get("selector", selectors.DEFAULT)
        if len(split_seeds(runs)) > 1:
            for name in {"checkpoints", "average"} & set(numbers):
                raise UserError(f"{name}=: with several splits the last of every member counts; leave it out")
            with progress_bar(Console(stderr=True)) as show:
                configurations = select_configuration(runs, selector, names, progress=show, **numbers)
            answer = write_configurations(configurations, folder)
            if parsed.json:
                print(json.dumps(answer, indent=1))
            else:
                report_configurations(configurations, console)
                console.print(f"  written to {folder}", highlight=False)
            return
        with progress_bar(Console(stderr=True)) as show:
            found = select(runs, selector, names, progress=show, **numbers)
        write(found, folder)
        if parsed.json:
            print(json.dumps(as_json(found), indent=1))
        else:
            report(found, console)
            console.print(f"  written to {folder}", highlight=False)

    run_command(command)


if __name__ == "__main__":
    main()
