"""Quantise in one line: a number format and its widths, calibrated; before and after compared."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chop.actions.session import UNTRAINED, ActionResult, Session, features_of
from chop.actions.transforming import BeforeAndAfter, transformed
from chop.config.run import RunConfig
from chop.errors import ConfigError, UnknownNameError
from chop.files import seen_from_here
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import required_fields
from chop.numerics import FORMATS
from chop.numerics.base import AUTO
from chop.ops.table import OPS
from chop.passes.graph import count_operations_analysis_pass
from chop.passes.graph.analysis.quantization import calculate_avg_bits_mg_analysis_pass
from chop.passes.graph.transforms.quantize.plan import QuantizeArgs, quantizable_operations
from chop.runs import GRAPH, TRANSFORM, latest
from chop.tools.logger import RESULT, get_logger
from chop.tools.recorded import told_next, word_of
from chop.validation import parse

logger = get_logger("chop")

WIDTH = 8
FLOAT = "float"
ROLES = ("data_in", "weight", "scores")
"""The operands that a width is for; what is not said of others follows from these."""
MOST_EXPONENT = 5


@dataclass(frozen=True)
class Wanted:
    """A number format in few words; no name is floating point."""

    name: str | None = "integer"
    width: int | None = None
    weight_width: int | None = None

    def config(self, calibrated: bool) -> dict[str, Any]:
        """The ``config`` of a rule of ``[passes.quantize]``.

        | field | |
        |---|---|
        | `width` | as asked; 8 where the format has none of its own and nothing is asked |
        | `exponent_width` | half of the width, at most 5: 4 of 8, 3 of 6, 2 of 4 |
        | the scale (`frac_width`, `exponent_bias`) | from rows, if there are any |
        """
        if self.name is None:
            return {"name": None}
        form = FORMATS[self.name]
        needed = required_fields(form)
        if others := set(needed) - {"width", "exponent_width", form.scale_field}:
            raise ConfigError(
                f"format {self.name!r} needs more than a width: say its "
                f"{' and '.join(sorted(map(str, others)))} in [passes.quantize], for ch transform"
            )
        config: dict[str, Any] = {"name": self.name}
        if "width" not in form.model_fields and (self.width or self.weight_width):
            raise ConfigError(f"format {self.name!r} has a width of its own: leave the width out")
        if "width" not in needed and not (self.width or self.weight_width):
            return config
        for role in ROLES:
            config |= self._operand(role, calibrated)
        return config

    def _operand(self, role: str, calibrated: bool) -> dict[str, Any]:
        """What is said of one operand."""
        form = FORMATS[str(self.name)]
        bits = self.width or (WIDTH if "width" in required_fields(form) else None)
        if role == "weight":
            bits = self.weight_width or bits
        if bits is None:
            return {}
        said: dict[str, Any] = {f"{role}_width": bits}
        if "exponent_width" in required_fields(form):
            said[f"{role}_exponent_width"] = max(1, min(MOST_EXPONENT, bits // 2))
        if form.scale_field is not None and calibrated:
            said[f"{role}_{form.scale_field}"] = AUTO
        elif form.scale_field == "frac_width" and role == "scores":
            said[f"{role}_frac_width"] = max(bits - 1, 0)  # they lie between 0 and 1
        return said


def parse_wanted(text: str, usual: Wanted) -> Wanted:
    """``6``, ``float``, ``minifloat_ieee`` or ``minifloat_ieee:6``.

    Args:
        usual: what is meant where nothing else is said.
    """
    name, _, bits = text.rpartition(":")
    if not name and re.fullmatch(r"\d+", bits):
        return replace(usual, width=int(bits), weight_width=None)
    if text == FLOAT:
        return Wanted(None)
    name, bits = (name, bits) if name else (bits, "")
    if name not in FORMATS:
        raise UnknownNameError("number format", name, [*FORMATS, FLOAT])
    if bits and not re.fullmatch(r"[1-9]\d*", bits):
        raise ConfigError(f"{text!r}: after the format stands a width, such as {name}:8")
    return Wanted(name, int(bits) if bits else None)


def parse_rules(texts: Sequence[str], usual: Wanted) -> dict[str, Wanted]:
    """``fc1=6`` and so on, by what stands before the last ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.rpartition("=")
        if not equals or not key.strip() or not value.strip():
            raise ConfigError(f"--rule {text!r}: write LAYER=WIDTH, such as fc1=6, or fc1=float")
        try:
            found[key.strip()] = parse_wanted(value.strip(), usual)
        except ConfigError as error:
            raise ConfigError(f"--rule {text}: {error}") from None
    return found


def one_line_rules(
    usual: Wanted, others: Mapping[str, Wanted] | None = None, *, calibrated: bool
) -> dict[str, Any]:
    """The table ``[passes.quantize]`` that a format for all products, and others, stand for.

    Args:
        others: formats by operation, or by the name of a layer or a pattern for names.
        calibrated: whether rows will be there to choose scales from.
    """
    if usual.name is not None and usual.name not in FORMATS:
        raise UnknownNameError("number format", usual.name, FORMATS)
    others = others or {}
    known = quantizable_operations()
    operations = [key for key in others if key in known]
    if operations and len(operations) < len(others):
        name = next(key for key in others if key not in known)
        raise ConfigError(
            f"rules for an operation ({operations[0]}) and for a layer ({name}) cannot stand "
            "together: name layers only, or operations only"
        )
    products = sorted(op.name for op in OPS.values() if op.quantizable and op.multiplies)
    is_plain = all(key.isidentifier() for key in others)
    by_name = "name" if is_plain else "regex_name"
    return {
        "by": by_name if others and not operations else "type",
        "default": {"config": usual.config(calibrated), "only": products},
        **{key: {"config": wanted.config(calibrated)} for key, wanted in others.items()},
    }


def rules_of(config: RunConfig) -> dict[str, Any]:
    """The table that the settings of a run stand for."""
    usual = Wanted(config.number_format, config.width, config.weight_width)
    return one_line_rules(usual, parse_rules(config.rules, usual), calibrated=True)


def check(config: RunConfig) -> None:
    """Refuse passes, which another command runs, and what is no format or width."""
    if config.passes:
        raise ConfigError(
            "quantize makes its own rules from --width: what [passes] of a file says, "
            "ch transform runs"
        )
    parse(QuantizeArgs, rules_of(config), "quantize")


def run(session: Session) -> ActionResult:
    """Quantise as the command line asks; what is to be in the record of the run."""
    config = replace(session.config, passes={"quantize": rules_of(session.config)})
    session = replace(session, config=config)
    watched = Watched(session)
    graph = transformed(session, session.software_folder / TRANSFORM, watch=watched)
    found = watched.compared(graph)
    place = seen_from_here(latest(session.software_folder / TRANSFORM / GRAPH))
    logger.info("Quantised model: %s", place)
    word = word_of(config.model, config.imports)
    told_next(f"ch export --load {place} --to c", f"ch test {word}--load {place}")
    return ActionResult(
        session.software_folder, features_of(graph.model, session.data_module) | found
    )


class Watched:
    """Measures accuracy and cost of the network that comes and of the one that goes."""

    def __init__(self, session: Session) -> None:
        self.accuracy = BeforeAndAfter(session.data_module)
        self.is_trained = session.is_trained
        self.before: dict[str, float] = {}

    def __call__(self, graph: MaseGraph) -> None:
        """Measure the network before it is quantised."""
        self.before = cost_of(graph)
        if self.is_trained:
            self.accuracy(graph)

    def compared(self, graph: MaseGraph) -> dict[str, Any]:
        """Say what quantisation costs and saves; what was found, for the record."""
        accuracies = self.accuracy.compared(graph)
        if not self.is_trained:
            logger.warning(UNTRAINED)
        after = cost_of(graph)
        logger.info("Cost: %s", cost_in_words(self.before, after), extra=RESULT)
        cost = {"before": self.before, "after": after}
        return {"cost": cost} | ({"accuracies": accuracies} if accuracies else {})


def cost_of(graph: MaseGraph) -> dict[str, float]:
    """Average bits of parameters and of activations that arithmetic reads; BitOPs of a row."""
    _, bits = calculate_avg_bits_mg_analysis_pass(graph)
    _, counts = count_operations_analysis_pass(graph, {"report": False})
    return {
        "weight_bits": float(bits["w_avg_bit"]),
        "activation_bits": float(bits["data_avg_bit"]),
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
