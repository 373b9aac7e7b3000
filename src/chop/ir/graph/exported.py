"""Graphs made by torch.export: how they are made, and the shapes that each of them holds for.

torch.export follows Python code that depends on shapes, such as ``range(x.shape[1])``, by taking
the shape for granted. Such a graph would give wrong numbers for other shapes, and no error, so it
checks its inputs.
"""

import contextlib
import inspect
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental import _config as export_settings
from torch.fx.graph import CodeGen, _PyTreeCodeGen
from torch.utils import _pytree as pytree

from chop.errors import GraphError
from chop.ir.graph.recorder import Snapshot

MADE_FOR = "made_for"
"""Where a placeholder has its shape in its `meta`."""
# Code of these folders is never the user's.
OUR_CODE = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
WAYS_OUT = (
    "keep that part whole in a module of its own and pass "
    "tracer=MaseTracer(custom_leaf_modules=(ThatModule,)), fix the argument it depends on with "
    "cf_args={name: value}"
)
EXPORT_WAY_OUT = ", or pass example_inputs={name: tensor} to trace with torch.export"


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
        self.check_inputs(pytree.tree_leaves(list(given.values())))
        return super().__call__(*args, **kwargs)

    def check_inputs(self, values: Iterable[Any]) -> None:
        """Raise GraphError if a value is not of the shape that its placeholder was made for."""
        free: dict[str, tuple[fx.Node, int]] = {}
        for node, value in zip(self.graph.find_nodes(op="placeholder"), values, strict=False):
            made_for = node.meta.get(MADE_FOR)
            if isinstance(made_for, Value):
                if value != made_for.value:
                    raise GraphError(refusal(node, repr(made_for.value), repr(value)))
            elif made_for is not None:
                check_shape(node, made_for, value, free)

    def __reduce__(self) -> tuple[Any, ...]:
        made_for = [n.meta.get(MADE_FOR) for n in self.graph.find_nodes(op="placeholder")]
        return _shaped, (super().__reduce__(), made_for)


def _shaped(reduced: tuple[Any, ...], made_for: list[Any]) -> fx.GraphModule:
    """A pickled graph again: torch leaves out what is known of the nodes."""
    make, args = reduced
    module: fx.GraphModule = make(*args)
    for node, shape in zip(module.graph.find_nodes(op="placeholder"), made_for, strict=True):
        node.meta[MADE_FOR] = shape
    return ShapedGraphModule(module, module.graph, type(module).__name__)


def check_shape(
    node: fx.Node, made_for: Shape, value: Any, free: dict[str, tuple[fx.Node, int]]
) -> None:
    """Raise GraphError unless a value has the shape; `free` has the free sizes met so far."""
    if not isinstance(value, Tensor):
        raise GraphError(refusal(node, "a tensor", f"a {type(value).__name__}"))
    found = tuple(value.shape)
    if len(found) != len(made_for) or not all(
        wanted.holds(size) if isinstance(wanted, FreeSize) else wanted == size
        for wanted, size in zip(made_for, found, strict=True)
    ):
        shape = f"({', '.join(map(str, made_for))}{',' * (len(made_for) == 1)})"  # as (any, 4)
        raise GraphError(refusal(node, f"shape {shape}", f"{found}"))
    for wanted, size in zip(made_for, found, strict=True):
        if isinstance(wanted, FreeSize):
            first, known = free.setdefault(wanted.name, (node, size))
            if size != known:
                raise GraphError(
                    f"node {node.name!r}: this graph was made for as many rows as {first.name!r} "
                    f"has, which is {known}, not {size}"
                )


def refusal(node: fx.Node, made_for: str, found: str) -> str:
    """Why an input cannot be taken."""
    return (
        f"node {node.name!r}: this graph was made for {made_for}, not {found}; "
        "MaseGraph(model, example_inputs=…) makes one for other inputs"
    )


def export(
    model: nn.Module, fixed: Mapping[str, Any], example_inputs: Mapping[str, Any]
) -> fx.GraphModule:
    """The ATen graph of `model`, for any number of rows if that can be proved."""
    try:
        call = inspect.signature(model.forward).bind(**example_inputs, **fixed)
    except TypeError as error:
        raise GraphError(f"example_inputs do not fit {type(model).__name__}: {error}") from None
    before = Snapshot(model)
    try:
        # Even a model that fails with free rows may be exported for rows as they are.
        with contextlib.suppress(Exception):
            rows = {0: torch.export.Dim.AUTO}  # the first size of every tensor
            free = pytree.tree_map(
                lambda value: rows if isinstance(value, Tensor) and value.ndim else None,
                dict(call.arguments),
            )
            return export_call(model, call, free, fixed)
        before.restore()
        return export_call(model, call, None, fixed)
    except Exception as error:
        raise GraphError(f"{where_it_stopped(model, error)}; {WAYS_OUT}") from error
    finally:
        before.restore()


def export_call(
    model: nn.Module, call: inspect.BoundArguments, free: Any, fixed: Mapping[str, Any]
) -> fx.GraphModule:
    """The graph of one call, which refuses shapes that it does not hold for.

    Args:
        free: the sizes that torch.export is to leave open, in the shape of the arguments.
    """
    # Without this torch.export takes it that there are two rows or more, and does not say so.
    with export_settings.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        program = torch.export.export(
            model, call.args, call.kwargs, dynamic_shapes=free, strict=False
        )
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    module.graph._tracer_cls = None  # one of torch's own, which no pickle could make again
    module.graph.eliminate_dead_code()  # parameters that this forward does not read
    note_shapes(program, module.graph)
    if unpack_arguments(module.graph):
        drop_fixed_inputs(module, fixed)
    return ShapedGraphModule(module, module.graph, type(model).__name__)


def drop_fixed_inputs(module: fx.GraphModule, fixed: Mapping[str, Any]) -> None:
    """Remove the placeholders that torch.export leaves for fixed arguments."""
    for node in module.graph.find_nodes(op="placeholder"):
        argument = str(node.target)
        if argument in fixed:
            if isinstance(fixed[argument], Tensor):
                name = f"_{argument}_constant"
                module.register_buffer(name, fixed[argument], persistent=False)
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(module.graph.get_attr(name))
            module.graph.erase_node(node)


def unpack_arguments(graph: fx.Graph) -> bool:
    """Give an exported graph plain arguments and results, unless an argument holds several tensors.

    torch.export writes code that takes its arguments apart and puts its result together; a graph
    without it is like any other, and can be saved.
    """
    codegen = graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen):
        return True
    facts = codegen.pytree_info
    args, kwargs = facts.in_spec.children()
    if args.num_children + kwargs.num_children != facts.in_spec.num_leaves or not facts.out_spec:
        return False
    output = graph.output_node()
    flat: Any = output.args[0]
    output.args = (pytree.tree_unflatten(list(flat), facts.out_spec),)
    graph.set_codegen(CodeGen())
    return True


class Unprovable(Exception):
    """A condition on a free size that no `FreeSize` can state."""


def note_shapes(program: torch.export.ExportedProgram, graph: fx.Graph) -> None:
    """Give each placeholder of an exported graph the shape that the graph holds for."""
    least, equal = stated_conditions(program._guards_code)
    inputs = graph.find_nodes(op="placeholder")
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            shape = (free_size(size, program.range_constraints, least) for size in value.shape)
            node.meta[MADE_FOR] = tuple(shape)
        else:
            node.meta[MADE_FOR] = Value(value)
    rows = {str(n.target): n.meta[MADE_FOR][:1] for n in inputs}
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


def where_it_stopped(model: nn.Module, error: Exception) -> str:
    """The user's line that tracing stops at and the reason."""
    message = str(error).strip().partition("\n")[0]
    reason = message.partition(". ")[0].rstrip(".") or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)  # the first is in this file
    theirs = [frame for frame in frames if not frame.filename.startswith(OUR_CODE)]
    at = (theirs or frames)[-1]  # a model may be all torch's
    code = f" (`{at.line}`)" if at.line else ""
    return f"cannot trace {type(model).__name__}: {at.filename}, line {at.lineno}{code}: {reason}"
