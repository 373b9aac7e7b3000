"""Processes of trials: which is alive, and when Ctrl-C may end it.

Python raises `KeyboardInterrupt` between any two instructions. While Optuna reads a study that
would leave a record out, and every number after it would belong to another trial. So Ctrl-C ends
a measurement at any moment, but no reading or writing half-way. SIGTERM does what Ctrl-C does.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SILENCE = 120.0
"""Seconds without a sign of life after which a process on another machine counts as gone."""
BEAT = 20.0
"""Seconds between two signs of life."""


def this_worker() -> str:
    """A text that names this process among all processes of all machines, over all time."""
    return f"{this_machine()}/{os.getpid()}/{_start_time(os.getpid())}"


@cache
def this_machine() -> str:
    """A text that names this machine; two containers count as two."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}{namespace}"


def is_alive(worker: str, last_beat: float | None) -> bool:
    """Return whether a process is there; one on another machine must have given a sign of life."""
    machine, pid, started = worker.rsplit("/", 2)
    if machine == this_machine():
        return _exists(int(pid)) and _start_time(int(pid)) == started
    return last_beat is not None and time.time() - last_beat < SILENCE


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _stat(pid).startswith("Z")  # a killed child that its parent has not noticed yet


def _start_time(pid: int) -> str:
    """Return the start of a process, as its number may be used again; empty if unknown."""
    fields = _stat(pid).split()
    return fields[19] if len(fields) > 19 else ""


def _stat(pid: int) -> str:
    """Return what the kernel says of a process, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2]
    except OSError:
        return ""


class Interrupts:
    """The signals for this process, and whether they may be let through."""

    def __init__(self) -> None:
        self.held = self.open = self.came = self.once = False

    def __call__(self, number: int, frame: object) -> None:
        """Note an interrupt; let it through where that does no harm, or if the user insists."""
        insisted, self.came = self.came and not self.once, True
        if self.open or insisted:
            self.open = False  # what is done about it is not to be interrupted by the next
            raise KeyboardInterrupt


_interrupts = Interrupts()


@contextlib.contextmanager
def held_back(helper: bool = False) -> Iterator[None]:
    """Let interrupts through only inside `at_any_moment`, until the block ends.

    Args:
        helper: this process was started by another, which interrupts it although a terminal may
            have done so, too, or may want no process to be interrupted. Otherwise a second
            interrupt comes through wherever it comes.
    """
    state = _interrupts
    in_main = threading.current_thread() is threading.main_thread()
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN and not helper
    if state.held or not in_main or ignored:
        yield
        return
    before = signal.signal(signal.SIGINT, state)
    state.held, state.once = True, helper
    try:
        yield
        raise_if_interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
        state.held = state.came = False


class Terminated(KeyboardInterrupt):
    """An interrupt by SIGTERM: as Ctrl-C, but for the exit code."""

    exit_code = 128 + signal.SIGTERM


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does in this block, unless somebody else deals with it."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    came = []

    def interrupt(number: int, frame: object) -> None:
        came.append(number)
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if came:
            raise Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def at_any_moment() -> Iterator[None]:
    """Let interrupts through in this block, and one that came before it."""
    state = _interrupts
    raise_if_interrupted()
    state.open = state.held
    try:
        yield
    finally:
        state.open = False


def raise_if_interrupted() -> None:
    """Raise for an interrupt that was held back, or that Python lost in destroying an object."""
    if _interrupts.came:
        raise KeyboardInterrupt
