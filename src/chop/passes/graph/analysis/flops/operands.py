"""What meets in a node: its operands by role, their number formats, and the call as shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from chop.nn.quantized import QuantizedCall
from chop.ops.cost import Call, Cost
from chop.ops.op import Op, op_of_node
from chop.passes.graph.analysis.add_metadata.arguments import plain_name
from chop.passes.graph.analysis.flops.observe import Fact, Results, facts
from chop.passes.graph.analysis.flops.widths import Formats, element_bits, formats_of_node


class Operand(NamedTuple):
    """A tensor that goes into a node."""

    role: str | None
    source: fx.Node
    fact: Fact


@dataclass(frozen=True)
class Use:
    """One node: the operation, its module if it has one, and what goes in and comes out."""

    node: fx.Node
    op: Op | None
    module: nn.Module | None
    operands: tuple[Operand, ...]
    attributes: Mapping[str, object]
    outputs: tuple[Fact, ...]

    @cached_property
    def formats(self) -> Formats:
        """The number formats that operands are rounded to."""
        return formats_of_node(self.node, self.module)

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the module, by the names the operation knows them by."""
        named = () if self.module is None else self.module.named_parameters()
        return {plain_name(name): parameter for name, parameter in named}

    @property
    def call(self) -> Call:
        """The call as the cost rules of operations read it."""
        own = {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}
        given = {o.role: o.fact.shape for o in self.operands if o.role and self.is_parameter(o)}
        return Call(
            inputs=tuple(o.fact.shape for o in self.operands if not self.is_parameter(o)),
            output=self.outputs[0].shape,
            params=own | given,
            attributes=self.attributes,
            module=self.module,
        )

    def is_parameter(self, operand: Operand) -> bool:
        """Whether an operand of a function is what a module would own."""
        return self.op is not None and operand.role in self.op.params

    @property
    def activations(self) -> tuple[Operand, ...]:
        """The operands that flow in, rather than being parameters or constants of the model."""
        flowing = (o for o in self.operands if o.source.op != "get_attr")
        return tuple(o for o in flowing if not self.is_parameter(o))

    @property
    def work(self) -> Cost | None:
        """What the node computes; None if that is not known."""
        if not self.outputs and (self.op is not None or not self.operands):
            return Cost()  # sizes, attributes and arithmetic of plain numbers
        return None if self.op is None or not self.outputs else self.op.cost(self.call)

    def width(self, role: str) -> int:
        """The width of the operand in a role; what the operation makes itself is as its output."""
        return element_bits(self.formats.get(role), self.dtype(role))

    def rounds(self, role: str) -> bool:
        """Whether the node rounds the operand in a role to a number format."""
        return self.formats.get(role) is not None and self.dtype(role).is_floating_point

    def dtype(self, role: str) -> torch.dtype:
        """The dtype of the operand in a role."""
        if role in self.parameters:
            return self.parameters[role].dtype
        found = (operand.fact.dtype for operand in self.operands if operand.role == role)
        return next(found, self.outputs[0].dtype)


def use_of(node: fx.Node, modules: Mapping[str, nn.Module], results: Results) -> Use:
    """What a call node works on."""
    op = op_of_node(node, modules)
    module = modules[str(node.target)] if node.op == "call_module" else None
    operands: list[Operand] = []
    attributes: dict[str, object] = {}
    for role, name, value in arguments(node, op, module):
        tensors = [
            Operand(role, source, fact)
            for source in nodes_in(value)
            for fact in facts(results[source])
        ]
        operands += tensors
        if not tensors:
            attributes[name] = plain_value(value, results)
    return Use(node, op, module, tuple(operands), attributes, tuple(facts(results[node])))


def arguments(
    node: fx.Node, op: Op | None, module: nn.Module | None
) -> Iterator[tuple[str | None, str, Any]]:
    """The role, the name and the value of each argument, in the order in which the op has them."""
    roles = {} if op is None else {argument.name: argument.role for argument in op.arguments}
    if op is None or (node.op == "call_module" and not isinstance(module, QuantizedCall)):
        inputs = () if op is None else op.inputs
        for index, value in enumerate(node.args):
            yield inputs[index] if index < len(inputs) else None, f"arg_{index}", value
        given: dict[str, Any] = dict(node.kwargs)
    else:
        given = op.bind(node.args, node.kwargs)
        if not any(argument.rest for argument in op.arguments):
            for index, value in enumerate(node.args[len(roles) :]):
                given[f"arg_{index + len(roles)}"] = value
    for name in sorted(given, key=list(roles | given).index):
        yield roles.get(name), name, given[name]


def nodes_in(value: Any) -> list[fx.Node]:
    """The nodes in an argument, which may be nested."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found


def plain_value(value: Any, results: Results) -> Any:
    """An argument that holds no tensor, the results of nodes such as `size` filled in."""
    return fx.map_arg(value, lambda node: results[node]["data_out_0"].get("value"))
