"""How configurations are measured: by which runners, on a sample of rows or on all of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from chop.search.spaces.space import Candidate, SearchSpace
from chop.search.study.trial import HARDWARE, SCALED, SOFTWARE, Outcome, Point, less_is_better
from chop.search.study.workers import at_any_moment

if TYPE_CHECKING:
    from chop.search.config import Metric, SearchConfig


class Measure:
    """Measures configurations of one space as one ``[search]`` table asks.

    Runners that look at a sample of rows look at all of them for what may be on the front. What a
    sample gives is at most the true figure, so a configuration that is dominated by it, by one
    that was measured in full, is dominated by any.

    Args:
        in_full: look at all rows for every configuration.
    """

    def __init__(
        self, space: SearchSpace, config: "SearchConfig", *, in_full: bool = False
    ) -> None:
        self.space = space
        self.metrics = config.metrics
        self.directions = config.directions
        self.summed = config.strategy.setup.sum_scaled_metrics
        self.software = config.software()
        self.hardware = config.hardware()
        self.sampled = [
            (runner, full)
            for runner, args in self.hardware
            if runner.in_full and (full := runner.in_full(space.context, args))
        ]
        names = {metric.name for runner, _ in self.sampled for metric in runner.metrics}
        rules = [rule for name, rule in self.metrics.items() if name in names]
        whole = self.directions[0] if self.summed else None
        self.in_full = in_full or not all(grows_worse(r, whole or r.direction) for r in rules)
        self.front: list[Point] = []
        """What was measured in full and is within all bounds, but for what others dominate."""

    def __call__(self, config: dict[str, object]) -> Outcome:
        """Measure; an error is the outcome of this configuration and stops no other."""
        return self.of(lambda: self.space.candidate(config))

    def of(self, make: Callable[[], Candidate]) -> Outcome:
        """The same of a candidate, which is yet to be made."""
        try:
            with at_any_moment():
                return self._measure(make())
        except Exception as error:  # noqa: BLE001  # also an out-of-memory error: the next may fit
            reason = " ".join(str(error).split()) or "no reason given"
            return Outcome(reason=f"{type(error).__name__}: {reason}"[:500])

    def assist(self, config: dict[str, object]) -> bool:
        """Do a part of a trial that another process has under way; False if there is none."""
        candidate = self.space.candidate(config)
        try:
            with at_any_moment():
                return any(
                    runner.helper(candidate, args)
                    for runner, args in self.software
                    if runner.helper
                )
        except Exception:  # noqa: BLE001  # the process whose trial it is finds the same and says so
            return False

    def _measure(self, candidate: Candidate) -> Outcome:
        software: dict[str, float] = {}
        hardware: dict[str, float] = {}
        in_full = dict(self.sampled) if self.in_full else {}
        for found, runners in ((software, self.software), (hardware, self.hardware)):
            for runner, args in runners:
                found |= runner(candidate, in_full.get(runner, args))
        outcome = self._outcome(software, hardware)
        if not self.sampled or self.in_full or self._is_dominated(outcome):
            return outcome
        for runner, args in self.sampled:
            hardware |= runner(candidate, args)
        outcome = self._outcome(software, hardware)
        self._keep(outcome)
        return outcome

    def _is_dominated(self, outcome: Outcome) -> bool:
        """Whether something that was measured in full is better, or the bounds are broken."""
        if not outcome.is_feasible:
            return True
        point = less_is_better(outcome.values or (), self.directions)
        return any(dominates(known, point) for known in self.front)

    def _keep(self, outcome: Outcome) -> None:
        if outcome.is_feasible:
            point = less_is_better(outcome.values or (), self.directions)
            self.front = [each for each in self.front if not dominates(point, each)] + [point]

    def _outcome(self, software: dict[str, float], hardware: dict[str, float]) -> Outcome:
        measured = software | hardware
        scaled = {name: each.scale * measured[name] for name, each in self.metrics.items()}
        return Outcome(
            [sum(scaled.values())] if self.summed else list(scaled.values()),
            {SOFTWARE: software, HARDWARE: hardware, SCALED: scaled},
            {
                name: each.violation(measured[name])
                for name, each in self.metrics.items()
                if each.bounded
            },
        )


def grows_worse(rule: "Metric", direction: str) -> bool:
    """Whether more of a metric is never better, so that too low a figure is too good a one.

    Args:
        direction: of the objective that the metric is a part of.
    """
    is_worse = rule.scale == 0 or (direction == "minimize") == (rule.scale > 0)
    return is_worse and rule.min is None


def dominates(one: Point, other: Point) -> bool:
    """Whether a point is better in some objective and worse in none."""
    return one != other and all(x <= y for x, y in zip(one, other, strict=True))
