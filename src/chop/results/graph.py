"""Facts of a saved graph: operations, shapes, number formats, errors of rounding, statistics."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.stored import load_mase_graph
from chop.numerics import Integer, IntTensor, NumberFormat

BINS = 48
FLOAT_BITS = 32.0


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor before and after rounding to a number format."""

    node: str
    role: str
    format: str
    bits: float
    count: int
    sqnr: float
    """Signal to quantisation noise in dB; infinite where rounding changed nothing."""
    edges: NDArray[np.float64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]


@dataclass(frozen=True)
class NodeFacts:
    """One node of a graph."""

    name: str
    op: str
    kind: str
    shape: str
    inputs: tuple[str, ...]
    formats: Mapping[str, str]
    """The number format of each operand that is rounded."""
    bits: float
    """Of a weight, else of an input; of a float where nothing is rounded."""
    tensors: tuple[RoundedTensor, ...]
    statistics: tuple[tuple[str, str, Mapping[str, Any]], ...]
    """Tensor, name of the statistic, its numbers."""
    widths: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """How many channels or elements have each width, by operand, where they have several."""

    def sqnr(self, role: str) -> float | None:
        """The error of one operand, if it is known."""
        return next((each.sqnr for each in self.tensors if each.role == role), None)

    @property
    def worst_sqnr(self) -> float | None:
        """The ratio of the operand that loses most."""
        return min((each.sqnr for each in self.tensors), default=None)


def read_graph(folder: Path) -> tuple[MaseGraph, list[NodeFacts]]:
    """The graph saved in a folder, and the facts of its nodes."""
    graph = load_mase_graph(folder)
    modules = graph.modules
    with torch.no_grad():
        return graph, [node_facts(node, modules) for node in graph.nodes]


def node_facts(node: fx.Node, modules: Mapping[str, nn.Module]) -> NodeFacts:
    """The facts of one node."""
    module = modules[str(node.target)] if node.op == "call_module" else None
    called = node.target if module is None else type(module)
    formats = dict(NodeCall.of(node, modules).formats)
    common = _section(node, "common")
    widths = [formats[role].bits for role in ("weight", *formats) if role in formats]
    return NodeFacts(
        name=node.name,
        op=str(common.get("mase_op", node.op)),
        kind=str(getattr(called, "__name__", called)),
        shape=_shape(common),
        inputs=tuple(each.name for each in node.all_input_nodes),
        formats={role: describe(fmt) for role, fmt in formats.items()},
        bits=widths[0] if widths else FLOAT_BITS,
        tensors=tuple(_rounded_tensors(node.name, _operands(module, common), formats)),
        widths={role: found for role, fmt in formats.items() if (found := widths_of(fmt))},
        statistics=tuple(_statistics(_section(node, "software"))),
    )


def _section(node: fx.Node, name: str) -> Mapping[str, Any]:
    record = node.meta.get("mase")
    return _table(record[name] if record is not None else None)


def _table(value: Any) -> Mapping[str, Any]:
    """A part of the metadata, which a user may have edited: what is not a table is empty."""
    return value if isinstance(value, dict) else {}


def _shape(common: Mapping[str, Any]) -> str:
    entries = [_table(each).get("shape") for each in _table(common.get("results")).values()]
    shapes = [each for each in entries if isinstance(each, list | tuple) and each]
    return ", ".join("×".join(str(size) for size in shape) for shape in shapes)


def describe(fmt: NumberFormat) -> str:
    """A format with the fields that make it what it is: ``Integer 6 bit (width 6, …)``."""
    fields = fmt.shown()
    if fields.get("width") == fmt.bits:
        del fields["width"]  # said already
    inside = ", ".join(f"{name} {value}" for name, value in fields.items())
    return f"{fmt.label} {fmt.bits:.4g} bit" + (f" ({inside})" if inside else "")


def widths_of(fmt: NumberFormat) -> dict[int, int]:
    """Count the channels or elements of each width; nothing where one width serves all."""
    return fmt.widths if isinstance(fmt, Integer) and isinstance(fmt.width, IntTensor) else {}


def _operands(module: nn.Module | None, common: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that go into a node: parameters, and inputs that were recorded."""
    operands: dict[str, Tensor] = dict(module.named_parameters(recurse=False)) if module else {}
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):  # of a pruned layer, computed when it is asked for
        operands["weight"] = weight
    for name, entry in _table(common.get("args")).items():
        value = _table(entry).get("value")
        if name.startswith("data_in_") and isinstance(value, Tensor) and not value.is_meta:
            operands.setdefault("data_in", value)
    return operands


def _rounded_tensors(
    name: str, operands: Mapping[str, Tensor], formats: Mapping[str, NumberFormat]
) -> Iterator[RoundedTensor]:
    for role, fmt in formats.items():
        tensor = operands.get(role)
        if tensor is not None and tensor.is_floating_point() and tensor.numel():
            yield rounded_tensor(name, role, tensor.detach().float(), fmt)


def rounded_tensor(node: str, role: str, before: Tensor, fmt: NumberFormat) -> RoundedTensor:
    """A tensor and what a format makes of it, as histograms over the same bins."""
    after = fmt.round_to(before)
    old, new = before.double().flatten().numpy(), after.double().flatten().numpy()
    old, new = old[np.isfinite(old)], new[np.isfinite(new)]
    both = np.concatenate([old, new, [0.0]])
    edges = np.histogram_bin_edges(both, BINS)
    return RoundedTensor(
        node=node,
        role=role,
        format=describe(fmt),
        bits=fmt.bits_of(tuple(before.shape)),
        count=before.numel(),
        sqnr=sqnr(before, after),
        edges=edges,
        before=np.histogram(old, edges)[0],
        after=np.histogram(new, edges)[0],
    )


def sqnr(before: Tensor, after: Tensor) -> float:
    """10 log₁₀ of the power of a tensor over that of what rounding did to it, in dB."""
    signal = float(before.double().square().sum())
    noise = float((before.double() - after.double()).square().sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _statistics(software: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for side in ("args", "results"):
        for tensor, entry in _table(software.get(side)).items():
            for name, values in _table(_table(entry).get("stat")).items():
                if _table(values):
                    yield tensor, name, values
