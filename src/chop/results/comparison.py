"""Samplers compared: which finds how much of the front in how many evaluations.

Several samplers search one space, each with several seeds. A trial is a function of its
configuration, so what one run has measured the others look up (`runs`); each run still counts
every distinct configuration that it asks for.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chop.errors import SearchError
from chop.results.comparison_chart import BEST_FRONT, TRUE_FRONT
from chop.search.config import SearchConfig
from chop.search.contest import Run
from chop.search.front.hypervolume import (
    front_of,
    hypervolume,
    hypervolume_history,
    worst_of,
)
from chop.search.study.trial import Outcome, Point, less_is_better
from chop.tables import as_csv

LEVELS = (0.9, 0.95, 0.99)
BAND = (0.1, 0.5, 0.9)


class Comparison:
    """What runs on one space have in common: the scale on which they are measured.

    Args:
        outcomes: all that was measured, by the key of the configuration.
        complete: whether that is the whole space.
    """

    def __init__(
        self,
        config: SearchConfig,
        runs: Sequence[Run],
        outcomes: Mapping[str, Outcome],
        *,
        complete: bool,
    ) -> None:
        self.config = config
        self.runs = runs
        self.samplers = list(dict.fromkeys(run.sampler for run in runs))
        self.normalised_by = TRUE_FRONT if complete else BEST_FRONT
        self.measured = len(outcomes)
        self._points = {key: _point(config, outcome) for key, outcome in outcomes.items()}
        inside = [point for point in self._points.values() if point is not None]
        if not inside:
            raise SearchError(_nothing_to_compare(config, list(outcomes.values())))
        self.front = front_of(inside)
        self.reference = worst_of(inside)
        self.whole = hypervolume(self.front, self.reference)

    def curve(self, run: Run) -> list[float]:
        """The share of the hypervolume that a run has after each of its evaluations."""
        points = [self._points[key] for key in run.keys]
        inside = [point for point in points if point is not None]
        history = iter(hypervolume_history(inside, self.reference))
        share, found = 0.0, []
        for point in points:
            if point is not None:  # sums in another order may differ in the last bit
                share = min(1.0, max(share, next(history) / self.whole))
            found.append(share)
        return found

    def band(self, sampler: str) -> np.ndarray:
        """The 10 % quantile, the median and the 90 % quantile over the runs of a sampler.

        A run that has ended keeps what it has.
        """
        curves = [self.curve(run) for run in self.runs if run.sampler == sampler]
        length = max(map(len, curves))
        full = [curve + curve[-1:] * (length - len(curve)) for curve in curves if curve]
        found: np.ndarray = np.quantile(np.array(full), BAND, axis=0)
        return found

    def reached(self, sampler: str, level: float) -> list[int | None]:
        """The evaluations after which each run of a sampler had so large a share, if ever."""
        curves = [self.curve(run) for run in self.runs if run.sampler == sampler]
        return [first_at(curve, level) for curve in curves]

    def as_dict(self, space_size: int) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "space_size": space_size,
            "measured": self.measured,
            "objectives": list(self.config.metrics),
            "directions": list(self.config.directions),
            "normalised_by": self.normalised_by,
            "hypervolume": self.whole,
            "reference": list(self.reference),
            "front": [list(point) for point in self.front],
            "samplers": {name: self._sampler(name) for name in self.samplers},
        }

    def _sampler(self, name: str) -> dict[str, Any]:
        low, median, high = self.band(name).tolist()
        return {
            "reached": {
                str(level): _summary(self.reached(name, level)) for level in LEVELS
            },
            "runs": [self._run(run) for run in self.runs if run.sampler == name],
            "median": median,
            "low": low,
            "high": high,
        }  # fmt: skip

    def _run(self, run: Run) -> dict[str, Any]:
        curve = self.curve(run)
        return {
            "seed": run.seed,
            "evaluations": len(run.keys),
            "repeats": run.repeats,
            "reached": {str(level): first_at(curve, level) for level in LEVELS},
            "curve": curve,
        }

    def table(self) -> str:
        """Evaluations until each level: the median, and the range over the runs."""
        from tabulate import tabulate

        rows = [
            [name, len(self.reached(name, 1.0)), self.band(name).shape[1]]
            + [_shown(self.reached(name, level)) for level in LEVELS]
            + [f"{self.band(name)[1][-1]:.1%}"]
            for name in self.samplers
        ]
        heads = ["sampler", "runs", "evaluations", *(f"to {x:.0%}" for x in LEVELS), "at the end"]
        return tabulate(rows, heads, tablefmt="orgtbl", disable_numparse=True)

    def csv(self) -> str:
        """One line for each evaluation of each run."""
        return as_csv(
            {"sampler": run.sampler, "seed": run.seed, "evaluation": place, "hypervolume": share}
            for run in self.runs
            for place, share in enumerate(self.curve(run), 1)
        )


def first_at(curve: Sequence[float], level: float) -> int | None:
    """The number of evaluations after which a curve is at a level; None if it never is."""
    return next((place for place, share in enumerate(curve, 1) if share >= level), None)


def _nothing_to_compare(config: SearchConfig, outcomes: Sequence[Outcome]) -> str:
    """Return the reason why no configuration has a place on a front."""
    reasons = [each.reason for each in outcomes if each.values is None]
    if len(reasons) == len(outcomes):
        return f"every trial failed; the first: {next(iter(reasons), 'none was measured')}"
    bounds = [
        f"{name} {sign} {bound:g}"
        for name, rule in config.strategy.metrics.items()
        for sign, bound in (("at least", rule.min), ("at most", rule.max))
        if bound is not None
    ]
    return f"no configuration that was measured is within all bounds ({', '.join(bounds)})"


def _point(config: SearchConfig, outcome: Outcome) -> Point | None:
    """The objectives, turned so that less is better; None if failed or out of bounds."""
    if outcome.values is None or any(each > 0 for each in outcome.violations.values()):
        return None
    return less_is_better(outcome.values, config.directions)


def _summary(reached: Sequence[int | None]) -> dict[str, Any]:
    there = [each for each in reached if each is not None]
    # Infinite if half of the runs never got there.
    middle = float(np.median([math.inf if each is None else each for each in reached]))
    return {
        "median": middle if math.isfinite(middle) else None,
        "least": min(there, default=None),
        "most": max(there) if len(there) == len(reached) else None,
        "runs": len(there),
    }


def _shown(reached: Sequence[int | None]) -> str:
    found = _summary(reached)
    if not found["runs"]:
        return "never"
    median = "never" if found["median"] is None else f"{found['median']:g}"
    most = "never" if found["most"] is None else found["most"]
    return f"{median} ({found['least']} to {most})" if len(reached) > 1 else median
