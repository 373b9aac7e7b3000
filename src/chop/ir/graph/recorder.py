"""Running a graph node by node, with a look at what goes into each node and what comes out."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ChopError, GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.modes import undisturbed
from chop.ir.graph.shapes import check_inputs
from chop.nn.quantized import QuantizedModule

Before = Callable[[fx.Node, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[fx.Node, Any], None]


class Recorder(fx.Interpreter):
    """An interpreter that shows each node's arguments before it runs and its result after.

    Arguments are shown *before* the node runs: an in-place operation overwrites them.
    """

    def __init__(
        self, model: fx.GraphModule, before: Before | None = None, after: After | None = None
    ) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.before = before
        self.after = after

    def run_undisturbed(self, inputs: list[Any]) -> Any:
        """Run the whole graph on copies: a first layer in place would overwrite the inputs."""
        check_inputs(self.graph, inputs)
        with undisturbed(self.module):
            own = [x.detach().clone() if isinstance(x, Tensor) else x for x in inputs]
            return self.run(*own, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node between the two looks."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if self.before is not None:
            self.before(n, args, kwargs)
        try:
            result = getattr(self, n.op)(n.target, args, kwargs)
        except ChopError:
            raise
        except Exception as error:
            raise GraphError(node_failed(n, args, error)) from error
        if self.after is not None:
            self.after(n, result)
        return result


def node_failed(node: fx.Node, args: tuple[Any, ...], error: Exception) -> str:
    """Which node could not run, on what, and why."""
    shapes = ", ".join(str(tuple(a.shape)) for a in args if isinstance(a, Tensor))
    reason = str(error).strip().partition("\n")[0]
    given = f" on inputs of shape {shapes}" if shapes else ""
    return f"node {node.name!r} ({node.op} {node.target}) cannot run{given}: {reason}"


def run_graph(
    graph: MaseGraph,
    inputs: Mapping[str, Any],
    before: Before | None = None,
    after: After | None = None,
    *,
    on_meta: bool = False,
) -> Any:
    """Run the model once in evaluation mode; the model and `inputs` are left as they were.

    Args:
        inputs: values by the name of the argument or of the placeholder node.
        on_meta: compute shapes and dtypes only; nothing is calculated and no weight is copied.
    """
    given = placeholder_values(graph, inputs)
    if not on_meta:
        return Recorder(graph.model, before, after).run_undisturbed(given)
    twin = meta_twin(graph.model)
    originals = dict(zip(twin.graph.nodes, graph.nodes, strict=True))
    recorder = Recorder(
        twin,
        before and (lambda node, *call: before(originals[node], *call)),
        after and (lambda node, result: after(originals[node], result)),
    )
    with torch.device("meta"):
        return recorder.run_undisturbed([on_meta_device(value) for value in given])


def on_meta_device(value: Any) -> Any:
    """A tensor's shape and dtype without its data; anything else as it is."""
    return value.detach().to("meta") if isinstance(value, Tensor) else value


def meta_twin(model: fx.GraphModule) -> fx.GraphModule:
    """A copy of the model without data: the copying finds a meta tensor in place of each weight.

    Rounding, which keeps shapes and dtypes but looks at values, is bypassed.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    twin = copy.deepcopy(model, memo)
    for module in twin.modules():
        if isinstance(module, QuantizedModule):
            module.bypass = True
    for node in twin.graph.nodes:
        config = node.kwargs.get("config")
        if hasattr(node.target, "op") and isinstance(config, Mapping):
            node.kwargs = {**node.kwargs, "config": {**config, "bypass": True}}
    return twin


def placeholder_values(graph: MaseGraph, inputs: Mapping[str, Any]) -> list[Any]:
    """A value for each placeholder, in order; defaults of the signature fill what is missing.

    A placeholder may be called by its argument's name or by its node's: fx renames arguments
    that hide a builtin (`input` becomes `input_1`). Where there is one input and one value, the
    name does not matter: data sets call their only column `x`, whatever the model calls it.
    """
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    if len(nodes) == len(inputs) == 1:
        return list(inputs.values())
    known = {name for node in nodes for name in (node.name, argument_name(node))}
    for name in inputs:
        if name not in known and name not in (graph.cf_args or {}):
            wanted = ", ".join(argument_name(node) for node in nodes)
            raise GraphError(
                f"the model has no input {name!r}; its inputs are {wanted} (an argument with a "
                "default is one if MaseGraph is given a tensor for it in example_inputs)"
            )
    return [_value(node, {**(graph.cf_args or {}), **inputs}) for node in nodes]


def argument_name(node: fx.Node) -> str:
    """The name of the argument a placeholder stands for, without the stars of `*args`."""
    return str(node.target).lstrip("*")


def _value(node: fx.Node, inputs: Mapping[str, Any]) -> Any:
    for name in (argument_name(node), node.name):
        if name in inputs:
            return inputs[name]
    if node.args:
        return node.args[0]  # the default of the signature
    raise GraphError(f"no value is given for the model's input {argument_name(node)!r}")
