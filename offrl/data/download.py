"""Files from the web into a cache: resumed after a broken transfer, renamed only when complete, checksums verified.

The checksum is recorded next to the file at first use (`NAME.sha256`, as `sha256sum` writes it) and verified from then
on.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from offrl.errors import UserError

CHUNK = 1 << 20


def cache() -> Path:
    """Where downloads are kept: OFFRL_CACHE or ~/.cache/offrl."""
    return Path(os.environ.get("OFFRL_CACHE") or Path.home() / ".cache" / "offrl").expanduser()


def fetch(url: str, path: Path, signature: bytes = b"", attempts: int = 3, timeout: float = 30.0) -> Path:
    """The file of `url` at `path`, downloaded unless it is there; its checksum recorded at first use, verified after.

    signature: the bytes such a file begins with. A transfer that breaks is resumed, `attempts` times in all; what has
    come stays in `PATH.part` for the next call. Raises `UserError` where the file cannot be downloaded, is of
    another kind, or has changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with _lock(path.with_name(path.name + ".lock")):
        if not path.exists():
            _download(url, part, attempts, timeout)
            with part.open("rb") as file:
                begin = file.read(len(signature))
            if begin != signature:
                part.unlink()
                raise UserError(f"{url} is not the file expected (it begins with {begin[:16]!r}); download it by hand")
            _record(part, _sidecar(path), path.name)
            os.replace(part, path)
        else:
            verify(path)
    return path


def verify(path: Path) -> None:
    """Compares the file with the checksum recorded at first use, or records it. Raises `UserError` where it differs."""
    sidecar = _sidecar(path)
    if not sidecar.exists():
        _record(path, sidecar, path.name)
        return
    recorded = sidecar.read_text().split()[:1]
    actual = checksum(path)
    if recorded != [actual]:
        raise UserError(
            f"{path} has the sha256 {actual[:16]}..., but {' '.join(recorded)[:16]}... was recorded at first use: "
            f"the file changed or is damaged; remove it and {sidecar.name} to download it again"
        )


def checksum(path: Path) -> str:
    """sha256 of the file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _record(file: Path, sidecar: Path, name: str) -> None:
    draft = sidecar.with_name(sidecar.name + ".part")
    draft.write_text(f"{checksum(file)}  {name}\n")
    os.replace(draft, sidecar)


def _download(url: str, part: Path, attempts: int, timeout: float) -> None:
    problem = "no answer"
    for attempt in range(attempts):
        if attempt:
            time.sleep(min(2.0 ** (attempt - 1), 10.0) * 0.5)
        try:
            total = _transfer(url, part, timeout)
        except urllib.error.HTTPError as error:
            problem = f"{error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 429):
                break
        except (OSError, HTTPException) as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        else:
            size = part.stat().st_size
            if total is None or size == total:
                return
            problem = f"the transfer broke off after {size} of {total} bytes"
    kept = f"; {part.stat().st_size} bytes are kept, run again to go on" if part.exists() else ""
    raise UserError(f"{url} could not be downloaded ({problem}){kept}")


def _transfer(url: str, part: Path, timeout: float) -> int | None:
    """One connection, from where `part` ends if the server still has that file. Returns the full size, if known."""
    have = part.stat().st_size if part.exists() else 0
    tag_file = part.with_name(part.name + ".tag")
    request = urllib.request.Request(url, headers={"User-Agent": "offrl", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if tag_file.exists():  # without it, the end of a newer file could be put after the beginning of an older one
            request.add_header("If-Range", tag_file.read_text())
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        size = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        if size and int(size[1]) == have:
            return have
        part.unlink()
        return _transfer(url, part, timeout)
    with response:
        range_ = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        resumed = response.status == 206 and range_ is not None and int(range_[1]) == have
        if response.status == 206 and not resumed:
            part.unlink()
            raise OSError("the server resumed at another place than requested")
        if resumed and range_ is not None:
            total: int | None = int(range_[2])
        else:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
            if tag and not tag.startswith("W/"):
                tag_file.write_text(tag)
            else:
                tag_file.unlink(missing_ok=True)
        with part.open("ab" if resumed else "wb") as file:
            _copy(response, file, url, have if resumed else 0, total)
    if total is None or part.stat().st_size == total:
        tag_file.unlink(missing_ok=True)
    return total


def _copy(response: IO[bytes], file: IO[bytes], url: str, done: int, total: int | None) -> None:
    console = Console(stderr=True)
    name = url.rsplit("/", 1)[-1]
    if not console.is_terminal:
        size = f"{total / 1e6:.1f} MB" if total else "size unknown"
        print(f"downloading {url} ({size}{f', from {done / 1e6:.1f} MB on' if done else ''})", file=sys.stderr)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total, completed=done)
        while chunk := response.read(CHUNK):
            file.write(chunk)
            progress.advance(task, len(chunk))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process downloads, others wait for it (where the system has file locks)."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
