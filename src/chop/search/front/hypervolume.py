"""Fronts of points, and how good they are.

The hypervolume says how much of the space of objectives the points of a front dominate.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chop.search.study.trial import Point, Trial, directions_of

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

AT_ONCE = 100
"""Points that are compared with a front in one go."""


def front_of(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, each once."""
    ordered = sorted(set(points))
    if ordered and len(ordered[0]) > 2:
        return _large_front(ordered)
    front: list[Point] = []
    for point in ordered:  # those before it are at least as good in the first of two objectives
        if not front or point[-1] < front[-1][-1]:
            front.append(point)
    return front


def _large_front(ordered: Sequence[Point]) -> list[Point]:
    """The same for many objectives: the first of those left is on the front, and covers others."""
    front: list[Point] = []
    left = np.array(ordered)
    while len(left):
        front.append(tuple(left[0].tolist()))
        left = left[(left < left[0]).any(axis=1)]
    return front


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The volume between the points and `reference`, which should be worse than all of them."""
    inside = [p for p in points if all(x < r for x, r in zip(p, reference, strict=True))]
    return _volume(front_of(inside), reference)


def hypervolume_history(points: Sequence[Point], reference: Point) -> list[float]:
    """The hypervolume after each point, in their order; it never falls."""
    front = np.empty((0, len(reference)))
    history: list[float] = []
    for start in range(0, len(points), AT_ONCE):
        some = points[start : start + AT_ONCE]
        # What the front covers already, it will cover: most points are seen to in one go.
        covered = np.any((front[:, None] <= np.array(some)).all(axis=2), axis=0).tolist()
        for point, is_covered in zip(some, covered, strict=True):
            before = history[-1] if history else 0.0
            if is_covered or (front <= point).all(axis=1).any():
                history.append(before)
                continue
            if len(reference) > 2:  # the volume of a large front takes long
                history.append(before + _gain(front, point, reference))
            front = np.vstack([front[(front < point).any(axis=1)], point])
            if len(reference) <= 2:
                history.append(hypervolume(_points(front), reference))
    return history


def _gain(front: NDArray[np.float64], point: Point, reference: Point) -> float:
    """Return what a point adds to the volume of a front: its own less what others cover of that."""
    shared = hypervolume(_points(np.maximum(front, point)), reference)
    return max(0.0, hypervolume([point], reference) - shared)


def _points(table: NDArray[np.float64]) -> list[Point]:
    return list(map(tuple, table.tolist()))


def worst_of(points: Sequence[Point]) -> Point:
    """A reference that is a little worse than the worst of each objective."""
    columns = list(zip(*points, strict=True))
    return tuple(max(c) + 0.01 * ((max(c) - min(c)) or abs(max(c)) or 1.0) for c in columns)


def _volume(front: Sequence[Point], reference: Point) -> float:
    """Slices along the first objective, each as wide as the way to the next point."""
    if not front:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(point[0] for point in front)
    ordered = sorted(front)
    ends = [point[0] for point in ordered[1:]] + [reference[0]]
    total, slice_front = 0.0, list[Point]()
    for point, end in zip(ordered, ends, strict=True):
        slice_front = front_of([*slice_front, point[1:]])
        if end > point[0]:
            total += (end - point[0]) * _volume(slice_front, reference[1:])
    return total


Trials = Sequence["Trial | FrozenTrial"]


def best_of(study: "Study", trials: Trials) -> list[Trial]:
    """The best trials: all that no other beats in every objective, within all bounds.

    They are sorted by the first objective. With one objective it is one trial, the first of equals.
    None of them was measured on a share of the rows.
    """
    good = [each for each in map(Trial.of, trials) if each.is_feasible and not each.is_stopped]
    directions = directions_of(study)
    losses = [trial.losses(directions) for trial in good]
    if len(directions) == 1:
        best = min(zip(losses, good, strict=True), key=lambda e: (e[0], e[1].number), default=None)
        return [best[1]] if best else []
    front = set(front_of(losses))
    found = [each for each in zip(losses, good, strict=True) if each[0] in front]
    return [trial for _, trial in sorted(found, key=lambda each: (each[0], each[1].number))]
