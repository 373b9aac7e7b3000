"""optuna-dashboard, the real server, on the studies that a search leaves behind."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from search_cases import Searcher

from chop.search.study.storage import Place, open_store

pytestmark = pytest.mark.skipif(
    find_spec("optuna_dashboard") is None, reason="pip install optuna-dashboard"
)
Asked = Callable[[str], Any]


@pytest.fixture
def dashboard() -> Iterator[Callable[[str], Asked]]:
    """Starts ``optuna-dashboard STORAGE``, as docs/search.md has it, and asks it things."""
    servers: list[subprocess.Popen[bytes]] = []

    def start(storage: str) -> Asked:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program = Path(sys.executable).with_name("optuna-dashboard")
        code = "from optuna_dashboard._cli import main; main()"
        command = [str(program)] if program.exists() else [sys.executable, "-c", code]
        options = ["--port", str(port), "--quiet", storage]
        servers.append(subprocess.Popen([*command, *options]))

        def ask(path: str) -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=600) as answer:
                content = answer.read()
                is_json = answer.headers["Content-Type"].startswith("application/json")
                return json.loads(content) if is_json else content.decode()

        _wait_until_up(ask, servers[-1])
        return ask

    yield start
    for server in servers:
        server.terminate()
        server.wait()


def _wait_until_up(ask: Asked, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert server.poll() is None
        try:
            ask("/api/studies")
        except urllib.error.URLError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("optuna-dashboard did not start")


@pytest.mark.parametrize("storage", ["{}/study.log", "sqlite:///{}/study.db"])
def test_the_dashboard_shows_the_study_and_its_trials(
    storage: str,
    tmp_path: Path,
    search_with: Searcher,
    dashboard: Callable[[str], Asked],
) -> None:
    url = storage.format(tmp_path)
    store = open_store(Place(url, "search"), ["maximize", "minimize"], {})
    search_with(store=store, n_trials=6)
    expected = store.frozen_trials()
    ask = dashboard(url)
    assert "<html" in ask("/dashboard/").lower()
    (summary,) = ask("/api/studies")["study_summaries"]
    assert summary["study_name"] == "search"
    assert summary["directions"] == ["maximize", "minimize"]
    study = ask(f"/api/studies/{summary['study_id']}?after=0")
    assert len(study["trials"]) == len(expected) == 6
    for shown, trial in zip(study["trials"], expected, strict=True):
        assert shown["number"] == trial.number
        assert shown["state"] == "Complete"
        assert shown["values"] == pytest.approx(trial.values)
        names = {param["name"] for param in shown["params"]}
        assert names == set(trial.params)
        attrs = {each["key"]: each["value"] for each in shown["user_attrs"]}
        assert "software_metrics" in attrs
    if not url.startswith("sqlite"):
        return
    backend: Any = store.storage
    backend.remove_session()
    backend._backend.engine.dispose()
