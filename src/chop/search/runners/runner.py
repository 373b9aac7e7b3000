"""A runner: a named function that measures candidates, and the registries of them."""

import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from chop.errors import ConfigError, SearchError
from chop.registry import Registry
from chop.search.metrics import METRICS, MetricInfo
from chop.search.spaces.measure import RunnerParts
from chop.search.spaces.space import Candidate, SearchContext
from chop.search.study.trial import Metrics
from chop.validation import parse

Divide = Callable[[Candidate, Any], RunnerParts]
InFull = Callable[[SearchContext, Any], "RunnerArgs | None"]
Stated = Sequence[str | MetricInfo]


class RunnerArgs(BaseModel):
    """The settings of a runner: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Runner:
    """A named function that measures candidates.

    Args:
        parts: divides its work on a candidate, so that several processes share it.
        in_full: the settings with which it looks at everything, where it usually looks at a sample
            and so gives at most the true figure; None if the sample is everything.
        regression: whether it measures networks that predict numbers; None if that does not matter.
    """

    def __init__(
        self,
        function: Callable[..., Metrics],
        name: str,
        metrics: Stated,
        parts: Divide | None = None,
        regression: bool | None = None,
        in_full: InFull | None = None,
    ) -> None:
        self.regression = regression
        self.in_full = in_full
        self.function = function
        self.name = name
        self.metrics = tuple(
            METRICS.get(m, MetricInfo(m)) if isinstance(m, str) else m for m in metrics
        )
        self._promised = {metric.name for metric in self.metrics}
        self.parts = parts
        self.__doc__ = function.__doc__
        self.schema = _schema(function)

    def parse(self, given: Mapping[str, Any], where: str) -> RunnerArgs:
        """The settings as the function takes them."""
        return parse(self.schema or RunnerArgs, given, where)

    def __call__(self, candidate: Candidate, args: RunnerArgs) -> dict[str, float]:
        """Measure; what comes back must be what was promised."""
        found = self.function(candidate, args) if self.schema else self.function(candidate)
        if found.keys() != self._promised:
            raise SearchError(
                f"runner {self.name!r} promises {sorted(self._promised)} and gave {sorted(found)}"
            )
        for name, value in found.items():
            if not math.isfinite(value):
                raise SearchError(f"{name} is {value}")
        return {name: float(found[name]) for name, _, _ in self.metrics}


SW_RUNNERS: Registry[Runner] = Registry("software runner")
HW_RUNNERS: Registry[Runner] = Registry("hardware runner")

Declare = Callable[[Callable[..., Metrics]], Callable[..., Metrics]]


def software_runner(
    name: str, metrics: Stated, parts: Divide | None = None, regression: bool | None = None
) -> Declare:
    """Declare what measures how well a candidate does its work."""
    return _declare(SW_RUNNERS, name, metrics, parts=parts, regression=regression)


def hardware_runner(name: str, metrics: Stated, in_full: InFull | None = None) -> Declare:
    """Declare what measures what a candidate costs."""
    return _declare(HW_RUNNERS, name, metrics, in_full=in_full)


def _declare(registry: Registry[Runner], name: str, metrics: Stated, **more: Any) -> Declare:
    def add(function: Callable[..., Metrics]) -> Callable[..., Metrics]:
        registry.add(name, Runner(function, name, metrics, **more))
        return function

    return add


def _schema(function: Callable[..., Any]) -> type[RunnerArgs] | None:
    """The class that annotates the second argument, if there is one."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2:
        return None
    annotation = typing.get_type_hints(function).get(parameters[1].name)
    if isinstance(annotation, type) and issubclass(annotation, RunnerArgs):
        return annotation
    raise ConfigError(
        f"{function.__name__}: its second argument must be annotated with a RunnerArgs class"
    )
