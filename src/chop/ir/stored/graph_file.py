"""A graph as data: its nodes, its layers and its tensors, and the way back."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, fx, nn
from torch.fx.graph import CodeGen

from chop.errors import GraphError
from chop.ir.call import FLOAT_FORM, FLOAT_RECORDS, FloatForm
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.shapes import CONDITIONS, MADE_FOR, FreeSize, ShapedGraphModule
from chop.ir.parameters import attribute
from chop.ir.stored.codec import (
    NotStorable,
    Packed,
    PackedRecord,
    StoredRecord,
    outline,
    restore_value,
    to_plain,
    unpack,
)
from chop.ir.stored.layers import (
    LayerRecord,
    by_layer,
    describe_layer,
    finish_layer,
    known_classes,
    prepare_layer,
    root_module,
    set_by_name,
)
from chop.ir.stored.numbers import check_numbers
from chop.ir.stored.record_checks import (
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
    check_sizes,
    check_texts,
    decode_value,
    dotted_path,
    problem,
    saying,
)
from chop.ir.stored.targets import QUANTIZED, function_by_name, function_name, keywords

CODES, SHARED, OVERALL = "::codes", "::shared", "::overall"  # no layer's name has a colon in it
Op = Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]


class NodeRecord(StoredRecord):
    """A node as it stands in the file.

    Args:
        given: the target is a custom function, which only a given graph can provide.
        float_form: what a quantised function was: its op, its target, and the keyword arguments
            that it was given and that were taken from it.
        float_records: the types its arguments had.
        made_for: the shape of an input that the graph holds for, if not for all.
        conditions: what is asked of the sizes of this input and of those before it.
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
    conditions: list[Text] = Field(default=[])

    @model_validator(mode="after")
    def _is_harmless(self) -> Self:
        if self.given and self.op == "call_function":
            decode_value([self.args, self.kwargs])
        else:
            check_call(self.op, self.target, self.args, self.kwargs)
        if self.float_form is not None and self.op != "call_module":  # `check_reference` does those
            check_float_form(self.target, (self.args, self.kwargs), self.float_form)
        if self.float_records is not None:
            check_float_records(self.float_records)
        return self


class AttributeRecord(StoredRecord):
    """A tensor of the model itself, as it stands in the file."""

    parameter: bool
    trained: bool = False


class GraphRecord(StoredRecord):
    """The whole file.

    Args:
        tied: tensors that are one and the same, each with the name that is stored.
        packed: tensors that are stored as codes.
        channels_last: tensors with channels last in memory, on which rounding depends.
        preprocessing: how the rows were scaled that the network was trained on.
        metadata: the sections of the graph and of each node; None in an earlier version's folder.
        digest: SHA-256 of the file of weights; `digests` has that of other files by name.
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
    metadata: dict[str, Any] | None = None
    digest: str = ""
    digests: dict[str, str] = Field(default={})
    checksum: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_fixed(self.cf_args)
        check_order(self.nodes)
        check_numbers(self.nodes)
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
    check_sizes((node.name, len(node.made_for or ()), node.conditions) for node in nodes)


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
        check_keywords(function, decode_value(node.kwargs), keywords("call_function", function))
        check_float_form(function, (node.args, node.kwargs), node.float_form)


def record_graph(graph: MaseGraph) -> GraphRecord:
    """The graph as data; what cannot be stored raises GraphError with its name."""
    if type(graph.fx_graph._codegen) is not CodeGen:
        raise GraphError("a graph made by torch.export has code of its own and cannot be saved")
    layers, same = record_layers(graph)
    attributes = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    try:
        return GraphRecord(
            format="chop-graph",
            version=1,
            model=type(graph.model).__name__,
            training=graph.model.training,
            cf_args=stored_argument(
                "cf_args", None if graph.cf_args is None else dict(graph.cf_args)
            ),
            nodes=[record_node(node) for node in graph.nodes],
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
            if (known := first.setdefault(graph.model.get_submodule(name), name)) != name:
                same[name] = known
    return {name: describe_layer(name, layer) for layer, name in first.items()}, same


def checked_path(name: str) -> str:
    """The name of a layer or tensor, if a file can have it."""
    try:
        return dotted_path(name)
    except ValueError as error:
        raise GraphError(f"the graph cannot be saved: {error}") from None


def record_attribute(graph: MaseGraph, name: str) -> AttributeRecord:
    """The kind of tensor that an attribute of the model is."""
    value = attribute(graph.model, checked_path(name))
    if not isinstance(value, Tensor):
        raise GraphError(f"attribute {name!r} is a {type(value).__name__}; only tensors are saved")
    return AttributeRecord(parameter=isinstance(value, nn.Parameter), trained=value.requires_grad)


def record_node(node: fx.Node) -> NodeRecord:
    """One node."""
    target = function_name(node.target) if node.op == "call_function" else str(node.target)
    form: FloatForm | None = node.meta.get(FLOAT_FORM)
    before: tuple[Any, ...] | None = None
    if form is not None:
        was = function_name(form.target) if form.op == "call_function" else form.target
        removed = stored_argument(node.name, form.removed)
        before = form.op, was or qualified_name(form.target), list(form.added), removed
    try:
        return NodeRecord(
            name=node.name,
            op=node.op,
            target=target or qualified_name(node.target),
            args=stored_argument(node.name, list(node.args)),
            kwargs=stored_argument(node.name, dict(node.kwargs)),
            given=target is None,
            float_form=before,
            float_records=stored_argument(node.name, node.meta.get(FLOAT_RECORDS)),
            made_for=node.meta.get(MADE_FOR),
            conditions=list(node.meta.get(CONDITIONS, ())),
        )
    except ValidationError as error:
        raise GraphError(f"node {node.name!r} cannot be saved: {problem(error)}") from None


def qualified_name(function: Any) -> str:
    """The name of a custom function."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def stored_argument(name: str, value: Any) -> Any:
    """A value of a node in its stored form."""
    try:
        return to_plain(value, lambda v: {"$node": v.name} if isinstance(v, fx.Node) else None)
    except NotStorable as error:
        raise GraphError(f"node {name!r} has an argument that cannot be saved: {error}") from None


def build_graph(record: GraphRecord, root: nn.Module, given: MaseGraph | None) -> fx.GraphModule:
    """A GraphModule of the nodes; what does not fit raises ValueError.

    Args:
        root: holds the layers and tensors that nodes refer to.
        given: the caller's graph, where custom functions are taken from.
    """
    own = {} if given is None else {node.name: node for node in given.nodes}
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for each in record.nodes:
        node = graph.create_node(
            each.op,
            node_target(each, own.get(each.name)),
            tuple(node_arguments(each.args, nodes)),
            node_arguments(each.kwargs, nodes),
            name=each.name,
        )
        if node.name != each.name:
            raise ValueError(f"the name {each.name!r} is used twice or reserved")
        nodes[each.name] = node
        restore_meta(node, each)
    graph.lint()
    shaped = any(each.made_for is not None for each in record.nodes)
    return (ShapedGraphModule if shaped else fx.GraphModule)(root, graph, record.model)


def node_arguments(plain: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """The arguments of a node, in which earlier nodes are meant by name."""

    def find(stored: Mapping[str, Any]) -> Any:
        name = stored.get("$node")
        if name is None:
            return None
        if name not in nodes:
            raise ValueError(f"node {name!r} is used before it is there")
        return nodes[name]

    return restore_value(plain, find)


def node_target(each: NodeRecord, own: fx.Node | None) -> Any:
    """The target of a node; a function of the user's comes from the graph given."""
    if each.op != "call_function":
        return each.target
    if not each.given:
        return function_by_name(each.target)
    if own is None or qualified_name(own.target) != each.target:
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
        node.meta[FLOAT_FORM] = FloatForm(op, target, tuple(added), restore_value(removed))
    if each.float_records is not None:
        node.meta[FLOAT_RECORDS] = restore_value(each.float_records)
    if each.made_for is not None:
        node.meta[MADE_FOR] = tuple(each.made_for)
    if each.conditions:
        node.meta[CONDITIONS] = tuple(each.conditions)


def plain_tensors(
    record: GraphRecord, tensors: dict[str, Tensor], unpack: Callable[[Packed], Tensor]
) -> dict[str, Tensor]:
    """The tensors under their names in the model, unpacked; what does not fit raises ValueError."""
    plain = dict(tensors)
    for name, how in record.packed.items():
        if name in plain or name + CODES not in plain:
            raise ValueError(f"the codes of {name!r} are missing")
        shared, overall = (plain.pop(name + part, None) for part in (SHARED, OVERALL))
        with saying(f"{name!r}: "):
            plain[name] = unpack(Packed(how, plain.pop(name + CODES), shared, overall))
    for name in record.channels_last:
        plain[name] = plain[name].contiguous(memory_format=torch.channels_last)
    for name, first in record.tied.items():
        if first not in plain or name in plain:
            raise ValueError(f"{name!r} is tied to {first!r}, which is not there")
        plain[name] = plain[first]
    return plain


def build_root(
    record: GraphRecord, tensors: dict[str, Tensor], given: MaseGraph | None
) -> nn.Module:
    """A module that holds every layer and tensor under its name; errors are ValueErrors.

    Layers and shapes are compared first, without values: a file whose parts do not fit is refused
    before any of it is unpacked.
    """
    without_values = {name: tensor.to("meta") for name, tensor in tensors.items()}
    outlines = by_layer(
        record.layers, record.attributes, plain_tensors(record, without_values, outline)
    )
    provided = {} if given is None else given.modules
    layers = {}
    for name, layer in record.layers.items():
        with saying(f"layer {name!r}: "):
            layers[name] = prepare_layer(layer, provided.get(name), outlines[name])
    values = plain_tensors(record, tensors, unpack)
    groups = by_layer(record.layers, record.attributes, values)
    for name, layer in record.layers.items():
        with saying(f"layer {name!r}: "):
            layers[name] = finish_layer(layer, layers[name], groups[name])
    attributes = {
        name: nn.Parameter(values[name], how.trained) if how.parameter else values[name]
        for name, how in record.attributes.items()
    }
    root = root_module(layers, record.same_layer, attributes)
    for name, first in record.tied.items():
        set_by_name(root, name, attribute(root, first))
    return root
