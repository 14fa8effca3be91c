"""Places where nothing can be written: one line that names the place and says why, and never a traceback."""

import errno
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from offrl.errors import run_command, writing
from offrl.runs.checkpoints import Checkpoints
from offrl.runs.run import write_whole


def line_of(capsys, command) -> str:
    """What the command leaves on standard error as it ends with status 2."""
    with pytest.raises(SystemExit) as end:
        run_command(command)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("name", ["EACCES", "EROFS", "ENOSPC", "ENOENT", "EDQUOT"])
def test_a_place_that_cannot_be_written_is_one_line(capsys, name):
    code = getattr(errno, name)

    def command():
        raise OSError(code, os.strerror(code), "/somewhere/runs")

    line = line_of(capsys, command)
    assert line == f"error: /somewhere/runs: {os.strerror(code).lower()}; choose another place, or fix this one"


def test_other_errors_of_the_system_keep_their_traceback():
    for error in (OSError(errno.EBADF, "bad", "file"), OSError(errno.ENOSPC, "of no file")):

        def command(error=error):
            raise error

        with pytest.raises(OSError, match=r"bad|of no file"):
            run_command(command)


def test_a_folder_that_cannot_be_made_is_named(capsys):
    assert "/proc/x" in line_of(capsys, lambda: os.makedirs("/proc/x/run"))


def test_a_full_disk_is_named_by_the_file_that_was_written(capsys, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert f"{tmp_path / 'run.json'}: no space left" in line_of(capsys, lambda: write_whole(tmp_path / "run.json", ""))

    def command():
        with writing(tmp_path / "metrics.csv"):
            full()

    assert f"{tmp_path / 'metrics.csv'}: no space left" in line_of(capsys, command)


def test_a_checkpoint_that_does_not_fit_is_not_begun(capsys, tmp_path, monkeypatch):
    store = Checkpoints(tmp_path / "checkpoints")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=10_000, free=100))
    line = line_of(capsys, lambda: store.save(1, {"weights": np.zeros(100)}))
    assert f"{tmp_path / 'checkpoints'}: no space left" in line
    assert not store.steps()


def test_what_orbax_says_of_the_system_is_the_systems_error(capsys, tmp_path, monkeypatch):
    store = Checkpoints(tmp_path / "checkpoints")

    def fails():
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write 5 bytes: No space left on device [os_error_code='28']")

    monkeypatch.setattr(store.checkpointer, "wait_until_finished", fails)
    assert f"{tmp_path / 'checkpoints'}: no space left" in line_of(capsys, store.finish)
