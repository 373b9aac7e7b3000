"""The combinations of a comparison of formats: what is asked for, and the plan that rounds it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import OUTPUT, QuantConfig, required_fields
from chop.numerics import FORMATS, MinifloatIEEE, NumberFormat
from chop.passes.base import Info
from chop.passes.graph.transforms.methods.table import PLUS, parse_methods
from chop.passes.graph.transforms.quantize.one_line import FormatSpec, one_line_rules
from chop.passes.graph.transforms.quantize.plan import Plan, QuantizeArgs, make_plan
from chop.passes.graph.transforms.quantize.quantize import quantize_by_plan
from chop.validation import parse

ALL = "all"
BIAS = MinifloatIEEE(width=16, exponent_width=5)
"""Biases are numbers of half precision whatever the format: they are few, and sums are wide."""
WIDE = 16
"""Bits of what a function has to be given a format for although it is not to be rounded."""
WEIGHTS, DATA, CACHE, SCORES = "w", "a", "kv", "s"
PART_OF = {"weight": WEIGHTS, "key": CACHE, "value": CACHE, "scores": SCORES}
"""The part of what is rounded that an operand belongs to; all others are data."""
BY_CHANNEL = {"per": {"weight": "channel"}}


class Cell(NamedTuple):
    """A combination: a format, what is rounded to how many bits, and methods."""

    format: str
    operands: str
    method: str

    @property
    def bits(self) -> dict[str, int | None]:
        """The bits of each part that is rounded; None where the format has its own."""
        return parse_operands(self.operands)


def parse_operands(text: str) -> dict[str, int | None]:
    """``w4a8kv4`` as bits by part; a plain number is for all, and so is no word at all."""
    if text == ALL or re.fullmatch(r"[1-9]\d?", text):
        bits = None if text == ALL else int(text)
        return dict.fromkeys((WEIGHTS, DATA, CACHE, SCORES), bits)
    parts = re.findall(r"(kv|w|a|s)(\d*)", text)
    names = [name for name, _ in parts]
    if not parts or "".join(map("".join, parts)) != text or len(set(names)) < len(names):
        raise ConfigError(
            f"--widths: {text!r} does not say what is rounded: write 4 for all, w4 for weights, "
            "w4a8 for weights and data, and kv4 or s8 for the cache and the scores of attention"
        )
    return {name: int(bits) if bits else None for name, bits in parts}


def cells_of(
    formats: Sequence[str] | str, widths: Sequence[int | str], methods: Sequence[str]
) -> list[Cell]:
    """Return all combinations, each once, in the order of what was asked for."""
    names = usable_formats() if formats == ALL or list(formats) == [ALL] else list(formats)
    for name in names:
        if name not in FORMATS:
            raise UnknownNameError("number format", name, FORMATS)
        if name not in usable_formats():
            raise ConfigError(f"format {name!r} cannot be compared by a width alone")
    spelt = [PLUS.join(parse_methods(method)) for method in methods]
    cells = [
        Cell(name, own_operands(name, str(width)), method)
        for name in names
        for width in widths
        for method in spelt
    ]
    return list(dict.fromkeys(cells))


def usable_formats() -> list[str]:
    """Return the formats that a width is enough for, each under its first name."""
    found: dict[type[NumberFormat], str] = {}
    for name, kind in FORMATS.items():
        plain = set(required_fields(kind)) <= {"width", "exponent_width", kind.scale_field}
        if plain and kind.quantizer is NumberFormat.quantizer:
            found.setdefault(kind, name)
    return list(found.values())


def own_operands(name: str, text: str) -> str:
    """Return what is rounded in a format, without bits where it has its own."""
    bits = parse_operands(text)
    if "width" in required_fields(FORMATS[name]):
        if missing := [part for part, each in bits.items() if each is None]:
            raise ConfigError(f"--widths: {text!r}: format {name!r} wants bits for {missing[0]}")
        return text
    return ALL if len(bits) == len({*PART_OF.values(), DATA}) else "".join(bits)


def quantise_cell(graph: MaseGraph, cell: Cell, batches: Any) -> tuple[MaseGraph, Info]:
    """Return a graph with the products of a cell rounded to nearest, calibrated on batches."""
    plans = {bits: plan_of(graph, cell.format, bits) for bits in {*cell.bits.values()}}
    args = parse(QuantizeArgs, {"input_generator": batches, "calibrate": BY_CHANNEL}, "formats")
    plan: Plan = {}
    for node in next(iter(plans.values())):
        found = {bits: each[node] for bits, each in plans.items() if each[node] is not None}
        quant = join_operands(found, cell) if found else None  # type: ignore[arg-type]
        if quant is not None and quant.operands:
            plan[node] = quant
    if not plan:
        raise ConfigError(f"{cell.operands!r} rounds nothing in this network")
    return quantize_by_plan(graph, plan, args)


def plan_of(graph: MaseGraph, name: str, bits: int | None) -> Plan:
    """Return the plan that rounds every operand of every product to one format."""
    rules = one_line_rules(FormatSpec(name, bits), calibrated=True)
    return make_plan(graph, parse(QuantizeArgs, rules, "formats"))


def join_operands(found: Mapping[int | None, QuantConfig], cell: Cell) -> QuantConfig:
    """Return one configuration whose operands have the bits of their parts, and no others."""
    first = next(iter(found.values()))
    operands: dict[str, NumberFormat] = {}
    roles = dict.fromkeys(role for quant in found.values() for role in quant.operands)
    attends = "key" in roles
    if attends and not {CACHE, SCORES, DATA} & cell.bits.keys():
        return replace(first, operands={})
    if SCORES in cell.bits and {"key", "value"} <= set(roles):
        roles.setdefault("scores")
    for role in roles:
        part = PART_OF.get(role, DATA)
        if role in {OUTPUT, "table", "bias"}:
            continue
        quant = found[cell.bits.get(part, next(iter(found)))]
        fmt = quant.operands.get(role) or quant.operands["query"]
        if part in cell.bits:
            operands[role] = fmt
        elif (attends or DATA in cell.bits) and "width" in required_fields(type(fmt)):
            operands[role] = widen(fmt)
    if "bias" in roles and "weight" in operands:
        operands["bias"] = BIAS
    return replace(first, operands=operands)


def widen(fmt: NumberFormat) -> NumberFormat:
    """Return a format so wide that next to nothing is rounded, where there must be one."""
    try:
        return fmt.model_copy(update={"width": WIDE})
    except ValueError:
        name = type(fmt).__name__
        raise ConfigError(
            f"{name} has no {WIDE} bits for what is not to be rounded: round weights, data, "
            "the cache and the scores alike"
        ) from None
