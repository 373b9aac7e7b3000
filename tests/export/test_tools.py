"""Tools that are started: what they said last is shown, and none runs for ever."""

import fcntl
import sys
import time
from pathlib import Path

import pytest

from chop.errors import ConfigError, GraphError
from chop.export.tools import LIMIT, run_tool


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_last_lines_are_shown_in_one() -> None:
    said = "\n".join(
        ["In function predict:", "a.c:3: error: v7 is unused", "note: all \x1b[31mred"]
    )
    with pytest.raises(
        GraphError, match=r"\(exit code 3\): .*a\.c:3: error: v7 is unused"
    ) as caught:
        run_tool(python(f"import sys; sys.stderr.write({said!r}); sys.exit(3)"))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_what_is_said_on_standard_output_counts_where_nothing_else_is() -> None:
    with pytest.raises(GraphError, match="no cell 'x'"):
        run_tool(python("import sys; print(\"no cell 'x'\"); sys.exit(1)"))
    with pytest.raises(GraphError, match="it said nothing"):
        run_tool(python("import sys; sys.exit(1)"))


def test_a_tool_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "0.5")
    code = "import threading; threading.Event().wait()"
    with pytest.raises(GraphError, match=rf"was stopped after 0\.5 s \({LIMIT} sets the limit\)"):
        run_tool(python(code))


def test_nothing_that_it_started_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "1")
    with pytest.raises(GraphError, match="was stopped"):
        run_tool(["sh", "-c", "(exec 9>lock; flock 9; sleep 600) & wait"], folder=tmp_path)
    with (tmp_path / "lock").open("w") as lock:
        for _ in range(600):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
            else:
                return
    pytest.fail("a process holds the lock")


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf"])
def test_the_limit_is_a_number_of_seconds(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, given)
    with pytest.raises(ConfigError, match=LIMIT):
        run_tool(python("pass"))
