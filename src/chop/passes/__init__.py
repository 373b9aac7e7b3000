"""Passes: functions that analyse, change, save or load a graph; each can be imported from here.

`base` says what a pass is and how a custom one is declared, `graph` holds the passes on graphs, and
`module` what works on a plain module.
"""

from typing import Any

from chop.passes import graph
from chop.passes.base import (
    ANALYSIS_PASSES,
    INTERFACE_PASSES,
    PASSES,
    TRANSFORM_PASSES,
    Info,
    Pass,
    PassArgs,
    analysis_pass,
    interface_pass,
    transform_pass,
)

__all__ = [
    "ANALYSIS_PASSES",
    "INTERFACE_PASSES",
    "PASSES",
    "TRANSFORM_PASSES",
    "Info",
    "Pass",
    "PassArgs",
    "analysis_pass",
    "graph",
    "interface_pass",
    "transform_pass",
]


def __getattr__(name: str) -> Any:
    """Every public name of `chop.passes.graph`, so that it is listed in one place only."""
    if name in graph.__all__:
        return getattr(graph, name)
    raise AttributeError(f"module 'chop.passes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *graph.__all__})
