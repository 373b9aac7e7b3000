"""Passes that print what is known of a graph and of its nodes.

Reports go to standard output, so that a script with no logging set up shows them.
"""

import pprint
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from tabulate import tabulate
from torch import Tensor, fx

from chop.files import write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.masking import printable
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.metadata_entries import bare
from chop.passes.graph.utils import get_mase_op, get_mase_type


def show(text: str) -> None:
    """Write a report and a newline to standard output."""
    sys.stdout.write(printable(f"{text}\n", keep="\n\t"))


FX_OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")


class ReportGraphArgs(PassArgs):
    """The destination of the report: the file `file_name`, or else standard output."""

    file_name: Path | None = None


@analysis_pass("report_graph")
def report_graph_analysis_pass(graph: MaseGraph, args: ReportGraphArgs) -> tuple[MaseGraph, Info]:
    """Print the graph, the number of nodes of each kind, and its layers."""
    counts = dict.fromkeys(FX_OPS, 0)
    for node in graph.nodes:
        counts[node.op] += 1
    modules = graph.modules
    layers = [modules[node.target] for node in graph.nodes if node.op == "call_module"]
    text = "\n".join(
        [str(graph.fx_graph), "Network overview:", str(counts), "Layer types:", str(layers)]
    )
    if args.file_name is None:
        show(text)
    else:
        write_text(args.file_name, f"{text}\n")
    return graph, {"counts": counts, "layer_types": [type(layer).__name__ for layer in layers]}


Section = Literal["common", "hardware", "software"]
SECTIONS: tuple[Section, ...] = ("common", "hardware", "software")
NODE_COLUMNS = ("Node name", "Fx Node op", "Mase type", "Mase op")
ABBREVIATED = "......"  # what the labs print in place of a tensor


class ReportNodeMetaParamArgs(PassArgs):
    """The sections to print, and optionally a file to save the table in as well."""

    which: tuple[Literal["all", "common", "hardware", "software"], ...] = ("all",)
    save_path: Path | None = None


@analysis_pass("report_node_meta_param", requires=("common",))
def report_node_meta_param_analysis_pass(
    graph: MaseGraph, args: ReportNodeMetaParamArgs
) -> tuple[MaseGraph, Info]:
    """Print the metadata of every node as a table; tensors appear as ``......``."""
    sections = [s for s in SECTIONS if s in args.which or "all" in args.which]
    rows = [
        node_cells(node) + [pprint.pformat(abbreviate(node.meta["mase"][s])) for s in sections]
        for node in graph.nodes
    ]
    headers = [*NODE_COLUMNS, *(f"{section.title()} Param" for section in sections)]
    table = tabulate(rows, headers=headers, tablefmt="grid")
    show(table)
    if args.save_path is not None:
        write_text(args.save_path, f"{table}\n")
    return graph, {"sections": sections, "nodes": len(rows)}


def node_cells(node: fx.Node) -> list[str]:
    """The cells that every table begins with."""
    return [node.name, node.op, get_mase_type(node), get_mase_op(node)]


def abbreviate(value: Any) -> Any:
    """Nested metadata fit to print: tensors cut short, dtypes by name; the metadata stays whole."""
    if isinstance(value, Tensor):
        return ABBREVIATED
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, Mapping):
        return {key: abbreviate(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(abbreviate(item) for item in value)
    return value


@analysis_pass("report_node_type", requires=("common",))
def report_node_type_analysis_pass(graph: MaseGraph, args: PassArgs) -> tuple[MaseGraph, Info]:
    """Print the type and operation of every node and the number format of its first input."""
    rows = [[*node_cells(node), first_number_type(node)] for node in graph.nodes]
    show(tabulate(rows, headers=[*NODE_COLUMNS, "Value type"], tablefmt="orgtbl"))
    return graph, {"mase_types": {name: mase_type for name, _, mase_type, *_ in rows}}


def first_number_type(node: fx.Node) -> str:
    """The number type of the first input, NA where there is none."""
    entry = node.meta["mase"]["common"]["args"].get("data_in_0")
    return "NA" if entry is None or entry["type"] is None else str(entry["type"])


@analysis_pass("report_node_shape", requires=("common",))
def report_node_shape_analysis_pass(graph: MaseGraph, args: PassArgs) -> tuple[MaseGraph, Info]:
    """Print the input and output shapes of every node."""
    shapes = {node.name: node_shapes(node) for node in graph.nodes}
    rows = [
        [name, *("\n".join(f"{key}: {shape}" for key, shape in side.items()) for side in sides)]
        for name, sides in shapes.items()
    ]
    show(tabulate(rows, headers=["Node name", "In", "Out"], tablefmt="grid"))
    return graph, {"shapes": {name: {"in": i, "out": o} for name, (i, o) in shapes.items()}}


def node_shapes(node: fx.Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """The shapes of the tensor arguments and of the tensor results, by name."""
    common = node.meta["mase"]["common"]
    args, results = (
        {name: entry["shape"] for name, entry in common[side].items() if not bare(entry)}
        for side in ("args", "results")
    )
    return args, results
