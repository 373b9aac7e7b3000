"""`MaseGraph`: a model as a plain `torch.fx.GraphModule` with metadata on its nodes."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_metadata import MaseGraphMetadata, MaseMetadata, copy_containers
from chop.ir.graph.tracing import MaseTracer, trace
from chop.ops.op import MaseType

__all__ = ["MaseGraph", "MaseTracer"]

IMPLICIT = MaseType.IMPLICIT_FUNC.value


class MaseGraph:
    """A traced model and what passes know about it.

    The graph shares the layers of `model` (no weight is copied) but has its own containers:
    replacing a layer in the graph leaves `model` as it was.

    Args:
        model: any module that fx can trace, or an `fx.GraphModule`, which is used as it is.
        cf_args: values of arguments of `forward` that are fixed while tracing.
        tracer: what decides which modules and functions stay whole.
        example_inputs: inputs by name, used only if fx cannot trace `model`: torch.export then
            makes the graph, of ATen functions and for inputs of these shapes.
    """

    def __init__(
        self,
        model: nn.Module,
        cf_args: Mapping[str, Any] | None = None,
        *,
        tracer: MaseTracer | None = None,
        example_inputs: Mapping[str, Tensor] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise GraphError(f"MaseGraph takes a torch.nn.Module, not {type(model).__name__}")
        self.cf_args = cf_args
        if not isinstance(model, fx.GraphModule):
            model = trace(model, tracer or MaseTracer(), cf_args, example_inputs)
        self.model: fx.GraphModule = model
        self.meta: dict[str, Any] = {"mase": MaseGraphMetadata()}
        for node in self.nodes:
            found = node.meta.get("mase")
            # A copied fx graph shares the records of the graph it was copied from.
            if not isinstance(found, MaseMetadata):
                node.meta["mase"] = MaseMetadata(node)
            elif found.node is not node:
                node.meta["mase"] = found.copy_for(node)

    @property
    def fx_graph(self) -> fx.Graph:
        """The graph itself; assigning one recompiles the model."""
        return self.model.graph

    @fx_graph.setter
    def fx_graph(self, graph: fx.Graph) -> None:
        self.model.graph = graph

    @property
    def nodes(self) -> Any:
        """The nodes in the order they run."""
        return self.fx_graph.nodes

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Every module by each of its names; made at each access, so ask once."""
        return dict(self.model.named_modules(remove_duplicate=False))

    @property
    def implicit_nodes(self) -> list[fx.Node]:
        """The nodes that only move or reshape data, once common metadata is there."""
        return [n for n in self.nodes if n.meta["mase"]["common"].get("mase_type") == IMPLICIT]

    def __deepcopy__(self, memo: dict[int, Any]) -> "MaseGraph":
        """A graph with its own weights and records; values that were recorded are shared."""
        twin = MaseGraph(copy.deepcopy(self.model, memo), self.cf_args)
        twin.meta["mase"].parameters = copy_containers(self.meta["mase"].parameters)
        return twin

    def __repr__(self) -> str:
        return f"MaseGraph({type(self.model).__name__}, {len(self.nodes)} nodes)"
