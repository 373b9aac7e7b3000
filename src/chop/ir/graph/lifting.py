"""From a graph of ATen operators back to layers and functions, as fx would have recorded it.

torch.export notes for each operator the layers in which it was called. All that one call of a
layer of torch became is one node again, which calls the layer: so its weights are shared as they
were, and dropout and normalisation follow train and eval. Everything else becomes what was written
in Python.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from chop.ir.graph.aten import Written, python_call
from chop.nn.quantized.generic import own_shell
from chop.ops.op import aten_name, is_aten

PREFIX = "model"
"""The name of the user's model in the module that is exported."""
CELLS = (nn.RNNCellBase,)
RECURRENT = (nn.RNNBase, *CELLS)
BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
IsLeaf = Callable[[nn.Module, str], bool]


class LayerCall(NamedTuple):
    """One call of a layer: the layer, its name and the nodes that it became."""

    layer: nn.Module
    path: str
    nodes: list[fx.Node]


def lift(
    graph: fx.Graph, holder: fx.GraphModule, model: nn.Module, is_leaf: IsLeaf
) -> dict[str, nn.Module | Tensor]:
    """Make the nodes of an exported graph calls of layers and functions.

    What the graph refers to is returned by name.

    Args:
        holder: what torch.export made, with the constants and inner graphs of `graph`.
        model: the user's, whose layers are called.
        is_leaf: whether a layer, given with its name, becomes one node.
    """
    inline_contexts(graph, holder)
    for node in graph.find_nodes(op="get_attr"):
        node.meta["val"] = tensor_by_name(str(node.target), holder, model)
    erase(graph, is_check)
    graph.eliminate_dead_code()
    made: dict[str, nn.Module | Tensor] = {}
    for call in layer_calls(graph, model, is_leaf):
        lift_call(graph, call)
    for node in graph.nodes:
        lift_state(graph, node, model, made)
    erase(graph, lambda node: not node.users and only_computes(node))
    for node in graph.nodes:
        lift_function(node)
    follow_device(graph)
    return made | collect_references(graph, holder, model, made)


def erase(graph: fx.Graph, unwanted: Callable[[fx.Node], bool]) -> None:
    """Erase nodes from the end to the beginning, so that what only they read can go as well."""
    for node in reversed(graph.nodes):
        if unwanted(node):
            graph.erase_node(node)


def is_check(node: fx.Node) -> bool:
    """True if a node checks what is known when the graph is made: types and devices of tensors."""
    target: Any = node.target
    return is_aten(node) and aten_name(target) == "_assert_tensor_metadata"


def inline_contexts(graph: fx.Graph, holder: fx.GraphModule) -> None:
    """Put what runs without gradients or autocast in the place of the call that ran it."""
    inner = [n for n in graph.nodes if "wrap_with_" in str(n.target)]
    for node in inner:
        place = next(i for i, a in enumerate(node.args) if is_submodule(a, holder))
        autocast = "autocast" in str(node.target)
        if autocast and node.kwargs.get("enabled", node.args[2]):
            raise NotImplementedError(
                "autocast, which changes the types of numbers, cannot be traced"
            )
        body = holder.get_submodule(str(node.args[place].target))
        assert isinstance(body, fx.GraphModule)
        inline_contexts(body.graph, body)
        own = body.graph.find_nodes(op="placeholder")
        known = dict(zip(own, node.args[place + 1 :], strict=True))
        with graph.inserting_before(node):
            found: Any = graph.graph_copy(body.graph, known)
            if not autocast and node.args[0] is False:
                found = pytree.tree_map(gradient_stop(graph), found)
        results = found if isinstance(found, list | tuple) else (found,)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def is_submodule(value: Any, holder: nn.Module) -> bool:
    """True if an argument stands for an inner graph."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return False
    return isinstance(getattr(holder, str(value.target), None), fx.GraphModule)


def gradient_stop(graph: fx.Graph) -> Callable[[Any], Any]:
    """A node that takes the gradient from a result that was computed without one."""

    def rule(value: Any) -> Any:
        known = value.meta.get("val") if isinstance(value, fx.Node) else None
        if not isinstance(known, Tensor) or not known.is_floating_point():
            return value
        node = graph.call_function(torch.ops.aten.detach.default, (value,))
        node.meta = dict(value.meta)
        return node

    return rule


def layer_calls(graph: fx.Graph, model: nn.Module, is_leaf: IsLeaf) -> Iterable[LayerCall]:
    """The calls of layers of torch, each with what it became."""
    calls: dict[str, LayerCall] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
            name = path.removeprefix(PREFIX).removeprefix(".").partition("@")[0]
            layer = modules.get(name)
            if name and layer is not None and is_leaf(layer, name):
                calls.setdefault(key, LayerCall(layer, name, [])).nodes.append(node)
                break
    return calls.values()


def lift_call(graph: fx.Graph, call: LayerCall) -> None:
    """Put one node in the place of all that a call of a layer became, if its input is known."""
    inside = set(call.nodes)
    own = {id(t) for t in (*call.layer.parameters(), *call.layer.buffers())}
    feeds = {
        source: None
        for node in call.nodes
        for source in node.all_input_nodes
        if source not in inside and isinstance(value := source.meta.get("val"), Tensor)
        and not (source.op == "get_attr" and id(value) in own)
    }  # fmt: skip
    results = [node for node in call.nodes if any(user not in inside for user in node.users)]
    if isinstance(call.layer, RECURRENT):
        lift_recurrent(graph, call, results)
    elif len(feeds) == len(results) == 1:
        with graph.inserting_before(results[0]):
            new = graph.create_node("call_module", call.path, tuple(feeds))
        replace(graph, call, {results[0]: new})


def replace(graph: fx.Graph, call: LayerCall, new: dict[fx.Node, fx.Node]) -> None:
    """Let everything that reads the old results read the new ones, and drop the old nodes."""
    for old, node in new.items():
        node.meta = dict(old.meta)
        old.replace_all_uses_with(node)
    for old in reversed(call.nodes):
        graph.erase_node(old)


def lift_recurrent(graph: fx.Graph, call: LayerCall, results: list[fx.Node]) -> None:
    """One node for a call of a recurrent layer, which may be given a state and returns one."""
    runs = [n for n in call.nodes if isinstance(n.args, tuple) and aten_is_recurrent(n)]
    inside = set(call.nodes)
    if len(runs) != 1 or runs[0].args[0] in inside:
        return  # an unbatched sequence, or one that is packed
    run = runs[0]
    state: Any = run.args[1]
    parts = list(state) if isinstance(state, list | tuple) else [state]
    given = () if parts[0] in inside else (tuple(parts) if len(parts) > 1 else parts[0],)
    if any(part in inside for part in parts) and given:
        return
    cell = isinstance(call.layer, CELLS)
    if any(n is not run and n.args[:1] != (run,) for n in results):
        return
    with graph.inserting_before(run):
        new = graph.create_node("call_module", call.path, (run.args[0], *given))
    found = {}
    for node in results:
        with graph.inserting_before(node):
            found[node] = new if node is run else part_node(graph, new, node.args[1], call, cell)
    replace(graph, call, found)


def aten_is_recurrent(node: fx.Node) -> bool:
    """True if an operator is a recurrent layer or a cell of one."""
    name = aten_name(node.target) if is_aten(node) else ""  # type: ignore[arg-type]
    return name.removesuffix("_cell") in ("lstm", "gru", "rnn_tanh", "rnn_relu")


def part_node(graph: fx.Graph, new: fx.Node, index: Any, call: LayerCall, cell: bool) -> fx.Node:
    """The part of a layer's result that the operator has at an index."""
    if cell or index == 0 or not isinstance(call.layer, nn.LSTM):
        return graph.call_function(operator.getitem, (new, index))
    states = graph.call_function(operator.getitem, (new, 1))  # output, (hidden, cell)
    return graph.call_function(operator.getitem, (states, index - 1))


def lift_state(
    graph: fx.Graph, node: fx.Node, model: nn.Module, made: dict[str, nn.Module | Tensor]
) -> None:
    """Make a layer of a function that computes otherwise in training: dropout, normalisation."""
    name = aten_name(node.target) if is_aten(node) else ""  # type: ignore[arg-type]
    layer: nn.Module | None = None
    if name == "dropout" and node.args[2] is False:
        layer = nn.Dropout(node.args[1])  # type: ignore[arg-type]
    elif name == "batch_norm" and node.args[5] is False:
        layer = plain_batch_norm(node, model)
    if layer is None:
        return
    target = f"{node.name}_layer"
    made[target] = layer.train(model.training)
    with graph.inserting_before(node):
        new = graph.create_node("call_module", target, (node.args[0],))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def plain_batch_norm(node: fx.Node, model: nn.Module) -> nn.Module | None:
    """A plain layer of torch that shares the tensors of the custom one that ran here."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0].removeprefix(f"{PREFIX}.").partition("@")[0] if stack else ""
    owner = dict(model.named_modules(remove_duplicate=False)).get(path)
    rank = node.args[0].meta["val"].ndim  # type: ignore[union-attr]
    if not isinstance(owner, _BatchNorm) or rank not in BATCH_NORMS:
        return None
    fresh = BATCH_NORMS[rank](owner.num_features, owner.eps, owner.momentum, owner.affine,
                              owner.track_running_stats, device="meta")  # fmt: skip
    shell = own_shell(fresh)
    shell._parameters.update({k: owner._parameters[k] for k in shell._parameters})
    shell._buffers.update({k: owner._buffers[k] for k in shell._buffers})
    return shell


def only_computes(node: fx.Node) -> bool:
    """True if an unread node can go: sizes and constants of a layer that is whole now."""
    if node.op == "get_attr":
        return True
    if is_aten(node):
        return not node.target._schema.is_mutable  # type: ignore[union-attr]
    return getattr(node.target, "__module__", "") == "_operator"


def is_whole(index: Any) -> bool:
    """True if an index takes everything."""
    return index is ... or (isinstance(index, tuple) and {*map(str, index)} == {str(slice(None))})


def lift_function(node: fx.Node) -> None:
    """Write an ATen operator as a method, a function of torch or an index."""
    form: Written | None = python_call(node) if node.op == "call_function" else None
    if form is not None and form.target is operator.getitem and is_whole(form.args[1]):
        node.replace_all_uses_with(form.args[0])
        node.graph.erase_node(node)
    elif form is not None:
        node.op, node.target = form.op, form.target
        node.args, node.kwargs = form.args, form.kwargs


def follow_device(graph: fx.Graph) -> None:
    """Make tensors where the inputs are, not where those were that the graph was made from."""
    places = graph.find_nodes(op="placeholder")
    inputs = [node for node in places if isinstance(node.meta.get("val"), Tensor)]
    if not inputs:
        return
    old = inputs[0].meta["val"].device
    users = [n for n in graph.nodes if n.kwargs.get("device") == old]
    if not users:
        return
    with graph.inserting_after(places[-1]):
        device = graph.call_function(getattr, (inputs[0], "device"))
    for node in users:
        node.kwargs = {**node.kwargs, "device": device}


def tensor_by_name(name: str, holder: nn.Module, model: nn.Module) -> Any:
    """The tensor under a dotted name: the user's own, or a constant of the code."""
    with contextlib.suppress(AttributeError):
        return functools.reduce(getattr, name.removeprefix(f"{PREFIX}.").split("."), model)
    return functools.reduce(getattr, name.split("."), holder)


def collect_references(
    graph: fx.Graph, holder: nn.Module, model: nn.Module, made: dict[str, Any]
) -> dict[str, nn.Module | Tensor]:
    """The layers and tensors that a graph refers to, its names of tensors made those of `model`."""
    found: dict[str, nn.Module | Tensor] = {}
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "call_module" and name not in made:
            found[name] = model.get_submodule(name)
        elif node.op == "get_attr":
            inner = name.removeprefix(f"{PREFIX}.")
            node.target = inner if inner != name else name.replace(".", "_")
            found[str(node.target)] = tensor_by_name(name, holder, model)
    return found
