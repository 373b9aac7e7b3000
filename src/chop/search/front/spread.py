"""The distances between the fronts of the members of a population."""

import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from chop.search.front.hypervolume import front_of
from chop.search.study.trial import Point

Points = list[tuple[float, float]]


class Spread(NamedTuple):
    """The best first objective at each cost that all members have reached, less being better.

    Attributes:
        all: of all members together, at each cost on their fronts.
    """

    all: Points
    median: Points
    best: Points
    worst: Points


def spread_of(members: Sequence[Sequence[Point]]) -> Spread | None:
    """Return the spread over members, each with its points of two objectives; None below two.

    It begins at the cost that every member has something at.
    """
    fronts = [cost_steps(points) for points in members]
    if len(fronts) < 2 or not all(fronts):
        return None
    together = cost_steps([point for points in members for point in points])
    first = max(front[0][0] for front in fronts)
    costs = sorted({cost for front in fronts for cost, _ in front if cost >= first})
    reached = [(cost, [best_at(front, cost) for front in fronts]) for cost in costs]
    return Spread(
        [(cost, best_at(together, cost)) for cost in costs],
        [(cost, statistics.median(values)) for cost, values in reached],
        [(cost, min(values)) for cost, values in reached],
        [(cost, max(values)) for cost, values in reached],
    )


def cost_steps(points: Sequence[Point]) -> Points:
    """Return a front as its costs, rising, and the best first objective up to each."""
    ordered = sorted((cost, value) for value, cost in front_of(points))
    best = accumulate((value for _, value in ordered), min)
    return [(cost, value) for (cost, _), value in zip(ordered, best, strict=True)]


def best_at(front: Points, cost: float) -> float:
    """Return the best first objective at a cost that is on the front or above it."""
    return min(value for each, value in front if each <= cost)
