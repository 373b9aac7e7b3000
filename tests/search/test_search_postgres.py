"""Several processes on one study in a real PostgreSQL server, one of them killed."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from search_cases import opened_together
from warm import WarmRun

from chop.config.layers import read_toml, write_toml
from chop.errors import ConfigError
from chop.search.study import storage
from chop.search.study.storage import Place, open_store
from harden import postgres

EXAMPLE = Path(__file__).parents[2] / "configs" / "examples" / "jsc_toy_by_type.toml"
OWN = """
import os, time
from chop.search.runners import software_runner

@software_runner("slow", metrics=("slowness",))
def slow(candidate):
    "Take a while, and keep a record of it."
    with open(os.environ["SEEN"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    deadline = time.monotonic() + 600
    while len(set(open(os.environ["SEEN"]).read().split())) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)  # until all three are at work
    time.sleep(0.05)
    return {"slowness": 0.05}
"""

pytestmark = pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "there")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server of its own."""
    with postgres.server() as found:
        yield found.url


@pytest.fixture
def database(server: str) -> str:
    """The URL of a new database."""
    return postgres.new_database(server)


@pytest.mark.parametrize("attempt", range(3))
def test_processes_open_an_empty_database_together(attempt: int, database: str) -> None:
    """Without a lock all but one fail: "relation … already exists" or a type's unique name."""
    assert opened_together(database, ["one"] * 6) == [("one", "opened")] * 6


def test_of_two_problems_at_once_one_gets_the_database(database: str) -> None:
    opened, refused = sorted(answer for _, answer in opened_together(database, ["one", "two"]))
    assert opened == "opened"
    assert "another data set" in refused


def test_the_wait_for_others_has_an_end(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setattr(storage, "LONGEST_OPENING", 1)
    with psycopg.connect(database) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({storage.OPENING})".encode())
        with pytest.raises(ConfigError, match="cannot be opened: .*lock timeout") as caught:
            open_store(Place(database, "search"), ["minimize"], {})
    assert "\n" not in str(caught.value)


def test_processes_share_a_study_in_postgresql(database: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen.txt"
    seen.touch()
    (tmp_path / "own.py").write_text(OWN)
    settings = read_toml(EXAMPLE) | {"batch_size": 64, "imports": ["own.py"]}
    strategy = settings["search"]["strategy"]
    strategy["sw_runner"] = {"slow": {}, "basic_evaluation": {"num_samples": 64}}
    strategy["setup"] |= {"sampler": "brute", "storage": database, "study_name": "lab3",
                          "plots": False}  # fmt: skip

    def start(project: str, jobs: int) -> WarmRun:
        strategy["setup"]["n_jobs"] = jobs
        write_toml(tmp_path / f"{project}.toml", settings)
        command = ["search", "--config", f"{project}.toml", "--import", "own.py", "--resume"]
        command += ["--project-dir", ".", "--project", project]
        return WarmRun(*command, cwd=tmp_path, SEEN=str(seen))

    def workers() -> set[str]:
        return set(seen.read_text().split())

    first, second = start("one", jobs=2), start("two", jobs=1)
    deadline = time.monotonic() + 600
    while len(workers()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    second.send_signal(signal.SIGKILL)
    second.communicate()
    output = first.communicate(timeout=600)[0]
    assert first.returncode == 0, output
    store = open_store(Place(database, "lab3"), ["maximize", "minimize"], {}, create=False)
    trials = store.frozen_trials()
    assert len({trial.user_attrs["key"] for trial in trials}) == len(trials) == 18
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    assert len(workers()) == 3
    assert len(seen.read_text().split()) - 18 <= 1
    store.storage.remove_session()
    store.storage._backend.engine.dispose()  # type: ignore[attr-defined]
