import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from jet_files import JetFiles

import chop.dataset.physical.jsc as jsc
from chop.dataset import MaseDataModule
from chop.dataset.download import checksum_file, fetch, has_md5
from chop.dataset.vision import mnist
from chop.errors import DataError

CONTENT = bytes(range(256)) * 4_000


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(dict(self.headers))
        if server.missing:
            self.send_error(404)
            return
        start = self.first_byte()
        if start is not None and start >= len(server.content):
            self.send_error(416)
            return
        self.send_response(200 if start is None else 206)
        body = server.content[start or 0 :]
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", server.version)
        self.end_headers()
        self.wfile.write(body[: server.cut] if server.cut else body)
        server.cut = 0

    def first_byte(self) -> int | None:
        """Where to go on: nowhere for a server without ranges or a file that has changed."""
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        known = self.headers.get("If-Range", self.server.version)
        if found is None or not self.server.ranges or known != self.server.version:
            return None
        return int(found[1])

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cut, self.ranges, self.version = CONTENT, 0, True, '"one"'
        self.missing = False
        self.asked: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data.h5"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def anything(path: Path) -> None:
    """Every file will do."""


def cut_off(server: Server, target: Path) -> None:
    server.cut = 300_000
    with pytest.raises(DataError, match="stopped after 300,000 of 1,024,000 bytes"):
        fetch(server.url, target, anything)
    assert not target.exists()
    assert target.with_name("data.h5.part").stat().st_size == 300_000


def test_a_whole_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "data.h5"
    for _ in range(2):
        assert fetch(server.url, target, anything).read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert len(checksum_file(target).read_text()) == 64
    assert not target.with_name("data.h5.part").exists()


def test_a_fetch_that_was_cut_off_goes_on(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "data.h5"
    cut_off(server, target)
    assert fetch(server.url, target, anything).read_bytes() == CONTENT
    assert server.asked[-1]["Range"] == "bytes=300000-"
    assert not list(tmp_path.glob("*.tag"))


def test_a_file_that_has_changed_in_between_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "data.h5"
    cut_off(server, target)
    server.content, server.version = CONTENT[::-1], '"two"'
    assert fetch(server.url, target, anything).read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_is_asked_for_all(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "data.h5"
    cut_off(server, target)
    server.ranges = False
    assert fetch(server.url, target, anything).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "data.h5"
    target.with_name("data.h5.part").write_bytes(CONTENT + b"more")
    assert fetch(server.url, target, anything).read_bytes() == CONTENT


def test_a_wrong_file_never_gets_its_name(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "data.h5"
    with pytest.raises(DataError, match="its MD5 sum is"):
        fetch(server.url, target, has_md5("0" * 32))
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".lock"]


def test_a_server_that_has_no_such_file(server: Server, tmp_path: Path) -> None:
    server.missing = True
    with pytest.raises(DataError, match="cannot be fetched.*Not Found"):
        fetch(server.url, tmp_path / "data.h5", anything)
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".lock"]


def test_jsc_is_fetched_checked_and_remembered(
    server: Server, jets: JetFiles, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = jets.hdf5().read_bytes()
    monkeypatch.setattr(jsc, "URL", server.url)
    with pytest.raises(DataError, match=r"has 1,000 jets, not 986,806.*jsc-sim"):
        MaseDataModule("jsc", batch_size=8).setup()
    assert not (cache / "downloads" / jsc.FILE_NAME).exists()
    monkeypatch.setattr("chop.dataset.physical.jets.CERNBOX_ROWS", 1_000)
    data = MaseDataModule("jsc", batch_size=8)
    assert "the CERNBox row set (HDF5, 1,000 jets)" in data.source
    jets.features += 1
    (cache / "downloads" / jsc.FILE_NAME).write_bytes(jets.hdf5().read_bytes())
    with pytest.raises(DataError, match="has changed since it was fetched"):
        MaseDataModule("jsc", batch_size=8).setup()


@pytest.mark.parametrize("name", ["jsc", "mnist", "cifar10"])
def test_offline_is_one_line_that_says_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://127.0.0.1:1/"
    monkeypatch.setattr(jsc, "URL", nowhere)
    monkeypatch.setattr(mnist, "MNIST", replace(mnist.MNIST, base=nowhere))
    monkeypatch.setattr("chop.dataset.vision.cifar.HOME", nowhere)
    with pytest.raises(DataError, match="--dataset-path") as error:
        MaseDataModule(name, batch_size=8).prepare_data()
    assert "\n" not in str(error.value)
    assert nowhere in str(error.value)
    if name == "jsc":
        assert "jsc-sim, which needs no file" in str(error.value)
        assert "openml.org/d/42468" in str(error.value)
