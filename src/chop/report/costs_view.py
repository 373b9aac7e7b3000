"""What the model costs, layer by layer."""

from collections.abc import Mapping
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import count_operations_analysis_pass
from chop.passes.graph.analysis.flops.report import COLUMNS, cells, remarks
from chop.report.markup import Section, Tile, joined, number, table, tag
from chop.report.svg import bar_chart

CHARTS = {
    "macs": ("MACs", "multiply-accumulates per {per}"),
    "bitops": ("Bit operations", "bit operations per {per}"),
    "parameter_bits": ("Parameters", "bits"),
}
MOST_BARS = 24


def costs_section(graph: MaseGraph) -> Section:
    """MACs, FLOPs, bit operations and bits of every layer, and of the whole model."""
    _, info = count_operations_analysis_pass(graph, {"report": False})
    columns = [name for name in COLUMNS if name in info["total"]]
    rows = [
        (name, count["op"], *cells(count, columns))
        for name, count in info["nodes"].items()
        if any(count[column] != 0 for column in columns)
    ]
    total = ("Total", "", *cells(info["total"], columns))
    headers = ("Node", "Operation", *(COLUMNS[name] for name in columns))
    parts = [
        table(headers, [*rows, [tag("th", total[0]), *total[1:]]], "Costs", text_columns=2),
        tag("p", " ".join(remarks(info)), class_="quiet"),
        tag("div", *charts(info), class_="charts"),
    ]
    return Section("costs", "Costs per layer", joined(parts), tiles(info["total"]))


def charts(info: Mapping[str, Any]) -> list[object]:
    """The layers that cost most, for each kind of cost."""
    drawn: list[object] = []
    for column, (title, unit) in CHARTS.items():
        counts = {
            name: float(count[column]) for name, count in info["nodes"].items() if count[column]
        }
        largest = sorted(counts, key=counts.__getitem__, reverse=True)[:MOST_BARS]
        bars = {name: counts[name] for name in counts if name in largest}
        if bars:
            drawn.append(bar_chart(title, bars, unit.format(per=info["per"])))
    return drawn


def tiles(total: Mapping[str, Any]) -> tuple[Tile, ...]:
    """The size of the model."""
    if not total.get("parameters"):
        return ()
    bits = total["parameter_bits"] / total["parameters"]
    detail = f"{number(round(bits, 2))} bits each on average"
    return (Tile("Parameters", number(total["parameters"]), detail),)
