"""How much of the space of objectives a set of trials has conquered."""

from collections.abc import Sequence

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

Point = tuple[float, ...]


def losses_of(study: Study, trial: FrozenTrial) -> Point:
    """The objectives of a trial, turned so that less is better."""
    return tuple(
        value if direction == StudyDirection.MINIMIZE else -value
        for value, direction in zip(trial.values, study.directions, strict=True)
    )


def is_feasible(trial: FrozenTrial) -> bool:
    """Whether a trial is complete and within all bounds."""
    inside = all(violation <= 0 for violation in trial.constraints.values())
    return trial.state == TrialState.COMPLETE and inside


def front_of(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, each once."""
    front: list[Point] = []
    for point in sorted(set(points)):
        if not any(_covers(other, point) for other in front):
            front.append(point)
    return front


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The volume between the points and `reference`, which should be worse than all of them."""
    inside = [p for p in points if all(x < r for x, r in zip(p, reference, strict=True))]
    return _volume(front_of(inside), reference)


def hypervolume_history(points: Sequence[Point], reference: Point) -> list[float]:
    """The hypervolume after each point, in their order; it never falls."""
    front: list[Point] = []
    history: list[float] = []
    for point in points:
        if any(_covers(other, point) for other in front):
            history.append(history[-1])
            continue
        front = [other for other in front if not _covers(point, other)] + [point]
        history.append(hypervolume(front, reference))
    return history


def worst_of(points: Sequence[Point]) -> Point:
    """A reference that is a little worse than the worst of each objective."""
    columns = list(zip(*points, strict=True))
    return tuple(max(c) + 0.01 * ((max(c) - min(c)) or abs(max(c)) or 1.0) for c in columns)


def _covers(one: Point, other: Point) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _volume(front: Sequence[Point], reference: Point) -> float:
    """Slices along the first objective, each as wide as the way to the next point."""
    if not front:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(point[0] for point in front)
    ordered = sorted(front)
    ends = [point[0] for point in ordered[1:]] + [reference[0]]
    total = 0.0
    for place, (point, end) in enumerate(zip(ordered, ends, strict=True)):
        if end > point[0]:
            slice_front = front_of([each[1:] for each in ordered[: place + 1]])
            total += (end - point[0]) * _volume(slice_front, reference[1:])
    return total
