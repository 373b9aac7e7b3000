"""Analysis of the hooks that the layers of a graph carry."""

from collections.abc import Callable
from typing import Any

from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, analysis_pass

KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@analysis_pass("hook_inspection")
def hook_inspection_analysis_pass(graph: MaseGraph, args: PassArgs) -> tuple[MaseGraph, Info]:
    """List the hooks on the modules of a graph: ``{"<module>_<id>": (id, function)}``."""
    return graph, {
        f"{name}_{number}": (number, hook)
        for name, module in graph.model.named_modules()
        for number, hook in hooks_of(module).items()
    }


def hooks_of(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """The hooks of one module by their numbers, which torch gives out only once."""
    return {number: hook for kind in KINDS for number, hook in getattr(module, kind).items()}
