"""The zeros among the numbers that layers compute with."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.nn.quantized import QuantizedModule
from chop.passes.graph.analysis.flops.operands import recorded_results


class Zeros(NamedTuple):
    """The zeros of a tensor, as counts and, inverted, as a mask."""

    elements: int
    zeros: int
    mask: Tensor

    @property
    def sparsity(self) -> float:
        """The fraction of elements that are zero."""
        return self.zeros / self.elements if self.elements else 0.0


class LayerZeros(NamedTuple):
    """The zeros of the weight and of the input of a layer, at one node."""

    weight: Zeros
    activation: Zeros


def zeros_of(tensor: Tensor) -> Zeros:
    """The zeros of a tensor."""
    mask = tensor.detach() != 0
    return Zeros(mask.numel(), mask.numel() - int(mask.sum()), mask)


def seen_weight(module: nn.Module) -> Tensor:
    """The weight as the forward of the module sees it: pruned and, if it is quantised, rounded."""
    if isinstance(module, QuantizedModule):
        return module.get_quantized_weight()
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight


def weighted_nodes(graph: MaseGraph) -> dict[fx.Node, nn.Module]:
    """The nodes that call a layer that multiplies activations by a matrix or a kernel."""
    modules = graph.modules
    found: dict[fx.Node, nn.Module] = {}
    for node in graph.fx_graph.find_nodes(op="call_module"):
        module = modules[node.target]
        weight = getattr(module, "weight", None)
        is_matrix = isinstance(weight, Tensor) and weight.dim() > 1
        if is_matrix and not isinstance(module, nn.Embedding):
            found[node] = module
    return found


def layer_zeros(graph: MaseGraph, dummy_in: Mapping[str, Any] | None) -> dict[fx.Node, LayerZeros]:
    """The zeros of every weighted layer in a run on `dummy_in`, which leaves no trace."""
    layers = weighted_nodes(graph)
    found: dict[fx.Node, LayerZeros] = {}
    inputs = inputs_in_metadata(graph) if dummy_in is None else dummy_in
    with inputs_seen(set(layers.values())) as seen:

        def keep(node: fx.Node, result: Any) -> None:
            if node in layers:
                module = layers[node]
                found[node] = LayerZeros(zeros_of(seen_weight(module)), seen[module])

        run_graph(graph, inputs, after=keep)
    return found


@contextmanager
def inputs_seen(modules: set[nn.Module]) -> Iterator[dict[nn.Module, Zeros]]:
    """The zeros of the latest input of each module, after any hook that masks it."""
    seen: dict[nn.Module, Zeros] = {}

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen[module] = zeros_of(args[0])

    # Hooks run in the order they were added, so this one sees what all the others have done.
    handles = [module.register_forward_pre_hook(look) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def inputs_in_metadata(graph: MaseGraph) -> dict[str, Any]:
    """The inputs that metadata recorded with their values."""
    inputs = {
        node.name: recorded_results(node)["data_out_0"].get("value")
        for node in graph.fx_graph.find_nodes(op="placeholder")
    }
    for name, value in inputs.items():
        if value is None or (isinstance(value, Tensor) and value.is_meta):
            raise GraphError(f"no value was recorded for the input {name!r}: give dummy_in")
    return inputs


def software_entry(node: fx.Node, name: str) -> dict[str, Any]:
    """The place for findings about one argument of a node, made if it is not there."""
    arguments = node.meta["mase"]["software"].setdefault("args", {})
    entry: dict[str, Any] = arguments.setdefault(name, {"stat": {}})
    return entry


ARGUMENTS = {"weight": "weight", "activation": "data_in_0"}
"""What metadata calls the two operands of a layer."""
