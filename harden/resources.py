"""Resources: what happens where something that a run takes for granted is scarce or odd.

What is defined for each is written in docs/reliability.md.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from harden.common import Row, share
from harden.kill_server import Server
from harden.resource_clock import wrong_clock
from harden.resource_common import CannotMount
from harden.resource_disk import full_cache, full_disk, full_output, read_only, read_only_resume
from harden.resource_memory import little_memory
from harden.resource_places import no_home, no_terminal, no_utf8
from harden.resource_two import two_runs

PART = "resources"
DISK_POINTS, ROUNDS = 16, 6

Cases = Iterator[tuple[str, list[str]]]
"""What was tried, and what was wrong with it."""


def row(what: str, cases: Cases) -> Row:
    """One line of the table."""
    tried, lost, failures, figure = 0, 0, list[str](), ""
    try:
        for name, wrong in cases:
            tried, lost = tried + 1, lost + bool(wrong)
            failures += [f"{name}: {each}" for each in wrong]
    except CannotMount as reason:
        figure = f"cut short: nothing can be mounted here ({reason})"
    return Row(PART, what, tried, lost, tuple(failures), figure)


def kinds(server: Server, scale: float) -> dict[str, Callable[[Path], Cases]]:
    """Each scarce resource and its cases."""
    points, rounds = share(DISK_POINTS, scale), share(ROUNDS, scale)
    return {
        "disk full, then room again": lambda folder: full_disk(server, folder, points),
        "standard output on a full disk": full_output,
        "cache of data sets on a full disk": full_cache,
        "output read-only": lambda folder: read_only(server, folder),
        "project read-only, --resume": lambda folder: read_only_resume(server, folder),
        "no home directory": no_home,
        "no terminal, closed streams": no_terminal,
        "locale without UTF-8": no_utf8,
        "300 MB of memory, large file": lambda folder: little_memory(server, folder),
        "clock going backwards": wrong_clock,
        "two runs into one project": lambda folder: two_runs(server, folder, rounds),
    }


def run(scale: float) -> Iterable[Row]:
    """All scarce resources."""
    with Server() as server:
        for place, (what, cases) in enumerate(kinds(server, scale).items()):
            folder = Path(tempfile.mkdtemp(prefix=f"chop-resource-{place}-"))
            try:
                yield row(what, cases(folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
