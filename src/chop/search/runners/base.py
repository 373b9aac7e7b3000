"""What measures a candidate.

A metric of one's own is one decorated function:

    @hardware_runner("weights", metrics=("weight_count",))
    def weights(candidate: Candidate) -> dict[str, float]:
        return {"weight_count": sum(p.numel() for p in candidate.model.parameters())}

``[search.strategy.hw_runner.weights]`` then measures it. A second argument that is annotated with
a class derived from `RunnerArgs` receives the keys of that table, checked.
"""

import inspect
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from chop.errors import ConfigError, SearchError
from chop.registry import Registry
from chop.search.context import Candidate
from chop.validation import parse

Metrics = Mapping[str, float]
Helper = Callable[[Candidate, Any], bool]


class RunnerArgs(BaseModel):
    """The settings of a runner: frozen, and no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Runner:
    """A named function that measures candidates.

    Args:
        helper: does one part of what `function` does, for a process that has nothing else to do;
            False if there is none left.
    """

    def __init__(
        self,
        function: Callable[..., Metrics],
        name: str,
        metrics: tuple[str, ...],
        helper: Helper | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.metrics = metrics
        self._promised = set(metrics)
        self.helper = helper
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
                f"runner {self.name!r} promises {sorted(self.metrics)} and gave {sorted(found)}"
            )
        for name, value in found.items():
            if not math.isfinite(value):
                raise SearchError(f"{name} is {value}")
        return {name: float(found[name]) for name in self.metrics}


SW_RUNNERS: Registry[Runner] = Registry("software runner")
HW_RUNNERS: Registry[Runner] = Registry("hardware runner")

Declare = Callable[[Callable[..., Metrics]], Callable[..., Metrics]]


def software_runner(name: str, metrics: tuple[str, ...], helper: Helper | None = None) -> Declare:
    """Declare what measures how well a candidate does its work."""
    return _declare(SW_RUNNERS, name, metrics, helper)


def hardware_runner(name: str, metrics: tuple[str, ...]) -> Declare:
    """Declare what measures what a candidate costs."""
    return _declare(HW_RUNNERS, name, metrics)


def _declare(
    registry: Registry[Runner], name: str, metrics: tuple[str, ...], helper: Helper | None = None
) -> Declare:
    def add(function: Callable[..., Metrics]) -> Callable[..., Metrics]:
        registry.add(name, Runner(function, name, tuple(metrics), helper))
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
