"""Checks of how episodes end: terminations, truncations, and the observation after the last action."""

from __future__ import annotations

import numpy as np

from offrl.data.episodes import Episodes, differ
from offrl.errors import UserError


def check_ends(episodes: Episodes) -> None:
    """Marks episodes that do not end as truncated, with a warning."""
    ends = episodes.ends
    open_ends = np.flatnonzero(~(episodes.terminations[ends] | episodes.truncations[ends]))
    if open_ends.size:
        episodes.truncations = episodes.truncations.copy()
        episodes.truncations[ends[open_ends]] = True
        episodes.warnings.append(
            f"{open_ends.size} of {len(ends)} episodes do not end (last step neither terminated nor truncated), "
            f"the first is episode {open_ends[0]}; taken as truncated"
        )


def check_time_limit_terminations(episodes: Episodes, keep: bool) -> None:
    """Terminations that also mark a time limit become truncations where the limit is known, else they are warned of.

    The evidence: every episode that reaches the limit terminates. A single one that is flagged as truncated as well may
    have failed on the last step, and is left as it is.
    """
    lengths, ends = episodes.lengths, episodes.ends
    terminated = episodes.terminations[ends]
    limit = episodes.time_limit
    if limit is not None:
        if (longer := int((lengths > limit).sum())) > 0:
            episodes.warnings.append(
                f"{longer} of {len(lengths)} episodes are longer than the environment's limit of {limit} steps (up to "
                f"{int(lengths.max())}): policies are evaluated over fewer steps than the data's returns cover"
            )
        at_limit = lengths >= limit
        both = terminated & episodes.truncations[ends]
        suspicious = at_limit.any() and terminated[at_limit].all() and (at_limit.sum() > 1 or not both[at_limit].any())
        if suspicious:
            what = f"all {int(at_limit.sum())} episodes that reach the time limit of {limit} steps end as terminated"
            if keep:
                episodes.warnings.append(f"{what}; kept, because of keep_terminations")
                return
            episodes.terminations, episodes.truncations = episodes.terminations.copy(), episodes.truncations.copy()
            episodes.terminations[ends[at_limit]] = False
            episodes.truncations[ends[at_limit]] = True
            episodes.warnings.append(f"{what}; taken as truncations (keep_terminations keeps them)")
        return
    longest = lengths == lengths.max()
    if longest.sum() > 1 and lengths.max() > 1 and terminated[longest].all():
        episodes.warnings.append(
            f"all {int(longest.sum())} of the longest episodes terminate after exactly {int(lengths.max())} steps: "
            f"if that is a time limit, pass time_limit={int(lengths.max())} so that these steps bootstrap"
        )


def check_lost_final_observations(episodes: Episodes) -> None:
    """Warns of truncated episodes without the observation after the last action: no value is trained on that step."""
    lost = int((~episodes.final_observation_known & ~episodes.terminations[episodes.ends]).sum())
    if lost:
        episodes.warnings.append(
            f"{lost} of {len(episodes.lengths)} episodes are truncated without the observation after the last action; "
            "their last step is left out where a next observation is needed"
        )


def check_final_observations(episodes: Episodes, trust: bool) -> int:
    """Warns of observations after an episode's last action that belong to no such place: the first observation of the
    following episode (`next_observations` is a copy of `observations`, shifted by a row) or the last one once more.

    Unless they are trusted they count as lost from then on. Returns the number of episodes for which that was done.
    """
    count, ends, observations = len(episodes.lengths), episodes.ends, episodes.observations
    first = episodes.starts + np.arange(count)
    rows = np.delete(np.arange(len(observations)), first)  # [steps], of every step's next observation
    following = np.roll(first, -1)  # after the last episode comes the first one: such copies are often made so
    inside = np.delete(np.arange(len(rows)), ends)
    distrusted = np.zeros(count, bool)
    for what, others in (
        ("the first observation of the following episode, as in a copy shifted by a row", following),
        ("the last observation once more", rows[ends] - 1),
    ):
        alike = episodes.final_observation_known & ~differ(observations[rows[ends]], observations[others])
        if not alike.any():
            continue
        # where states come again by nature, they do so at ends as well: as often as inside episodes, or without any
        # inside, as the states of other episodes
        places, beside = rows[ends], np.roll(others, 1)
        if inside.size:
            places = rows[inside]
            beside = np.repeat(following, episodes.lengths - 1) if others is following else places - 1
        if alike.mean() <= 2 * (1 - differ(observations[places], observations[beside]).mean()):
            continue
        share = f"at {int(alike.sum())} of {count} episode ends ({alike.mean():.1%}) the next observation is {what}"
        if trust:
            episodes.warnings.append(f"{share}; kept, because of trust_next_observations")
            continue
        episodes.warnings.append(
            f"{share}; it is taken as lost, and rows that need it are not used as transitions "
            "(data.trust_next_observations=true keeps them)"
        )
        distrusted |= alike
    if distrusted.any():
        lost = rows[ends[distrusted]]
        episodes.observations = observations.copy()
        episodes.observations[lost] = observations[lost - 1]
        episodes.final_observation_known = episodes.final_observation_known & ~distrusted
    return int(distrusted.sum())


def check_rows_left(episodes: Episodes, distrusted: int) -> None:
    """Refuses data of which every step lost its next observation: there is no transition to learn from.

    distrusted: what `check_final_observations` returned.
    """
    usable = episodes.final_observation_known | episodes.terminations[episodes.ends]
    if (episodes.lengths > 1).any() or usable.any():
        return
    remedy = "add next_observations, or terminations where episodes end"
    if distrusted:
        remedy += f"; data.trust_next_observations=true keeps those of {distrusted} rows that look like copies"
    raise UserError(
        f"{episodes.name}: no row is left to learn from: all {len(episodes.lengths)} episodes have one step, "
        f"truncated without the observation after it; {remedy}"
    )
