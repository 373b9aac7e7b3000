"""Values that one trial leaves for the next.

Results are kept within a budget of bytes, number formats that were parsed before are put together,
and the bits of a graph in any configuration are counted without building it.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.parameters import plain_name
from chop.nn.quant_config import QuantConfig, known_keys, parse_quant_config
from chop.numerics import FORMATS, NumberFormat
from chop.ops.op import Op, parameter_roles
from chop.ops.table import OPS
from chop.passes.graph.analysis.flops.count import NodeCounter
from chop.passes.graph.analysis.flops.operands import (
    average,
    buffers,
    in_effect,
    observe,
    stored_bits,
)

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Values by key; those unused for longest make room when the budget is used up.

    A value is kept when it comes a second time. What is kept cannot be overwritten, so the next
    result needs memory that is new from the system, which costs more than rounding does; and most
    results of a search never come again.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._met: set[Hashable] = set()

    def get(self, key: Hashable) -> Value | None:
        """The value, if it is still there."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Keep a new value of so many bytes, unless it alone would exceed the budget."""
        if key not in self._met:
            self._met.add(key)
            return
        if size > self.budget:
            return
        self._values[key] = (value, size)
        self.used += size
        while self.used > self.budget:
            _, (_, freed) = self._values.popitem(last=False)
            self.used -= freed

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._met.clear()
        self.used = 0


def count_bytes(value: Any) -> int:
    """The bytes of the tensors in a value."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(count_bytes, value))
    return sum(map(count_bytes, value.values())) if isinstance(value, dict) else 0


PLAIN = {int, str, type(None)}
"""Types of which equal values are the same; but 1, 1.0 and True are equal, and lists unhashable."""


@dataclass
class ReusedOperand:
    """One operand in all rules that have the same keys: which values of a rule are about it."""

    role: str
    settings: Callable[[list[Any]], Hashable]
    formats: dict[Hashable, NumberFormat] = field(default_factory=dict)
    """What came of the values so far."""


class Formats:
    """The formats that have come up, each made once.

    The rule of a node has a handful of keys for each operand, and the operands of one rule are
    those of many others in new combinations. A rule with keys that were seen together before is
    put together from operands; equal formats are one object, whose bounds are worked out once.
    """

    def __init__(self) -> None:
        self.random: set[NumberFormat] = set()
        """Those that round by chance or have a state, so that nothing can be remembered."""
        self._unique: dict[NumberFormat, NumberFormat] = {}
        self._operands: dict[Hashable, list[ReusedOperand]] = {}

    def parse(self, op: Op, rule: dict[str, Any], where: str) -> QuantConfig:
        """Return what `parse_quant_config` gives."""
        name, bypass = rule["name"], bool(rule.get("bypass"))
        plain = PLAIN.issuperset(map(type, rule.values()))
        shape = (op.name, name, bypass, plain, *rule)
        values = [*(rule.values() if plain else map(repr, rule.values()))]
        try:
            operands = {
                each.role: each.formats[each.settings(values)] for each in self._operands[shape]
            }
        except KeyError:
            return self._parse(op, rule, where, (shape, values))
        return QuantConfig(name, operands, bypass)

    def _parse(
        self, op: Op, rule: dict[str, Any], where: str, met: tuple[Hashable, list[Any]]
    ) -> QuantConfig:
        """Parse a rule, and keep what came of the values that were met in it."""
        parsed = parse_quant_config(op, rule, where)
        operands = {role: self._unique.setdefault(f, f) for role, f in parsed.operands.items()}
        self.random |= {f for f in operands.values() if _varies(f)}
        shape, values = met
        if shape not in self._operands:
            places = _places(rule)
            sources = {role: _source(op, role, places) for role in operands}
            if None not in sources.values():
                self._operands[shape] = [
                    ReusedOperand(role, itemgetter(*places[str(source)]))
                    for role, source in sources.items()
                ]
        for each in self._operands.get(shape, ()):
            each.formats[each.settings(values)] = operands[each.role]
        return QuantConfig(parsed.name, operands, parsed.bypass)


def _varies(fmt: NumberFormat) -> bool:
    has_state = type(fmt).quantizer is not NumberFormat.quantizer
    return has_state or getattr(fmt, "stochastic", False)


def _places(rule: dict[str, Any]) -> dict[str, list[int]]:
    """For each operand that a rule mentions where in the rule its settings are."""
    keys = known_keys(FORMATS[rule["name"]], len(OPS))
    found: dict[str, list[int]] = {}
    for place, key in enumerate(rule):
        if key in keys:
            found.setdefault(keys[key][0], []).append(place)
    return found


def _source(op: Op, role: str, mentioned: Collection[str]) -> str | None:
    """The operand whose settings `role` has, by the rules of `chop.nn.quant_config`."""
    candidates = (
        role,
        "weight" if role == "bias" else None,
        "data_in" if role in op.inputs else None,
    )
    return next((each for each in candidates if each in mentioned), None)


Quants = Mapping[str, tuple[Hashable, QuantConfig]]


class Owned(NamedTuple):
    """A parameter of a layer, the role whose format it is stored in, and its bits without one."""

    role: str
    parameter: nn.Parameter
    bits: int


def owned_by(op: Op | None, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a module, each by the role whose format it is stored in."""
    roles = {} if op is None else parameter_roles(op, module)
    for name, parameter in module.named_parameters():
        plain = plain_name(name)
        yield roles.get(plain, plain), parameter


class BitCounter:
    """Average bits of parameters and activations, as `calculate_avg_bits` counts them."""

    def __init__(self, graph: MaseGraph) -> None:
        self.counter = NodeCounter(graph, observe(graph, None))
        counts = self.counter.nodes()
        self.readers = [node for node, count in counts.items() if count.flops != 0]
        self.read = sum(counts[node].input_buffer_size for node in self.readers)
        self.owned = {
            node.name: [
                Owned(role, each, stored_bits(None, tuple(each.shape), each.dtype))
                for role, each in owned_by(use.op, use.module)
            ]
            for node, use in self.counter.uses.items()
            if use.module is not None
        }
        self.floats = sum(each.bits for owned in self.owned.values() for each in owned)
        """The bits of all parameters as they are."""
        every = [each.parameter for owned in self.owned.values() for each in owned]
        attributes = any(node.op == "get_attr" for node in self.counter.results)
        self.simple = len(set(every)) == len(every) and not attributes
        """Whether each parameter belongs to one layer, which alone decides on its format."""
        self.elements = sum(parameter.numel() for parameter in every)
        self._bits: dict[tuple[nn.Parameter, NumberFormat], int] = {}

    def parameter_width(self, quants: Quants) -> float:
        """The average width of a parameter."""
        if not self.simple:
            stored = self._with_formats(quants).unique_parameters()
            return average(sum(stored.values()), sum(each.numel() for each in stored))
        total = self.floats
        for name, (_, quant) in quants.items():
            formats = in_effect(quant)
            for role, parameter, bits in self.owned.get(name, ()):
                if role in formats:
                    total += self._parameter_bits(parameter, formats[role]) - bits
        return average(total, self.elements)

    def activation_width(self, quants: Quants) -> float:
        """The average width of an activation that arithmetic reads."""
        uses = self._with_formats(quants).uses
        bits = sum(buffers(uses[node])["input_buffer_bits"] for node in self.readers)
        return average(bits, self.read)

    def _parameter_bits(self, parameter: nn.Parameter, fmt: NumberFormat) -> int:
        key = (parameter, fmt)
        if key not in self._bits:
            self._bits[key] = stored_bits(fmt, tuple(parameter.shape), parameter.dtype)
        return self._bits[key]

    def _with_formats(self, quants: Quants) -> NodeCounter:
        """The counter of the graph as it would be with these formats."""
        counter = copy.copy(self.counter)
        counter.uses = dict(self.counter.uses)
        for node, use in self.counter.uses.items():
            if node.name in quants:
                counter.uses[node] = replace(use)
                formats = in_effect(quants[node.name][1])
                counter.uses[node].__dict__["formats"] = formats  # its cached property
        return counter
