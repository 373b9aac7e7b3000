"""From a module to a GraphModule by fx, and where that fails, to a message the user can act on."""

import inspect
import logging
import math
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from chop.errors import GraphError
from chop.ir.graph.comparison import difference
from chop.ir.graph.exported import EXPORT_WAY_OUT, WAYS_OUT, export_model, stopping_line
from chop.ir.graph.recorder import ModelSnapshot
from chop.nn.decomposed import decompose
from chop.nn.quantized import QuantizedModule

logger = logging.getLogger("chop")
ALWAYS_TRAINING = (
    "node %r was traced with training=True and stays so, also after eval(): "
    "use the module instead of the function, or call model.eval() before tracing"
)

NOT_THE_MODEL = "the graph that {} makes of {} is not the model: {}"


@dataclass
class FixedArgument:
    """A value in the place of an input; fx would take tuples and dictionaries to pieces."""

    value: Any


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
        """True if calls of `m` become one node."""
        return isinstance(m, self.leaf_layers) or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """The arguments to trace with; a fixed one is its value and no input of the graph.

        fx itself would leave a numbered input and a check of its value behind.
        """
        function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        return function, [a.value if isinstance(a, FixedArgument) else a for a in args]

    def _proxy_placeholder(self, name: str, concrete_args: Any, *facts: Any) -> Any:
        if concrete_args and name in concrete_args:
            return FixedArgument(concrete_args[name])
        return super()._proxy_placeholder(name, None, *facts)


def trace(
    model: nn.Module,
    tracer: MaseTracer,
    fixed: Mapping[str, Any],
    example_inputs: Mapping[str, Any] | None,
) -> fx.GraphModule:
    """`model` as a GraphModule that shares its layers; `model` itself is left as it is.

    Where there are inputs to run, the graph gives on them what the model gives. torch.export is
    tried only if that of fx does not, or if fx gives up: it follows Python code that depends on
    shapes (`len(x)`, `range(x.shape[1])`), which fx cannot, at a price: the graph holds for the
    shapes that torch.export can prove it for, and refuses others.

    Args:
        fixed: values of arguments that are no inputs of the graph.
        example_inputs: the arguments that are.
    """
    whole, model = model, decompose(model, tracer.leaf_layers)
    known = parameters_of(model)
    check_names(model, known, cf_args=fixed, example_inputs=example_inputs or {})
    try:
        graph = symbolic_trace(model, tracer, {**defaults(known, example_inputs or ()), **fixed})
    except Exception as error:
        fault = stopping_line(model, error)
        if example_inputs is None:
            raise GraphError(f"{fault}; {EXPORT_WAY_OUT}{WAYS_OUT}") from error
        logger.warning("%s; using torch.export instead", fault)
        return trace_by_export(model, whole, tracer, fixed, example_inputs)
    reason = why_not(graph, whole, model, example_inputs, fixed) if example_inputs else None
    if reason is not None and example_inputs:
        logger.warning("%s; using torch.export instead", reason)
        try:
            return trace_by_export(model, whole, tracer, fixed, example_inputs)
        except GraphError as error:
            raise GraphError(f"{reason}; {error}") from error
    warn_of_training(graph)
    return graph


def why_not(
    graph: fx.GraphModule,
    whole: nn.Module,
    model: nn.Module,
    given: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> str | None:
    """Say why torch.export is tried in place of a graph that fx made; None if that one is good.

    This is the place for every such reason.

    Args:
        whole: the user's model.
        model: what was traced: the same, or in terms of its products.
    """
    # What fx traced it also runs, so that bits are equal, unless layers were taken apart before.
    if unlike := difference(whole, graph, given, fixed, exact=model is whole):
        return NOT_THE_MODEL.format("torch.fx", type(model).__name__, unlike)
    return None


def trace_by_export(
    model: nn.Module,
    whole: nn.Module,
    tracer: MaseTracer,
    fixed: Mapping[str, Any],
    given: Mapping[str, Any],
) -> fx.GraphModule:
    """The graph that torch.export makes of a model, which gives what the user's model gives."""
    graph = export_model(model, fixed, given, tracer.is_leaf_module)
    if unlike := difference(whole, graph, given, fixed, exact=False):
        fault = NOT_THE_MODEL.format("torch.export", type(model).__name__, unlike)
        raise GraphError(f"{fault}; {WAYS_OUT}")
    return graph


def split_inputs(example_inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs that hold a tensor, and the values that can only be fixed."""
    tensors = {
        name: value
        for name, value in example_inputs.items()
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))
    }
    return tensors, {n: v for n, v in example_inputs.items() if n not in tensors}


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The arguments of `forward`; code that is not Python does not say."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def first_argument(model: nn.Module) -> str:
    """The name of the first argument of `forward`."""
    known = parameters_of(model)
    if not known:
        raise GraphError(f"the forward of {type(model).__name__} does not name its arguments")
    return next(iter(known))


def check_names(
    model: nn.Module, known: Mapping[str, inspect.Parameter], **given: Collection[str]
) -> None:
    """Raise GraphError for the name of an argument that `forward` does not have."""
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return
    for what, names in given.items():
        for name in names:
            if name not in known:
                raise GraphError(
                    f"{what} do not fit {type(model).__name__}: it has no argument {name!r}, only "
                    f"{', '.join(map(repr, known))}"
                )


def defaults(known: Mapping[str, inspect.Parameter], given: Collection[str]) -> dict[str, Any]:
    """The defaults of the arguments that are not given.

    fx would put a stand-in for a tensor in the place of each, so that ``if targets is not None``
    took the branch of a call with targets, and ``if isinstance(last, int)`` that of another call.
    """
    return {
        name: parameter.default
        for name, parameter in known.items()
        if parameter.default is not parameter.empty and name not in given
    }


def symbolic_trace(
    model: nn.Module, tracer: MaseTracer, fixed: Mapping[str, Any]
) -> fx.GraphModule:
    """The graph that fx makes of `model`, with nothing left behind in `model` or in the graph."""
    before = ModelSnapshot(model)
    own = {*vars(model), *model._parameters, *model._buffers}
    try:
        graph = tracer.trace(model, dict(fixed))
        # fx keeps tensors that are no attributes of the model in the model.
        read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
        constants = {name: getattr(model, name) for name in read - own if "." not in name}
        warn_of_state(model, before, {*constants, *store_buffers(graph, model)})
        before.restore()
        for node in graph.find_nodes(op="placeholder"):
            if str(node.target).startswith("*") and not node.users:
                graph.erase_node(node)  # further arguments that this code passes on to nothing
        drop_untrue_defaults(graph)
        for node in graph.nodes:
            node.type = None  # annotations of the model's code, which reports would print
        for name, value in constants.items():
            setattr(model, name, value)
        return fx.GraphModule(model, graph, type(model).__name__)
    finally:
        before.restore()


def warn_of_training(graph: fx.GraphModule) -> None:
    """Name the functions that compute as in training whatever the mode: fx reads it only once."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.kwargs.get("training") is True:
            logger.warning(ALWAYS_TRAINING, node.name)


def drop_untrue_defaults(graph: fx.Graph) -> None:
    """Ask for every input that the graph was traced with, though the model can do without it."""
    needed = False  # an argument with a default cannot come before one without
    for node in reversed(graph.find_nodes(op="placeholder")):
        needed = needed or type(next(iter(node.args), 0)) in (types.NoneType, bool, str)
        if needed:
            node.args = ()


def store_buffers(graph: fx.Graph, model: nn.Module) -> list[str]:
    """Let the graph write buffers as the model does: ``self.calls = self.calls + 1``.

    fx follows the computation but not the assignment. The names of these buffers are returned.
    """
    found = {
        f"{path}.{name}" if path else name: value.node
        for path, module in model.named_modules()
        for name, value in module._buffers.items()
        if isinstance(value, fx.Proxy)
    }
    with graph.inserting_before(graph.output_node()):
        for name, value in found.items():
            graph.call_function(torch.ops.aten.copy_.default, (graph.get_attr(name), value))
    return list(found)


def warn_of_state(model: nn.Module, before: ModelSnapshot, told: Collection[str]) -> None:
    """Say what the forward does beside computing, which the graph will not do."""
    changed = [name for name in before.find_changes() if name not in told]
    if changed:
        logger.warning(
            "the forward of %s changes %s: the graph does not, and has the value of the first call "
            "built in; a buffer would be followed",
            type(model).__name__,
            ", ".join(changed),
        )
    if before.drew_random_numbers():
        logger.warning(
            "the forward of %s draws random numbers: the graph has those of this tracing built in, "
            "unless they come from a function of an input or a module",
            type(model).__name__,
        )
