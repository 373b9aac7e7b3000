"""Engines: what evaluates the requests of a search.

`engine` states the interface, `serial` evaluates in this process, `local` in processes of this
machine. An engine knows nothing of samplers and studies: whatever it loses is asked for again, by
`dispatch`, which claims trials, has them evaluated and records what came of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chop.search.engines.engine import Engine


def make_engine(
    slots: int, threads: int = 1, imports: Sequence[str] = (), *, may_fork: bool = True
) -> "Engine":
    """Make the engine for so many slots: processes of this machine, or this process alone.

    Args:
        threads: of each process.
        imports: files of the user's that a process reads first.
        may_fork: whether processes may start as forks.
    """
    if slots == 1:
        from chop.search.engines.serial import Serial

        return Serial()
    from chop.search.engines.local import Local

    return Local(slots, threads, imports, may_fork=may_fork)
