"""A graph as data: its nodes, its layers and its tensors, and the way back."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from torch import Tensor, fx, nn
from torch.fx.graph import CodeGen

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.shapes import MADE_FOR, FreeSize, graph_module
from chop.passes.base import PassArgs
from chop.passes.graph.analysis.add_metadata.formats import FLOAT_RECORDS
from chop.passes.graph.interface.codec import NotStorable, from_plain, to_plain
from chop.passes.graph.interface.door import (
    Call,
    Name,
    Path,
    Text,
    check_call,
    check_fixed,
    check_float_form,
    check_float_records,
    check_forward,
    check_keywords,
    check_texts,
    decoded,
    path,
    problem,
)
from chop.passes.graph.interface.layers import LayerRecord, describe, known_classes
from chop.passes.graph.interface.packing import PackedRecord
from chop.passes.graph.interface.targets import QUANTIZED, function_by_name, function_name, keywords
from chop.passes.graph.transforms.quantize.plan import FLOAT_FORM, FloatForm

Op = Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]


class NodeRecord(PassArgs):
    """A node as it stands in the file.

    Args:
        given: the target is a function of the user's own, which only a given graph can provide.
        float_form: what a quantised function was: its op, its target, and the keyword arguments
            that it was given and that were taken from it.
        float_records: the types its arguments had.
        made_for: the shape of an input that the graph holds for, if not for all.
    """

    name: Name
    op: Op
    target: Text
    args: list[Any]
    kwargs: dict[Name, Any] = Field(default={})
    given: bool = False
    float_form: tuple[Call, Text, list[Name], dict[Name, Any]] | None = None
    float_records: Any = None
    made_for: list[int | FreeSize] | None = None

    @model_validator(mode="after")
    def _is_harmless(self) -> Self:
        if self.given and self.op == "call_function":
            decoded([self.args, self.kwargs])
        else:
            check_call(self.op, self.target, self.args, self.kwargs)
        if self.float_form is not None and self.op != "call_module":  # `check_reference` does those
            check_float_form(self.target, (self.args, self.kwargs), self.float_form)
        if self.float_records is not None:
            check_float_records(self.float_records)
        return self


class AttributeRecord(PassArgs):
    """A tensor of the model itself, as it stands in the file."""

    parameter: bool
    trained: bool = False


class GraphRecord(PassArgs):
    """The whole file.

    Args:
        tied: tensors that are one and the same, each with the name that is stored.
        packed: tensors that are stored as codes.
        channels_last: tensors that have their channels last in memory, on which rounding depends.
        preprocessing: how the rows were scaled that the network was trained on.
        digest: SHA-256 of the file of weights, so that files of two graphs are not mixed.
        digests: SHA-256 of the files of metadata, by their names.
        checksum: SHA-256 of this file without this entry, which is its last.
    """

    format: Literal["chop-graph"]
    version: Literal[1]
    model: Name
    training: bool
    cf_args: Any = None
    nodes: list[NodeRecord]
    layers: dict[Path, LayerRecord]
    same_layer: dict[Path, Path] = Field(default={})
    attributes: dict[Path, AttributeRecord] = Field(default={})
    tied: dict[Path, Path] = Field(default={})
    packed: dict[Text, PackedRecord] = Field(default={})
    channels_last: list[Text] = Field(default=[])
    preprocessing: dict[str, Any] | None = None
    digest: str = ""
    digests: dict[str, str] = Field(default={})
    checksum: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_fixed(self.cf_args)
        check_order(self.nodes)
        check_layers(self)
        for node in self.nodes:
            check_reference(node, self)
        return self


def check_order(nodes: list[NodeRecord]) -> None:
    """Refuse nodes that are not in the order in which a function of Python has them."""
    names = {node.name for node in nodes}
    inputs = [node.target for node in nodes if node.op == "placeholder"]
    if len(names) != len(nodes) or len(set(inputs)) != len(inputs):
        raise ValueError("two nodes or two arguments have the same name")
    if [node.op for node in nodes].count("output") != 1 or nodes[-1].op != "output":
        raise ValueError("a graph has one output, which is its last node")


def check_layers(record: GraphRecord) -> None:
    """Refuse layers inside layers: which of the two a tensor belongs to would be open."""
    names = {*record.layers, *record.same_layer}
    for name in names:
        parts = name.split(".")
        outer = {".".join(parts[:count]) for count in range(1, len(parts))} & names
        if outer:
            raise ValueError(f"layer {name!r} is inside layer {outer.pop()!r}; only one is saved")
    for name, first in record.same_layer.items():
        if first not in record.layers:
            raise ValueError(f"layer {name!r} is {first!r}, which is not there")


def check_reference(node: NodeRecord, record: GraphRecord) -> None:
    """Refuse a node whose layer or tensor is not there, or whose layer takes no such keyword."""
    if node.op == "get_attr" and node.target not in record.attributes:
        raise ValueError(f"node {node.name!r} refers to {node.target!r}, which is not there")
    if node.op != "call_module":
        return
    layer = record.layers.get(record.same_layer.get(node.target, node.target))
    if layer is None:
        raise ValueError(f"node {node.name!r} refers to {node.target!r}, which is not there")
    if layer.kind is not None:
        check_forward(known_classes()[layer.kind], node.kwargs)
    if (layer.function is None) != (node.float_form is None):
        raise ValueError(f"node {node.name!r}: a function, and only that, has a float form")
    if layer.function is not None and node.float_form is not None:
        function = f"{QUANTIZED}.{layer.function}_{(layer.quantized or {}).get('name')}"
        check_keywords(function, decoded(node.kwargs), keywords("call_function", function))
        check_float_form(function, (node.args, node.kwargs), node.float_form)


def record_graph(graph: MaseGraph) -> GraphRecord:
    """The graph as data; what cannot be stored raises GraphError with its name."""
    if type(graph.fx_graph._codegen) is not CodeGen:
        raise GraphError("a graph made by torch.export has code of its own and cannot be saved")
    layers, same = record_layers(graph)
    attributes = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    nodes = [record_node(node) for node in graph.nodes]
    try:
        return GraphRecord(
            format="chop-graph",
            version=1,
            model=type(graph.model).__name__,
            training=graph.model.training,
            cf_args=stored("cf_args", None if graph.cf_args is None else dict(graph.cf_args)),
            nodes=nodes,
            layers=layers,
            same_layer=same,
            attributes={name: record_attribute(graph, name) for name in sorted(attributes)},
            preprocessing=graph.preprocessing and graph.preprocessing.as_plain(),
        )
    except ValidationError as error:
        raise GraphError(f"the graph cannot be saved: {problem(error)}") from None


def record_layers(graph: MaseGraph) -> tuple[dict[str, LayerRecord], dict[str, str]]:
    """A description of each layer, and further names of layers that have several."""
    first: dict[nn.Module, str] = {}
    same: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            name = checked_path(str(node.target))
            known = first.setdefault(graph.model.get_submodule(name), name)
            if known != name:
                same[name] = known
    return {name: describe(name, layer) for layer, name in first.items()}, same


def checked_path(name: str) -> str:
    """The name of a layer or tensor, if a file can have it."""
    try:
        return path(name)
    except ValueError as error:
        raise GraphError(f"the graph cannot be saved: {error}") from None


def record_attribute(graph: MaseGraph, name: str) -> AttributeRecord:
    """What kind of tensor an attribute of the model is."""
    value = attribute_of(graph.model, checked_path(name))
    if not isinstance(value, Tensor):
        raise GraphError(f"attribute {name!r} is a {type(value).__name__}; only tensors are saved")
    return AttributeRecord(parameter=isinstance(value, nn.Parameter), trained=value.requires_grad)


def attribute_of(model: nn.Module, name: str) -> Any:
    """An attribute by its dotted name."""
    owner, _, last = name.rpartition(".")
    return getattr(model.get_submodule(owner), last)


def record_node(node: fx.Node) -> NodeRecord:
    """One node."""
    target = function_name(node.target) if node.op == "call_function" else str(node.target)
    form: FloatForm | None = node.meta.get(FLOAT_FORM)
    try:
        return NodeRecord(
            name=node.name,
            op=node.op,
            target=target or qualified(node.target),
            args=stored(node.name, list(node.args)),
            kwargs=stored(node.name, dict(node.kwargs)),
            given=target is None,
            float_form=None if form is None else stored_form(node.name, form),
            float_records=stored(node.name, node.meta.get(FLOAT_RECORDS)),
            made_for=node.meta.get(MADE_FOR),
        )
    except ValidationError as error:
        raise GraphError(f"node {node.name!r} cannot be saved: {problem(error)}") from None


def stored_form(name: str, form: FloatForm) -> tuple[Any, str, list[str], dict[str, Any]]:
    """What a quantised function was."""
    target = function_name(form.target) if form.op == "call_function" else form.target
    removed = stored(name, form.removed)
    return form.op, target or qualified(form.target), list(form.added), removed


def qualified(function: Any) -> str:
    """The name of a function of the user's own."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def stored(name: str, value: Any) -> Any:
    """A value of a node in its stored form."""
    try:
        return to_plain(value, lambda v: {"$node": v.name} if isinstance(v, fx.Node) else None)
    except NotStorable as error:
        raise GraphError(f"node {name!r} has an argument that cannot be saved: {error}") from None


def build_graph(record: GraphRecord, root: nn.Module, given: MaseGraph | None) -> fx.GraphModule:
    """A GraphModule of the nodes; what does not fit raises ValueError.

    Args:
        root: holds the layers and tensors that nodes refer to.
        given: the caller's graph, where functions of the user's own are taken from.
    """
    own = {} if given is None else {node.name: node for node in given.nodes}
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for each in record.nodes:
        node = graph.create_node(
            each.op,
            target_of(each, own.get(each.name)),
            tuple(loaded(each.args, nodes)),
            loaded(each.kwargs, nodes),
            name=each.name,
        )
        if node.name != each.name:
            raise ValueError(f"the name {each.name!r} is used twice or reserved")
        nodes[each.name] = node
        restore_meta(node, each)
    graph.lint()
    return graph_module(root, graph, record.model)


def loaded(plain: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """The arguments of a node, in which earlier nodes are meant by name."""

    def find(stored: Mapping[str, Any]) -> Any:
        name = stored.get("$node")
        if name is None:
            return None
        if name not in nodes:
            raise ValueError(f"node {name!r} is used before it is there")
        return nodes[name]

    return from_plain(plain, find)


def target_of(each: NodeRecord, own: fx.Node | None) -> Any:
    """What a node calls or stands for."""
    if each.op != "call_function":
        return each.target
    return given_function(each, own) if each.given else function_by_name(each.target)


def given_function(each: NodeRecord, own: fx.Node | None) -> Any:
    """A function of the user's own, from the graph that was given."""
    if own is None or qualified(own.target) != each.target:
        raise ValueError(
            f"node {each.name!r} calls {each.target}, which no file can provide: "
            "load into a graph that calls it"
        )
    check_texts(each.name, [each.args, each.kwargs], own)
    return own.target


def restore_meta(node: fx.Node, each: NodeRecord) -> None:
    """Give a node what it needs to become float again, and the shape it was made for."""
    if each.float_form is not None:
        op, name, added, removed = each.float_form
        target = function_by_name(name) if op == "call_function" else name
        node.meta[FLOAT_FORM] = FloatForm(op, target, tuple(added), from_plain(removed))
    if each.float_records is not None:
        node.meta[FLOAT_RECORDS] = from_plain(each.float_records)
    if each.made_for is not None:
        node.meta[MADE_FOR] = tuple(each.made_for)
