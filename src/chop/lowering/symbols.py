"""Symbols: the results of nodes while a graph is lowered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from chop.lowering.program import Codes, Shape, Value
from chop.ops.op import Order, op_of_node

PROBE_ROWS = 2
"""Rows that shapes are worked out with: two tell a batch from a dimension of size one."""


@dataclass(frozen=True, eq=False)
class Exact:
    """A value of the program."""

    value: Value
    is_truth: bool = False
    """Its codes are 0 and 1, for false and true."""

    @property
    def shape(self) -> Shape:
        return self.value.shape


@dataclass(frozen=True, eq=False)
class Pending:
    """A function of single codes that nothing has rounded yet: it becomes a table when it is.

    PyTorch computed the numbers, for every code that the value can have.
    """

    value: Value
    numbers: Tensor
    """A row for each function, a column for each code."""
    again: tuple[Tensor, ...]
    """The same computed in other memory layouts, to see whether that makes a difference."""
    rows: Codes
    """Which function an element is given to; broadcasts to the shape."""

    @property
    def shape(self) -> Shape:
        return self.value.shape

    @property
    def start(self) -> int:
        """The code of the first column."""
        return self.value.limits[0]

    def take(self, value: Value, rows: Codes) -> "Pending":
        """The same functions of some of the codes, whose range may be smaller."""
        low, high = (side - self.start for side in value.limits)
        numbers, *again = (part[:, low : high + 1] for part in (self.numbers, *self.again))
        return Pending(value, numbers, tuple(again), rows)


@dataclass(frozen=True, eq=False)
class Raw:
    """An input of the network in floating point, perhaps in another shape."""

    placeholder: str
    source_shape: Shape
    shape: Shape
    index: Codes | None = None
    """Where each element comes from; None if they are in their places."""


@dataclass(frozen=True, eq=False)
class Float:
    """A result that has no integers; it may stand at the end of a network only."""

    node: str
    reason: str
    sources: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Joined:
    """Elements of several symbols, not all of them in integers until they are rounded."""

    parts: tuple[Exact | Pending | Raw, ...]
    index: Codes
    """Where each element comes from, as in a `Move`."""
    shape: Shape


@dataclass(frozen=True, eq=False)
class Turned:
    """A symbol whose rows are along another dimension of the tensor, until it is turned back."""

    inner: Exact | Pending | Raw | Joined
    axis: int

    @property
    def shape(self) -> Shape:
        return self.inner.shape


Symbol = Exact | Pending | Raw | Joined | Turned | Float
SYMBOLS = (Exact, Pending, Raw, Joined, Turned, Float)


def in_place(rows: Tensor, symbol: Symbol) -> Tensor:
    """Rows of a symbol as the network has them."""
    return rows.movedim(0, symbol.axis) if isinstance(symbol, Turned) else rows


def is_symbolic(value: Any) -> bool:
    """True if a value, or something in it, is known only as a symbol."""
    if isinstance(value, dict):
        return any(map(is_symbolic, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_symbolic, value))
    if isinstance(value, slice):
        return any(map(is_symbolic, (value.start, value.stop, value.step)))
    return isinstance(value, SYMBOLS)


def symbols_in(value: Any) -> list[Symbol]:
    """Every symbol in nested containers, in order."""
    if isinstance(value, dict):
        return symbols_in(list(value.values()))
    if isinstance(value, list | tuple):
        return [found for item in value for found in symbols_in(item)]
    return [value] if isinstance(value, SYMBOLS) else []


def values_under(symbol: Symbol) -> tuple[Value, ...]:
    """The values from which floating point computes a symbol."""
    match symbol:
        case Exact(value=value) | Pending(value=value):
            return (value,)
        case Joined(parts=parts):
            return tuple(value for part in parts for value in values_under(part))
        case Turned(inner=inner):
            return values_under(inner)
        case Float(sources=sources):
            return sources
    return ()


def out_of_order(nodes: Iterable[fx.Node], modules: Mapping[str, nn.Module]) -> set[fx.Node]:
    """The nodes whose results may lie in memory in another order than their dimensions.

    Batch normalisation has other kernels for those, which round otherwise.

    Args:
        nodes: all nodes from the first to the last.
    """
    found: set[fx.Node] = set()
    for node in nodes:
        op = op_of_node(node, modules)
        order = Order.KEPT if op is None else op.order
        keeps = order is Order.KEPT and not found.isdisjoint(node.all_input_nodes)
        if order is Order.ANY or keeps:
            found.add(node)
    return found
