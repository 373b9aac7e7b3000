"""Making pruning permanent."""

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, transform_pass
from chop.passes.graph.transforms.pruning.masks import (
    has_input_mask,
    weight_mask,
    without_input_mask,
    without_weight_mask,
)
from chop.passes.graph.utils import replace_modules


@transform_pass("prune_detach_hook")
def prune_detach_hook_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Leave the zeros in the weights and remove all masks, those of inputs included.

    Afterwards layers are plain again: training moves pruned weights, inputs come as they are.
    """
    modules = graph.modules
    weights = [name for name, module in modules.items() if weight_mask(module) is not None]
    inputs = [name for name, module in modules.items() if has_input_mask(module)]
    plain = {
        modules[name]: without_input_mask(without_weight_mask(modules[name], keep_zeros=True))
        for name in dict.fromkeys([*weights, *inputs])
    }
    replace_modules(graph, plain)
    return graph, {"weight": weights, "activation": inputs}
