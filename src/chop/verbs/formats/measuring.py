"""The measuring of one combination of a comparison of formats, in any process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import ChopError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import Recorder, placeholder_values
from chop.logger import quietly
from chop.passes.graph.transforms.folding import fold_normalisation_transform_pass
from chop.passes.graph.transforms.methods.choosing import same_named_copy
from chop.passes.graph.transforms.methods.low_rank import HIGH, LOW, LOW_RANK_BITS
from chop.passes.graph.transforms.methods.table import parse_methods, quantise_by
from chop.results.formats import FormatPoint
from chop.search.spaces.space import SearchContext
from chop.tasks import IGNORED, NUMBERS, TOKENS, as_rows, restore_units, task_named
from chop.verbs.formats.cells import Cell, quantise_cell

CALIBRATION, LOADER = "train_dataloader", "val_dataloader"
FLOAT = Cell("float", "", "")
SNR_ROWS = 64
"""Rows on which the results of layers are compared."""


@dataclass(frozen=True)
class FormatLaboratory:
    """The network, its rows, and how many of them to use.

    Args:
        calibration: rows that scales and methods see.
        rows: rows to measure on, at most.
    """

    context: SearchContext
    calibration: int
    rows: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out what was worked out, which another process works out for itself."""
        return type(self), (self.context, self.calibration, self.rows)

    def evaluator(self) -> Callable[[Cell], FormatPoint]:
        """Return what measures a combination in this process."""
        return self.point

    @cached_property
    def graph(self) -> MaseGraph:
        """The float network without batch normalisation; each measurement takes a copy."""
        graph, _ = fold_normalisation_transform_pass(self.context.graph(self.context.twin()))
        return graph

    @cached_property
    def batches(self) -> list[Mapping[str, Any]]:
        """The rows that scales and methods see, by the name of the input."""
        (name,) = (str(node.target) for node in self.graph.nodes if node.op == "placeholder")
        rows = self.context.first_batches(CALIBRATION, self.calibration)
        return [{name: features} for features, _ in rows]

    def calibrate(self) -> float:
        """Return the seconds that the calibration rows take in floating point."""
        begun = time.perf_counter()
        with torch.no_grad():
            for batch in self.batches:
                self.graph.model(*batch.values())
        return time.perf_counter() - begun

    def point(self, cell: Cell) -> FormatPoint:
        """Measure a combination; what cannot be done is said in the point."""
        if cell == FLOAT:
            return FormatPoint(format=FLOAT.format, operands="", method="",
                               losses=self.losses(self.graph))  # fmt: skip
        reference: list[MaseGraph] = []

        def quantise(graph: MaseGraph) -> tuple[MaseGraph, Any]:
            reference[:] = [same_named_copy(graph)]
            return quantise_cell(graph, cell, self.batches)

        names = dict(zip(("format", "operands", "method"), cell, strict=True))
        begun = time.perf_counter()
        try:
            with torch.random.fork_rng([]), quietly(True):
                torch.manual_seed(self.context.seed)
                graph, _ = quantise_by(
                    same_named_copy(self.graph), quantise, self.batches,
                    parse_methods(cell.method),
                )  # fmt: skip
                seconds = time.perf_counter() - begun
                losses = self.losses(graph)
        except ChopError as error:
            return FormatPoint(**names, problem=str(error).partition("\n")[0])
        weight_bits, data_bits = bits_of_graph(graph)
        return FormatPoint(
            **names, weight_bits=weight_bits, data_bits=data_bits, seconds=seconds,
            snr=self.ratios(reference[0], graph), losses=losses,
        )  # fmt: skip

    def losses(self, graph: MaseGraph) -> tuple[float, ...]:
        """Return the cost of each row."""
        task = task_named(self.context.task)
        found: list[Tensor] = []
        counts: list[Tensor] = []
        with torch.no_grad():
            for features, labels in self.context.first_batches(LOADER, self.rows):
                outputs = graph.model(features.clone())
                if task is NUMBERS:
                    numbers = restore_units(outputs.double(), self.context.targets)
                    found.append((numbers - as_rows(labels)).abs().mean(dim=1))
                elif task is TOKENS:
                    flat = torch.nn.functional.cross_entropy(
                        outputs.double().flatten(0, -2), labels.flatten(),
                        ignore_index=IGNORED, reduction="none",
                    )  # fmt: skip
                    found.append(flat.reshape(labels.shape).sum(1))
                    counts.append((labels != IGNORED).sum(1))
                else:
                    found.append((outputs.argmax(dim=-1) != labels).double())
        losses = torch.cat(found)
        if counts:  # so that the mean over rows is the mean over tokens
            losses = losses / torch.cat(counts).double().mean()
        return tuple(losses.tolist())

    def ratios(self, reference: MaseGraph, graph: MaseGraph) -> dict[str, float]:
        """Return the signal-to-noise ratio of each layer's results in decibels."""
        (name,) = self.batches[0]
        inputs = {name: self.batches[0][name][:SNR_ROWS]}
        wanted, found = results_of_layers(reference, inputs), results_of_layers(graph, inputs)
        ratios = {}
        for layer in wanted.keys() & found.keys():
            signal = float(wanted[layer].double().square().sum())
            noise = float((found[layer] - wanted[layer]).double().square().sum())
            if signal > 0 and noise > 0:
                ratios[layer] = 10 * float(
                    torch.tensor(signal / noise, dtype=torch.float64).log10()
                )
        return {layer: ratios[layer] for layer in sorted(ratios)}


def results_of_layers(graph: MaseGraph, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what each layer with weights gives, its low-rank correction included."""
    names = corrected_names(graph)
    found: dict[str, Tensor] = {}

    def look(node: fx.Node, result: Any) -> None:
        if node in names and isinstance(result, Tensor):
            found[names[node]] = result.detach().clone()

    with torch.no_grad():
        Recorder(graph.model, after=look).run_undisturbed(placeholder_values(graph, inputs))
    return found


def corrected_names(graph: MaseGraph) -> dict[fx.Node, str]:
    """Return the nodes that give the results of layers, and the names of the layers."""
    nodes = {node.name: node for node in graph.nodes}
    names: dict[fx.Node, str] = {}
    for node in graph.nodes:
        call = NodeCall.of(node, graph.modules)
        is_thin = node.name.endswith((LOW, HIGH))
        if call.op is None or not call.op.multiplies or call.layer is None or is_thin:
            continue
        correction = nodes.get(node.name + HIGH)
        names[node if correction is None else next(iter(correction.users))] = node.name
    return names


def bits_of_graph(graph: MaseGraph) -> tuple[float | None, float | None]:
    """Return the mean bits of weights and of data that are rounded, with all that is shared."""
    weights, data = [0.0, 0], [0.0, 0]
    for node in graph.nodes:
        call = NodeCall.of(node, graph.modules)
        layer: Any = call.layer
        if node.name.endswith((LOW, HIGH)) and layer is not None:
            weights[0] += LOW_RANK_BITS * layer.weight.numel()
        for role, fmt in call.formats.items():
            shape: Any = None
            if role == "weight" and layer is not None:
                shape, tally = tuple(layer.weight.shape), weights
            elif role != "bias":
                shape, tally = shape_of_operand(call, role), data
            if shape is not None:
                tally[0] += fmt.bits_of(shape) * prod(shape)
                tally[1] += prod(shape)
    bits = [total / count if count else None for total, count in (weights, data)]
    return bits[0], bits[1]


def shape_of_operand(call: NodeCall, role: str) -> tuple[int, ...] | None:
    """Return the recorded shape of what a node reads as an operand, if it is known."""
    for name, kind in call.roles.items():
        source = call.arguments.get(name)
        if kind == role and isinstance(source, fx.Node):
            results = source.meta["mase"]["common"].get("results", {})
            shape = results.get("data_out_0", {}).get("shape")
            return None if shape is None else tuple(shape)
    return None
