"""`MaseGraph`: a model as a plain `torch.fx.GraphModule` with metadata on its nodes.

What is known of a node and of a graph are three sections of nested dictionaries. They stay open,
because the labs index them and passes add their own entries; the `TypedDict`s say what the passes
of this package put there.
"""

import copy
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError, GraphError
from chop.ir.graph.drawing import draw
from chop.ir.graph.hf_inputs import inputs_by_name
from chop.ir.graph.opaque import looked_into
from chop.ir.graph.shapes import ShapedGraphModule
from chop.ir.graph.tracing import MaseTracer, first_argument, split_inputs, trace
from chop.ops.op import MaseType
from chop.preprocessing import Preprocessing, preprocessing_of, set_preprocessing

__all__ = ["MaseGraph", "MaseTracer"]
IMPLICIT = MaseType.IMPLICIT_FUNC.value
SECTIONS = ("common", "software", "hardware")


class MaseGraph:
    """A traced model and what passes know about it.

    The graph shares the layers of `model` (no weight is copied) but has its own containers:
    replacing a layer in the graph leaves `model` as it was. So does tracing: attributes, buffers,
    modes and hooks are as before, bit for bit, whether it succeeds or not.

    Args:
        model: any module that fx can trace, or an `fx.GraphModule`, which is used as it is.
        cf_args: values of arguments of `forward` that are fixed while tracing. An argument with a
            default, such as ``targets=None``, is fixed to it unless it is given here or in
            `example_inputs`.
        tracer: what decides which modules and functions stay whole.
        example_inputs: inputs by name, or one tensor for the first argument. Arguments that are
            given a tensor are inputs of the graph, whatever their defaults; other values are
            fixed, as in `cf_args`. The graph is run on these inputs once, and must give what the
            model gives. If fx cannot trace `model` or its graph gives something else, torch.export
            makes the graph from these inputs, and it is lifted to layers and functions as fx
            records them. It holds for any number of rows and length of a sequence for which
            torch.export can prove that, and refuses other shapes.
        hf_input_names: inputs that a model of transformers is to have, such as ``input_ids`` and
            ``attention_mask``; examples of them are made from its configuration.
    """

    hf_inputs: dict[str, Tensor] | None = None
    """The examples that were made for `hf_input_names`."""

    def __init__(
        self,
        model: nn.Module,
        cf_args: Mapping[str, Any] | None = None,
        *,
        tracer: MaseTracer | None = None,
        example_inputs: Mapping[str, Any] | Tensor | None = None,
        hf_input_names: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise GraphError(f"MaseGraph takes a torch.nn.Module, not {type(model).__name__}")
        if hf_input_names is not None:
            self.hf_inputs = inputs_by_name(model, hf_input_names)
        example_inputs = self._by_name(model, example_inputs)
        given, values = (None, {}) if example_inputs is None else split_inputs(example_inputs)
        self.cf_args = {**(cf_args or {}), **values} if values else cf_args
        known = preprocessing_of(model)
        self.model: fx.GraphModule
        if isinstance(model, fx.GraphModule):
            self.model = model
        else:
            self._trace(model, tracer or MaseTracer(), given)
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

    def _trace(self, model: nn.Module, tracer: MaseTracer, given: Mapping[str, Any] | None) -> None:
        self.model = trace(model, tracer, self.cf_args or {}, given)
        if given and not isinstance(self.model, ShapedGraphModule):
            self.model = looked_into(self, model, tracer, given)

    def _by_name(
        self, model: nn.Module, given: Mapping[str, Any] | Tensor | None
    ) -> Mapping[str, Any] | None:
        """The example inputs by name."""
        if isinstance(given, Tensor):
            return {first_argument(model): given}
        return self.hf_inputs if given is None else given

    @classmethod
    def from_module(
        cls, model: nn.Module, cf_args: Mapping[str, Any] | None = None, **how: Any
    ) -> "MaseGraph":
        """The same as ``MaseGraph(model, cf_args, ...)``."""
        return cls(model, cf_args, **how)

    @classmethod
    def from_checkpoint(cls, fname: str | Path) -> "MaseGraph":
        """The graph that `export` or ``ch transform`` saved in a folder."""
        graph: MaseGraph = _storage().load_mase_graph(fname)
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
        folder: Path = _storage().save_graph(self, Path(fname)).folder
        return folder

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
        """The scaling of the rows that the model was trained on; None if that is not known."""
        return preprocessing_of(self.model)

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing | None) -> None:
        set_preprocessing(self.model, preprocessing)

    @property
    def implicit_nodes(self) -> list[fx.Node]:
        """The nodes that only move or reshape data, once common metadata is there."""
        return [n for n in self.nodes if n.meta["mase"]["common"].get("mase_type") == IMPLICIT]

    def check_inputs(self, values: Sequence[Any]) -> None:
        """Raise GraphError for shapes that a graph made by torch.export does not hold for."""
        if isinstance(self.model, ShapedGraphModule):
            self.model.check_inputs(values)

    def __deepcopy__(self, memo: dict[int, Any]) -> "MaseGraph":
        """A graph with its own weights and records; values that were recorded are shared."""
        twin = MaseGraph(copy.deepcopy(self.model, memo), self.cf_args)
        twin.meta["mase"].parameters = copy_containers(self.meta["mase"].parameters)
        twin.hf_inputs = self.hf_inputs
        return twin

    def __repr__(self) -> str:
        return f"MaseGraph({type(self.model).__name__}, {len(self.nodes)} nodes)"


def _storage() -> Any:
    """The room of saving and loading, which imports this module."""
    return import_module("chop.ir.stored")


class TensorEntry(TypedDict, total=False):
    """A tensor that goes into a node or comes out of it."""

    type: str | None
    precision: list[Any] | None
    shape: list[int] | None
    torch_dtype: torch.dtype | None
    value: Tensor


ParameterEntry = TypedDict(
    "ParameterEntry",
    {"type": str, "precision": list[Any], "shape": list[int], "from": None, "value": Tensor},
    total=False,
)
"""A parameter of a module; `from` is kept, always None, because the labs print it."""


class CommonMetadata(TypedDict, total=False):
    """The operation of a node, its operands and its results.

    Tensors are entries (`TensorEntry`, `ParameterEntry`), other arguments are stored bare.
    """

    mase_type: str
    mase_op: str
    args: dict[str, Any]
    results: dict[str, Any]


class SoftwareEntry(TypedDict, total=False):
    """The findings of software passes about one argument or result."""

    stat: dict[str, Any]


class SoftwareMetadata(TypedDict, total=False):
    """Findings about the arguments and results of a node, named as in the common section."""

    args: dict[str, SoftwareEntry]
    results: dict[str, SoftwareEntry]


class Sections(TypedDict):
    """The three sections of a record."""

    common: CommonMetadata
    software: SoftwareMetadata
    hardware: dict[str, Any]


def empty_sections() -> Sections:
    """Three sections with nothing in them."""
    return {"common": {}, "software": {}, "hardware": {}}


class MaseGraphMetadata:
    """The record of a whole graph: its inputs, outputs and findings."""

    def __init__(self) -> None:
        self.parameters: Sections = empty_sections()

    def __getitem__(self, section: str) -> Any:
        return self.parameters[section]  # type: ignore[literal-required]


class MaseMetadata:
    """The record of a node: ``node.meta["mase"]``.

    The model is looked up through the node, so the record follows a graph into another
    GraphModule and keeps no model alive by itself.
    """

    def __init__(self, node: fx.Node | None = None, model: nn.Module | None = None) -> None:
        self.node = node
        self._model = model
        self.parameters: Sections = empty_sections()

    def __getitem__(self, section: str) -> Any:
        return self.parameters[section]  # type: ignore[literal-required]

    @property
    def graph(self) -> fx.Graph | None:
        """The fx graph the node is in."""
        return None if self.node is None else self.node.graph

    @property
    def model(self) -> nn.Module | None:
        """The GraphModule the node is in."""
        owner = None if self.graph is None else self.graph.owning_module
        return self._model if owner is None else owner

    @property
    def module(self) -> nn.Module | None:
        """The module that a `call_module` node calls, else None."""
        if self.node is None or self.model is None or self.node.op != "call_module":
            return None
        return self.model.get_submodule(str(self.node.target))

    def copy_for(self, node: fx.Node) -> "MaseMetadata":
        """The same record for another node: dictionaries are copied, tensors are shared."""
        twin = MaseMetadata(node)
        twin.parameters = copy_containers(self.parameters)
        return twin

    def __repr__(self) -> str:
        name = None if self.node is None else self.node.name
        return f"MaseMetadata({name}, {self.parameters['common'].get('mase_op')})"


def copy_containers(value: Any) -> Any:
    """Nested dictionaries, lists and tuples copied; what they hold (tensors, say) is shared."""
    if isinstance(value, Mapping):
        return {key: copy_containers(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copy_containers(item) for item in value)
    return value


def metadata_of(node: fx.Node) -> MaseMetadata:
    """The record of a node, made if a transform added the node without one."""
    found = node.meta.get("mase")
    if not isinstance(found, MaseMetadata):
        found = node.meta["mase"] = MaseMetadata(node)
    return found
