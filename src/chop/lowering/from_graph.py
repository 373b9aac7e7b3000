"""From a quantised graph to its integer program."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ChopError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering.builder import ProgramBuilder
from chop.lowering.dyadic import dyadic
from chop.lowering.formats import LoweringError, codes_in_units, in_binary, scales_along
from chop.lowering.program import Codes, IntegerProgram, Numbers, Shape, Step, Value, needed_steps
from chop.lowering.ranges import TooWideError
from chop.lowering.symbols import (
    SYMBOLS,
    Exact,
    Float,
    Pending,
    Raw,
    is_symbolic,
    out_of_order,
    symbols_in,
    values_under,
)
from chop.nn.quant_config import OUTPUT
from chop.nn.quantized import QuantizedModule, own_shell
from chop.numerics import IntegerScaled, NumberFormat
from chop.ops.op import Op

FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What torch raises where a node cannot be computed on symbols; it has errors of many kinds."""


def lower(
    graph: MaseGraph, inputs: Mapping[str, Tensor] | None = None, *, cut_tail: bool = False
) -> IntegerProgram:
    """The integers that a quantised graph computes, for any number of rows.

    Args:
        inputs: tensors of a batch by name, for their shapes; without them, those that the metadata
            recorded.
        cut_tail: leave off what stays in floating point at the end, such as a softmax, so that
            the program gives the codes that it reads.
    """
    return Lowering(graph, inputs or {}).program(cut_tail)


@dataclass(frozen=True, eq=False)
class SymbolicCall(NodeCall):
    """A node whose operands are symbols where they depend on the input, else plain values."""

    op: Op
    lowering: "Lowering"
    operands: Mapping[str, Any]
    """By the names of the operation's arguments; rounded where the node is quantised."""
    binary: Mapping[str, NumberFormat]
    """The formats of operands, as fixed point where their scales are powers of two."""

    @property
    def name(self) -> str:
        """The name of the node; of a part of an operation, that of the whole."""
        return self.lowering.owner or self.node.name

    @property
    def builder(self) -> ProgramBuilder:
        return self.lowering.builder

    @property
    def reads_out_of_order(self) -> bool:
        """True if what the node reads may lie in memory in another order than its dimensions."""
        return not self.lowering.out_of_order.isdisjoint(self.node.all_input_nodes)

    @property
    def source(self) -> Any:
        """The first operand."""
        return next(iter(self.operands.values()))

    def value(self, operand: Any) -> Value:
        """An operand as a value of the program; refused where it is not in integers."""
        return self.builder.exact(operand, self.name)

    def emit(
        self, step: type[Step], sources: list[Value], shape: Shape, frac: Any, **own: Any
    ) -> Exact:
        """Add a step of this node; `scale` is that of its constants."""
        return Exact(self.builder.emit(step, self.name, sources, shape, frac, **own))

    def setting(self, name: str, default: Any = None) -> Any:
        """An attribute of the module or an argument of the function."""
        if self.module is not None:
            return getattr(self.module, name, default)
        given = self.operands.get(name)
        return default if given is None else given

    def parameter(self, role: str) -> tuple[Codes, int] | None:
        """Codes and binary point of a parameter as the operation sees it, if there is one.

        What has a scale of its own (`scale_of`) has the binary point 0.
        """
        found = self._operand(role)
        if found is None:
            return None
        value, fmt = found
        if isinstance(fmt, IntegerScaled):
            return fmt.steps(value).numpy(), 0
        return dyadic(value if fmt is None else fmt(value))

    def scale_of(self, role: str, axis: int = 0) -> Numbers:
        """The scale of each index of a dimension of a parameter."""
        found = self._operand(role)
        assert found is not None
        return scales_along(found[1], found[0], axis, f"the {role} of {self.name}")

    def bias_in(self, unit: Numbers) -> tuple[Codes, bool] | None:
        """The bias in units of sums that have a scale: the nearest ones, and if it is they."""
        found = self._operand("bias")
        if found is None:
            return None
        return codes_in_units(*found, unit)

    def _operand(self, role: str) -> tuple[Tensor, NumberFormat | None] | None:
        """A parameter and its format; None for one that was rounded before."""
        named = {known: name for name, known in self.roles.items()}
        given = self.operands.get(named.get(role, role))
        value = getattr(self.module, role, None) if self.module is not None else given
        if value is None:
            return None
        if not isinstance(value, Tensor):
            raise LoweringError(f"{self.name}: its {role} is computed by the network: use matmul")
        fmt = self.binary.get(role)
        if fmt is None and self.lowering.owner:  # rounded before the operation had parts
            return value.detach(), None
        if fmt is None:
            raise LoweringError(
                f"{self.name} has its {role} in floating point: quantise {self.name} "
                f"({self.op.name})"
            )
        if getattr(fmt, "stochastic", False):
            raise LoweringError(f"{self.name}: its {role} is rounded at random at each run")
        return value.detach(), fmt

    def run(self, *replacements: Tensor) -> Any:
        """PyTorch's result of the node, without rounding, its symbols replaced in their order."""
        return self.lowering.execute(self, replacements)

    def float_result(self, reason: str) -> Float:
        """The node stays in floating point, which is allowed at the end of a network."""
        sources = (values_under(symbol) for symbol in symbols_in(dict(self.operands)))
        return Float(self.name, reason, tuple(value for each in sources for value in each))


class Lowering:
    """Runs a graph on symbols, node by node."""

    def __init__(self, graph: MaseGraph, inputs: Mapping[str, Tensor]) -> None:
        self.graph, self.inputs, self.modules = graph, inputs, graph.modules
        floats = (p.dtype for p in graph.model.parameters() if p.is_floating_point())
        self.builder = ProgramBuilder(next(floats, torch.float32))
        self.results: dict[fx.Node, Any] = {}
        self._functions: dict[fx.Node, Callable[..., Any]] = {}
        self.grids: dict[tuple[str, str], Numbers] = {}
        """The scales of what nodes round to formats with scales, by node and operand."""
        self.owner: str | None = None
        """The node that is lowered part by part."""

    def inside(self, call: NodeCall, results: dict[fx.Node, Any]) -> "Lowering":
        """Return what lowers the parts of an operation, into the same program."""
        inner = copy.copy(self)
        inner.results, inner._functions, inner.owner = dict(results), {}, call.node.name
        return inner

    @cached_property
    def out_of_order(self) -> set[fx.Node]:
        """The nodes whose results may lie in memory in another order than their dimensions."""
        return out_of_order(self.graph.nodes, self.modules)

    def program(self, cut_tail: bool) -> IntegerProgram:
        """Lower every node."""
        for node in self.graph.nodes:
            try:
                self.results[node] = self.visit(node)
            except TooWideError as error:
                raise LoweringError(f"{node.name} {error}") from None
            except ChopError:
                raise
            except FAILURES as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
                raise LoweringError(f"{node.name} has no integers: {reason}") from error
        return self.finish(cut_tail)

    def visit(self, node: fx.Node) -> Any:
        """The result of a node."""
        match node.op:
            case "placeholder":
                shape = self.input_shape(node)
                return None if shape is None else Raw(str(node.target), shape, shape)
            case "get_attr":
                return _attribute(self.graph.model, str(node.target))
            case "output":
                return fx.map_arg(node.args[0], self.results.__getitem__)
        call = NodeCall.of(node, self.modules)
        if not is_symbolic([self.results[each] for each in node.all_input_nodes]):
            return self.execute(call)
        result = self.lower_call(call)
        if call.in_place:
            source, *others = call.overwritten_nodes
            if any(len(each.users) > 1 for each in others):
                raise LoweringError(
                    f"{node.name} writes in place into memory that others read: take inplace out"
                )
            self.results[source] = result
        return result

    def input_shape(self, node: fx.Node) -> Shape | None:
        """The shape of an input without the batch; None for one that is not a tensor."""
        given = self.inputs.get(str(node.target))
        if isinstance(given, Tensor):
            return tuple(given.shape[1:])
        results = node.meta["mase"]["common"].get("results", {}) if "mase" in node.meta else {}
        shape = (results.get("data_out_0") or {}).get("shape")
        if shape is None and node.users:
            raise LoweringError(
                f"the shape of the input {node.target!r} is not known: give inputs={{...}} or run "
                "add_common_metadata_analysis_pass"
            )
        return None if shape is None else tuple(shape[1:])

    def lower_call(self, call: NodeCall) -> Any:
        """The symbols that the rule of a node's operation makes of its operands."""
        node, op, module = call.node, call.op, call.module
        if op is None:
            reads = symbols_in([self.results[each] for each in node.all_input_nodes])
            values = tuple(value for symbol in reads for value in values_under(symbol))
            return Float(node.name, "is not an operation that has a rule", values)
        if module is not None:
            refuse_own_code(node, op, module)
        formats = {} if call.quant is None else call.quant.operands
        formats = {role: in_binary(fmt) for role, fmt in formats.items()}
        if op.inner and any(isinstance(fmt, IntegerScaled) for fmt in formats.values()):
            raise LoweringError(f"{node.name} ({op.name}): its scales must be powers of two")
        inside = () if call.layer is None else {*op.inner} - {"data_in"}  # rounded by the layer
        outside = {role: fmt for role, fmt in formats.items() if role not in inside}
        operands = {}
        for name, value in call.bind(*self.arguments(node)).items():
            role = call.roles.get(name) or ""
            self._take_grid(node.name, role, value, outside)
            operands[name] = self.round_symbol(value, outside.get(role), node.name)
        ready = SymbolicCall(node, op, module, self.modules, self, operands, formats)
        poison = next((s for s in symbols_in(operands) if isinstance(s, Float)), None)
        if poison is not None:
            result: Any = replace(ready.float_result(poison.reason), node=poison.node)
        elif op.lowering is not None:
            result = op.lowering(ready)
        else:
            result = ready.float_result(f"has no rule in integers ({op.name})")
        self._take_grid(node.name, OUTPUT, result, formats)
        if OUTPUT in formats:
            result = self.builder.round_symbol(result, formats[OUTPUT], node.name)
        return result

    def _take_grid(
        self, node: str, role: str, value: Any, formats: Mapping[str, NumberFormat]
    ) -> None:
        if isinstance(formats.get(role), IntegerScaled) and isinstance(value, Exact):
            self.grids[node, role] = value.value.unit

    def arguments(self, node: fx.Node) -> tuple[Any, Any]:
        """The arguments of a node, by position and by name, with the results of other nodes."""
        return (
            fx.map_arg(node.args, self.results.__getitem__),
            fx.map_arg(node.kwargs, self.results.__getitem__),
        )

    def round_symbol(self, value: Any, fmt: NumberFormat | None, node: str) -> Any:
        """An operand in its format; floats at the end of a network are left alone."""
        if fmt is None or isinstance(value, Float):
            return value
        if isinstance(value, list | tuple):
            return type(value)(self.round_symbol(item, fmt, node) for item in value)
        if isinstance(value, SYMBOLS):
            return self.builder.round_symbol(value, fmt, node)
        if isinstance(value, Tensor) and value.is_floating_point():
            return fmt(value.detach())
        return value

    def execute(
        self,
        call: NodeCall,
        replacements: Sequence[Any] = (),
        function: Callable[..., Any] | None = None,
    ) -> Any:
        """The result of a node in evaluation mode, of all operands only parameters rounded.

        Args:
            function: what computes it, if it is not to be that.
        """
        left = list(replacements)

        def fill(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(fill(item) for item in value)
            return left.pop(0) if isinstance(value, SYMBOLS) else value

        args, kwargs = self.arguments(call.node)
        filled = fill(tuple(args))
        named = {name: fill(value) for name, value in kwargs.items() if name != "config"}
        if function is None:
            if call.node not in self._functions:
                self._functions[call.node] = function_of_parameters(call)
            function = self._functions[call.node]
        with torch.no_grad():
            return function(*filled, **named)

    def finish(self, cut_tail: bool) -> IntegerProgram:
        """The program, without steps that no output needs."""
        outputs: list[str] = []
        last = next(node for node in self.graph.nodes if node.op == "output")
        symbols = symbols_in(self.results[last])
        if not symbols:
            raise LoweringError("the output does not depend on the input")
        for symbol in symbols:
            if cut_tail and isinstance(symbol, Pending | Float):
                outputs += [value.name for value in values_under(symbol)]
            elif isinstance(symbol, Float):
                raise LoweringError(f"{symbol.node} {symbol.reason}{self.way_out(symbol)}")
            else:
                outputs.append(self.builder.exact(symbol, last.name).name)
        steps = needed_steps(self.builder.steps, outputs)
        used = {name for step in steps for name in step.sources} | set(outputs)
        inputs = tuple(each for each in self.builder.inputs if each.value.name in used)
        return IntegerProgram(inputs, steps, tuple(outputs), self.tail(outputs))

    def way_out(self, symbol: Float) -> str:
        """Advice for a node without integers, which may stand at the end of a network only."""
        begin = next(node for node in self.results if node.name == symbol.node)
        after = {begin}
        for node in self.results:  # in the order in which they run
            if not after.isdisjoint(node.all_input_nodes) and node.op != "output":
                after.add(node)
        here = ", or" if ": " in symbol.reason else ": put in its place what has integers, or"
        if len(after) == 1:
            return f"{here} leave it off with cut_tail"
        first, *more = (node.name for node in self.results if node in after - {begin})
        names = f"{first} and {len(more)} more nodes" if more else first
        return f"{here} end the program before it with cut_tail (leaves off {names}, too)"

    def tail(self, outputs: list[str]) -> tuple[str, ...]:
        """The nodes after the outputs."""
        return tuple(
            node.name
            for node, result in self.results.items()
            if node.op != "output"
            and any(
                isinstance(symbol, Float)
                or (isinstance(symbol, Pending) and symbol.value.name in outputs)
                for symbol in symbols_in(result)
            )
        )


def refuse_own_code(node: fx.Node, op: Op, module: nn.Module) -> None:
    """Refuse a module that does more than its operation: that would be left out in silence."""
    if isinstance(module, QuantizedModule) and module.quantizers_by_role:
        raise LoweringError(
            f"{node.name} has quantisers that learn: the pass freeze turns the graph into one with "
            "plain formats"
        )
    if module._forward_hooks or module._forward_pre_hooks:
        raise LoweringError(
            f"{node.name} has hooks, as pruned activations have, and no rule covers them"
        )
    cls = module.base if isinstance(module, QuantizedModule) else type(module)
    if op.module is not None and cls.forward is not op.module.forward:
        raise LoweringError(
            f"{node.name}: {cls.__name__} has its own forward, which no rule covers: use "
            f"{op.module.__name__}"
        )


def _attribute(model: nn.Module, target: str) -> Any:
    path, _, name = target.rpartition(".")
    return getattr(model.get_submodule(path), name)


def function_of_parameters(call: NodeCall) -> Callable[..., Any]:
    """A function that computes a node in evaluation mode; data was rounded before, or is not."""
    if call.op is not None and call.quant is not None:
        params = {r: fmt for r, fmt in call.quant.operands.items() if r in call.op.params}
        return call.rounded_by(params)
    if call.layer is None:
        return call.in_float
    twin = own_shell(call.in_float)  # type: ignore[arg-type]
    twin.training = False
    return twin
