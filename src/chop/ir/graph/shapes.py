"""The shapes that an exported graph holds for, and the refusal of all others.

torch.export follows Python code that depends on shapes, such as ``range(x.shape[1])``, by taking
the shape for granted. A graph made so gives wrong numbers for other shapes, and no error.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from chop.errors import GraphError

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
