"""Checkpoints of a run, by Orbax: `checkpoints/STEP/`, the states of all members stacked on axis 0.

Orbax writes into a folder of another name and renames it when it is whole, so a killed run leaves no half checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from offrl.errors import UserError


class Checkpoints:
    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.checkpointer = ocp.StandardCheckpointer()

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def save(self, step: int, tree: Any) -> None:
        """Write in the background; `finish` or the next `save` waits for it."""
        self.checkpointer.save(self.folder / str(step), tree, force=True)

    def finish(self) -> None:
        self.checkpointer.wait_until_finished()

    def restore(self, step: int, like: Any) -> Any:
        """The tree saved at `step`, as numpy arrays.

        Args:
            like: a tree of the same structure, whose leaves have the shapes and dtypes to expect.

        Raises:
            UserError: the checkpoint is damaged, or of another structure.
        """
        path = self.folder / str(step)
        like = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        try:
            return self.checkpointer.restore(path, like)
        except Exception as error:  # Orbax and its storage raise many kinds for a damaged file
            reason = str(error).strip().splitlines()[0][:200]
            raise UserError(
                f"{path}: checkpoint cannot be read ({reason}); delete that folder to go on from the one before"
            ) from error
