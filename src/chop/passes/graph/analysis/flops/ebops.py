"""Effective bit operations of a quantised graph, exact, on rows that calibrate it.

Each multiplication counts the bits that the non-zero bits of a constant enclose, times the bits of
the magnitudes that the other factor took on the rows, without the trailing zeros that all of them
have. A product of two activations counts the bits of both. See docs/counting.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import GraphError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import Before, Recorder, placeholder_values, preserve_model
from chop.passes.graph.analysis.flops.liveness import Liveness, overwrites_shared
from chop.passes.graph.analysis.flops.products import CountedProduct, UncountedError, product_of

Batch = Tensor | Mapping[str, Any]
EBOPS_ROWS = 8192
"""Rows that are looked at unless a number is given."""
AT_ONCE = 2**18
"""Elements of the inputs that are run at once, where batches are smaller."""


@dataclass(frozen=True)
class EbopsCount:
    """The effective bit operations of one sample."""

    nodes: dict[str, int]
    """Of every node that multiplies, by name."""
    uncounted: dict[str, str] = field(default_factory=dict)
    """Why the products of a node are not counted, by its name."""
    rows: int = 0
    """How many rows the activations were seen on."""

    @property
    def total(self) -> int:
        """Of all nodes that could be counted."""
        return sum(self.nodes.values())


def ebops(graph: MaseGraph, batches: Iterable[Batch]) -> EbopsCount:
    """Count the effective bit operations of each node.

    Args:
        batches: inputs to calibrate with, each a tensor or a dictionary of tensors by name.
    """
    given = merge_batches(each if isinstance(each, Mapping) else {"x": each} for each in batches)
    first = next(given, None)
    if first is None:
        raise GraphError("EBOPs are counted on batches of inputs, and none is given")
    with preserve_model(graph.model):
        counter = Counter(graph, first)
        rows = sum(counter.see(batch) for batch in chain([first], given))
        return counter.count(rows)


def merge_batches(batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The same rows in larger batches: of a small network many small ones take much longer."""
    for _, alike in groupby(batches, key=_shapes):
        waiting: list[Mapping[str, Any]] = []
        for batch in alike:
            waiting.append(batch)
            whole = all(isinstance(x, Tensor) and x.dim() for x in batch.values())
            if not whole or sum(x.numel() for b in waiting for x in b.values()) >= AT_ONCE:
                yield _join(waiting)
                waiting = []
        if waiting:
            yield _join(waiting)


def _shapes(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "shape", ())[1:] for name, value in batch.items()}


def _join(batches: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(batches) == 1:
        return batches[0]
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


class Counter:
    """Counts one graph.

    Args:
        example: inputs, of which the first row is run to see shapes.
    """

    def __init__(self, graph: MaseGraph, example: Mapping[str, Any]) -> None:
        self.graph, modules = graph, graph.modules
        results: dict[fx.Node, Any] = {}
        one_row = {n: x[:1] if isinstance(x, Tensor) else x for n, x in example.items()}
        self._run(one_row, None, results)
        self.liveness = Liveness(graph.nodes, results)
        self.calls = [NodeCall.of(node, modules) for node in graph.nodes]
        self.uncounted: dict[str, str] = {}
        self.products: dict[fx.Node, CountedProduct] = {}
        for call in self.calls:
            try:
                product = product_of(call, self.liveness)
            except UncountedError as error:
                self.uncounted[call.node.name] = str(error)
            else:
                self.products |= {} if product is None else {call.node: product}

    def _run(
        self,
        inputs: Mapping[str, Any],
        before: Before | None,
        results: dict[fx.Node, Any] | None = None,
    ) -> None:
        values = placeholder_values(self.graph, inputs)
        self.graph.check_inputs(values)
        own = [x.detach().clone() if isinstance(x, Tensor) else x for x in values]
        after = None if results is None else results.__setitem__
        Recorder(self.graph.model, before, after).run(*own, enable_io_processing=False)

    def see(self, inputs: Mapping[str, Any]) -> int:
        """Run a batch and take note of what is multiplied; its rows."""
        self._run(inputs, self._note)
        return max((len(x) for x in inputs.values() if isinstance(x, Tensor)), default=0)

    def _note(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        product = self.products.get(node)
        if product is None:
            return
        try:
            product.see(args, kwargs)
        except UncountedError as error:
            self.uncounted[node.name] = str(error)
            del self.products[node]

    def count(self, rows: int) -> EbopsCount:
        """Count from the output backwards: elements that are not read cost nothing."""
        found: dict[str, int] = {}
        for call in reversed(self.calls):
            product = self.products.get(call.node)
            if product is None:
                self.liveness.visit(call)
                continue
            if overwrites_shared(call):
                self.liveness.read_whole([call.node])
            found[call.node.name] = product.count(self.liveness)
        return EbopsCount(dict(reversed(found.items())), self.uncounted, rows)
