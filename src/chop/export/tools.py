"""Programs that an export calls: compilers, simulators, synthesis."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from chop.errors import ConfigError, GraphError

LIMIT = "CHOP_TOOL_TIMEOUT"
USUAL_LIMIT = 3600.0
"""Seconds that a tool may take; placing and routing a large circuit takes many minutes."""
SHOWN = 3
"""Lines of what a tool said last: the first ones only say where it was."""


def tool_limit() -> float:
    """Seconds that a tool may take, as the environment says."""
    given = os.environ.get(LIMIT)
    try:
        seconds = USUAL_LIMIT if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{LIMIT} must be a number of seconds above 0 (got {given!r})")
    return seconds


def run_tool(
    command: Sequence[str],
    text: str = "",
    folder: Path | None = None,
    good: tuple[int, ...] = (0,),
) -> str:
    """Run a command and return what it prints; raise its last lines if it fails.

    Args:
        folder: where it runs.
        good: exit codes that are not a failure.
    """
    name, limit = Path(command[0]).name, tool_limit()
    try:
        code, *said = run_to_end(command, text, folder, limit)
    except OSError as error:  # such as a folder for temporary files where nothing may run
        raise ConfigError(f"export: {command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired as error:
        raise GraphError(
            f"export: {name} was stopped after {limit:g} s ({LIMIT} sets the limit): "
            f"{last_lines(error.stderr, error.stdout)}"
        ) from None
    if code not in good:
        raise GraphError(f"export: {name} failed (exit code {code}): {last_lines(*said[::-1])}")
    return said[0] or said[1]


def run_to_end(
    command: Sequence[str], text: str, folder: Path | None, limit: float
) -> tuple[int, str, str]:
    """The exit code and the output of a command; nothing that it started outlives it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, text=True, errors="replace",
        start_new_session=True,
    ) as tool:  # fmt: skip
        try:
            printed, complained = tool.communicate(text, limit)
        except BaseException:  # Ctrl-C, too: a compiler driver leaves the compiler running
            os.killpg(tool.pid, signal.SIGKILL)
            raise
    return tool.returncode, printed, complained


def last_lines(*streams: str | bytes | None) -> str:
    """The last lines of the first stream that has any, as one line of printable text."""
    for stream in streams:
        text = stream.decode(errors="replace") if isinstance(stream, bytes) else stream or ""
        if lines := [" ".join(line.split()) for line in text.splitlines() if line.strip()]:
            shown = " | ".join(lines[-SHOWN:])
            return "".join(each if each.isprintable() else "?" for each in shown)
    return "it said nothing"
