"""Runners, which measure candidates: software (how good) and hardware (how costly) metrics.

A custom metric is one decorated function:

    @hardware_runner("weights", metrics=(MetricInfo("weight_count", "weights", "minimize"),))
    def weights(candidate: Candidate) -> dict[str, float]:
        return {"weight_count": sum(p.numel() for p in candidate.model.parameters())}

``[search.strategy.hw_runner.weights]`` then measures it. A metric may also be a plain name, without
unit and direction. A second argument that is annotated with a class derived from `RunnerArgs`
receives the keys of that table, checked. The units of chop's own metrics are in `metrics`.
"""

from chop.search.runners import hardware, programs  # noqa: F401  # registers their runners
from chop.search.runners.runner import (
    HW_RUNNERS,
    SW_RUNNERS,
    Runner,
    RunnerArgs,
    hardware_runner,
    software_runner,
)
from chop.search.runners.software import EvaluationArgs, LoaderName, loss_and_accuracy
from chop.search.spaces.space import Candidate

__all__ = [
    "HW_RUNNERS", "SW_RUNNERS", "Candidate", "EvaluationArgs", "LoaderName", "Runner", "RunnerArgs",
    "hardware_runner", "loss_and_accuracy", "software_runner",
]  # fmt: skip
