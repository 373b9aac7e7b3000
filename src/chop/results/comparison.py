"""Samplers compared: which finds how much of the front in how many evaluations.

Several samplers search one space, each with several seeds. A trial is a function of its
configuration, so what one run has measured the others look up (`runs`); each run still counts
every distinct configuration that it asks for.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from chop import figures
from chop.charts import Band, LineChart, Points
from chop.errors import SearchError
from chop.files import write_text
from chop.runs import COMPARISON_FILE, Count, read_stored
from chop.search.config import SearchConfig
from chop.search.contest import Run
from chop.search.front.hypervolume import (
    front_of,
    hypervolume,
    hypervolume_history,
    worst_of,
)
from chop.search.study.trial import Outcome, Point, less_is_better
from chop.tables import ResultTable, as_csv

TRUE_FRONT = "the true front"
BEST_FRONT = "the front of all configurations that any run has measured"
SHORT = {TRUE_FRONT: "true front", BEST_FRONT: "best front known"}
LEVELS = (0.9, 0.95, 0.99)
BAND = (0.1, 0.5, 0.9)

Share = Annotated[float, Field(ge=0, le=2)]


class ReachedLevel(BaseModel):
    """Evaluations until a share of the hypervolume was reached, over the runs of a sampler."""

    median: float | None = None
    least: Count | None = None
    most: Count | None = None
    runs: Count

    @classmethod
    def of(cls, reached: Sequence[int | None]) -> "ReachedLevel":
        """Return the summary of runs, some of which may not have got there."""
        there = [each for each in reached if each is not None]
        # Infinite if half of the runs never got there.
        middle = float(np.median([math.inf if each is None else each for each in reached]))
        return cls(
            median=middle if math.isfinite(middle) else None,
            least=min(there, default=None),
            most=max(there) if len(there) == len(reached) else None,
            runs=len(there),
        )

    def text(self, number: Callable[[float | None], str], missing: str) -> str:
        """Return the median and the range; `missing` is said if most runs never got there."""
        if not self.runs:
            return "never"
        middle = missing if self.median is None else number(self.median)
        most = "never" if self.most is None else number(self.most)
        return f"{middle} ({number(self.least)} to {most})"


class ComparedSampler(BaseModel):
    """The share of the hypervolume after each evaluation, over the runs of one sampler."""

    reached: dict[Share, ReachedLevel]
    runs: list[dict[str, Any]]
    median: list[Share] = Field(min_length=1)
    low: list[Share] = Field(min_length=1)
    high: list[Share] = Field(min_length=1)


class SamplerComparison(BaseModel):
    """A comparison of samplers, as ``comparison.json`` holds it and the page shows it."""

    space_size: int
    measured: int = 0
    objectives: list[str] = []
    directions: list[str] = []
    normalised_by: str
    hypervolume: float = 0.0
    reference: list[float] = []
    front: list[list[float]] = []
    samplers: dict[str, ComparedSampler] = Field(min_length=1)

    def save(self, folder: Path) -> None:
        """Write ``comparison.json``."""
        text = json.dumps(self.model_dump(mode="json"), indent=2)
        write_text(folder / COMPARISON_FILE, text + "\n")

    @classmethod
    def load(cls, path: Path) -> "SamplerComparison":
        """Read what `save` wrote."""
        return read_stored(cls, path, f"{path.parent.name}/{path.name}")

    @property
    def levels(self) -> list[float]:
        """The shares that samplers were to reach."""
        return list(dict.fromkeys(x for each in self.samplers.values() for x in each.reached))

    def rows(self) -> ResultTable:
        """Return a row for each sampler: its runs, and its evaluations until each level."""
        headers = (
            "Sampler", "Runs", *(f"evaluations to {100 * level:g} %" for level in self.levels)
        )  # fmt: skip
        rows = [
            (name, figures.number(len(each.runs)),
             *(found.text(figures.number, "not by most") if found else ""
               for found in map(each.reached.get, self.levels)))
            for name, each in self.samplers.items()
        ]  # fmt: skip
        return ResultTable(headers, rows, "Samplers compared", text_columns=1)

    def table(self) -> str:
        """Return the same for a terminal, with the share at the end."""
        from tabulate import tabulate

        rows = [
            [name, len(each.runs), len(each.median)]
            + [_short(each.reached[level], len(each.runs)) for level in LEVELS]
            + [f"{each.median[-1]:.1%}"]
            for name, each in self.samplers.items()
        ]
        heads = ["sampler", "runs", "evaluations", *(f"to {x:.0%}" for x in LEVELS), "at the end"]
        return tabulate(rows, heads, tablefmt="orgtbl", disable_numparse=True)

    def chart(self) -> LineChart:
        """Return the median of each sampler as a line, the middle 80 % of its runs as a band."""
        named = {f"{name} ({len(each.runs)} run{'s' * (len(each.runs) != 1)})": each
                 for name, each in self.samplers.items()}  # fmt: skip
        return LineChart(
            "Median of the runs, and where eight of ten of them are",
            "distinct configurations evaluated",
            f"hypervolume, {SHORT.get(self.normalised_by, 'best front')} = 1",
            {name: _points(each.median) for name, each in named.items()},
            {name: Band(_points(each.low), _points(each.high)) for name, each in named.items()},
            steps=True,
            from_zero=True,
            logarithmic="x",  # most is gained early
            levels=tuple(self.levels),
        )


def _short(reached: ReachedLevel, runs: int) -> str:
    """Return a level for the terminal, without a range if there is one run."""
    text = reached.text("{:g}".format, "never")
    return text if runs > 1 else text.partition(" ")[0]


def _points(shares: Sequence[float]) -> Points:
    return [(float(place), share) for place, share in enumerate(shares, 1)]


class Comparison:
    """Runs on one space, measured on the scale that they have in common.

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

    def evaluations_to(self, sampler: str, level: float) -> list[int | None]:
        """The evaluations after which each run of a sampler had so large a share, if ever."""
        curves = [self.curve(run) for run in self.runs if run.sampler == sampler]
        return [first_at(curve, level) for curve in curves]

    def result(self, space_size: int) -> SamplerComparison:
        """Return everything as the value that is stored and shown."""
        return SamplerComparison(
            space_size=space_size,
            measured=self.measured,
            objectives=list(self.config.metrics),
            directions=list(self.config.directions),
            normalised_by=self.normalised_by,
            hypervolume=self.whole,
            reference=list(self.reference),
            front=[list(point) for point in self.front],
            samplers={name: self._sampler(name) for name in self.samplers},
        )

    def _sampler(self, name: str) -> ComparedSampler:
        low, median, high = self.band(name).tolist()
        return ComparedSampler(
            reached={level: ReachedLevel.of(self.evaluations_to(name, level)) for level in LEVELS},
            runs=[self._run(run) for run in self.runs if run.sampler == name],
            median=median,
            low=low,
            high=high,
        )

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
        """Return the evaluations until each level: the median, and the range over the runs."""
        return self.result(0).table()

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
