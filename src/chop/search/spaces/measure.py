"""Measurement of configurations: by runners, on a sample of rows or on all of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from chop.search.spaces.looks import LOOKS, Look, last_look
from chop.search.spaces.space import Candidate, SearchContext, SearchSpace, make_space
from chop.search.study.trial import (
    HARDWARE,
    SCALED,
    SEEN,
    SOFTWARE,
    Outcome,
    Point,
    less_is_better,
)
from chop.search.study.workers import at_any_moment

if TYPE_CHECKING:
    from chop.search.config import Metric, SearchConfig
    from chop.search.runners import Runner, RunnerArgs


Part = tuple[int, int]
"""The place of a runner among the software runners, and the number of a part of its work."""


class RunnerParts(Protocol):
    """Work of a runner on one candidate whose parts do not depend on each other."""

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are worth evaluating by themselves."""

    def evaluate(self, number: int) -> Any:
        """Evaluate one part, in any process."""

    def keep(self, value: Any) -> None:
        """Keep what came of a part, for the function of the runner to find."""


@dataclass(frozen=True)
class EvaluationRequest:
    """A request to an engine: a configuration, or a part of it."""

    config: dict[str, Any]
    part: Part | None = None
    front: tuple[Point, ...] = ()
    """What was measured in full by others, if trials may stop that it dominates."""


class Measure:
    """Measures configurations of one space as one ``[search]`` table asks.

    Runners that look at a sample of rows look at all of them for what may be on the front. What a
    sample gives is at most the true figure, so a configuration that is dominated by it, by one
    that was measured in full, is dominated by any.

    With `stop_dominated` a configuration is measured on a growing share of the rows, until the best
    that all rows may give is dominated, at that confidence, by one that was measured in full.

    Args:
        in_full: look at all rows for every configuration.
    """

    def __init__(
        self, space: SearchSpace, config: "SearchConfig", *, in_full: bool = False
    ) -> None:
        self.space = space
        self.config = config
        self.always_in_full = in_full
        self.metrics = config.metrics
        self.directions = config.directions
        self.summed = config.strategy.setup.sum_scaled_metrics
        self.software = config.software()
        self.hardware = config.hardware()
        self.confidence = None if in_full else config.strategy.setup.confidence
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the space again in another process."""
        return _make_measure, (self.space.context, self.config, self.always_in_full)

    def evaluator(self) -> "Callable[[EvaluationRequest], Any]":
        """Return what evaluates requests in this process."""
        return self.evaluate

    def evaluate(self, request: "EvaluationRequest") -> Any:
        """Measure a configuration, or a part of it."""
        for point in request.front:
            self._add(point)
        if request.part is None:
            return self(request.config)
        place, number = request.part
        return _guard(lambda: self._parts(request.config, place).evaluate(number))

    def __call__(self, config: dict[str, Any]) -> Outcome:
        """Measure; an error is the outcome of this configuration and stops no other."""
        return self.of(lambda: self.space.candidate(config))

    def of(self, make: Callable[[], Candidate]) -> Outcome:
        """Measure a candidate, which is yet to be made."""
        found: Outcome = _guard(lambda: self._measure(make()))
        return found

    def parts(self, config: dict[str, Any]) -> list[Part]:
        """Return the parts of a configuration that can be evaluated by themselves, if any."""
        return [
            (place, number)
            for place, (runner, _) in enumerate(self.software)
            if runner.parts is not None
            for number in self._parts(config, place).missing()
        ]

    def keep(self, config: dict[str, Any], part: Part, value: Any) -> None:
        """Keep what came of a part, which `__call__` then finds."""
        self._parts(config, part[0]).keep(value)

    def _parts(self, config: dict[str, Any], place: int) -> RunnerParts:
        runner, args = self.software[place]
        assert runner.parts is not None
        return runner.parts(self.space.candidate(config), args)

    def _measure(self, candidate: Candidate) -> Outcome:
        in_full = dict(self.sampled) if self.in_full else {}
        stops = self.confidence is not None
        software = {} if stops else _run(self.software, candidate, {})
        hardware = _run(self.hardware, candidate, in_full)
        look = self._look(candidate, hardware) if stops else None
        if look is not None and not look.is_last:
            reason = f"stopped after {look.rows} of {look.of} rows: dominated"
            stopped = self._outcome(look.metrics, hardware, (look.rows, look.of))
            return replace(stopped, reason=reason)
        seen = None if look is None else (look.of, look.of)
        software = software if look is None else look.metrics
        outcome = self._outcome(software, hardware, seen)
        if self.sampled and not self.in_full:
            if self._is_dominated(outcome):
                return outcome
            hardware |= _run(self.sampled, candidate, {})
            outcome = self._outcome(software, hardware, seen)
        self.keep_front([outcome])
        return outcome

    def _look(self, candidate: Candidate, hardware: dict[str, float]) -> Look:
        """Look at more and more rows, until the best that all can give is dominated."""
        (runner, args), *_ = self.software
        names = [name for name in self.metrics if name not in hardware]
        risk = (1 - (self.confidence or 0.0)) / max(1, len(names))

        def is_hopeless(look: Look) -> bool:
            best = dict(look.metrics)
            for name in names:
                best[name] = (look.low if self._wants_less(name) else look.high)[name]
            values = self._outcome(best, hardware).values or ()
            point = less_is_better(values, self.directions)
            return any(dominates(known, point) for known in self.front)

        return last_look(LOOKS[runner.name](candidate, args, risk), is_hopeless)

    def _wants_less(self, name: str) -> bool:
        rule = self.metrics[name]
        return wants_less(rule, self.directions[0] if self.summed else rule.direction)

    def _is_dominated(self, outcome: Outcome) -> bool:
        """Return whether something measured in full is better, or the bounds are broken."""
        if not outcome.is_feasible:
            return True
        point = less_is_better(outcome.values or (), self.directions)
        return any(dominates(known, point) for known in self.front)

    def keep_front(self, outcomes: Iterable[Outcome]) -> None:
        """Take note of what was measured in full, if anything depends on that."""
        if self.sampled or self.confidence is not None:
            for outcome in outcomes:
                if outcome.is_feasible and not outcome.is_stopped:
                    self._add(less_is_better(outcome.values or (), self.directions))

    def _add(self, point: Point) -> None:
        if not any(known == point or dominates(known, point) for known in self.front):
            self.front = [each for each in self.front if not dominates(point, each)] + [point]

    def _outcome(
        self,
        software: dict[str, float],
        hardware: dict[str, float],
        seen: tuple[int, int] | None = None,
    ) -> Outcome:
        measured = software | hardware
        scaled = {name: each.scale * measured[name] for name, each in self.metrics.items()}
        return Outcome(
            [sum(scaled.values())] if self.summed else list(scaled.values()),
            {SOFTWARE: software, HARDWARE: hardware, SCALED: scaled}
            | ({} if seen is None else {SEEN: seen}),
            {
                name: each.violation(measured[name])
                for name, each in self.metrics.items()
                if each.is_bounded
            },
        )


def _make_measure(context: SearchContext, config: "SearchConfig", in_full: bool) -> Measure:
    stated = config.search_space
    space = make_space(stated.name, context, stated.setup, stated.seed)
    return Measure(space, config, in_full=in_full)


def _guard(work: Callable[[], Any]) -> Any:
    """Return what comes of `work`, or the reason why nothing does."""
    try:
        with at_any_moment():
            return work()
    except Exception as error:  # noqa: BLE001  # also an out-of-memory error: the next may fit
        reason = " ".join(str(error).split()) or "no reason given"
        return Outcome(reason=f"{type(error).__name__}: {reason}"[:500])


def _run(
    runners: "Sequence[tuple[Runner, RunnerArgs]]", candidate: Candidate, instead: dict[Any, Any]
) -> dict[str, float]:
    """Measure a candidate by runners, some of them with other settings."""
    found: dict[str, float] = {}
    for runner, args in runners:
        found |= runner(candidate, instead.get(runner, args))
    return found


def wants_less(rule: "Metric", direction: str) -> bool:
    """Return whether a lower figure of a metric makes its objective better."""
    return (direction == "minimize") == (rule.scale > 0)


def grows_worse(rule: "Metric", direction: str) -> bool:
    """Return whether more of a metric is never better, so that too low a figure is too good a one.

    Args:
        direction: of the objective that the metric is a part of.
    """
    return (rule.scale == 0 or wants_less(rule, direction)) and rule.min is None


def dominates(one: Point, other: Point) -> bool:
    """Return whether a point is better in some objective and worse in none."""
    return one != other and all(x <= y for x, y in zip(one, other, strict=True))
