"""Searching: which configurations to try, what they are worth, and the best of them.

`config` reads `[search]` and `strategy` runs the loop: `proposals` asks the `samplers`, `engines`
evaluate with `spaces` and `runners`, and `study` records. On top stand whole experiments
(`learned`, `sweeps`, `contest`); `front` finds the best.

What custom spaces and metrics are made of can be imported from here; it is loaded when asked for.
The package is callable: ``chop.search(model, train=…, val=…)``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from chop.callables import callable_package

if TYPE_CHECKING:
    from chop.search.front.hypervolume import hypervolume, worst_of
    from chop.search.metrics import MetricInfo
    from chop.search.runners import RunnerArgs, hardware_runner, software_runner
    from chop.search.spaces.space import SPACES, Candidate, Choice, SearchSpace, SpaceSetup

_MODULES = {
    "spaces.space": ("SPACES", "Candidate", "Choice", "SearchSpace", "SpaceSetup"),
    "metrics": ("MetricInfo",),
    "runners": ("RunnerArgs", "hardware_runner", "software_runner"),
    "front.hypervolume": ("hypervolume", "worst_of"),
}
__all__ = [
    "SPACES", "Candidate", "Choice", "MetricInfo", "RunnerArgs", "SearchSpace", "SpaceSetup",
    "hardware_runner", "hypervolume", "software_runner", "worst_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"chop.search.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


callable_package(__name__, "chop.verbs.search.front", "search_module")
