"""The zeros that are there anyway, in weights and in what flows into layers."""

from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.pruning.sparsity import (
    ARGUMENTS,
    Zeros,
    layer_zeros,
    software_entry,
)


class AddNaturalSparsityArgs(PassArgs):
    """The inputs to run the graph on, and a flag to write the results into the metadata.

    Args:
        dummy_in: inputs by name; by default those that metadata recorded.
        add_meta: write the fractions into the metadata of each node.
    """

    dummy_in: dict[str, Any] | None = None
    add_meta: bool = True


@analysis_pass("add_natural_sparsity")
def add_natural_sparsity_metadata_analysis_pass(
    graph: MaseGraph, args: AddNaturalSparsityArgs
) -> tuple[MaseGraph, Info]:
    """Measure the fraction of zeros in each layer's weight and input, and the averages of both."""
    layers = layer_zeros(graph, args.dummy_in)
    info: Info = {}
    for operand in ARGUMENTS:
        measured = {node: getattr(found, operand) for node, found in layers.items()}
        for node, zeros in measured.items():
            info[f"{node.name}_{operand}"] = (zeros.elements, zeros.sparsity)
            if args.add_meta:
                software_entry(node, ARGUMENTS[operand])["natural_sparsity"] = zeros.sparsity
        info[f"avg_{operand}"] = overall(list(measured.values()))
    return graph, info


def overall(tensors: list[Zeros]) -> float:
    """The fraction of zeros in several tensors together."""
    elements = sum(each.elements for each in tensors)
    return sum(each.zeros for each in tensors) / elements if elements else 0.0
