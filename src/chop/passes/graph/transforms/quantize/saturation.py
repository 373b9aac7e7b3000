"""The findings of calibration in words: saturated values, warnings, a table."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tabulate import tabulate
from torch import fx

from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import OUTPUT, QuantConfig
from chop.numerics import Integer, NumberFormat
from chop.numerics.base import AUTO
from chop.numerics.int_tensor import IntTensor
from chop.passes.base import Info
from chop.passes.graph.analysis.metadata_entries import operand_names
from chop.passes.graph.transforms.quantize.observe import first_callers, fits_of, with_scales
from chop.passes.graph.transforms.quantize.plan import LISTED, Plan
from chop.passes.graph.transforms.quantize.ranges import TOO_MANY, Calibration, Fit

logger = logging.getLogger("chop")
HEADERS = ("Node", "Operand", "Bits", "Scale", "Smallest", "Largest", "Saturated")


class Observed(NamedTuple):
    """One operand of one node, and what was observed of it."""

    node: fx.Node
    role: str
    fit: Fit


def scale_text(fmt: NumberFormat) -> str:
    """The scale of a format in words."""
    if fmt.scale_field is None:
        return type(fmt).__name__
    number = getattr(fmt, fmt.scale_field)
    if isinstance(number, IntTensor):
        low, high = number.array.min(), number.array.max()
        number = f"{low}" if low == high else f"{low} to {high}"
    return f"{fmt.scale_field} = {number}"


def calibrate_plan(
    graph: MaseGraph,
    plan: Plan,
    batches: Iterable[Mapping[str, Any]] | None,
    settings: Calibration,
    every: bool = False,
) -> tuple[Plan, list[Observed], int]:
    """A plan whose scales are numbers, what was observed of each operand, and on how many rows.

    Args:
        every: choose all scales, also those that are numbers already.
    """
    if every:
        plan = {node: quant and with_scales_open(quant) for node, quant in plan.items()}
    rounding = {node: quant for node, quant in plan.items() if quant and not quant.bypass}
    wanted = {
        node: (quant, {role: (fmt,) for role, fmt in quant.operands.items()})
        for node, quant in rounding.items()
    }
    fits, rows = fits_of(graph, wanted, batches, settings)
    first = first_callers(graph)
    found = [
        Observed(node, role, fit)
        for node, quant in rounding.items()
        for role, fmt in quant.operands.items()
        if (fit := fits.get((first[node.name], role, fmt))) is not None
    ]
    done = {
        node: quant and with_scales(quant, first[node.name], fits) for node, quant in plan.items()
    }
    return done, found, rows


def with_scales_open(quant: QuantConfig) -> QuantConfig:
    """The configuration with every scale to be chosen."""
    opened = {
        role: fmt if fmt.scale_field is None else fmt.with_scale(AUTO)
        for role, fmt in quant.operands.items()
    }
    return replace(quant, operands=opened)


def tell(graph: MaseGraph, found: list[Observed], rows: int) -> Info:
    """Tell what saturates, note it in the metadata; the facts for `info`.

    A scale that was given, or that no other would mend, is warned of. One that was chosen among
    others makes the least error on these rows, though some of them saturate.
    """
    for each in found:
        if each.fit.saturated > TOO_MANY:
            is_own_choice = each.fit.calibrated and each.fit.better is not None
            logger.log(
                logging.INFO if is_own_choice else logging.WARNING, "%s", warning(each, rows)
            )
        elif each.fit.calibrated and each.role == "data_in" and each.fit.low == each.fit.high == 0:
            logger.warning("%s", unseen(each, rows))
        note(each)
    facts: Info = {"rows": rows, "operands": {}}
    for node, role, fit in found:
        scale = {} if fit.fmt.scale_field is None else {fit.fmt.scale_field: number_of(fit.fmt)}
        facts["operands"].setdefault(node.name, {})[role] = scale | {
            "calibrated": fit.calibrated,
            "min": fit.low,
            "max": fit.high,
            "saturated": fit.saturated,
            "better": fit.better and number_of(fit.better),
        }
    return facts


def number_of(fmt: NumberFormat) -> Any:
    """The scale of a format as plain numbers."""
    return fmt.model_dump()[str(fmt.scale_field)]


def warning(each: Observed, rows: int) -> str:
    """Return that too many values saturate, and which scale would do better."""
    node, role, fit = each
    chosen = ", as calibrated," if fit.calibrated else ""
    scale = f"{scale_text(fit.fmt)}{chosen}"
    said = f"node {node.name!r}: {fit.saturated:.1%} of {role} saturate at {scale} on {rows} rows"
    if fit.better is not None:
        return f"{said}; with {scale_text(fit.better)} it would be {fit.better_saturated:.1%}"
    return f"{said}; the values go from {fit.low:.4g} to {fit.high:.4g}, which no scale covers"


def unseen(each: Observed, rows: int) -> str:
    """Say that nothing but zeros was seen of an operand, and the range that it has."""
    low, high = each.fit.fmt.saturation or (0, 0)
    return (
        f"node {each.node.name!r}: {each.role} is zero on all {rows} rows: it gets the usual "
        f"{scale_text(each.fit.fmt)}, from {float(low):.4g} to {float(high):.4g}"
    )


def note(each: Observed) -> None:
    """Keep range and share among the statistics of the tensor, where statistics are kept."""
    software = each.node.meta["mase"]["software"]
    if not software:
        return
    names = dict(operand_names(NodeCall.of(each.node))) | {OUTPUT: "data_out_0"}
    side = software.get("results" if each.role == OUTPUT else "args", {})
    if names.get(each.role) in side:
        facts = {"min": each.fit.low, "max": each.fit.high, "saturated": each.fit.saturated}
        side[names[each.role]].setdefault("stat", {})["saturation"] = facts


def calibration_table(found: list[Observed], rows: int) -> str:
    """Every operand in a line."""
    lines = [
        (
            node.name,
            role,
            f"{fit.fmt.bits:g}",
            scale_text(fit.fmt) + (", calibrated" if fit.calibrated else ""),
            f"{fit.low:.4g}",
            f"{fit.high:.4g}",
            f"{fit.saturated:.2%}",
        )
        for node, role, fit in found
    ]
    body = tabulate(lines, headers=HEADERS, tablefmt="orgtbl", disable_numparse=True)
    return f"Operands on {rows} rows in floating point:\n{body}"


def outside(plan: Plan) -> Iterator[str]:
    """The binary points of a plan that lie outside their width, in words, with their nodes."""
    nodes: dict[tuple[str, Any, Any], list[str]] = {}
    for node, quant in plan.items():
        for role, fmt in (quant.operands if quant else {}).items():
            if lies_outside(fmt):
                assert isinstance(fmt, Integer)
                nodes.setdefault((role, fmt.width, fmt.frac_width), []).append(node.name)
    for (role, width, point), names in nodes.items():
        more = ", …" if len(names) > LISTED else ""
        yield f"{role} of {', '.join(names[:LISTED])}{more}: frac_width {point} of width {width}"


def lies_outside(fmt: NumberFormat) -> bool:
    """True if a binary point is not among the digits, but left or right of all of them."""
    if not isinstance(fmt, Integer) or fmt.is_open:
        return False
    width, point = (
        each.array if isinstance(each, IntTensor) else each for each in (fmt.width, fmt.frac_width)
    )
    is_outside: Any = (point < 0) | (point > width)  # type: ignore[operator]
    return bool(is_outside.any()) if hasattr(is_outside, "any") else bool(is_outside)
