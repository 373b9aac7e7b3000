"""The operands that each operation meets: their sizes, and the widths of their numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan, prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.call import Formats, NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.ir.parameters import plain_name
from chop.nn.quant_config import OUTPUT, QuantConfig
from chop.nn.quantized import QuantizedModule
from chop.nn.quantizers import QUANTIZERS
from chop.numerics import NumberFormat
from chop.ops.cost import CallShapes, Cost
from chop.ops.op import op_of_module, parameter_roles
from chop.passes.graph.analysis.metadata_entries import (
    bare,
    dtype_format,
    result_entries,
)

Found = TypeVar("Found")


class StoredParameter(NamedTuple):
    """A parameter and the bits that storing it takes."""

    parameter: nn.Parameter
    bits: int


def in_effect(quant: QuantConfig) -> Formats:
    """The formats of a configuration, of which a bypassed one has none."""
    return {} if quant.bypass else quant.operands


def element_bits(fmt: NumberFormat | None, dtype: torch.dtype) -> float:
    """The width at which one element enters a multiplier; what a block shares stays outside.

    Of elements that have several widths it is the mean. Only floating-point tensors are rounded,
    so any other keeps the width of its dtype.
    """
    rounded = fmt is not None and dtype.is_floating_point
    return fmt.mean_element_bits if fmt is not None and rounded else dtype_format(dtype)[1]


def stored_bits(fmt: NumberFormat | None, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The bits of a whole tensor, what its blocks share included."""
    if fmt is None or not dtype.is_floating_point:
        return dtype_format(dtype)[1] * prod(shape)
    return round(fmt.bits_of(shape) * prod(shape))


def stored_parameters(module: nn.Module, formats: Formats) -> Iterator[StoredParameter]:
    """The parameters of a module and of what is inside it, pruned ones included.

    What quantisers own is left aside: it ends up in the format, not beside the weights.
    """
    op = op_of_module(module)
    roles = {} if op is None else parameter_roles(op, module)
    for name, parameter in module.named_parameters():
        if name.startswith(f"{QUANTIZERS}."):
            continue
        plain = plain_name(name)
        fmt = formats.get(roles.get(plain, plain))
        bits = stored_bits(fmt, tuple(parameter.shape), parameter.dtype)
        yield StoredParameter(parameter, bits)


def widest(stored: Iterable[StoredParameter]) -> dict[nn.Parameter, int]:
    """Each parameter once; one that several layers share must be stored for the most exacting."""
    found: dict[nn.Parameter, int] = {}
    for parameter, bits in stored:
        found[parameter] = max(bits, found.get(parameter, 0))
    return found


def average(bits: float, elements: int) -> float:
    """Bits for each element; the average of nothing is not a number."""
    return bits / elements if elements else nan


def model_parameters(model: nn.Module) -> dict[nn.Parameter, int]:
    """Every parameter of a model once, with the bits that storing it takes."""
    quantised = [module for module in model.modules() if isinstance(module, QuantizedModule)]
    inside = {part for module in quantised for part in module.modules()}
    return widest(
        [
            found
            for module in quantised
            for found in stored_parameters(module, {} if module.bypass else module.frozen)
        ]
        + [
            StoredParameter(parameter, stored_bits(None, tuple(parameter.shape), parameter.dtype))
            for module in model.modules()
            if module not in inside
            for parameter in module.parameters(recurse=False)
        ]
    )


Results = dict[fx.Node, Mapping[str, Any]]
"""What each node gives, as the `results` of common metadata say it."""
QUICK = 2e9
"""Parameters times input elements up to which a model runs in a second or less."""


class Fact(NamedTuple):
    """The shape and type of a tensor, which is all that counting needs."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def facts(entries: Mapping[str, Any]) -> list[Fact]:
    """The tensors among the results of a node."""
    tensors = (entry for entry in entries.values() if not bare(entry))
    return [Fact(tuple(entry["shape"]), entry["torch_dtype"]) for entry in tensors]


def observe(graph: MaseGraph, dummy_in: Mapping[str, Any] | None) -> Results:
    """The results of every node: of a run on `dummy_in`, else those that metadata recorded."""
    if dummy_in is not None:
        return run_shapes(graph, dummy_in)
    return {node: recorded_results(node) for node in graph.nodes}


def recorded_results(node: fx.Node) -> Mapping[str, Any]:
    """The results in the common metadata of a node."""
    record = node.meta.get("mase")
    results: Mapping[str, Any] = {} if record is None else record["common"].get("results", {})
    if not results or any(entry.get("shape") is None for entry in results.values()):
        raise GraphError(
            f"the shape of node {node.name!r} is not known: run add_common_metadata_analysis_pass "
            "with dummy_in first, or give dummy_in to this pass"
        )
    return results


def run_shapes(graph: MaseGraph, inputs: Mapping[str, Any]) -> Results:
    """The results of every node of a run."""
    results: Results = {}

    def keep(node: fx.Node, result: Any) -> None:
        results[node] = result_entries(result, None)

    run_cheaply(
        graph, inputs, lambda given, on_meta: run_graph(graph, given, after=keep, on_meta=on_meta)
    )
    return results


def run_cheaply(
    graph: MaseGraph, inputs: Mapping[str, Any], run: Callable[[Mapping[str, Any], bool], Found]
) -> Found:
    """The result of `run` on inputs; of a large model nothing is calculated if possible.

    Args:
        run: is told whether to compute shapes only.
    """
    device = next((parameter.device for parameter in graph.model.parameters()), None)
    values = {  # zeros stand in for inputs that have only a shape
        name: torch.zeros_like(value, device=device)
        if isinstance(value, Tensor) and value.is_meta
        else value
        for name, value in inputs.items()
    }
    if is_quick(graph, values):
        return run(values, False)
    try:
        return run(inputs, True)
    except GraphError:  # some operation looks at values
        return run(values, False)


def is_quick(graph: MaseGraph, inputs: Mapping[str, Any]) -> bool:
    """True if running the model takes less time than running it without values.

    The estimate is high: hardly a layer uses each parameter once for each element of the input.
    """
    elements = sum(value.numel() for value in inputs.values() if isinstance(value, Tensor))
    parameters = sum(parameter.numel() for parameter in graph.model.parameters())
    return elements * max(parameters, 1) <= QUICK


def batch_size(results: Results) -> int | None:
    """The leading dimension that all tensors fed to the model share, if they do."""
    fed = [fact for node in results if node.op == "placeholder" for fact in facts(results[node])]
    sizes = {fact.shape[0] for fact in fed if fact.shape}
    return sizes.pop() if len(sizes) == 1 else None


def inputs_of_batch(results: Results, batch: int | None) -> dict[str, Any]:
    """Inputs like those observed, with another leading dimension; what is not a tensor stays.

    Args:
        batch: the leading dimension of all inputs; by default each keeps its own.
    """
    inputs: dict[str, Any] = {}
    for node in results:
        if node.op != "placeholder":
            continue
        tensors = facts(results[node])
        if not tensors:
            inputs[node.name] = results[node]["data_out_0"]["value"]
            continue
        (shape, dtype), *_ = tensors
        # One zero, seen many times: it takes no memory and, unlike a meta tensor, is a number.
        zero = torch.zeros((), dtype=dtype)
        inputs[node.name] = zero.expand((batch, *shape[1:]) if shape and batch else shape)
    return inputs


class SizedOperand(NamedTuple):
    """A tensor that goes into a node."""

    role: str | None
    source: fx.Node
    fact: Fact


@dataclass(frozen=True, eq=False)
class SizedCall(NodeCall):
    """A node with the shapes of what goes in and comes out in one run."""

    operands: tuple[SizedOperand, ...] = ()
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: tuple[Fact, ...] = ()

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the module, by the names the operation knows them by."""
        named = () if self.module is None else self.module.named_parameters()
        return {plain_name(name): parameter for name, parameter in named}

    @property
    def shapes(self) -> CallShapes:
        """The call as the cost rules of operations read it."""
        own = {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}
        given = {o.role: o.fact.shape for o in self.operands if o.role and self.is_parameter(o)}
        return CallShapes(
            inputs=tuple(o.fact.shape for o in self.operands if not self.is_parameter(o)),
            output=self.outputs[0].shape,
            params=own | given,
            attributes=self.attributes,
            module=self.module,
        )

    def is_parameter(self, operand: SizedOperand) -> bool:
        """True if an operand of a function is what a module would own."""
        return self.op is not None and operand.role in self.op.params

    @property
    def activations(self) -> tuple[SizedOperand, ...]:
        """The operands that flow in, rather than being parameters or constants of the model."""
        flowing = (o for o in self.operands if o.source.op != "get_attr")
        return tuple(o for o in flowing if not self.is_parameter(o))

    @property
    def work(self) -> Cost | None:
        """The work of the node; None if that is not known."""
        if not self.outputs and (self.op is not None or not self.operands):
            return Cost()  # sizes, attributes and arithmetic of plain numbers
        return None if self.op is None or not self.outputs else self.op.cost(self.shapes)

    def width(self, role: str) -> float:
        """The width of the operand in a role; what the operation makes itself is as its output."""
        return element_bits(self.formats.get(role), self.dtype(role))

    def rounds(self, role: str) -> bool:
        """True if the node rounds the operand in a role to a number format."""
        return self.formats.get(role) is not None and self.dtype(role).is_floating_point

    def dtype(self, role: str) -> torch.dtype:
        """The dtype of the operand in a role."""
        if role in self.parameters:
            return self.parameters[role].dtype
        found = (operand.fact.dtype for operand in self.operands if operand.role == role)
        return next(found, self.outputs[0].dtype)


def buffers(use: SizedCall) -> dict[str, Any]:
    """The elements and bits of the activations that go in and come out.

    Inputs take the bits of the format they are rounded to, outputs those of their dtype unless the
    layer rounds them. A node that gives no tensor (a size, say) reads only a description.
    """
    inputs = use.activations if use.outputs else ()
    return {
        "input_buffer_size": sum(prod(o.fact.shape) for o in inputs),
        "input_buffer_bits": sum(
            stored_bits(use.formats.get(o.role or ""), *o.fact) for o in inputs
        ),
        "output_buffer_size": sum(prod(fact.shape) for fact in use.outputs),
        "output_buffer_bits": sum(
            stored_bits(use.formats.get(OUTPUT), *fact) for fact in use.outputs
        ),
    }


def sized_call(node: fx.Node, modules: Mapping[str, nn.Module], results: Results) -> SizedCall:
    """A call node with the shapes of one run."""
    call = SizedCall.of(node, modules)
    operands: list[SizedOperand] = []
    attributes: dict[str, object] = {}
    order = list(call.roles | call.arguments)  # a call may name its arguments in any order
    for name in sorted(call.arguments, key=order.index):
        value, role = call.arguments[name], call.roles.get(name)
        sources: list[fx.Node] = []
        fx.map_arg(value, sources.append)  # an argument may be nested
        found = [
            SizedOperand(role, each, fact) for each in sources for fact in facts(results[each])
        ]
        operands += found
        if not found:  # nodes in it, such as `size`, give plain values
            attributes[name] = fx.map_arg(
                value, lambda each: results[each]["data_out_0"].get("value")
            )
    outputs = tuple(facts(results[node]))
    return replace(call, operands=tuple(operands), attributes=attributes, outputs=outputs)
