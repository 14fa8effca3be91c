"""Checkpoints of a run, by Orbax: `checkpoints/STEP/`, the states of all members stacked on axis 0.

Orbax writes to a temporary folder and renames it when it is complete, so a killed run leaves no partial checkpoint.
It does not notice corrupted bytes, so a checksum of the arrays is saved with them.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from offrl.errors import UserError, writing


def checksum(tree: Any) -> int:
    """CRC-32 of the bytes of all leaves, in order."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        total = zlib.crc32(np.ascontiguousarray(leaf).data, total)
    return total


class Checkpoints:
    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.checkpointer = ocp.StandardCheckpointer()

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def save(self, step: int, tree: Any) -> None:
        """Write in the background; `finish` or the next `save` waits for it."""
        with self._writing():
            self.check_space(sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree)))
            self.checkpointer.save(self.folder / str(step), tree, force=True, custom_metadata={"crc32": checksum(tree)})

    def check_space(self, size: int) -> None:
        """Raises a full disk's error before Orbax begins, whose threads would print a page of tracebacks about it."""
        disk = shutil.disk_usage(next(folder for folder in (self.folder, *self.folder.parents) if folder.exists()))
        if disk.total and disk.free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def checksum(self, step: int) -> int | None:
        """CRC-32 of the arrays saved at `step`, as recorded with them; None if it is missing."""
        return (self.checkpointer.metadata(self.folder / str(step)).custom_metadata or {}).get("crc32")

    def finish(self) -> None:
        with self._writing():
            self.checkpointer.wait_until_finished()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Restores the system's errors, which Orbax's storage turns into ValueErrors with the number in their text."""
        try:
            with writing(self.folder):
                yield
        except ValueError as error:
            found = re.search(r"os_error_code='(\d+)'", str(error))
            if found is None:
                raise
            code = int(found[1])
            raise OSError(code, os.strerror(code), str(self.folder)) from error

    def restore(self, step: int, like: Any) -> Any:
        """The tree saved at `step`, as numpy arrays.

        Args:
            like: a tree of the same structure, whose leaves have the expected shapes and dtypes.

        Raises:
            UserError: the checkpoint is damaged, or of another structure.
        """
        path = self.folder / str(step)
        like = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        try:
            tree = self.checkpointer.restore(path, like)
            expected = self.checksum(step)
            if expected is None:
                raise ValueError("its checksum is missing")
            if expected != checksum(tree):
                raise ValueError("its content has changed since it was written")
            return tree
        except Exception as error:  # Orbax and its storage raise many kinds for a damaged file
            reason = str(error).strip().splitlines()[0][:200]
            raise UserError(
                f"{path}: checkpoint cannot be read ({reason}); delete that folder to continue from the previous one"
            ) from error
