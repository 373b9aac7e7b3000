"""Which process a trial belongs to, and whether that process is still there."""

import os
import socket
import time
from functools import cache
from pathlib import Path

SILENCE = 120.0
"""Seconds without a sign of life after which a process on another machine counts as gone."""
BEAT = 20.0
"""Seconds between two signs of life."""


def this_worker() -> str:
    """A text that names this process among all processes of all machines, over all time."""
    return f"{this_machine()}/{os.getpid()}/{_started(os.getpid())}"


@cache
def this_machine() -> str:
    """A text that names this machine; two containers count as two."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}{namespace}"


def is_alive(worker: str, last_beat: float | None) -> bool:
    """Whether a process is still there; one on another machine must have given a sign of life."""
    machine, pid, started = worker.rsplit("/", 2)
    if machine == this_machine():
        return _exists(int(pid)) and _started(int(pid)) == started
    return last_beat is not None and time.time() - last_beat < SILENCE


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _stat(pid).startswith("Z")  # a killed child that its parent has not noticed yet


def _started(pid: int) -> str:
    """When a process began, so that a number that is used again names another; empty if unknown."""
    fields = _stat(pid).split()
    return fields[19] if len(fields) > 19 else ""


def _stat(pid: int) -> str:
    """What the kernel says of a process, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2]
    except OSError:
        return ""
