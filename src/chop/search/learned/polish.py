"""Polishing of frozen networks: single bits move, then weights are trained on within their bits."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.chain import held_chain
from chop.nn.quant_config import QuantConfig
from chop.numerics import Integer
from chop.numerics.int_tensor import IntTensor
from chop.passes.graph.transforms.quantize.quantize import apply_plan
from chop.search.learned.moves import FINEST, Array, Chain, LinearLink, RowLoss, find_chain
from chop.search.learned.moves import Rows as SomeRows
from chop.search.learned.rows import Rows
from chop.search.learned.setup import PolishSetup
from chop.tasks import as_rows
from chop.training.loop import Loop, Outcome, Part, StepRates
from chop.training.optimisers import REMAINING, make_adam
from chop.training.parts import EpochLoss


class Polish:
    """Rounds of moves and training of one network, each of which gives a candidate.

    Args:
        graph: frozen; it is changed.
        cost_weight: what one effective bit operation adds to the loss in the first round.
    """

    def __init__(
        self, graph: MaseGraph, rows: Rows, setup: PolishSetup, cost_weight: float
    ) -> None:
        self.graph, self.rows, self.setup, self.cost_weight = graph, rows, setup, cost_weight
        self.factor = nn.Parameter(torch.zeros((), device=rows.device))
        """The logarithm of a factor of the scores in the loss, on which no class depends."""

    def rounds(self) -> Iterator[MaseGraph]:
        """Yield the network after each round, in evaluation mode."""
        for number in range(self.setup.rounds):
            rows = self.rows.after(number * self.setup.epochs)
            self._move_bits(rows, self.cost_weight * self.setup.growth**number)
            trim_weights(self.graph)
            self._train(rows)
            self.graph.model.eval()
            yield self.graph

    def _move_bits(self, rows: Rows, cost_weight: float) -> None:
        """Try exact moves on some rows, if the network is a chain of linear layers."""
        links = find_chain(self.graph) if self.setup.rows else None
        if links is None:
            return
        features, targets = take_some(rows.batches(0, self.graph.model), self.setup.rows)
        loss = row_loss(rows, targets, float(self.factor.detach().exp()))
        chain = Chain(links, channels_first(features.flatten(1)), loss, cost_weight)
        chain.improve(rows.first_epoch)
        store_links(self.graph, links)

    def _train(self, rows: Rows) -> None:
        """Train weights, biases and the factor of the scores; widths stay."""
        setup, model = self.setup, self.graph.model
        weights = [value for value in model.parameters() if value.requires_grad]
        optimiser = make_adam([([*weights, self.factor], setup.learning_rate)])
        rates = StepRates(
            lambda epoch, step, steps: REMAINING["cosine"]((epoch + step / steps) / setup.epochs)
        )
        parts = [rates, HeldWeights(self.graph), EpochLoss(self._diverged)]
        with held_chain(model):
            Loop(model, optimiser, rows, self._loss, parts).run(setup.epochs)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.rows.loss(
            outputs if self.rows.is_regression else outputs * self.factor.exp(), targets
        )

    def _diverged(self, epoch: int) -> str:
        rate = self.setup.learning_rate
        return (
            f"polish: the loss or a weight is not a finite number in epoch {epoch + 1}: the "
            f"learning rate {rate:g} is most likely too high; try {rate / 10:g}"
        )


class HeldWeights(Part):
    """Keeps the weights within the range of their formats, so that no weight needs more bits."""

    def __init__(self, graph: MaseGraph) -> None:
        self.limits = []
        for module in weighted_modules(graph):
            frac, low, high = module.quant.operands["weight"].limits
            like = module.weight
            scale = torch.as_tensor(
                np.exp2(-frac.astype(np.float64)), dtype=like.dtype, device=like.device
            )
            bounds = (torch.as_tensor(each, device=like.device) * scale for each in (low, high))
            self.limits.append((like, *bounds))

    @torch.no_grad()
    def end_step(self, loop: Loop, outcome: Outcome) -> None:
        for weight, low, high in self.limits:
            weight.clamp_(low, high)


def weighted_modules(graph: MaseGraph) -> list[Any]:
    """Return the layers whose weights have a fixed point for each of them, in their order."""
    found: dict[int, Any] = {}
    for node in graph.nodes:
        module: Any = graph.modules.get(str(node.target)) if node.op == "call_module" else None
        quant = getattr(module, "quant", None)
        fmt = quant.operands.get("weight") if isinstance(quant, QuantConfig) else None
        if isinstance(fmt, Integer) and fmt.arrays[0].shape == tuple(module.weight.shape):
            found[id(module)] = module
    return list(found.values())


def trim_weights(graph: MaseGraph) -> None:
    """Give each weight a fixed point of the bits that its non-zero bits enclose, no more."""
    formats = {}
    for module in weighted_modules(graph):
        fmt: Integer = module.quant.operands["weight"]
        values = fmt(module.weight.detach())
        with torch.no_grad():
            module.weight.copy_(values)
        formats[module] = {"weight": fit_format(fmt, values.double().cpu().numpy())}
    replace_formats(graph, formats)


def fit_format(fmt: Integer, values: Array) -> Integer:
    """Return the format with a sign and the enclosed bits of each value; zero needs no bits."""
    codes = np.abs(values * 2.0**FINEST).astype(np.int64)
    last = codes & -codes
    bits = np.frexp(codes / np.maximum(last, 1))[1]
    width = np.where(codes > 0, bits + 1, 0)
    frac = np.where(codes > 0, FINEST + 1 - np.frexp(last.astype(np.float64))[1], 0)
    fitting = {"width": IntTensor(width), "frac_width": IntTensor(frac), "signed": True}
    return fmt.model_copy(update=fitting)


def store_links(graph: MaseGraph, links: list[LinearLink]) -> None:
    """Give the layers of a graph the weights and the formats of data that a chain has come to."""
    formats = {}
    for link in links:
        data, weight = (link.module.quant.operands[role] for role in ("data_in", "weight"))
        with torch.no_grad():
            link.module.weight.copy_(torch.from_numpy(link.weight))
        widths = {"width": IntTensor(link.width), "frac_width": IntTensor(link.frac)}
        formats[link.module] = {
            "data_in": data.model_copy(update=widths),
            "weight": fit_format(weight, link.weight),
        }
    replace_formats(graph, formats)


def replace_formats(graph: MaseGraph, formats: dict[Any, dict[str, Integer]]) -> None:
    """Give layers other formats for some of their operands."""
    plan: dict[Any, Any] = {}
    for node in graph.nodes:
        module: Any = graph.modules.get(str(node.target)) if node.op == "call_module" else None
        if module in formats:
            operands = {**module.quant.operands, **formats[module]}
            plan[node] = replace(module.quant, operands=operands)
    apply_plan(graph, plan)


def spread_points(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most so many of some epochs, whose costs lie as evenly as they come."""
    ordered = sorted((row for row in rows if row["ebops"] > 0), key=lambda row: row["ebops"])
    if len(ordered) <= most:
        return ordered
    costs = np.log([row["ebops"] for row in ordered])
    wanted = np.linspace(costs[0], costs[-1], most)
    places = sorted({int(np.abs(costs - each).argmin()) for each in wanted})
    return [ordered[place] for place in places]


def take_some(batches: Iterator[tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
    """Return the first so many rows of batches, and their targets."""
    features, targets, rows = [], [], 0
    for x, y in batches:
        features.append(x)
        targets.append(y)
        rows += len(x)
        if rows >= count:
            break
    return torch.cat(features)[:count], torch.cat(targets)[:count]


def channels_first(rows: Tensor) -> Array:
    """Return rows as an array with channels first."""
    return np.ascontiguousarray(rows.detach().double().cpu().numpy().T)


def row_loss(rows: Rows, targets: Tensor, factor: float) -> RowLoss:
    """Return the loss that the rows are trained with, for each row."""
    if rows.is_regression:
        wanted, variance = channels_first(as_rows(targets)), rows.variance
        return lambda scores, some: np.square(scores - wanted[:, some]).mean(0) / variance
    if targets.is_floating_point():
        shares = channels_first(targets)

        def mixed(scores: Array, some: SomeRows) -> Array:
            found: Array = log_sums(factor * scores) - factor * (scores * shares[:, some]).sum(0)
            return found

        return mixed
    labels = targets.cpu().numpy()

    def labelled(scores: Array, some: SomeRows) -> Array:
        chosen = np.take_along_axis(scores, labels[some][None], 0)[0]
        found: Array = log_sums(factor * scores) - factor * chosen
        return found

    return labelled


def log_sums(scores: Array) -> Array:
    """Return the logarithm of the sum of the exponentials of each column."""
    largest = scores.max(0, initial=-np.inf) if scores.size else np.zeros(scores.shape[1])
    found: Array = np.log(np.exp(scores - largest).sum(0)) + largest
    return found
