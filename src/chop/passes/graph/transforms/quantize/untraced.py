"""The rules of the quantise pass for a model without a graph, and its calibration."""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.recorder import preserve_model
from chop.nn.dispatched import ProductWatch, marks_for, watched_products
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.nn.quantized import QuantizedModule
from chop.nn.untraced import Chooser, RoundedFunctions, quantize_untraced
from chop.ops.op import Op, op_of_module
from chop.passes.base import take_rows
from chop.passes.graph.analysis.flops.count import rounded_part
from chop.passes.graph.analysis.flops.table import unreached_lines
from chop.passes.graph.transforms.quantize.observe import (
    Fits,
    finite,
    floor_of,
    with_scales,
)
from chop.passes.graph.transforms.quantize.plan import DEFAULT, WHERE, QuantizeArgs
from chop.passes.graph.transforms.quantize.ranges import Calibration, OperandTally

logger = logging.getLogger("chop")

CANNOT = ("counting by node", "saving as a graph", "integer programs", "exports", "search")
"""What needs a graph, which an untraced model has not."""


@dataclass
class Untraced:
    """The quantisation of a model without a graph, and the limits of that."""

    layers: dict[str, QuantizedModule]
    """The quantised layers by name."""
    rounding: RoundedFunctions = field(repr=False)
    cannot: tuple[str, ...] = CANNOT
    macs: dict[str, Any] | None = None
    """How many MACs of a run on an example have rounded operands; None without an example."""
    not_rounded: list[dict[str, Any]] = field(default_factory=list)
    """The layers, and functions in them, that have the other MACs."""

    @property
    def functions(self) -> list[str]:
        """The operations of the functions that were rounded in the calls so far."""
        return sorted(self.rounding.met)

    @property
    def missed(self) -> list[str]:
        """Functions that a rule is for, but that were called in a form that is not quantised."""
        return sorted(self.rounding.missed)

    def __str__(self) -> str:
        measured = "MACs are measured if an example is given"
        if self.macs is not None:
            measured = f"{self.macs['rounded_macs']:,} of {self.macs['macs']:,} MACs rounded"
        return (
            f"quantised without a graph: {len(self.layers)} layers, and functions as they are "
            f"called; {measured}; not available: {', '.join(self.cannot)}"
        )


def chooser(args: QuantizeArgs, names: Collection[str]) -> Chooser:
    """A function that finds the rule for a layer by name, or for a function by type.

    Args:
        names: of all modules; dots may be written as underscores, as in the names of nodes.
    """
    configs = dict(args.configs())
    spellings = {name: (name, name.replace(".", "_")) for name in names}
    if args.by == "name":
        known = {each for both in spellings.values() for each in both}
        for key in configs.keys() - {DEFAULT} - known:
            raise UnknownNameError("layer", key, [*names], WHERE)

    def choose(op: Op, name: str | None) -> QuantConfig | None:
        words = (op.name,) if args.by == "type" else spellings.get(name or "", ())
        key = rule_for(words, configs, patterns=args.by == "regex_name") or args.default_for(op)
        if key is None or configs[key].get("name") is None:
            return None
        return parse_quant_config(op, configs[key], f"{WHERE}: {key}")

    return choose


def rule_for(words: Collection[str], keys: Iterable[str], *, patterns: bool) -> str | None:
    """The first key that is one of the words, or a pattern that fits one."""
    for key in keys:
        fits = any(re.fullmatch(key, word) for word in words) if patterns else key in words
        if fits and key != DEFAULT:
            return key
    return None


def quantize_without_graph(model: nn.Module, args: QuantizeArgs) -> tuple[nn.Module, Untraced]:
    """The model, which is taken apart, computed in number formats; and what was done to it."""
    choose = chooser(args, [name for name, _ in model.named_modules()])
    model, rounding, layers = quantize_untraced(model, choose)
    done = Untraced(layers, rounding)
    if args.input_generator is not None:
        calibrate_untraced(model, done, args.input_generator, args.calibrate)
    if not layers and not any(rounding.configs.values()) and args.default is None:
        raise ConfigError(f"{WHERE}: no layer would be rounded: look at the rules")
    return model, done


def measure_untraced(model: nn.Module, done: Untraced, inputs: Mapping[str, Any]) -> None:
    """Note what part of the MACs of a run is rounded, and log what no rule can round.

    Operands are marked in place of being rounded. The model is left as it was.
    """
    with preserve_model(model), watched_products() as watch:
        for layer in done.layers.values():
            layer._formats = marks_for(layer.quant, watch)
        done.rounding.looks = lambda site, op, quant: marks_for(quant, watch)
        tell_places(model, watch)
        try:
            model(**inputs)
        finally:
            done.rounding.looks = None
    whole = watch.total
    done.macs = rounded_part({
        "macs": whole.macs, "rounded_macs": whole.rounded, "half_rounded_macs": whole.half_rounded,
    })  # fmt: skip
    done.not_rounded = [
        {"node": place or type(model).__name__, "op": "", "functions": list(seen.names),
         "share": (seen.macs - seen.rounded) / whole.macs,
         "out_of_reach": 0 if is_able(model.get_submodule(place)) else seen.unknown / whole.macs}
        for place, seen in watch.seen.items() if seen.names
    ]  # fmt: skip
    for line in unreached_lines(done.macs, done.not_rounded):
        logger.warning("%s", line)


def is_able(module: nn.Module) -> bool:
    """True if a module is an operation that rules can be for."""
    op = op_of_module(module)
    return op is not None and op.quantizable


def tell_places(model: nn.Module, watch: ProductWatch) -> None:
    """Register hooks that tell a watch which module runs, the innermost that does."""
    outside: list[str] = []

    def start(name: str, *_: Any) -> None:
        outside.append(watch.place)
        watch.place = name

    def stop(*_: Any) -> None:
        watch.place = outside.pop()

    for name, module in model.named_modules():
        module.register_forward_pre_hook(partial(start, name))
        module.register_forward_hook(stop, always_call=True)


class Looks:
    """Counts what reaches the operands of layers and functions, which stay as they are."""

    def __init__(self, settings: Calibration) -> None:
        self.settings = settings
        self.tallies: dict[tuple[str, str], OperandTally] = {}
        self.again = False

    def of(self, name: str, op: Op, quant: QuantConfig) -> dict[str, Any]:
        """Functions that look at each operand of an operation, in place of rounding it."""
        return {role: self._look(name, op, role, fmt) for role, fmt in quant.operands.items()}

    def _look(self, name: str, op: Op, role: str, fmt: Any) -> Any:
        def look(x: Tensor) -> Tensor:
            if x.is_floating_point() and x.numel() and fmt.is_open:
                self._take((name, role), op, fmt, finite(x.detach(), (name, role)))
            return x

        return look

    def _take(self, operand: tuple[str, str], op: Op, fmt: Any, x: Tensor) -> None:
        if operand not in self.tallies:
            by_channel = self.settings.by_channel(operand[1])
            shape = op.channel_shape(operand[1], tuple(x.shape)) if by_channel else ()
            floor = floor_of(op, operand[1], fmt)
            self.tallies[operand] = OperandTally(fmt, self.settings, shape, floor)
        tally = self.tallies[operand]
        (tally.look_again if self.again else tally.look)(x)

    def fits(self) -> Fits:
        """The observations so far."""
        return {(*operand, tally.fmt): tally.fit() for operand, tally in self.tallies.items()}


def calibrate_untraced(
    model: nn.Module, done: Untraced, batches: Iterable[Mapping[str, Any]], settings: Calibration
) -> None:
    """Set scales that are "auto" from values observed in floating point.

    A function has scales for each module and place in its code that calls it.
    """
    most = float("inf") if settings.num_samples is None else settings.num_samples
    rows = [batch for batch, _ in take_rows(batches, most, "calibrate")]
    if not rows:
        raise ConfigError("calibrate: there are no rows")
    looks, rounding = Looks(settings), done.rounding
    for name, layer in done.layers.items():
        layer._formats = looks.of(name, layer.op, layer.quant)
    rounding.looks = lambda site, op, quant: looks.of(str(site), op, quant)
    try:
        run_batches_in_evaluation(model, rows)
        for tally in looks.tallies.values():
            tally.prepare()
        looks.again = True
        run_batches_in_evaluation(model, rows)
    finally:
        rounding.looks = None
        fits = looks.fits() if looks.again else {}
        for name, layer in done.layers.items():
            if looks.again and (name, "data_in") not in looks.tallies:
                say_unseen(f"layer {name!r}", layer.quant)
            layer.quant = with_scales(layer.quant, name, fits)
        rounding.configs = {
            site: quant and with_scales(quant, str(site), fits)
            for site, quant in rounding.configs.items()
        }
        rounding.choose = with_usual_scales(rounding.choose)


def say_unseen(what: str, quant: QuantConfig) -> None:
    """Warn of scales that no batch has shown."""
    if any(fmt.is_open for fmt in quant.operands.values()):
        logger.warning(
            "%s: no batch of calibrate has come there; its scales are the usual ones", what
        )


def with_usual_scales(choose: Chooser) -> Chooser:
    """The same choice with the usual scale where none was found: no batch has come that way."""

    def chosen(op: Op, name: str | None) -> QuantConfig | None:
        quant = choose(op, name)
        if quant is not None:
            say_unseen(f"a call of {op.name}", quant)
        return quant and with_scales(quant, "", {})

    return chosen


def run_batches_in_evaluation(model: nn.Module, batches: list[dict[str, Any]]) -> None:
    """Run all batches in evaluation mode, and leave the mode of each module as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                model(**batch)
    finally:
        for module, mode in modes.items():
            module.training = mode
