"""How good a front is, how much each choice matters, and pictures of both.

The hypervolume says how much of the space of objectives the trials of a front dominate.

The importance of a choice is the share of the variance between trials that it alone explains. The
objective is fitted by least squares as a sum of one effect for each option of each choice. The
share of a choice is what the fit loses without it, less what a choice without influence would lose
by chance, as a part of the whole variance. Where choices are drawn independently this is the
variance of their main effects. Of choices that a sampler has changed together each gets only what
the others cannot explain, so shares add up to 1 or less; the rest is interaction and noise.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chop.charts import BarChart, Chart, LineChart, Mark, write_png
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
    """What a point adds to the volume of a front: its own less what others cover of that."""
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


TRIALS_PER_EFFECT = 2
"""With fewer, the fit follows the noise."""
ROWS_AT_ONCE = 2_000
RIDGE = 1e-9
"""Weight of the effects themselves in the fit: without it, what no trial tells apart has none."""

Options = Sequence[str | None]
"""The option of one choice in each trial; None where the choice did not come up."""
Table = NDArray[np.float64]


class Effects:
    """The effects of all options of all choices, as columns of a table with a row for each trial.

    Each column is centred over the trials in which its choice came up and zero in the others, so
    what it means that a choice comes up at all is the effect of the choice that leads to it.
    """

    def __init__(self, choices: Mapping[str, Options]) -> None:
        columns: dict[bytes, tuple[str, NDArray[np.int32]]] = {}
        for name, options in choices.items():
            codes = _codes(options)
            if codes.max(initial=0) > 0:
                # What always changed together cannot be told apart.
                first, _ = columns.get(codes.tobytes(), ("", codes))
                columns[codes.tobytes()] = f"{first} with {name}" if first else name, codes
        self._trials = len(next(iter(choices.values()), ()))
        self.names = [name for name, _ in columns.values()]
        self._codes = [codes for _, codes in columns.values()]
        ends = list(accumulate((int(codes.max()) for codes in self._codes), initial=0))
        self.of_choice = [slice(start, end) for start, end in pairwise(ends)]
        self.count = ends[-1]
        self.trials_needed = TRIALS_PER_EFFECT * (1 + self.count)
        self._means = [np.bincount(c[c >= 0])[1:] / (c >= 0).sum() for c in self._codes]

    @cached_property
    def inverse(self) -> Table:
        """Of the products of all columns with each other."""
        products = np.zeros((self.count, self.count))
        for start in range(0, self._trials, ROWS_AT_ONCE):
            rows = self._rows(start)
            products += rows.T @ rows
        ridge = RIDGE * self._trials * np.eye(self.count)
        return np.asarray(np.linalg.inv(products + ridge), np.float64)

    def products(self, values: Table) -> Table:
        """Of each column with `values`."""
        found = []
        for codes, means in zip(self._codes, self._means, strict=True):
            sums = np.bincount(codes[codes >= 0], values[codes >= 0])
            found.append(sums[1:] - means * sums.sum())
        return np.concatenate(found)

    def _rows(self, start: int) -> Table:
        end = start + ROWS_AT_ONCE
        blocks = [
            (codes[start:end, None] == np.arange(1, len(means) + 1)) - means
            for codes, means in zip(self._codes, self._means, strict=True)
        ]
        for block, codes in zip(blocks, self._codes, strict=True):
            block[codes[start:end] < 0] = 0.0
        return np.hstack(blocks)


def _codes(options: Options) -> NDArray[np.int32]:
    """Options as numbers in the order in which they first came up; -1 for none."""
    places: dict[str | None, int] = {None: -1}
    return np.array([places.setdefault(each, len(places) - 1) for each in options], np.int32)


def variance_shares(effects: Effects, values: Sequence[float]) -> dict[str, float]:
    """The share of each choice, the largest first; empty where too few trials can tell.

    Args:
        values: an objective of each trial.
    """
    found = np.asarray(values, np.float64)
    if not effects.count or len(found) < effects.trials_needed:
        return {}
    found = found / (np.abs(found).max() or 1.0)  # so that no square is too large
    found -= found.mean()
    whole = float(found @ found)
    if whole <= len(found) * 1e-24:  # all are the same but for rounding
        return {}
    inverse, targets = effects.inverse, effects.products(found)
    fitted = inverse @ targets
    noise = max(0.0, whole - float(fitted @ targets)) / (len(found) - 1 - effects.count)
    shares = {}
    for name, own in zip(effects.names, effects.of_choice, strict=True):
        lost = fitted[own] @ np.linalg.solve(inverse[own, own], fitted[own])
        by_chance = noise * (own.stop - own.start)
        shares[name] = max(0.0, float(lost - by_chance) / whole)
    return dict(sorted(shares.items(), key=lambda each: -each[1]))


Trials = Sequence["Trial | FrozenTrial"]
MOST_BARS = 20


def best_of(study: "Study", trials: Trials) -> list[Trial]:
    """The best trials: all that no other beats in every objective, within all bounds.

    They are sorted by the first objective. With one objective it is one trial, the first of equals.
    """
    good = [trial for trial in map(Trial.of, trials) if trial.is_feasible]
    directions = directions_of(study)
    losses = [trial.losses(directions) for trial in good]
    if len(directions) == 1:
        best = min(zip(losses, good, strict=True), key=lambda e: (e[0], e[1].number), default=None)
        return [best[1]] if best else []
    front = set(front_of(losses))
    found = [each for each in zip(losses, good, strict=True) if each[0] in front]
    return [trial for _, trial in sorted(found, key=lambda each: (each[0], each[1].number))]


def hypervolume_chart(history: Sequence[float]) -> LineChart:
    """The hypervolume after each configuration that is within bounds."""
    points = {"hypervolume": [(float(n), volume) for n, volume in enumerate(history, 1)]}
    title, x = "Hypervolume, a product of objectives", "distinct configurations"
    return LineChart(title, x, "hypervolume", points, steps=True)


def importance_charts(shares: Mapping[str, Mapping[str, float]]) -> list[BarChart]:
    """What matters for each objective, if it is known: the choices that matter most."""
    return [
        BarChart(f"What matters for {name}", "share of the variance", bars, ".3f")
        for name, found in shares.items()
        if any((bars := dict(list(found.items())[:MOST_BARS])).values())
    ]


def draw_plots(
    folder: Path,
    study: "Study",
    trials: "Sequence[Trial | FrozenTrial]",
    metrics: Sequence[str],
) -> list[Path]:
    """Draw what the trials allow; the files that were written."""
    complete = [trial for trial in map(Trial.of, trials) if trial.is_complete]
    if not complete:
        return []
    directions = directions_of(study)
    losses = [trial.losses(directions) for trial in complete if trial.is_feasible]
    history = hypervolume_history(losses, worst_of(losses)) if losses else []
    numbers = {name: [(t.number, t.metrics[name]) for t in complete] for name in metrics}
    charts: dict[str, Sequence[Chart]] = {
        "front": _front(study, complete, metrics),
        "metrics": [
            LineChart("", "trial", name, {name: points}, marks={name: "."})
            for name, points in numbers.items()
        ],
        "hypervolume": [hypervolume_chart(history)] if history else [],
        "importance": _importance(study, complete, metrics),
    }
    return [write_png(folder / f"{name}.png", [row]) for name, row in charts.items() if row]


def _front(study: "Study", trials: Sequence[Trial], metrics: Sequence[str]) -> list[LineChart]:
    """Each pair of metrics: what is on the front, what is dominated, what is out of bounds."""
    best = {trial.number for trial in best_of(study, trials)}
    groups = {
        "out of bounds": [t for t in trials if not t.is_feasible],
        "dominated": [t for t in trials if t.is_feasible and t.number not in best],
        "front": [t for t in trials if t.number in best],
    }
    joined: Mark = "o-" if len(metrics) == 2 else "o"
    marks: dict[str, Mark] = {"out of bounds": "x", "dominated": ".", "front": joined}
    charts = []
    for x, y in combinations(metrics, 2):
        points = {
            name: sorted((trial.metrics[x], trial.metrics[y]) for trial in group)
            for name, group in groups.items()
            if group
        }
        charts.append(LineChart("", x, y, points, marks=marks))
    return charts


def _importance(study: "Study", trials: Sequence[Trial], metrics: Sequence[str]) -> list[BarChart]:
    """How much each choice matters for each objective, where there are enough trials to tell."""
    directions = directions_of(study)
    objectives = list(metrics) if len(directions) > 1 else ["sum of scaled metrics"]
    losses = [trial.losses(directions) for trial in trials]
    chosen = [trial.params for trial in trials]
    names = dict.fromkeys(name for params in chosen for name in params)
    options = {
        name.replace("/config/", " "): [str(p[name]) if name in p else None for p in chosen]
        for name in names
    }
    effects = Effects(options)
    if len(effects.names) < 2:  # the only choice there is matters most
        return []
    columns = zip(objectives, zip(*losses, strict=True), strict=True)
    return importance_charts({name: variance_shares(effects, each) for name, each in columns})
