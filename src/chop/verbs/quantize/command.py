"""Quantise in one line: a number format and its widths, calibrated; before and after compared."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.errors import ConfigError, UnknownNameError
from chop.files import seen_from_here
from chop.ir.graph.mase_graph import MaseGraph
from chop.logger import RESULT, get_logger
from chop.nn.quantized import QuantizedModule
from chop.ops.op import op_of_node
from chop.ops.table import OPS
from chop.passes.graph import PASSES, count_operations_analysis_pass
from chop.passes.graph.analysis.quantization import calculate_avg_bits_mg_analysis_pass
from chop.passes.graph.transforms.methods.choosing import METHODS
from chop.passes.graph.transforms.quantize.one_line import (
    WIDTH,
    FormatSpec,
    one_line_rules,
    parse_rules,
)
from chop.passes.graph.transforms.quantize.plan import QuantizeArgs, is_quantizable
from chop.runs import GRAPH, TRANSFORM, latest
from chop.validation import parse
from chop.verbs.common.next_commands import next_of_graph, show_next
from chop.verbs.common.session import UNTRAINED, ActionResult, Session, features_of
from chop.verbs.quantize import QuantizeRequest
from chop.verbs.transform.passes import BeforeAndAfter, transform_session

logger = get_logger("chop")
NO_METHODS = "none"


def passes_of(config: QuantizeRequest) -> dict[str, dict[str, Any]]:
    """Return the pass that the settings of a run stand for, with its rules."""
    usual = FormatSpec(config.number_format, config.width, config.weight_width)
    products_only = config.products_only or config.number_format != FormatSpec().name
    others = parse_rules(config.rules, usual)
    rules = one_line_rules(usual, others, calibrated=True, products_only=products_only)
    if config.scales == "free":
        if products_only:
            raise ConfigError("--scales free is for a network in integers, not for products only")
        rules["scales"] = config.scales
    if products_only:
        return {"quantize": rules}
    return {"quantize_whole": rules | methods_said(config.methods)}


def methods_said(text: str | None) -> dict[str, Any]:
    """Return the methods that are to be tried, if some are to be left off."""
    if text is None:
        return {}
    names = [] if text == NO_METHODS else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METHODS:
            raise UnknownNameError("method", name, (*METHODS, NO_METHODS), "--methods")
    return {"methods": names}


def check_quantize(config: QuantizeRequest) -> None:
    """Refuse passes, which another command runs, and what is not a format or width."""
    if config.passes:
        raise ConfigError(
            "quantize makes its own rules from --width: what [passes] of a file says, "
            "ch transform runs"
        )
    for name, rules in passes_of(config).items():
        parse(PASSES[name].schema or QuantizeArgs, rules, "quantize")


def run_quantize(session: Session[QuantizeRequest]) -> ActionResult:
    """Quantise as the command line asks; what is to be in the record of the run."""
    config = replace(session.config, passes=passes_of(session.config))
    session = replace(session, config=config)
    watched = Watched(session)
    graph = transform_session(session, session.software_folder / TRANSFORM, watch=watched)
    found = watched.compare(graph)
    place = latest(session.software_folder / TRANSFORM / GRAPH)
    logger.info("Quantised model: %s", seen_from_here(place))
    show_next(next_of_quantized(session, graph, place))
    return ActionResult(
        session.software_folder, features_of(graph.model, session.data_module) | found
    )


def next_of_quantized(
    session: Session[QuantizeRequest], graph: MaseGraph, place: Path
) -> list[str]:
    """Return what to do with the quantised graph, or how to quantise more of it."""
    config = session.config
    found = next_of_graph(graph, place, model=config.model, imports=config.imports)
    ruled = [rule.rpartition("=")[0].strip() for rule in config.rules]
    if len(found) > 1 or config.number_format != FormatSpec().name or set(ruled) - set(OPS):
        return found
    left = [name for name in operations_left(graph) if name not in ruled]
    words = [f"--rule={name}={config.width or WIDTH}" for name in left]
    again = shlex.join([*session.record["command"], *words])
    return [again, *found] if words else found


def operations_left(graph: MaseGraph) -> list[str]:
    """Return the operations of a graph that are in floating point and could be in integers.

    None are returned where one of them has no integers: the others would not help then.
    """
    left = set()
    for node in graph.nodes:
        op = op_of_node(node, graph.modules)
        if op is None:
            continue
        if op.lowering is None:
            return []
        module = graph.modules.get(str(node.target)) if node.op == "call_module" else None
        is_quantised = isinstance(module, QuantizedModule) or "config" in node.kwargs
        if is_quantizable(node, op) and not is_quantised:
            left.add(op.name)
    return sorted(left)


class Watched:
    """Measures accuracy and cost of the network that comes and of the one that goes."""

    def __init__(self, session: Session[QuantizeRequest]) -> None:
        self.accuracy = BeforeAndAfter(session.data_module)
        self.is_trained = session.is_trained
        self.before: dict[str, float] = {}

    def __call__(self, graph: MaseGraph) -> None:
        """Measure the network before it is quantised."""
        self.before = cost_of(graph)
        if self.is_trained:
            self.accuracy(graph)

    def compare(self, graph: MaseGraph) -> dict[str, Any]:
        """Say what quantisation costs and saves; what was found, for the record."""
        accuracies = self.accuracy.compare(graph)
        if not self.is_trained:
            logger.warning(UNTRAINED)
        after = cost_of(graph)
        logger.info("Cost: %s", cost_in_words(self.before, after), extra=RESULT)
        cost = {"before": self.before, "after": after}
        return {"cost": cost} | ({"accuracies": accuracies} if accuracies else {})


def cost_of(graph: MaseGraph) -> dict[str, float]:
    """Return the average bits of parameters and of data that products read, and BitOPs of a row.

    A ReLU and the like read sums, which nothing stores.
    """
    _, bits = calculate_avg_bits_mg_analysis_pass(graph)
    _, counts = count_operations_analysis_pass(graph, {"report": False})
    ops = {node.name: op_of_node(node, graph.modules) for node in graph.nodes}
    read = [each for name, each in bits["nodes"].items() if (op := ops[name]) and op.multiplies]
    size = sum(each["data_size"] for each in read)
    return {
        "weight_bits": float(bits["w_avg_bit"]),
        "activation_bits": sum(x["data_avg_bit"] * x["data_size"] for x in read) / max(size, 1),
        "bitops": float(counts["total"]["bitops"]),
    }


def cost_in_words(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """One line."""
    bits = [
        f"{before[name]:.3g} → {after[name]:.3g} bits {what}"
        for name, what in (("weight_bits", "a weight"), ("activation_bits", "an activation"))
    ]
    fewer = before["bitops"] / after["bitops"] if after["bitops"] else 1.0
    return f"{', '.join(bits)}, {after['bitops']:,.0f} BitOPs a row ({fewer:,.1f} times fewer)"
