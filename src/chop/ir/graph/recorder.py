"""Run a graph once and record what flows through it; refuse shapes that it does not hold for.

torch.export follows Python code that depends on shapes, such as ``range(x.shape[1])``, by taking
the shape for granted. A graph made so gives wrong numbers for other shapes, and no error.
"""

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from chop.errors import ChopError, GraphError
from chop.ir.graph.snapshot import Snapshot
from chop.nn.quantized import QuantizedModule

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards the model is as before, bit for bit.

    Modes are restored module by module, because parts of a model may be frozen on purpose.
    """
    before = Snapshot(model)
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:  # not model.eval(), which exported modules refuse
        module.training = False
    try:
        # What is recorded in inference mode could not be used with gradients later.
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        before.restore()


MADE_FOR = "made_for"
"""Where a placeholder has its shape in its `meta`."""


class FreeSize(NamedTuple):
    """A size that may vary; those of the same name vary together."""

    name: str
    least: int
    most: int | None = None

    def __str__(self) -> str:
        if self.most is not None:
            return f"{self.least} to {self.most}"
        return f"{self.least} or more" if self.least else "any"

    def holds(self, size: int) -> bool:
        """Whether a size is within the bounds."""
        return size >= self.least and (self.most is None or size <= self.most)


Shape = tuple[int | FreeSize, ...]


class Value(NamedTuple):
    """What was given in the place of a tensor; the graph has it built in."""

    value: Any


class ShapedGraphModule(fx.GraphModule):
    """A graph that runs only on the shapes it holds for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(self.forward).bind(*args, **kwargs).arguments
        check_inputs(self.graph, pytree.tree_leaves(list(given.values())))
        return super().__call__(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        made_for = [node.meta.get(MADE_FOR) for node in placeholders(self.graph)]
        return _shaped, (super().__reduce__(), made_for)


def _shaped(reduced: tuple[Any, ...], made_for: list[Any]) -> fx.GraphModule:
    """A pickled graph again: torch leaves out what is known of the nodes."""
    make, args = reduced
    module: fx.GraphModule = make(*args)
    for node, shape in zip(placeholders(module.graph), made_for, strict=True):
        node.meta[MADE_FOR] = shape
    return graph_module(module, module.graph, type(module).__name__)


def graph_module(root: nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    """A GraphModule of `graph`, one that looks at shapes if an input was made for some."""
    shaped = any(node.meta.get(MADE_FOR) is not None for node in placeholders(graph))
    return (ShapedGraphModule if shaped else fx.GraphModule)(root, graph, name)


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """The inputs of a graph."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def check_inputs(graph: fx.Graph, values: Iterable[Any]) -> None:
    """Raise GraphError if a value is not of the shape that its placeholder was made for."""
    free: dict[str, tuple[fx.Node, int]] = {}
    for node, value in zip(placeholders(graph), values, strict=False):
        made_for = node.meta.get(MADE_FOR)
        if isinstance(made_for, Value):
            if value != made_for.value:
                raise GraphError(refusal(node, repr(made_for.value), repr(value)))
        elif made_for is not None:
            check_shape(node, made_for, value, free)


def check_shape(
    node: fx.Node, made_for: Shape, value: Any, free: dict[str, tuple[fx.Node, int]]
) -> None:
    """Raise GraphError unless a value has the shape; `free` has the free sizes met so far."""
    if not isinstance(value, Tensor):
        raise GraphError(refusal(node, "a tensor", f"a {type(value).__name__}"))
    found = tuple(value.shape)
    if len(found) != len(made_for) or not all(map(fits, made_for, found)):
        raise GraphError(refusal(node, f"shape {shown(made_for)}", f"{found}"))
    for wanted, size in zip(made_for, found, strict=True):
        if isinstance(wanted, FreeSize):
            first, known = free.setdefault(wanted.name, (node, size))
            if size != known:
                raise GraphError(
                    f"node {node.name!r}: this graph was made for as many rows as {first.name!r} "
                    f"has, which is {known}, not {size}"
                )


def fits(wanted: int | FreeSize, size: int) -> bool:
    """Whether one size of a shape is right."""
    return wanted.holds(size) if isinstance(wanted, FreeSize) else wanted == size


def shown(shape: Shape) -> str:
    """A shape for people: ``(any, 4)``."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def refusal(node: fx.Node, made_for: str, found: str) -> str:
    """Why an input cannot be taken."""
    return (
        f"node {node.name!r}: this graph was made for {made_for}, not {found}; "
        "MaseGraph(model, example_inputs=…) makes one for other inputs"
    )


class Unprovable(Exception):
    """A condition on a free size that no `FreeSize` can state."""


def note_shapes(program: torch.export.ExportedProgram, graph: fx.Graph) -> None:
    """Give each placeholder of an exported graph the shape that the graph holds for."""
    least, equal = stated_conditions(program._guards_code)
    for node in placeholders(graph):
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            shape = (free_size(size, program.range_constraints, least) for size in value.shape)
            node.meta[MADE_FOR] = tuple(shape)
        else:
            node.meta[MADE_FOR] = Value(value)
    rows = {str(n.target): n.meta[MADE_FOR][:1] for n in placeholders(graph)}
    if any(rows[one] != rows[other] for one, other in equal):
        raise Unprovable


def free_size(size: Any, ranges: Mapping[Any, Any], least: int) -> int | FreeSize:
    """A size of an exported tensor: a number, or free within the bounds torch.export found."""
    if isinstance(size, int):
        return size
    symbol = size.node.expr
    if not symbol.is_Symbol:
        raise Unprovable
    bounds = ranges[symbol]
    most = int(bounds.upper) if bounds.upper.is_Integer else None
    return FreeSize(str(symbol), max(least, int(bounds.lower)), most)


ROWS = r"L\['(\w+)'\]\.size\(\)\[0\]"
BOUND = re.compile(rf"{ROWS} (<|<=|>|>=) \d+")  # torch.export states these as ranges too
EQUAL = re.compile(rf"{ROWS} == {ROWS}")
NOT_ONE = re.compile(rf"{ROWS} != 1")


def stated_conditions(guards: Iterable[str]) -> tuple[int, list[tuple[str, str]]]:
    """What a graph asks for beside its ranges: the least number of rows, and inputs with equal.

    A condition of any other kind, such as an even number of rows, is Unprovable.
    """
    least, equal = 0, []
    for guard in guards:
        if NOT_ONE.fullmatch(guard):
            least = 2  # no rows at all are refused as well
        elif found := EQUAL.fullmatch(guard):
            equal.append((found[1], found[2]))
        elif not BOUND.fullmatch(guard):
            raise Unprovable
    return least, equal


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
    graph: "MaseGraph",
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


def placeholder_values(graph: "MaseGraph", inputs: Mapping[str, Any]) -> list[Any]:
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
