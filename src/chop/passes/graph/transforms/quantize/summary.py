"""What quantisation changed: a line for each node and a histogram of operations."""

import csv
import io
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate
from torch import fx

from chop.errors import ConfigError, GraphError, UnknownNameError
from chop.files import write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info
from chop.passes.graph.analysis.flops.count import rounded_line, rounded_macs
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target

logger = logging.getLogger("chop")
TABLE = (
    "Ori name", "New name", "MASE_TYPE", "Mase_OP", "Original type", "Quantized type", "Changed",
)  # fmt: skip
HISTOGRAM = ("Original type", "OP", "Total", "Changed", "Unchanged")


class NodeChange(NamedTuple):
    """One node before and after."""

    before: str
    after: str
    mase_type: str
    mase_op: str
    original_type: str
    quantized_type: str
    changed: bool


class OpCount(NamedTuple):
    """How many nodes of a kind there are and how many of them changed."""

    original_type: str
    op: str
    total: int
    changed: int
    unchanged: int


def summarize_quantization_analysis_pass(
    ori_graph: MaseGraph,
    graph: MaseGraph | Mapping[str, Any] | None = None,
    save_dir: str | Path | None = None,
) -> tuple[MaseGraph, Info]:
    """Compare a graph with what it was before quantisation.

    The histogram is logged, and the share of all MACs whose operands are really rounded. With
    `save_dir`, both tables are written there as CSV files. Called as
    ``(graph, {"original_graph": ..., "save_dir": ...})`` it does the same.
    """
    if not isinstance(graph, MaseGraph):
        ori_graph, graph, save_dir = from_dictionary(ori_graph, graph, save_dir)
    changes = node_changes(ori_graph, graph)
    counts = histogram(changes)
    logger.info("Quantized graph histogram:")
    logger.info("\n%s", tabulate(counts, headers=HISTOGRAM, tablefmt="orgtbl"))
    macs = macs_of(graph)
    logger.info("%s", rounded_line(macs) if macs else "How many MACs are rounded is not known.")
    if save_dir is not None:
        save(changes, counts, Path(save_dir))
    return graph, {
        "nodes": [dict(zip(TABLE, change, strict=True)) for change in changes],
        "histogram": [dict(zip(HISTOGRAM, count, strict=True)) for count in counts],
        "macs": macs,
    }


def macs_of(graph: MaseGraph) -> dict[str, Any] | None:
    """What part of the MACs is rounded; None if no shapes were recorded to count with."""
    try:
        return rounded_macs(graph)
    except GraphError:
        return None


def from_dictionary(
    graph: MaseGraph, given: Mapping[str, Any] | None, save_dir: str | Path | None
) -> tuple[MaseGraph, MaseGraph, str | Path | None]:
    """The arguments when they come as a graph and a dictionary."""
    where = "summarize_quantization"
    if not isinstance(given, Mapping) or "original_graph" not in given:
        raise ConfigError(f"{where} takes (ori_graph, graph) or (graph, {{'original_graph': ...}})")
    for key in given.keys() - {"original_graph", "save_dir"}:
        raise UnknownNameError("key", key, ["original_graph", "save_dir"], where)
    return given["original_graph"], graph, given.get("save_dir", save_dir)


def node_changes(ori_graph: MaseGraph, graph: MaseGraph) -> list[NodeChange]:
    """Every node of the graph beside the node of the same name that it was."""
    originals = {node.name: node for node in ori_graph.nodes}
    changes = []
    for node in graph.nodes:
        if node.name not in originals:
            raise GraphError(f"the original graph has no node {node.name!r} to compare with")
        before, after = node_type(originals[node.name]), node_type(node)
        changes.append(
            NodeChange(
                node.name,
                node.name,
                get_mase_type(node),
                get_mase_op(node),
                before,
                after,
                what_is_called(originals[node.name]) != what_is_called(node),
            )
        )
    return changes


def what_is_called(node: fx.Node) -> Any:
    """What tells whether a node changed: the class of its layer, or its function."""
    target = get_node_actual_target(node)
    return type(target) if node.op == "call_module" else target


def node_type(node: fx.Node) -> str:
    """A node's kind for the tables: class of the layer, name of the function, method or input."""
    called = what_is_called(node)
    return called if isinstance(called, str) else str(getattr(called, "__name__", called))


def histogram(changes: list[NodeChange]) -> list[OpCount]:
    """Counts for each kind of node, sorted by kind."""
    total = Counter((change.original_type, change.mase_op) for change in changes)
    changed = Counter((c.original_type, c.mase_op) for c in changes if c.changed)
    return [
        OpCount(kind, op, total[kind, op], changed[kind, op], total[kind, op] - changed[kind, op])
        for kind, op in sorted(total)
    ]


def save(changes: list[NodeChange], counts: list[OpCount], folder: Path) -> None:
    """Write both tables."""
    rows = [(index, *change) for index, change in enumerate(changes)]
    write_text(folder / "quantize_table.csv", as_csv(("", *TABLE), rows))
    write_text(folder / "quantize_histogram.csv", as_csv(HISTOGRAM, counts))


def as_csv(header: tuple[str, ...], rows: list[Any]) -> str:
    """Rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
