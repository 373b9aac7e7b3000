"""Configurations of operations from parts that were parsed before."""

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from chop.nn.quant_config import QuantConfig, known_keys, parse_quant_config
from chop.numerics import FORMATS, NumberFormat
from chop.ops.op import Op
from chop.ops.table import OPS

PLAIN = {int, str, type(None)}
"""Types of which equal values are the same; but 1, 1.0 and True are equal, and lists unhashable."""


@dataclass
class Operand:
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
        self._operands: dict[Hashable, list[Operand]] = {}

    def parse(self, op: Op, rule: dict[str, Any], where: str) -> QuantConfig:
        """What `parse_quant_config` gives."""
        name, bypass = rule["name"], bool(rule.get("bypass"))
        plain = PLAIN.issuperset(map(type, rule.values()))
        shape = (op.name, name, bypass, plain, *rule)
        values = [*(rule.values() if plain else map(repr, rule.values()))]
        try:
            operands = {
                each.role: each.formats[each.settings(values)] for each in self._operands[shape]
            }
        except KeyError:
            return self._parsed(op, rule, where, (shape, values))
        return QuantConfig(name, operands, bypass)

    def _parsed(
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
                    Operand(role, itemgetter(*places[str(source)]))
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
