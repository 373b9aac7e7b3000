"""The fronts of several searches that have objectives in common, side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chop.charts import LineChart, Mark
from chop.report.read.search import Search, read_search
from chop.search.metrics import METRICS, Direction, MetricInfo
from chop.search.results.front import front_of, hypervolume, worst_of
from chop.search.study.trial import Point, Trial, less_is_better

LOGARITHMIC_FROM = 10.0
"""The largest cost over the smallest from which on the axis is logarithmic."""


@dataclass(frozen=True)
class Fronts:
    """What each search has found, on two objectives."""

    good: str
    cost: str
    directions: tuple[Direction, Direction]
    """Of the two."""
    trials: Mapping[str, list[Trial]]
    """The complete trials of each search, by what it is called."""

    def points(self, name: str) -> list[Point]:
        """The front of a search, turned so that less is better."""
        return front_of([self._point(trial) for trial in self.trials[name]])

    def _point(self, trial: Trial) -> Point:
        found = trial.metrics
        return less_is_better((found[self.good], found[self.cost]), self.directions)

    def shares(self) -> dict[str, float]:
        """The hypervolume of each front as a part of that of all of them together."""
        fronts = {name: self.points(name) for name in self.trials}
        everything = [self._point(trial) for each in self.trials.values() for trial in each]
        reference = worst_of(everything)
        whole = hypervolume(front_of(everything), reference)
        return {name: hypervolume(front, reference) / whole for name, front in fronts.items()}

    def best(self, name: str) -> tuple[float, float]:
        """The best of each objective that a search has reached."""
        signs = [-1.0 if each == "maximize" else 1.0 for each in self.directions]
        columns = zip(*self.points(name), strict=True)
        good, cost = (sign * min(column) for sign, column in zip(signs, columns, strict=True))
        return good, cost

    def chart(self) -> LineChart:
        """The front of each search as a line through its points."""
        good, cost = (-1.0 if each == "maximize" else 1.0 for each in self.directions)
        series = {
            name: sorted((cost * y, good * x) for x, y in self.points(name)) for name in self.trials
        }
        costs = [x for points in series.values() for x, _ in points]
        is_wide = min(costs) > 0 and max(costs) > LOGARITHMIC_FROM * min(costs)
        marks: dict[str, Mark] = dict.fromkeys(series, "o-")
        return LineChart(
            "Fronts of the searches", _named(self.cost), _named(self.good), series, marks=marks,
            logarithmic="x" if is_wide else "",
        )  # fmt: skip


def _named(metric: str) -> str:
    unit = METRICS.get(metric, MetricInfo(metric)).unit
    return f"{metric}, {unit}" if unit else metric


def read_fronts(folders: Mapping[str, Path]) -> Fronts | None:
    """The fronts of searches by their names; None unless two have two objectives in common."""
    return comparable({name: read_search(folder) for name, folder in folders.items()})


def comparable(searches: Mapping[str, Search]) -> Fronts | None:
    """The searches that have the objectives of the first one, if there are others."""
    usable = {name: each for name, each in searches.items() if len(_objectives(each)) == 2}
    for first in usable.values():
        wanted = _objectives(first)
        trials = {
            f"{each.problem.sampler or 'search'} ({name})": measured
            for name, each in usable.items()
            if _objectives(each) == wanted and (measured := _measured(each, list(wanted)))
        }
        if len(trials) > 1:
            (good, one), (cost, other) = wanted.items()
            return Fronts(good, cost, (one, other), trials)
    return None


def _objectives(search: Search) -> dict[str, Direction]:
    """The metrics that a search had for objectives, and their directions."""
    names, directions = search.problem.objectives, search.problem.directions
    return dict(zip(names, directions, strict=True)) if set(names) <= {*_metrics(search)} else {}


def _metrics(search: Search) -> Sequence[str]:
    return list(search.problem.metrics)


def _measured(search: Search, names: Sequence[str]) -> list[Trial]:
    """The complete trials within bounds that have all of these metrics."""
    return [
        trial
        for trial in search.complete
        if search.problem.allows(trial) and all(name in trial.metrics for name in names)
    ]
