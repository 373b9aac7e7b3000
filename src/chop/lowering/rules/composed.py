"""Operations that are composed of others: what they compute is recorded, and its parts are lowered.

`chop.ops.stepwise` and `chop.ops.composed` say what they are composed of.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import GraphAppendingTracer

from chop.lowering.from_graph import Lowering, SymbolicCall
from chop.lowering.symbols import (
    PROBE_ROWS,
    Exact,
    Float,
    Symbol,
    Turned,
    in_place,
    symbols_in,
    values_under,
)
from chop.ops.op import OPS, lowering
from chop.ops.stepwise import TABLE, round_in


class ExampleProxy(fx.Proxy):
    """A tensor of a computation that is recorded, whose shape and type are those of an example."""

    example: Any

    @property
    def shape(self) -> Any:
        return self.example.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.example.dtype  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return self.example.device  # type: ignore[no-any-return]

    def dim(self) -> int:
        return self.example.dim()  # type: ignore[no-any-return]

    def size(self, *args: Any) -> Any:
        return self.example.size(*args)

    def is_floating_point(self) -> bool:
        return self.example.is_floating_point()  # type: ignore[no-any-return]

    def is_complex(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.example)

    def __iter__(self) -> Any:
        return iter([operator.getitem(self, place) for place in range(len(self.example))])


class ExampleTracer(GraphAppendingTracer):
    """Records what a function does with tensors, and does the same with examples of them."""

    def proxy(self, node: fx.Node) -> ExampleProxy:
        return ExampleProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        try:
            return super().create_arg(a)
        except NotImplementedError:  # constants and formats, which are not written as code
            return a

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any
    ) -> Any:
        made: Any = super().create_proxy(kind, target, args, kwargs, *more, **named)
        if kind == "placeholder":
            return made
        args, kwargs = fx.node.map_aggregate((args, kwargs), example_of)
        if kind == "call_method":
            made.example = getattr(args[0], target)(*args[1:], **kwargs)
        else:
            made.example = target(*args, **kwargs)
        return made

    def placeholder(self, name: str, example: Tensor) -> ExampleProxy:
        """Return a tensor that the function is given."""
        made: ExampleProxy = self.create_proxy("placeholder", name, (), {})
        made.example = example
        return made


def example_of(value: Any) -> Any:
    """Return the example of a recorded tensor; anything else as it is."""
    return value.example if isinstance(value, ExampleProxy) else value


@lowering(*(op.name for op in OPS.values() if TABLE in op.inner))
def lower_composed(call: SymbolicCall) -> Any:
    """Lower an operation part by part."""
    if TABLE not in call.binary:
        return call.float_result(f"has no tables ({call.op.name}): give it a {TABLE}_width")
    tracer = ExampleTracer(fx.Graph())
    symbols = symbols_in(dict(call.operands))
    proxies = [tracer.placeholder(f"x{n}", probe(call, each)) for n, each in enumerate(symbols)]
    result = call.lowering.execute(call, proxies, call.rounded_by(call.binary))
    given = {proxy.node: symbol for proxy, symbol in zip(proxies, symbols, strict=True)}
    with call.builder.inside():
        inner = call.lowering.inside(call, given)
        for node in tracer.graph.nodes:
            if node not in given:
                inner.results[node] = lower_part(inner, node)
        found = fx.node.map_aggregate(result, lambda each: part_of(inner, each))
        values = [each for symbol in symbols_in(found) for each in values_under(symbol)]
    call.builder.show(values)
    return found


def probe(call: SymbolicCall, symbol: Symbol) -> Tensor:
    """Return a tensor of the shape of a symbol."""
    dtype = torch.bool if getattr(symbol, "is_truth", False) else call.builder.dtype
    assert not isinstance(symbol, Float)
    return in_place(torch.zeros((PROBE_ROWS, *symbol.shape), dtype=dtype), symbol)


def lower_part(inner: Lowering, node: fx.Node) -> Any:
    """Return the result of one part: a rounding, or an operation."""
    if node.target is not round_in:
        return inner.visit(node)
    (source, fmt), _ = inner.arguments(node)
    return inner.round_symbol(source, fmt, str(inner.owner))


def part_of(inner: Lowering, value: Any) -> Any:
    """Return the symbol of a recorded tensor as a value of the program; anything else as it is."""
    if not isinstance(value, fx.Proxy):
        return value
    found = inner.results[value.node]
    if isinstance(found, Turned):
        own = inner.builder.exact(found.inner, str(inner.owner))
        return Turned(Exact(own), found.axis)
    return Exact(inner.builder.exact(found, str(inner.owner)))
