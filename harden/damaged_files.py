"""Part 2: damaged and hostile files are refused by name, run no code and fill no memory.

``python -m harden.damaged_files NUMBER`` shows a case again: its harm and what ``ch`` says.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from harden.common import Row, share
from harden.configuration import rows
from harden.file_targets import TARGETS
from harden.forked import WORKERS, run_all

PART = "files"
CASES = 1_000
MODULE = "harden.file_cases"


def run(scale: float) -> Iterable[Row]:
    """The lines of the table for a share of the cases, one for each kind of file."""
    return lines(range(share(CASES, scale)))


def lines(numbers: Iterable[int], workers: int = WORKERS) -> Iterator[Row]:
    """The lines of the table for these cases."""
    kinds = [target.kind for target in TARGETS]
    for row in rows(run_all(MODULE, list(numbers), workers), kinds):
        again = tuple(text.replace("configuration", "damaged_files") for text in row.failures)
        yield replace(row, part=PART, failures=again)


def show(number: int) -> None:
    """Judge a case again in a process of its own, and say how it ended."""
    from harden.file_cases import case_of

    case = case_of(number)
    print(f"case {number}, {case.target.kind}, {case}\nch {' '.join(case.target.arguments)}")
    for verdict in run_all(MODULE, [number], workers=1):
        print(f"{verdict.outcome} {verdict.problem}")


if __name__ == "__main__":
    show(int(sys.argv[1]))
