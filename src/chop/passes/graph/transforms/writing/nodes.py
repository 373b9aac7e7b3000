"""A node that is written out, and the table of forms.

Each form is a function of what a node reads. It is recorded in the place of the node, so that what
is between its parts is rounded, too. A node whose settings no form covers stays as it is.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer

from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.transforms.folding import record_again
from chop.passes.graph.transforms.fusion import recorded_result_shape


class NotCovered(Exception):
    """Settings that no form covers."""


@dataclass(frozen=True, eq=False)
class Rewriting:
    """One node that is written out: what it reads, and how it is set."""

    call: NodeCall
    graph: MaseGraph
    tracer: GraphAppendingTracer
    bits: int
    """Of the data that is read."""

    def setting(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the layer or an argument of the function."""
        if self.call.layer is not None:
            return getattr(self.call.layer, name, default)
        found = self.call.arguments.get(name, default)
        if isinstance(found, fx.Node) and found.op == "get_attr":
            return fx.Proxy(found, self.tracer)
        return found

    def proxy(self, name: str | int = 0) -> Any:
        """Return what the node reads, by its place or name; numbers as they are."""
        values = self.call.arguments
        found = list(values.values())[name] if isinstance(name, int) else values.get(name)
        return fx.Proxy(found, self.tracer) if isinstance(found, fx.Node) else found

    @property
    def shape(self) -> list[int]:
        """The recorded shape of the first operand."""
        found = recorded_result_shape(self.call.node.all_input_nodes[0])
        if found is None:
            raise NotCovered
        return list(found)

    def dim(self, name: str = "dim", default: Any = None) -> int:
        """Return a dimension, counted from the end."""
        found = self.setting(name, default)
        if isinstance(found, list | tuple) and len(found) == 1:
            (found,) = found
        if not isinstance(found, int) or isinstance(found, bool):
            raise NotCovered
        rank = len(self.shape)
        return found % rank - rank

    def constant(self, tensor: Tensor) -> Any:
        """Return numbers that are the same for every row, as a buffer of the network."""
        name = f"written_{sum(1 for _ in self.graph.model.buffers())}"
        self.graph.model.register_buffer(name, tensor.detach().clone())
        return fx.Proxy(self.tracer.graph.get_attr(name), self.tracer)

    def parameter(self, name: str) -> Any:
        """Return a parameter of the layer or function, None if there is none."""
        if self.call.layer is None:
            return self.setting(name)
        if getattr(self.call.layer, name, None) is None:
            return None
        return fx.Proxy(self.tracer.graph.get_attr(f"{self.call.node.target}.{name}"), self.tracer)

    def layer(self, module: nn.Module, x: Any) -> Any:
        """Return the result of a new layer."""
        name = f"written_{len(self.graph.model._modules)}"
        self.graph.model.add_submodule(name, module)
        return fx.Proxy(self.tracer.graph.call_module(name, (x.node,)), self.tracer)

    def run(self, x: Tensor) -> Tensor:
        """Return what the node computes of a tensor in place of its first operand."""
        first = self.call.node.all_input_nodes[0]
        if len(self.call.node.all_input_nodes) > 1:
            raise NotCovered
        args, kwargs = fx.node.map_arg(
            (self.call.node.args, self.call.node.kwargs), lambda n: x if n is first else n
        )
        with torch.no_grad():
            found: Tensor = self.call.in_float(*args, **kwargs)
        return found


Form = Callable[[Rewriting], Any]
FORMS: dict[str, Form] = {}
"""By the name of an operation; of a function or layer that is none, by its own, without digits."""


def written_as(*names: str) -> Callable[[Form], Form]:
    """Decorator for the form of operations."""

    def add(function: Form) -> Form:
        FORMS.update(dict.fromkeys(names, function))
        return function

    return add


def write_out(graph: MaseGraph, varying: Collection[fx.Node], bits: int) -> list[str]:
    """Write out every node that has a form; return their names.

    Args:
        varying: the nodes that depend on the rows; others are computed once, whatever they are.
        bits: of data.
    """
    found = []
    for node in [each for each in graph.nodes if each in varying]:
        call = NodeCall.of(node, graph.modules) if node.op.startswith("call_") else None
        form = None if call is None else form_of(call)
        if call is None or form is None:
            continue
        with graph.fx_graph.inserting_before(node):
            tracer = GraphAppendingTracer(graph.fx_graph)
            try:
                result = form(Rewriting(call, graph, tracer, bits))
            except NotCovered:
                continue
        result.node.meta = dict(node.meta)  # shapes, until they are recorded again
        node.replace_all_uses_with(result.node)
        found.append(node.name)
    if found:
        graph.fx_graph.eliminate_dead_code()
        graph.fx_graph.lint()
        graph.model.recompile()
        graph.model.delete_all_unused_submodules()
        record_again(graph)
    return found


def form_of(call: NodeCall) -> Form | None:
    """Return the form of a node, if it has one."""
    if call.op is not None:
        return FORMS.get(call.op.name)
    kind: Any = call.node.target if call.module is None else type(call.module)
    return FORMS.get(re.sub("[123]d$", "", str(getattr(kind, "__name__", kind))))


def map_dimension(of: Rewriting, x: Any, dim: int, matrix: Tensor) -> Any:
    """Return a linear map of one dimension; places are chosen where that is all it does."""
    rows, columns = matrix.shape
    if rows == columns and torch.equal(matrix, torch.eye(rows)):
        return x
    if bool((matrix.count_nonzero(1) == 1).all()) and bool((matrix.sum(1) == 1).all()):
        return x.index_select(dim, of.constant(matrix.argmax(1)))
    if dim == -1:
        return F.linear(x, of.constant(matrix))
    return F.linear(x.transpose(dim, -1), of.constant(matrix)).transpose(dim, -1)
