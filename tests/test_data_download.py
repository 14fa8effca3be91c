"""Downloads against a server on the loopback address: whole, broken and resumed, changed, not there."""

from __future__ import annotations

import hashlib
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest
from test_data_checks import log

from offrl.data import d4rl, download, load
from offrl.data.download import fetch
from offrl.errors import UserError

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves `content` at every path, with ranges; breaks off after `break_after` bytes `breaks` times."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.tag = CONTENT, '"one"'
        self.status, self.breaks, self.break_after, self.ranges = 200, 0, 0, True
        self.asked: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/data.hdf5"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, range_ = self.server, self.headers.get("Range")
        server.asked.append(range_)
        start = 0
        if server.status != 200:
            self.send_error(server.status)
            return
        unchanged = self.headers.get("If-Range") in (None, server.tag)
        if range_ and server.ranges and unchanged:
            start = int(range_.removeprefix("bytes=").rstrip("-"))
            if start >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        else:
            self.send_response(200)
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", server.tag)
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: server.break_after]
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_file_is_downloaded_once_and_its_checksum_recorded(server, tmp_path):
    path = fetch(server.url, tmp_path / "cache" / "data.hdf5")
    assert path.read_bytes() == CONTENT
    recorded = (tmp_path / "cache" / "data.hdf5.sha256").read_text()
    assert recorded == f"{hashlib.sha256(CONTENT).hexdigest()}  data.hdf5\n"
    fetch(server.url, path)
    assert server.asked == [None]
    assert not list(tmp_path.glob("**/*.part*"))


def test_a_broken_transfer_is_resumed_where_it_broke(server, tmp_path):
    server.breaks, server.break_after = 2, 100_000
    assert fetch(server.url, tmp_path / "data").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=200000-"]


def test_what_has_come_is_kept_for_the_next_call_and_never_taken_for_the_whole(server, tmp_path):
    server.breaks, server.break_after = 1, 100_000
    with pytest.raises(UserError, match=r"broke off after 100000 of 300000 bytes\); 100000 bytes are kept, run again"):
        fetch(server.url, tmp_path / "data", attempts=1)
    assert not (tmp_path / "data").exists()
    assert fetch(server.url, tmp_path / "data").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_file_that_changed_on_the_server_is_begun_again(server, tmp_path):
    server.breaks, server.break_after = 1, 100_000
    with pytest.raises(UserError):
        fetch(server.url, tmp_path / "data", attempts=1)
    server.content, server.tag = CONTENT[::-1], '"two"'
    assert fetch(server.url, tmp_path / "data").read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_is_asked_again_from_the_start(server, tmp_path):
    server.breaks, server.break_after, server.ranges = 1, 100_000, False
    assert fetch(server.url, tmp_path / "data").read_bytes() == CONTENT


def test_a_whole_part_file_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "data.part").write_bytes(CONTENT)
    assert fetch(server.url, tmp_path / "data").read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-"]


def test_a_wrong_checksum_is_refused(server, tmp_path):
    path = fetch(server.url, tmp_path / "data")
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(UserError, match="was recorded at first use: the file changed or is damaged; remove it"):
        fetch(server.url, path)


def test_a_file_put_into_the_cache_by_hand_gets_its_checksum(server, tmp_path):
    (tmp_path / "data").write_bytes(CONTENT)
    fetch(server.url, tmp_path / "data")
    assert (tmp_path / "data.sha256").exists()
    assert server.asked == []


def test_a_page_instead_of_the_file_is_refused_and_not_kept(server, tmp_path):
    server.content = b"<html>moved</html>"
    with pytest.raises(UserError, match="not the file expected"):
        fetch(server.url, tmp_path / "data", d4rl.HDF5_SIGNATURE)
    assert [path.name for path in tmp_path.iterdir()] == ["data.lock"]


def test_a_missing_file_is_said_at_once_and_a_failing_server_asked_again(server, tmp_path):
    server.status = 404
    with pytest.raises(UserError, match=r"could not be downloaded \(404 Not Found\)"):
        fetch(server.url, tmp_path / "data")
    assert len(server.asked) == 1
    server.status = 503
    with pytest.raises(UserError, match="503"):
        fetch(server.url, tmp_path / "data")
    assert len(server.asked) == 4


def test_no_server_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(UserError, match=r"could not be downloaded .*refused") as caught:
        fetch("http://127.0.0.1:9/data", tmp_path / "data", attempts=1)
    assert "\n" not in str(caught.value)


def test_a_d4rl_name_is_downloaded_into_the_cache_and_read(server, tmp_path, monkeypatch):
    arrays = log(observations=np.random.default_rng(0).normal(size=(7, 11)), next_observations=None)
    arrays["actions"] = np.random.default_rng(0).uniform(-1, 1, (7, 3))
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for key, value in arrays.items():
            file[key] = value
    server.content = content.getvalue()
    monkeypatch.setenv("OFFRL_CACHE", str(tmp_path))
    table = dict(d4rl.entries())
    reference = table["hopper-medium-v2"].reference
    table["hopper-medium-v2"] = d4rl.Entry("hopper-medium-v2", server.url, reference)
    monkeypatch.setattr(d4rl, "entries", lambda: table)
    for _ in range(2):
        data = load("d4rl:hopper-medium-v2", quiet=True)
        assert (data.name, data.env_id, data.steps, data.reference) == (
            "d4rl:hopper-medium-v2",
            "Hopper-v5",
            7,
            reference,
        )
    assert server.asked == [None]
    assert (tmp_path / "d4rl" / "hopper-medium-v2.hdf5.sha256").exists()


def test_all_names_of_d4rl_have_an_address():
    assert len(d4rl.entries()) == 155
    assert all(entry.url.startswith("http") for entry in d4rl.entries().values())
    for name in (
        "hopper-medium-replay-v2",
        "antmaze-large-play-v2",
        "door-human-v1",
        "kitchen-mixed-v0",
        "maze2d-umaze-v1",
    ):
        assert d4rl.entries()[name].reference is not None
