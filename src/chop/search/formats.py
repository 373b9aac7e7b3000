"""Configurations of operations from parts that were parsed before."""

from collections.abc import Hashable
from typing import Any

from chop.nn.quant_config import QuantConfig, known_keys, parse_quant_config
from chop.numerics import FORMATS, NumberFormat
from chop.ops.op import Op
from chop.ops.table import OPS

Parts = dict[str, tuple[Any, ...]]
"""The settings of each operand."""
Places = dict[str, tuple[tuple[str, ...], tuple[int, ...]]]


class Formats:
    """The formats that have come up, each made once.

    The rule of a node has a handful of keys for each operand, and the operands of one rule are
    those of many others in new combinations. A rule with keys that were seen together before is
    put together from operands; equal formats are one object, whose bounds are worked out once.
    """

    def __init__(self) -> None:
        self._whole: dict[Hashable, dict[str, str]] = {}
        self._operands: dict[Hashable, NumberFormat] = {}
        self._unique: dict[NumberFormat, NumberFormat] = {}
        self._places: dict[Hashable, Places] = {}
        self.random: set[NumberFormat] = set()
        """Those that round by chance."""

    def parse(self, op: Op, rule: dict[str, Any], where: str) -> QuantConfig:
        """What `parse_quant_config` gives."""
        name, bypass = rule["name"], bool(rule.get("bypass"))
        parts = self._parts(name, rule)
        shape = (op.name, name, bypass, tuple(rule))
        operands = {}
        for role, source in self._whole.get(shape, {}).items():
            found = self._operands.get((op.name, name, role, parts[source]))
            if found is None:
                break
            operands[role] = found
        else:
            if shape in self._whole:
                return QuantConfig(name, operands, bypass)
        return self._parsed(op, rule, where, parts)

    def _parsed(self, op: Op, rule: dict[str, Any], where: str, parts: Any) -> QuantConfig:
        parsed = parse_quant_config(op, rule, where)
        operands = {role: self._unique.setdefault(f, f) for role, f in parsed.operands.items()}
        self.random |= {f for f in operands.values() if getattr(f, "stochastic", False)}
        sources = {role: _source(op, role, parts) for role in operands}
        if all(source is not None for source in sources.values()):
            shape = (op.name, rule["name"], parsed.bypass, tuple(rule))
            self._whole[shape] = {role: str(source) for role, source in sources.items()}
            for role, source in sources.items():
                self._operands[op.name, rule["name"], role, parts[source]] = operands[role]
        return QuantConfig(parsed.name, operands, parsed.bypass)

    def _parts(self, name: str, rule: dict[str, Any]) -> Parts:
        """The settings of each operand that the rule mentions, and their types: 1 is not True."""
        shape = (name, *rule)
        if shape not in self._places:
            self._places[shape] = _places(name, rule)
        settings = [
            (type(value), repr(value) if isinstance(value, list) else value)
            for value in rule.values()
        ]
        return {
            role: (fields, *[settings[place] for place in places])
            for role, (fields, places) in self._places[shape].items()
        }


def _places(name: str, rule: dict[str, Any]) -> Places:
    """For each operand that a rule mentions its fields, and where the rule has them."""
    keys = known_keys(FORMATS[name], len(OPS))
    found: Places = {}
    for place, key in enumerate(rule):
        if key in keys:
            role, field = keys[key]
            fields, places = found.get(role, ((), ()))
            found[role] = (*fields, field), (*places, place)
    return found


def _source(op: Op, role: str, parts: Parts) -> str | None:
    """The operand whose settings `role` has, by the rules of `chop.nn.quant_config`."""
    candidates = (
        role,
        "weight" if role == "bias" else None,
        "data_in" if role in op.inputs else None,
    )
    return next((each for each in candidates if each in parts), None)
