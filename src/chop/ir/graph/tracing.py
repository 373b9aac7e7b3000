"""From a module to a GraphModule, and where that fails, to a message the user can act on."""

import inspect
import logging
import math
import os
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph import CodeGen, _PyTreeCodeGen
from torch.utils import _pytree as pytree

from chop.errors import GraphError
from chop.nn.quantized import QuantizedModule

logger = logging.getLogger("chop")

# Code of these folders is never the user's.
OUR_CODE = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
SPECIALISED = "has been specialized to have value"  # in fx's checks of fixed arguments
WAYS_OUT = (
    "keep that part whole in a module of its own and pass "
    "tracer=MaseTracer(custom_leaf_modules=(ThatModule,)), fix the argument it depends on with "
    "cf_args={{name: value}}{export}"
)
EXPORT_WAY_OUT = ", or pass example_inputs={name: tensor} to trace with torch.export"


class MaseTracer(fx.Tracer):
    """An fx tracer that stops at quantised layers and at whatever the user names.

    Buffers are read when the graph runs, as parameters are; plain fx would use up their values
    while tracing, and a forward that writes to a buffer would do so.

    Args:
        custom_leaf_modules: module classes to keep whole, or Python modules whose functions are
            recorded as calls, as `math` is.
        custom_leaf_layers: more module classes to keep whole.
        custom_leaf_functions: functions that are recorded as calls and not looked into.
        param_shapes_constant: whether the shape of a parameter is a number while tracing.
    """

    proxy_buffer_attributes = True

    def __init__(
        self,
        custom_leaf_modules: Sequence[type[nn.Module] | types.ModuleType] = (),
        custom_leaf_layers: Sequence[type[nn.Module]] = (),
        custom_leaf_functions: Sequence[Callable[..., Any]] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        python_modules = [m for m in custom_leaf_modules if isinstance(m, types.ModuleType)]
        super().__init__(
            autowrap_modules=(math, *python_modules),  # type: ignore[arg-type]  # torch says one
            autowrap_functions=tuple(custom_leaf_functions),
            param_shapes_constant=param_shapes_constant,
        )
        layers = [m for m in custom_leaf_modules if not isinstance(m, types.ModuleType)]
        self.leaf_layers: tuple[type[nn.Module], ...] = (
            QuantizedModule,
            *layers,
            *custom_leaf_layers,
        )

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether calls of `m` become one node."""
        return isinstance(m, self.leaf_layers) or super().is_leaf_module(m, module_qualified_name)


def trace(
    model: nn.Module,
    tracer: MaseTracer,
    cf_args: Mapping[str, Any] | None,
    example_inputs: Mapping[str, Any] | None,
) -> fx.GraphModule:
    """`model` as a GraphModule that shares its layers.

    torch.export is tried only if fx gives up and there are inputs to run: it follows Python code
    that depends on shapes (`len(x)`, `range(x.shape[1])`), which fx cannot, at a price: the graph
    holds for inputs of just these shapes, and layers appear as ATen functions, not as modules.
    """
    try:
        return symbolic_trace(model, tracer, cf_args or {})
    except Exception as error:
        if example_inputs is None:
            raise GraphError(untraceable(model, error, EXPORT_WAY_OUT)) from error
        logger.warning("%s; using torch.export instead", where_it_stopped(model, error))
        return export(model, cf_args or {}, example_inputs)


def symbolic_trace(
    model: nn.Module, tracer: MaseTracer, cf_args: Mapping[str, Any]
) -> fx.GraphModule:
    """What fx makes of `model`, with nothing left behind in `model` or in the graph."""
    attributes = set(vars(model))
    try:
        graph = tracer.trace(model, dict(cf_args) or None)
        if cf_args:
            drop_fixed_inputs(graph, cf_args)
        warn_of_training(graph)
        for node in graph.nodes:
            node.type = None  # annotations of the model's code, which reports would print
        return fx.GraphModule(model, graph, type(model).__name__)
    finally:
        for name in set(vars(model)) - attributes:  # fx keeps tensor constants in the model
            delattr(model, name)


def warn_of_training(graph: fx.Graph) -> None:
    """Say which functions will behave as in training for ever: fx reads the mode only once."""
    for node in graph.nodes:
        if node.op == "call_function" and node.kwargs.get("training") is True:
            logger.warning(
                "node %r was traced with training=True and stays so, also after eval(): "
                "use the module instead of the function, or call model.eval() before tracing",
                node.name,
            )


def drop_fixed_inputs(graph: fx.Graph, cf_args: Mapping[str, Any]) -> None:
    """Remove the placeholders that fx leaves for fixed arguments, and the checks of their values.

    fx checks numbers, strings and None (`assert flag_1 == True`); of other values only the numbered
    placeholder is left, which nothing uses.
    """
    for check in [node for node in graph.nodes if SPECIALISED in str(node.args[1:2])]:
        value = check.args[0]
        graph.erase_node(check)
        if value.op != "placeholder":
            value, comparison = value.args[0], value
            graph.erase_node(comparison)
        graph.erase_node(value)
    for node in [n for n in graph.nodes if n.op == "placeholder" and not n.users]:
        name, _, number = str(node.target).rpartition("_")
        if name in cf_args and number.isdigit():
            graph.erase_node(node)


def export(
    model: nn.Module, cf_args: Mapping[str, Any], example_inputs: Mapping[str, Any]
) -> fx.GraphModule:
    """The ATen graph of `model` for inputs of these shapes."""
    try:
        call = inspect.signature(model.forward).bind(**example_inputs, **cf_args)
    except TypeError as error:
        raise GraphError(f"example_inputs do not fit {type(model).__name__}: {error}") from None
    try:
        program = torch.export.export(model, call.args, call.kwargs, strict=False)
    except Exception as error:
        raise GraphError(untraceable(model, error, "")) from error
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    module.graph.eliminate_dead_code()  # parameters that this forward does not read
    unpack_arguments(module.graph)
    return fx.GraphModule(module, module.graph, type(model).__name__)


def unpack_arguments(graph: fx.Graph) -> None:
    """Give an exported graph plain arguments and results, unless an argument holds several tensors.

    torch.export writes code that takes its arguments apart and puts its result together; a graph
    without it is like any other, and can be saved.
    """
    codegen = graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen):
        return
    facts = codegen.pytree_info
    args, kwargs = facts.in_spec.children()
    if args.num_children + kwargs.num_children == facts.in_spec.num_leaves and facts.out_spec:
        output = graph.output_node()
        flat: Any = output.args[0]
        output.args = (pytree.tree_unflatten(list(flat), facts.out_spec),)
        graph.set_codegen(CodeGen())


def untraceable(model: nn.Module, error: Exception, export_way_out: str) -> str:
    """Why `model` cannot be traced, at which line of the user's, and what to write instead."""
    return f"{where_it_stopped(model, error)}; {WAYS_OUT.format(export=export_way_out)}"


def where_it_stopped(model: nn.Module, error: Exception) -> str:
    """The user's line that tracing stops at and the reason."""
    message = str(error).strip().partition("\n")[0]
    reason = message.partition(". ")[0].rstrip(".") or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)  # the first is in this file
    theirs = [frame for frame in frames if not frame.filename.startswith(OUR_CODE)]
    at = (theirs or frames)[-1]  # a model may be all torch's
    code = f" (`{at.line}`)" if at.line else ""
    return f"cannot trace {type(model).__name__}: {at.filename}, line {at.lineno}{code}: {reason}"
