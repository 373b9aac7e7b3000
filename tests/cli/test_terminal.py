"""What a person sees on a terminal: a real one, read from its other end."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_quiet import SEARCH

from chop.logger import get_logger

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(*arguments: str, cwd: Path, **environment: str) -> str:
    """Run `ch` on a terminal; what appears on it."""
    ours, theirs = pty.openpty()
    settings = {"TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1"} | environment
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    running = subprocess.Popen(
        [sys.executable, "-m", "chop.cli", *arguments],
        cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=plain | settings,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux's way to say that nobody writes any more
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert running.wait(timeout=600) == 0
    return seen.decode()


def bars(screen: str) -> list[str]:
    """The states of progress bars, one after the other, without colours."""
    return [line for line in re.split(r"[\r\n]+", CODES.sub("", screen)) if "━" in line]


def messages(screen: str) -> list[str]:
    lines = CODES.sub("", screen).replace("\r", "").splitlines()
    return [line for line in lines if line.startswith(("INFO ", "WARNING "))]


def test_training_and_searching_show_one_bar_at_a_time(tmp_path: Path) -> None:
    where = ("jsc-tiny", "jsc-sim", "--project", "p", "--report-to", "none")
    screen = on_terminal("train", *where, "--max-epochs", "2", "--batch-size", "512", cwd=tmp_path)
    assert "\x1b[34mINFO    \x1b[0m Training is completed" in screen
    epochs = [line.split()[1] for line in bars(screen)]
    assert epochs == sorted(epochs)
    assert set(epochs) == {"0", "1"}
    assert "118/118" in bars(screen)[-1]
    assert len(messages(screen)) == len(set(messages(screen)))
    assert "Warning" not in screen
    (tmp_path / "run.toml").write_text(SEARCH)
    weights = "p/software/training_ckpts/best.ckpt"
    load = ("--load", f"mase_output/{weights}", "--load-type", "pl")
    screen = on_terminal("search", *where, "--config", "run.toml", *load, cwd=tmp_path)
    assert " 2/2 " in bars(screen)[-1]  # the bar is full when it is left
    assert len(messages(screen)) == len(set(messages(screen)))
    assert "Warning" not in screen


def test_lines_are_coloured_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = get_logger("chop")
    monkeypatch.delenv("NO_COLOR", raising=False)
    path = "/a/long/path/" * 20
    logger.info("%s", path)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    logger.info("%s", path)
    monkeypatch.setenv("NO_COLOR", "1")
    logger.info("%s", path)
    plain, coloured, without = capsys.readouterr().out.splitlines()  # no line is ever wrapped
    assert plain == without == f"INFO     {path}"
    assert coloured == f"\x1b[34mINFO    \x1b[0m {path}"
