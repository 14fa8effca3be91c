"""`load`: any dataset by its name, including what takes an environment to make or to complete.

`offrl.data.load` reads what is on this machine or can be downloaded. This one, on top of it, also makes built-in
datasets that are missing, and opens a log's environment to learn what the log does not say.
"""

from __future__ import annotations

from typing import Any

import offrl.data
from offrl.data.dataset import Dataset
from offrl.data.recipes import split_name
from offrl.playing.simulators import spaces


def load(name: str, *, steps: int | None = None, **options: Any) -> Dataset:
    """The dataset of that name, as `offrl.data.load` gives it; `options` are those of that function.

    steps: size of a built-in dataset, which is made on first use.

    Raises:
        UserError: see `offrl.data.load`; a built-in dataset cannot be made.
    """
    source, _, rest = name.partition(":")
    if source == "builtin":
        from offrl.datasets import builtin  # here: only built-in datasets need it, and it takes a second to import

        builtin.ensure(*split_name(rest), steps)
    return offrl.data.load(name, steps=steps, spaces=spaces, **options)
