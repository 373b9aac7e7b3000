"""A database that goes away in the midst of a search: waited for, then left, and nothing lost."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DataError, InterfaceError, OperationalError

from chop import cli
from chop.config.layers import read_toml, write_toml
from chop.errors import ConfigError, SearchError
from chop.search.runners import SW_RUNNERS, software_runner
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import Candidate
from chop.search.study import patience, storage
from chop.search.study import store as stores
from chop.search.study.patience import Patience, StorageLost, is_outage
from chop.search.study.storage import Place, open_store
from chop.search.study.store import Store
from chop.search.study.trial import Outcome
from chop.search.study.trial import TrialRequest as Wanted
from chop.search.study.workers import SILENCE
from harden import postgres

EXAMPLE = Path(__file__).parents[2] / "configs" / "examples" / "jsc_toy_by_type.toml"
NO_SERVER = postgres.missing()
URL = "postgresql://me:hunter2@host/db?password=hunter2"


def away(words: str = "the server closed the connection") -> OperationalError:
    return OperationalError("SELECT 1", {}, Exception(words))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, which take no time."""
    found: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        found.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(patience.time, "sleep", sleep)
    monkeypatch.setattr(patience.time, "monotonic", lambda: clock[0])
    return found


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def ask() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "answer"

    return ask


def test_a_storage_is_asked_again_until_it_answers(
    pauses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert Patience(URL)(failing(9, away())) == "answer"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    first, last = capsys.readouterr().out.splitlines()
    assert "Storage postgresql://me:…@host/db?password=… does not answer" in first
    assert "answers again" in last


def test_the_wait_has_an_end(pauses: list[float]) -> None:
    wait = Patience(URL)
    with pytest.raises(StorageLost) as caught:
        wait(failing(10_000, away("no route to hunter2\nmore")))
    assert str(caught.value) == (
        "storage postgresql://me:…@host/db?password=…: has not answered for 60 s (no route to …); "
        "what was finished is kept: when it answers again, go on with --resume"
    )
    assert 50 < sum(pauses) <= patience.LONGEST_OUTAGE < SILENCE
    before = len(pauses)
    with pytest.raises(StorageLost):  # at once: it was waited for
        wait(failing(1, away()))
    assert len(pauses) == before
    assert wait(failing(0, away())) == "answer"


@pytest.mark.parametrize("error", [KeyError("x"), DataError("", {}, Exception()), SearchError("x")])
def test_other_errors_are_not_waited_for(error: Exception, pauses: list[float]) -> None:
    with pytest.raises(type(error)):
        Patience(URL)(failing(1, error))
    assert pauses == []


def test_an_outage_is_known_behind_other_errors() -> None:
    assert is_outage(InterfaceError("", {}, Exception("x")))
    with pytest.raises(ConfigError) as caught:  # as our code does it
        try:
            raise away()
        except OperationalError:
            raise ConfigError("cannot be opened") from None
    assert is_outage(caught.value)
    assert not is_outage(ConfigError("x"))


def wanted(key: str) -> Wanted:
    return Wanted(key, {"choice": key}, {}, {})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_store(Place(f"sqlite:///{tmp_path}/study.db", "search"), ["minimize"], {})
    yield found
    found.close()


def test_a_claim_that_was_stored_before_the_connection_broke_counts_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = store.storage._backend  # type: ignore[attr-defined]
    create, calls = backend._create_new_trial, []

    def committed_but_unknown(*args: Any) -> Any:
        calls.append(args)
        found = create(*args)
        if len(calls) == 1:
            raise away()
        return found

    monkeypatch.setattr(backend, "_create_new_trial", committed_but_unknown)
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.0)
    (trial,) = store.claim([wanted("x")], None)
    assert trial is not None
    store.finish([(trial, Outcome([1.0]))])
    trials = store.storage.get_all_trials(store.study_id)
    assert [each.state.name for each in trials] == ["COMPLETE", "FAIL"]
    assert store.done["x"].values == [1.0]
    assert not store.running


def test_an_outage_of_signs_of_life_is_survived(
    store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    beats = []

    def beat() -> None:
        beats.append(time.time())
        if len(beats) in (2, 3):
            raise away()

    monkeypatch.setattr(stores, "BEAT", 0.01)
    monkeypatch.setattr(store, "_beat", beat)
    with store.signs_of_life():
        deadline = time.monotonic() + 600
        while len(beats) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(beats) >= 5
    assert "Traceback" not in capfd.readouterr().err


def test_after_an_outage_nobody_is_taken_for_dead_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "elsewhere/1/2"
    monkeypatch.setattr(store, "worker", other)
    (trial,) = store.claim([wanted("x")], None)
    assert trial is not None
    store.storage.set_study_user_attr(store.study_id, f"alive:{other}", time.time() - 2 * SILENCE)
    monkeypatch.setattr(store, "worker", "here/1/2")
    with store.signs_of_life():
        store._last_beat = time.monotonic() - 2 * SILENCE  # none of ours has arrived since
        assert store.free_the_dead() == 0
    with store.signs_of_life():
        store._back = 0.0
        assert store.free_the_dead() == 1


@pytest.mark.parametrize(
    ("query", "timeout"), [("", 10), ("?connect_timeout=3", None)], ids=["ours", "stated"]
)
def test_a_server_that_says_nothing_is_given_up(
    query: str, timeout: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    given: dict[str, Any] = {}

    def remembered(url: str, engine_kwargs: dict[str, Any]) -> None:
        given.update(engine_kwargs["connect_args"])

    monkeypatch.setattr(optuna.storages, "RDBStorage", remembered)
    monkeypatch.setattr(optuna.storages, "get_storage", lambda found: found)
    monkeypatch.setattr(storage, "_one_at_a_time", contextlib.nullcontext)
    storage._database(f"postgresql+psycopg://me@host/db{query}")
    assert given.get("connect_timeout") == timeout
    assert given["tcp_user_timeout"] == 30_000


PROXY = """
import sys, warnings
from optuna.storages import get_storage, run_grpc_proxy_server
warnings.simplefilter("ignore")
run_grpc_proxy_server(get_storage(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]))
"""


def test_a_proxy_may_be_restarted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", PROXY, f"sqlite:///{tmp_path}/study.db", port]
    proxy = subprocess.Popen(command)
    try:
        store = open_store(Place(f"grpc://127.0.0.1:{port}", "search"), ["minimize"], {})
        (trial,) = store.claim([wanted("x")], None)
        assert trial is not None
        proxy.kill()
        proxy.wait()
        proxy = subprocess.Popen(command)
        store.finish([(trial, Outcome([1.0]))])  # which waits for it
        assert store.done["x"].values == [1.0]
    finally:
        proxy.kill()
        proxy.wait()
    assert "does not answer" in capfd.readouterr().out


@pytest.fixture(scope="module", autouse=True)
def _noted() -> Iterator[None]:
    @software_runner("noted", metrics=("slowness",))
    def noted(candidate: Candidate) -> dict[str, float]:
        """Keep a record of what was measured."""
        with open(os.environ["SEEN"], "a", encoding="utf-8") as file:
            file.write(f"{sorted(candidate.config.items())}\n")
        deadline = time.monotonic() + 600
        while not Path(os.environ["GO"]).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return {"slowness": 1.0}

    yield
    del SW_RUNNERS._entries["noted"]  # registries outlive the test


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.server() as found:
        yield found


class Run:
    """A search in a database, in a folder of its own."""

    def __init__(self, folder: Path, url: str, **setup: Any) -> None:
        self.folder = folder
        self.seen, self.go = folder / "seen.txt", folder / "go"
        self.seen.touch()
        settings = read_toml(EXAMPLE) | {"batch_size": 64}
        strategy = settings["search"]["strategy"]
        strategy["sw_runner"] = {"noted": {}, "basic_evaluation": {"num_samples": 64}}
        strategy["setup"] |= {"sampler": "brute", "storage": url, "study_name": "lab3",
                              "plots": False} | setup  # fmt: skip
        write_toml(folder / "run.toml", settings)

    def command(self, *more: str) -> list[str]:
        return ["search", "--config", str(self.folder / "run.toml"), "--project-dir",
                str(self.folder), "--project", "one", *more]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {"SEEN": str(self.seen), "GO": str(self.go)}

    def measured(self) -> list[str]:
        return self.seen.read_text().splitlines()

    def wait_for(self, trials: int) -> None:
        deadline = time.monotonic() + 600
        while len(self.measured()) < trials and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(self.measured()) >= trials


def stored(url: str) -> list[Any]:
    found = open_store(Place(url, "lab3"), ["maximize", "minimize"], {}, create=False)
    trials = found.frozen_trials()
    found.close()
    return trials


@pytest.mark.skipif(bool(NO_SERVER), reason=NO_SERVER or "there")
@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_search_outlives_a_restart_of_its_database(
    mode: str,
    server: postgres.Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    url = postgres.new_database(server.url)
    run = Run(tmp_path, url.replace("chop@", "chop:hunter2@"), n_jobs=2)
    for name, value in run.environment.items():
        monkeypatch.setenv(name, value)

    def restart() -> None:
        run.wait_for(2)  # both processes measure
        server.stop(mode)
        run.go.touch()  # and both want to store what they have measured
        time.sleep(0.3)
        server.start()

    with ThreadPoolExecutor(1) as beside:
        restarted = beside.submit(restart)
        code = cli.main(run.command())
        restarted.result()
    shown = capfd.readouterr()
    output = shown.out + shown.err
    assert code == 0, output
    assert "does not answer" in output
    assert "Traceback" not in output
    assert "hunter2" not in output
    trials = stored(url)
    assert len({trial.user_attrs["key"] for trial in trials}) == len(trials) == 18
    assert len(set(run.measured())) == len(run.measured()) == 18
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


@pytest.mark.skipif(bool(NO_SERVER), reason=NO_SERVER or "there")
def test_a_search_whose_database_stays_away_is_resumed(
    server: postgres.Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(patience, "LONGEST_OUTAGE", 0.5)
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)
    url = postgres.new_database(server.url)
    run = Run(tmp_path, url, sampler="tpe", n_trials=8)
    for name, value in run.environment.items():
        monkeypatch.setenv(name, value)
    run.go.touch()
    measure = Measure.__call__

    def stop_after_measuring(self: Measure, config: dict[str, Any]) -> Outcome:
        """As if the database went while the fourth trial is measured."""
        outcome = measure(self, config)
        if len(run.measured()) > 3 and server.is_running():
            server.stop()
        return outcome

    with monkeypatch.context() as while_it_runs:
        while_it_runs.setattr(Measure, "__call__", stop_after_measuring)
        assert cli.main(run.command()) == 2
    assert not server.is_running()
    lines = capfd.readouterr()
    assert "Traceback" not in lines.out + lines.err
    (line,) = lines.err.splitlines()
    assert "has not answered for 0.5 s" in line
    assert "--resume" in line
    before = run.measured()
    server.start()
    assert len(stored(url)) < len(before)  # not all results have arrived
    assert cli.main(run.command("--resume")) == 0
    trials = stored(url)
    assert len(run.measured()) == len(set(run.measured())) == len(trials) == 8
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    assert not list(tmp_path.rglob("unstored*"))
