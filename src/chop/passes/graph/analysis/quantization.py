"""The average width of what a graph stores and of what flows through it.

`calculate_flops_pass` can be imported from here because the labs do so.
"""

from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.flops.count import NodeCounter
from chop.passes.graph.analysis.flops.module import calculate_flops_pass
from chop.passes.graph.analysis.flops.node_count import NodeCount
from chop.passes.graph.analysis.flops.operands import average, observe

__all__ = ["calculate_avg_bits_mg_analysis_pass", "calculate_flops_pass"]


class CalculateAvgBitsArgs(PassArgs):
    """Inputs by name, for their shapes; by default those that metadata recorded."""

    dummy_in: dict[str, Any] | None = None


@analysis_pass("calculate_avg_bits")
def calculate_avg_bits_mg_analysis_pass(
    graph: MaseGraph, args: CalculateAvgBitsArgs
) -> tuple[MaseGraph, Info]:
    """Average the bits over all parameters, and over all activations that arithmetic reads.

    Each element has the same weight. Unquantised elements have the width of their dtype.
    """
    counter = NodeCounter(graph, observe(graph, args.dummy_in))
    nodes = {node.name: each for node, each in counter.nodes().items()}
    data = [each for each in nodes.values() if each.flops != 0]
    stored = counter.unique_parameters()
    return graph, {
        "data_avg_bit": average(
            sum(each.input_buffer_bits for each in data),
            sum(each.input_buffer_size for each in data),
        ),
        "w_avg_bit": average(sum(stored.values()), sum(each.numel() for each in stored)),
        "nodes": node_averages(nodes),
    }


def node_averages(nodes: dict[str, NodeCount]) -> dict[str, dict[str, float]]:
    """The same for each node, with how many elements it is the average of."""
    return {
        name: {
            "data_avg_bit": average(each.input_buffer_bits, each.input_buffer_size),
            "data_size": each.input_buffer_size,
            "w_avg_bit": average(each.parameter_bits, each.parameters),
            "w_size": each.parameters,
        }
        for name, each in nodes.items()
        if each.flops != 0 or each.parameters
    }
