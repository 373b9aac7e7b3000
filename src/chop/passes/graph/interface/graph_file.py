"""A graph as data: its nodes, its layers and its tensors, and the way back."""

import keyword
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, fx, nn
from torch.fx.graph import CodeGen

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.shapes import MADE_FOR, FreeSize, graph_module
from chop.passes.base import PassArgs
from chop.passes.graph.analysis.add_metadata.formats import FLOAT_RECORDS
from chop.passes.graph.interface.codec import NotStorable, from_plain, to_plain
from chop.passes.graph.interface.layers import LayerRecord, describe
from chop.passes.graph.interface.packing import PackedRecord
from chop.passes.graph.interface.targets import (
    check_attribute,
    function_by_name,
    function_name,
    is_method,
)
from chop.passes.graph.transforms.quantize.restore import FLOAT_FORM, FloatForm

TAKEN = frozenset(vars(nn.Module()))  # attributes that every module has
ATOM = re.compile(r"[A-Za-z0-9_]+")
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

    name: str
    op: Op
    target: str
    args: list[Any]
    kwargs: dict[str, Any] = Field(default={})
    given: bool = False
    float_form: tuple[Op, str, list[str], dict[str, Any]] | None = None
    float_records: Any = None
    made_for: list[int | FreeSize] | None = None


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
    model: str
    training: bool
    cf_args: Any = None
    nodes: list[NodeRecord]
    layers: dict[str, LayerRecord]
    same_layer: dict[str, str] = Field(default={})
    attributes: dict[str, AttributeRecord] = Field(default={})
    tied: dict[str, str] = Field(default={})
    packed: dict[str, PackedRecord] = Field(default={})
    channels_last: list[str] = Field(default=[])
    preprocessing: dict[str, Any] | None = None
    digest: str = ""
    digests: dict[str, str] = Field(default={})
    checksum: str = ""


def record_graph(graph: MaseGraph) -> GraphRecord:
    """The graph as data; what cannot be stored raises GraphError with its name."""
    if type(graph.fx_graph._codegen) is not CodeGen:
        raise GraphError("a graph made by torch.export has code of its own and cannot be saved")
    layers, same = record_layers(graph)
    attributes = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    return GraphRecord(
        format="chop-graph",
        version=1,
        model=type(graph.model).__name__,
        training=graph.model.training,
        cf_args=stored("cf_args", None if graph.cf_args is None else dict(graph.cf_args)),
        nodes=[record_node(node) for node in graph.nodes],
        layers=layers,
        same_layer=same,
        attributes={name: record_attribute(graph, name) for name in sorted(attributes)},
        preprocessing=graph.preprocessing and graph.preprocessing.as_plain(),
    )


def record_layers(graph: MaseGraph) -> tuple[dict[str, LayerRecord], dict[str, str]]:
    """A description of each layer, and further names of layers that have several."""
    first: dict[nn.Module, str] = {}
    same: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            name = str(node.target)
            known = first.setdefault(graph.model.get_submodule(name), name)
            if known != name:
                same[name] = known
    return {name: describe(name, layer) for layer, name in first.items()}, same


def record_attribute(graph: MaseGraph, name: str) -> AttributeRecord:
    """What kind of tensor an attribute of the model is."""
    value = attribute_of(graph.model, name)
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
    if node.op == "call_method" and not is_method(str(node.target)):
        raise GraphError(f"node {node.name!r} calls the method {node.target!r}, which is not saved")
    refuse(node, node.op, node.target, node.args)
    form: FloatForm | None = node.meta.get(FLOAT_FORM)
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


def stored_form(name: str, form: FloatForm) -> tuple[Any, str, list[str], dict[str, Any]]:
    """What a quantised function was."""
    target = function_name(form.target) if form.op == "call_function" else form.target
    removed = stored(name, form.removed)
    return form.op, target or qualified(form.target), list(form.added), removed


def refuse(node: fx.Node, op: str, target: Any, args: Any) -> None:
    """Raise for a node that loading would refuse."""
    try:
        if op == "call_function":
            check_attribute(target, args)
    except ValueError as error:
        raise GraphError(f"node {node.name!r} cannot be saved: {error}") from None


def qualified(function: Any) -> str:
    """The name of a function of the user's own."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def stored(name: str, value: Any) -> Any:
    """A value of a node in its stored form."""
    try:
        return to_plain(value, lambda v: {"$node": v.name} if isinstance(v, fx.Node) else None)
    except NotStorable as error:
        raise GraphError(f"node {name!r} has an argument that cannot be saved: {error}") from None


def check_names(record: GraphRecord) -> None:
    """Raise ValueError for names that are none: fx writes them into the code it runs."""
    if not record.model.isidentifier():
        raise ValueError(f"{record.model!r:.60} is not the name of a model")
    for node in record.nodes:
        removed = () if node.float_form is None else node.float_form[3]
        for name in (node.name, *node.kwargs, *removed, *placeholder_name(node)):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise ValueError(f"{name!r:.60} is not a name")
    for path in (*record.layers, *record.same_layer, *record.attributes):
        check_path(path)


def placeholder_name(node: NodeRecord) -> list[str]:
    """The argument that a placeholder stands for, without stars."""
    return [node.target.lstrip("*")] if node.op == "placeholder" else []


def check_path(path: str) -> None:
    """Raise ValueError unless every part of a dotted path can be the name of a submodule."""
    for part in path.split("."):
        taken = hasattr(fx.GraphModule, part) or part in TAKEN
        if not ATOM.fullmatch(part) or part.startswith("__") or taken:
            raise ValueError(f"{path!r:.60} is not the name of a layer or tensor")


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
            target_of(each, record, own.get(each.name)),
            tuple(loaded(each.args, nodes)),
            loaded(each.kwargs, nodes),
            name=each.name,
        )
        if node.name != each.name:
            raise ValueError(f"the name {each.name!r} is used twice or reserved")
        check_attribute(node.target, node.args)
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


def target_of(each: NodeRecord, record: GraphRecord, own: fx.Node | None) -> Any:
    """What a node calls or stands for."""
    if each.op == "call_function":
        return given_function(each, own) if each.given else function_by_name(each.target)
    if each.op == "call_method" and not is_method(each.target):
        raise ValueError(f"{each.target!r} is not a method that a graph may call")
    is_layer = each.target in record.layers or each.target in record.same_layer
    there = {"call_module": is_layer, "get_attr": each.target in record.attributes}
    if not there.get(each.op, True):
        raise ValueError(f"node {each.name!r} refers to {each.target!r}, which is not there")
    return each.target


def given_function(each: NodeRecord, own: fx.Node | None) -> Any:
    """A function of the user's own, from the graph that was given."""
    if own is None or qualified(own.target) != each.target:
        raise ValueError(
            f"node {each.name!r} calls {each.target}, which no file can provide: "
            "load into a graph that calls it"
        )
    return own.target


def restore_meta(node: fx.Node, each: NodeRecord) -> None:
    """Give a node what it needs to become float again, and the shape it was made for."""
    if each.float_form is not None:
        op, name, added, removed = each.float_form
        if op == "call_method" and not is_method(name):
            raise ValueError(f"{name!r} is not a method that a graph may call")
        target = function_by_name(name) if op == "call_function" else name
        node.meta[FLOAT_FORM] = FloatForm(op, target, tuple(added), from_plain(removed))
    if each.float_records is not None:
        node.meta[FLOAT_RECORDS] = from_plain(each.float_records)
    if each.made_for is not None:
        node.meta[MADE_FOR] = tuple(each.made_for)
