"""Analysis of the number of parameters that learn."""

from typing import Any

from tabulate import tabulate
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, analysis_pass
from chop.passes.graph.analysis.report import show

HEADERS = ("Layer", "Trainable", "All")


@analysis_pass("report_trainable_parameters")
def report_trainable_parameters_analysis_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Print the number of parameters and of trainable parameters of each layer, and the totals."""
    return graph, report_parameters(graph.model)


def report_parameters(model: nn.Module) -> dict[str, Any]:
    """Print the table of a module; the counts by layer and their sums."""
    layers = parameter_counts(model)
    trainable = sum(learning for learning, _ in layers.values())
    every = sum(count for _, count in layers.values())
    rows = [[name, f"{learning:,}", f"{count:,}"] for name, (learning, count) in layers.items()]
    table = tabulate([*rows, ["all", f"{trainable:,}", f"{every:,}"]], HEADERS, "simple",
                     colalign=("left", "right", "right"), disable_numparse=True)  # fmt: skip
    share = trainable / every if every else 0.0
    show(f"{table}\n{trainable:,} of {every:,} parameters learn ({share:.2%})")
    return {"trainable": trainable, "parameters": every, "layers": layers}


def parameter_counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """The parameters that learn and all of them, by layer; shared ones count with the first."""
    seen: set[int] = set()
    found: dict[str, tuple[int, int]] = {}
    for name, module in model.named_modules():
        own = [value for value in module.parameters(recurse=False) if id(value) not in seen]
        seen.update(id(value) for value in own)
        if own:
            learning = sum(value.numel() for value in own if value.requires_grad)
            found[name or type(module).__name__] = learning, sum(value.numel() for value in own)
    return found
