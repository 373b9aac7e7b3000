"""Methods applied to a network one after the other, each of them kept only where it helps."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.logger import quietly
from chop.passes.base import Info
from chop.passes.graph.transforms.methods.equalise import equalise_transform_pass
from chop.passes.graph.transforms.methods.layerwise import (
    CorrectBiasArgs,
    LayerwiseArgs,
    correct_bias_transform_pass,
    round_weights_transform_pass,
    rows_in_one,
)
from chop.passes.graph.transforms.quantize.plan import QuantizeArgs

logger = logging.getLogger("chop")
Method = Literal["equalise", "round_weights", "correct_bias"]
METHODS: tuple[Method, ...] = ("equalise", "round_weights", "correct_bias")
FEW_BITS = 7
"""Weights of at most so many bits are worth the time that methods take."""
Quantise = Callable[[MaseGraph], tuple[MaseGraph, Info]]


def methods_for(args: QuantizeArgs, asked: Sequence[Method] | None) -> tuple[Method, ...]:
    """Return the methods to try: those asked for, else all where weights have few bits."""
    if args.input_generator is None:
        return ()
    if asked is not None:
        return tuple(name for name in METHODS if name in asked)
    widths = [config.get("weight_width") for _, config in args.configs()]
    few = any(isinstance(width, int) and width <= FEW_BITS for width in widths)
    return METHODS if few else ()


def quantise_with_methods(
    graph: MaseGraph, quantise: Quantise, batches: Any, methods: Sequence[Method]
) -> tuple[MaseGraph, Info]:
    """Return a quantised graph after the methods that make its outputs differ less from float.

    `info` has under `methods` the error of the outputs before and after each, relative to their
    size, and whether it was kept.
    """
    if not methods:
        return quantise(graph)
    reference = same_named_copy(graph)
    graph, info = quantise(graph)
    rows = LayerwiseArgs(input_generator=batches)
    wanted = outputs(reference, rows)
    error = output_error(graph, rows, wanted)
    gains: dict[str, dict[str, Any]] = {}
    for name in methods:
        other, said = graph, info
        if name == "equalise":
            trial, pairs = equalise_transform_pass(same_named_copy(reference))
            if any(pairs["equalised"].values()):
                with quietly(True):
                    other, said = quantise(trial)
        elif name == "round_weights":
            other, _ = round_weights_transform_pass(same_named_copy(graph), rows)
        else:
            given = CorrectBiasArgs(input_generator=batches, reference=reference)
            other, _ = correct_bias_transform_pass(same_named_copy(graph), given)
        found = error if other is graph else output_error(other, rows, wanted)
        helps = found < error
        gains[name] = {"before": error, "after": found, "kept": helps}
        if helps:
            graph, info, error = other, said, found
    show_gains(gains)
    return graph, info | {"methods": gains}


def same_named_copy(graph: MaseGraph) -> MaseGraph:
    """Return a copy of a graph whose model's class, which torch.fx makes for each, has its name."""
    found = copy.deepcopy(graph)
    type(found.model).__name__ = type(graph.model).__name__
    return found


def show_gains(gains: Mapping[str, Mapping[str, Any]]) -> None:
    """Say what each method has gained."""
    for name, gain in gains.items():
        kept = "kept" if gain["kept"] else "left out"
        before, after = (100 * gain[key] for key in ("before", "after"))
        logger.info("%s: error of the outputs %.3g %% → %.3g %%, %s", name, before, after, kept)


def outputs(graph: MaseGraph, rows: LayerwiseArgs) -> list[Tensor]:
    """Return all numbers that a graph gives for rows."""
    with torch.no_grad():
        found = run_graph(graph, rows_in_one(rows))
    tensors: list[Tensor] = []
    torch.utils._pytree.tree_map_only(Tensor, tensors.append, found)
    return [each.double() for each in tensors if each.is_floating_point()]


def output_error(graph: MaseGraph, rows: LayerwiseArgs, wanted: Sequence[Tensor]) -> float:
    """Return the size of what differs, relative to the size of the outputs."""
    pairs = list(zip(wanted, outputs(graph, rows), strict=True))
    different = sum(float((b - a).square().sum()) for a, b in pairs)
    size = sum(float(a.square().sum()) for a, _ in pairs)
    return float((different / size) ** 0.5) if size else 0.0
