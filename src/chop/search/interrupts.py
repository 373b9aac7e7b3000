"""Ctrl-C during a search: it ends a measurement at any moment, but no reading or writing half-way.

Python raises `KeyboardInterrupt` between any two instructions. In the midst of Optuna's reading of
a study that would leave a record out, and every number after it would belong to another trial.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator


class Interrupts:
    """What has come for this process, and whether it may be let through."""

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
        heed()
    finally:
        signal.signal(signal.SIGINT, before)
        state.held = state.came = False


@contextlib.contextmanager
def at_any_moment() -> Iterator[None]:
    """Let interrupts through in this block, and one that came before it."""
    state = _interrupts
    heed()
    state.open = state.held
    try:
        yield
    finally:
        state.open = False


def heed() -> None:
    """Raise for an interrupt that was held back, or that Python lost in destroying an object."""
    if _interrupts.came:
        raise KeyboardInterrupt
