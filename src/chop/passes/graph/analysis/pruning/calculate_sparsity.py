"""The sparsity that pruning has achieved."""

from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.pruning.sparsity import ARGUMENTS, layer_zeros, software_entry


class AddPruningMetadataArgs(PassArgs):
    """The inputs to run the graph on, and the values to keep.

    Args:
        dummy_in: inputs by name; by default those that metadata recorded.
        add_value: keep a mask of the elements that are not zero, as `mask_value`.
    """

    dummy_in: dict[str, Any] | None = None
    add_value: bool = False


@analysis_pass("add_pruning_metadata")
def add_pruning_metadata_analysis_pass(
    graph: MaseGraph, args: AddPruningMetadataArgs
) -> tuple[MaseGraph, Info]:
    """Record the fraction of zeros in the weight and the masked input of each layer."""
    info = {}
    for node, found in layer_zeros(graph, args.dummy_in).items():
        for operand, zeros in found._asdict().items():
            entry = software_entry(node, ARGUMENTS[operand])
            entry["sparsity"] = zeros.sparsity
            if args.add_value:
                entry["mask_value"] = zeros.mask
        info[node.name] = {
            "weight_sparsity": found.weight.sparsity,
            "activation_sparsity": found.activation.sparsity,
        }
    return graph, info
