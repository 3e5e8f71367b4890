"""Downloads against servers on this machine: good ones, poor ones and none at all."""

import hashlib
import io
import socket
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from qcn.data import registry
from qcn.data.fetch import RemoteArchive, fetch, is_here
from qcn.data.spec import Dataset, RemoteFile
from qcn.errors import MissingError, UsageError

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


class Server:
    """Serves `content` under every path and keeps the Range of each request.

    ranges   whether it honours Range
    cut      after how many bytes it drops a connection; one entry per request, None for never
    status   what it answers instead, where set
    """

    def __init__(
        self, content: bytes = CONTENT, ranges: bool = True, cut: list[int | None] | None = None, status: int = 0
    ):
        self.content, self.ranges, self.cut, self.status = content, ranges, cut or [], status
        self.asked: list[str | None] = []
        self.url = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers["Range"]
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if self.status or start >= len(self.content):
            request.send_error(self.status or 416)
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        request.send_header("Content-Length", str(len(self.content) - start))
        request.end_headers()
        cut = self.cut.pop(0) if self.cut else None
        request.wfile.write(self.content[start:][:cut])
        request.close_connection = True


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def dataset(url: str, md5: str = MD5, file: Callable[..., RemoteFile] = RemoteFile, **more: object) -> Dataset:
    return replace(registry.find("mnist"), name="some", folder="some", files=(file(f"{url}/a.bin.gz", md5, **more),))


def test_a_file_is_brought_once(tmp_path):
    with serving(Server()) as server:
        assert not is_here(dataset(server.url), tmp_path)
        assert fetch(dataset(server.url), tmp_path) == [tmp_path / "some" / "a.bin.gz"]
        assert is_here(dataset(server.url), tmp_path)
        assert fetch(dataset(server.url), tmp_path) == []
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["a.bin.gz"]
    assert (tmp_path / "some" / "a.bin.gz").read_bytes() == CONTENT
    assert server.asked == [None]


def test_an_unpacked_file_is_not_brought_again(tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.bin").write_bytes(b"put here by hand")
    assert fetch(dataset("http://127.0.0.1:9"), tmp_path) == []


def test_a_damaged_file_in_place_is_replaced(tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.bin.gz").write_bytes(CONTENT[:1000])
    with serving(Server()) as server:
        fetch(dataset(server.url), tmp_path)
    assert (tmp_path / "some" / "a.bin.gz").read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_from_an_earlier_try_is_resumed_if_the_server_can(tmp_path, ranges):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.bin.gz.part").write_bytes(CONTENT[:123_456])
    with serving(Server(ranges=ranges)) as server:
        fetch(dataset(server.url), tmp_path)
    assert server.asked == ["bytes=123456-"]
    assert (tmp_path / "some" / "a.bin.gz").read_bytes() == CONTENT


def test_a_part_that_is_whole_is_taken_as_it_is(tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.bin.gz.part").write_bytes(CONTENT)
    with serving(Server()) as server:
        fetch(dataset(server.url), tmp_path)
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["a.bin.gz"]


def test_a_broken_connection_is_taken_up_where_it_broke(tmp_path):
    with serving(Server(cut=[100_000, 50_000])) as server:
        fetch(dataset(server.url), tmp_path)
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]
    assert (tmp_path / "some" / "a.bin.gz").read_bytes() == CONTENT


def test_a_connection_that_breaks_every_time_keeps_the_part(tmp_path):
    with serving(Server(cut=[1000, 1000, 1000])) as server:
        with pytest.raises(MissingError) as error:
            fetch(dataset(server.url), tmp_path)
        assert f"cannot fetch {server.url}/a.bin.gz: the connection broke after 3,000 of 300,000 bytes" in str(
            error.value
        )
        assert "the next try continues a.bin.gz.part" in str(error.value)
        assert (tmp_path / "some" / "a.bin.gz.part").read_bytes() == CONTENT[:3000]
        fetch(dataset(server.url), tmp_path)
    assert server.asked[-1] == "bytes=3000-"
    assert (tmp_path / "some" / "a.bin.gz").read_bytes() == CONTENT


def test_a_wrong_checksum_names_both_and_leaves_nothing(tmp_path):
    with serving(Server(content=b"<html>please log in</html>")) as server, pytest.raises(UsageError) as error:
        fetch(dataset(server.url), tmp_path)
    assert MD5 in str(error.value)
    assert hashlib.md5(b"<html>please log in</html>").hexdigest() in str(error.value)
    assert list((tmp_path / "some").iterdir()) == []


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_server_that_refuses(tmp_path, status):
    with serving(Server(status=status)) as server, pytest.raises(MissingError) as error:
        fetch(dataset(server.url), tmp_path)
    assert f"a.bin.gz: the server answered {status} " in str(error.value)
    assert f"you can also put a.bin.gz into {tmp_path / 'some'} yourself" in str(error.value)
    assert len(server.asked) == 1


def test_no_connection(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(MissingError, match=r"no connection \(Connection refused\)") as error:
        fetch(dataset(f"http://127.0.0.1:{port}"), tmp_path)
    assert error.value.exit_code == 3
    assert not is_here(dataset(f"http://127.0.0.1:{port}"), tmp_path)
    assert "\n" not in str(error.value)


def test_no_such_host(tmp_path):
    with pytest.raises(MissingError, match=r"cannot fetch http://nowhere\.invalid/a\.bin\.gz: no connection \("):
        fetch(dataset("http://nowhere.invalid"), tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "some").write_bytes(b"a file where the folder should be")
    with serving(Server()) as server, pytest.raises(MissingError, match=r"cannot write a\.bin\.gz into"):
        fetch(dataset(server.url), tmp_path)


# ---- archives ----


def archive(*members: tarfile.TarInfo | str) -> bytes:
    """A tar.gz of members with the content b"payload", or of TarInfo as they are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            if isinstance(member, str):
                info = tarfile.TarInfo(member)
                info.size = 7
                tar.addfile(info, io.BytesIO(b"payload"))
            else:
                tar.addfile(member)
    return buffer.getvalue()


def fetch_archive(content: bytes, data_dir: Path) -> list[Path]:
    with serving(Server(content=content)) as server:
        md5 = hashlib.md5(content).hexdigest()
        return fetch(dataset(server.url, md5, RemoteArchive, members=("in/one.bin", "in/two.bin")), data_dir)


def test_only_the_expected_members_are_unpacked(tmp_path):
    content = archive("in/readme.html", "in/two.bin", "/etc/passwd", "in/../../evil.bin", "in/one.bin")
    assert fetch_archive(content, tmp_path) == [tmp_path / "some" / "one.bin", tmp_path / "some" / "two.bin"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one.bin", "some", "two.bin"]
    assert (tmp_path / "some" / "two.bin").read_bytes() == b"payload"
    assert fetch(dataset("http://127.0.0.1:9", "", RemoteArchive, members=("in/one.bin", "in/two.bin")), tmp_path) == []


def test_a_link_in_place_of_a_member_is_not_followed(tmp_path):
    link = tarfile.TarInfo("in/one.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(UsageError, match=r"the archive has no in/one\.bin"):
        fetch_archive(archive(link, "in/two.bin"), tmp_path)
    assert not (tmp_path / "some" / "one.bin").exists()


@pytest.mark.parametrize("content", [b"no archive", archive("in/one.bin", "in/two.bin")[:-20], archive("in/one.bin")])
def test_a_damaged_archive(tmp_path, content):
    with pytest.raises(UsageError, match=r"damaged archive|the archive has no"):
        fetch_archive(content, tmp_path)


def test_an_archive_put_in_place_by_hand_is_unpacked_without_a_server(tmp_path):
    content = archive("in/one.bin", "in/two.bin")
    wanted = dataset("http://127.0.0.1:9", hashlib.md5(content).hexdigest(), RemoteArchive, members=("in/one.bin",))
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.bin.gz").write_bytes(content)
    assert not is_here(wanted, tmp_path)
    assert fetch(wanted, tmp_path) == [tmp_path / "some" / "one.bin"]
    assert is_here(wanted, tmp_path)
