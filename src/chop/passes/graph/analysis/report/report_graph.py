"""The graph as text, with counts of its nodes and a list of its layers."""

from pathlib import Path

from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.report.output import show_or_save

FX_OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")


class ReportGraphArgs(PassArgs):
    """Where the report goes: a file, or standard output if there is no `file_name`."""

    file_name: Path | None = None


@analysis_pass("report_graph")
def report_graph_analysis_pass(graph: MaseGraph, args: ReportGraphArgs) -> tuple[MaseGraph, Info]:
    """Print the graph, how many nodes of each kind it has, and its layers."""
    counts = node_counts(graph)
    layers = graph_layers(graph)
    text = "\n".join(
        [str(graph.fx_graph), "Network overview:", str(counts), "Layer types:", str(layers)]
    )
    show_or_save(text, args.file_name)
    return graph, {"counts": counts, "layer_types": [type(layer).__name__ for layer in layers]}


def node_counts(graph: MaseGraph) -> dict[str, int]:
    """How many nodes there are of each fx kind, kinds without nodes included."""
    counts = dict.fromkeys(FX_OPS, 0)
    for node in graph.nodes:
        counts[node.op] += 1
    return counts


def graph_layers(graph: MaseGraph) -> list[nn.Module]:
    """The modules that are called, in order, as often as they are called."""
    modules = graph.modules
    return [modules[node.target] for node in graph.nodes if node.op == "call_module"]
