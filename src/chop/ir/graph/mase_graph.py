"""`MaseGraph`: a model as a plain `torch.fx.GraphModule` with metadata on its nodes."""

import copy
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import fx, nn

from chop.errors import ConfigError, GraphError
from chop.ir.graph.drawing import draw
from chop.ir.graph.mase_metadata import MaseGraphMetadata, MaseMetadata, copy_containers
from chop.ir.graph.tracing import MaseTracer, split_inputs, trace
from chop.ops.op import MaseType
from chop.preprocessing import Preprocessing, preprocessing_of, set_preprocessing

__all__ = ["MaseGraph", "MaseTracer"]

IMPLICIT = MaseType.IMPLICIT_FUNC.value


class MaseGraph:
    """A traced model and what passes know about it.

    The graph shares the layers of `model` (no weight is copied) but has its own containers:
    replacing a layer in the graph leaves `model` as it was. So does tracing: attributes, buffers,
    modes and hooks are as before, bit for bit, whether it succeeds or not.

    Args:
        model: any module that fx can trace, or an `fx.GraphModule`, which is used as it is.
        cf_args: values of arguments of `forward` that are fixed while tracing. An argument with a
            default that is neither a tensor nor a number, such as ``targets=None``, is fixed to
            it unless it is given here or in `example_inputs`; so is a number if the code of
            `forward` decides by it.
        tracer: what decides which modules and functions stay whole.
        example_inputs: inputs by name. Arguments that are given a tensor are inputs of the graph,
            whatever their defaults; other values are fixed, as in `cf_args`. If fx cannot trace
            `model`, torch.export makes the graph from these inputs, of ATen functions. It holds
            for any number of rows if torch.export can prove that, and refuses other shapes.
    """

    def __init__(
        self,
        model: nn.Module,
        cf_args: Mapping[str, Any] | None = None,
        *,
        tracer: MaseTracer | None = None,
        example_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise GraphError(f"MaseGraph takes a torch.nn.Module, not {type(model).__name__}")
        given, values = split_inputs(example_inputs)
        self.cf_args = {**(cf_args or {}), **values} if values else cf_args
        known = preprocessing_of(model)
        if not isinstance(model, fx.GraphModule):
            model = trace(model, tracer or MaseTracer(), self.cf_args or {}, given)
        self.model: fx.GraphModule = model
        if known is not None:
            self.preprocessing = known
        self.meta: dict[str, Any] = {"mase": MaseGraphMetadata()}
        for node in self.nodes:
            found = node.meta.get("mase")
            # A copied fx graph shares the records of the graph it was copied from.
            if not isinstance(found, MaseMetadata):
                node.meta["mase"] = MaseMetadata(node)
            elif found.node is not node:
                node.meta["mase"] = found.copy_for(node)

    @classmethod
    def from_module(
        cls, model: nn.Module, cf_args: Mapping[str, Any] | None = None, **how: Any
    ) -> "MaseGraph":
        """The same as ``MaseGraph(model, cf_args, ...)``."""
        return cls(model, cf_args, **how)

    @classmethod
    def from_checkpoint(cls, fname: str | Path) -> "MaseGraph":
        """The graph that `export` or ``ch transform`` saved in a folder."""
        graph: MaseGraph = _saving().load_mase_graph(fname)
        return graph

    def export(self, fname: str | Path, save_format: str = "full_model") -> Path:
        """Save the graph, its weights and its metadata in a folder, whose path is returned.

        A folder that holds a graph already is left alone: the graph goes to ``fname-v1``.
        """
        if save_format != "full_model":
            raise ConfigError(
                f"save_format must be 'full_model' (got {save_format!r}): the folder has the "
                "weights by themselves in weights.safetensors"
            )
        _, info = _saving().save_mase_graph_interface_pass(self, fname)
        return Path(info["save_dir"])

    def draw(self, file: str | Path = "mase_graph.svg") -> Path:
        """Draw the graph, from the inputs at the top to the output, as an SVG file."""
        return draw(self.fx_graph, self.modules, file)

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
    def preprocessing(self) -> Preprocessing | None:
        """How the rows were scaled that the model was trained on; None if that is not known."""
        return preprocessing_of(self.model)

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing | None) -> None:
        set_preprocessing(self.model, preprocessing)

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


def _saving() -> Any:
    """Saving and loading are passes, above this layer; the original has them on a graph as well."""
    return import_module("chop.passes.graph.interface")
