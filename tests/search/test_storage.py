"""Opening a study: many processes at once, databases without a driver, and a real proxy."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from search_cases import Searcher, opened_together, space_of, tables

from chop.errors import ConfigError, SearchError
from chop.search.config import parse_search
from chop.search.spaces.space import SearchContext
from chop.search.strategy import Search
from chop.search.study import patience, storage
from chop.search.study.storage import PROBLEM, Place, open_store
from chop.search.study.trial import Outcome
from chop.search.study.trial import TrialRequest as Wanted

PROXY = """
import sys, warnings
from optuna.storages import get_storage, run_grpc_proxy_server
warnings.simplefilter("ignore")
run_grpc_proxy_server(get_storage(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]))
"""


@pytest.mark.parametrize("place", ["{}/study.log", "sqlite:///{}/study.db"])
def test_processes_open_a_new_study_together(place: str, tmp_path: Path) -> None:
    """Without a lock Optuna fails on tables that another process has just made."""
    assert opened_together(place.format(tmp_path), ["one"] * 5) == [("one", "opened")] * 5


@pytest.mark.parametrize("place", ["{}/study.log", "sqlite:///{}/study.db"])
def test_of_two_problems_at_once_one_is_refused(place: str, tmp_path: Path) -> None:
    found = dict(opened_together(place.format(tmp_path), ["one", "two"]))
    (refused,) = [answer for answer in found.values() if answer != "opened"]
    assert "another data set" in refused


def test_a_study_whose_maker_was_killed_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "LONGEST_NAMING", 0.1)
    place = Place(str(tmp_path / "study.log"), "search")
    raw, _ = storage._storage(place)
    raw.create_new_study([optuna.study.StudyDirection.MINIMIZE], "search")  # and no word of it
    store = open_store(place, ["minimize"], {"data set": "one"})
    assert store.study.user_attrs[PROBLEM] == {"data set": "one"}
    with pytest.raises(SearchError, match="another data set"):
        open_store(place, ["minimize"], {"data set": "two"})


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("mysql://me:secret@host/db", "needs pymysql: pip install pymysql"),
        ("mysql+mysqldb://me:secret@host/db", "needs MySQLdb: pip install mysqlclient"),
        ("oracle+cx_oracle://me:secret@host/db", "needs cx_Oracle: pip install cx_Oracle"),
        ("postgresql://me:secret@host/db", "needs psycopg: pip install 'psycopg[binary]'"),
        ("grpc://host:13000", "needs grpc: pip install grpcio"),
    ],
)
def test_a_driver_that_is_not_there_is_named(
    url: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pymysql", "MySQLdb", "cx_Oracle", "psycopg"):
        monkeypatch.setitem(sys.modules, module, None)
    if url.startswith("grpc"):
        monkeypatch.setattr(optuna.storages._grpc.client, "grpc", _Missing())
    with pytest.raises(ConfigError) as caught:
        open_store(Place(url, "search"), ["minimize"], {})
    assert str(caught.value) == f"storage {url.replace('secret', '…')}: {line}"


class _Missing:
    """What Optuna has in place of a module that is not installed."""

    def __getattr__(self, name: str) -> Any:
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_a_proxy_that_does_not_answer_is_one_line() -> None:
    url = f"grpc://127.0.0.1:{free_port()}?timeout=0.2"
    with pytest.raises(ConfigError) as caught:
        open_store(Place(url, "search"), ["minimize"], {})
    expected = f"storage {url}: cannot be opened: no Optuna proxy answers within 0.2 s"
    assert str(caught.value) == expected


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "nan", "inf"])
def test_the_patience_with_a_proxy_is_a_number(seconds: str) -> None:
    with pytest.raises(ConfigError, match=f"timeout is a number of seconds, not '{seconds}'"):
        open_store(Place(f"grpc://127.0.0.1:1?timeout={seconds}", "search"), ["minimize"], {})


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[str]:
    """The URL of Optuna's proxy, in a process of its own, in front of a database."""
    port = free_port()
    command = [sys.executable, "-c", PROXY, f"sqlite:///{tmp_path}/study.db", str(port)]
    server = subprocess.Popen(command)
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def test_searches_share_a_study_behind_a_proxy(
    proxy: str, context: SearchContext, search_with: Searcher
) -> None:
    config = parse_search(tables(sampler="random", n_trials=12))
    place = Place(proxy, "shared")
    one, other = (open_store(place, list(config.directions), {"data set": "x"}) for _ in range(2))
    with pytest.raises(SearchError, match="another data set"):
        open_store(place, list(config.directions), {"data set": "y"})
    (claimed,) = other.claim([Wanted("x", {}, {}, {})], None)
    assert claimed is not None
    assert one.claim([Wanted("x", {}, {}, {})], None) == [None]
    other.finish([(claimed, Outcome([0.0, 0.0]))])
    space = space_of(context, config)
    Search(space, config, one, seed=3).run()
    trials = other.frozen_trials()
    assert len(trials) == len({trial.user_attrs["key"] for trial in trials}) == 12
    expected = {
        t.user_attrs["key"]: t.values for t in search_with(3, n_trials=11).store.frozen_trials()
    }
    assert {t.user_attrs["key"]: t.values for t in trials if t is not trials[0]} == expected


REFUSAL = b'SFATAL\0C28P01\0Mpassword authentication failed for user "me"\0\0'


@pytest.mark.parametrize("answer", [b"", b"E" + (len(REFUSAL) + 4).to_bytes(4, "big") + REFUSAL])
def test_a_database_that_is_away_is_asked_again_before_it_is_open(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs up is asked again; one that refuses a user is not."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr(patience, "LONGEST_OUTAGE", 0.5)
    asked: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def answer_all() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4000))
                connection.sendall(answer)

    thread = threading.Thread(target=answer_all, daemon=True)
    thread.start()
    port = server.getsockname()[1]
    url = f"postgresql://me:secret@127.0.0.1:{port}/db?sslmode=disable&gssencmode=disable"
    lost = SearchError if not answer else ConfigError
    words = "has not answered for 0.5 s" if not answer else "cannot be opened: .*authentication"
    try:
        with pytest.raises(lost, match=words) as caught:
            open_store(Place(url, "search"), ["minimize"], {})
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
    assert "secret" not in str(caught.value)
    assert len(asked) == 1 if answer else len(asked) > 1


def test_objectives_have_names(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "study.log"), "search")
    names = ["accuracy", "average_bitwidth"]
    store = open_store(place, ["maximize", "minimize"], {}, objectives=names)
    assert store.study.metric_names == names
    assert open_store(place, ["maximize", "minimize"], {}).study.metric_names == names
    config = parse_search(tables())
    assert config.objectives == names
    summed = parse_search(tables(sum_scaled_metrics=True, direction="maximize"))
    assert summed.objectives == ["sum of scaled accuracy, average_bitwidth"]
