"""What all parts of the hardening run share: the rows of the table and the list of parts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: what was tried how often, and what of it went wrong.

    Attributes:
        part: the part of the hardening, "configuration" say.
        what: what was done to the tool.
        tried: how many cases ran.
        lost: how many of them ended as they must not.
        failures: for each lost case, how to see it again (the seed, the file, the message).
        figure: a measured figure that belongs to the line, if there is one.
    """

    part: str
    what: str
    tried: int
    lost: int
    failures: tuple[str, ...] = ()
    figure: str = ""


Part = Callable[[float], Iterable[Row]]
"""Runs a share of the cases: 1 for all of them, a hundredth inside the tests."""


def share(total: int, scale: float) -> int:
    """So many cases of a total, at least one."""
    return max(1, round(total * scale))
