"""Several processes on one study in a real PostgreSQL server, one of them killed."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from chop.config.toml import read_toml, write_toml
from chop.search.storage import Place, open_store

EXAMPLE = Path(__file__).parents[2] / "configs" / "examples" / "jsc_toy_by_type.toml"
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if os.name == "posix" else []
OWN = """
import os, time
from chop.search.runners import software_runner

@software_runner("slow", metrics=("slowness",))
def slow(candidate):
    "Take a while, and keep a record of it."
    with open(os.environ["SEEN"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    deadline = time.monotonic() + 90
    while len(set(open(os.environ["SEEN"]).read().split())) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)  # until all three are at work
    time.sleep(0.2)
    return {"slowness": 0.2}
"""

pytestmark = [
    pytest.mark.skipif(not SERVERS, reason="no PostgreSQL server: apt install postgresql"),
    pytest.mark.skipif(find_spec("psycopg") is None, reason="no driver: pip install psycopg"),
]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of its own, on a free port, in a folder of its own."""
    user = "postgres" if os.geteuid() == 0 else None
    if user and user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    folder = Path("/tmp") / f"chop-postgres-{os.getpid()}"
    folder.mkdir(mode=0o777)
    if user:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, user=user, cwd=folder)

    binaries, data = SERVERS[-1], folder / "data"
    try:
        run(str(binaries / "initdb"), "-D", str(data), "-U", "chop", "--auth=trust", "-N")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run(str(binaries / "pg_ctl"), "-D", str(data), "-o", options, "-l", f"{folder}/log", "-w",
            "start")  # fmt: skip
        try:
            yield f"postgresql://chop@127.0.0.1:{port}/postgres"
        finally:
            run(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def test_processes_share_a_study_in_postgresql(server: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen.txt"
    seen.touch()
    (tmp_path / "own.py").write_text(OWN)
    settings = read_toml(EXAMPLE) | {"batch_size": 64, "imports": ["own.py"]}
    strategy = settings["search"]["strategy"]
    strategy["sw_runner"] = {"slow": {}, "basic_evaluation": {"num_samples": 64}}
    strategy["setup"] |= {"sampler": "brute", "storage": server, "study_name": "lab3",
                          "plots": False}  # fmt: skip
    write_toml(tmp_path / "run.toml", settings)

    def start(project: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "chop.cli", "search", "--config", "run.toml", "--resume",
                   "--project-dir", ".", "--project", project]  # fmt: skip
        return subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | {"SEEN": str(seen), "OMP_NUM_THREADS": "1"},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def workers() -> set[str]:
        return set(seen.read_text().split())

    first, second, third = (start(project) for project in ("one", "two", "three"))
    deadline = time.monotonic() + 120
    while len(workers()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    third.send_signal(signal.SIGKILL)
    third.communicate()
    outputs = [each.communicate(timeout=120)[0] for each in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    store = open_store(Place(server, "lab3"), ["maximize", "minimize"], {}, create=False)
    trials = store.counted()
    assert len({trial.user_attrs["key"] for trial in trials}) == len(trials) == 18
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    assert len(workers()) == 3
    assert len(seen.read_text().split()) - 18 <= 1
    store.storage.remove_session()
    store.storage._backend.engine.dispose()  # type: ignore[attr-defined]
