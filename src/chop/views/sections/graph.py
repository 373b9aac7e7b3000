"""A saved graph: its nodes, their statistics, what rounding does to them and what they cost."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.charts import BarChart
from chop.figures import UNKNOWN, number, quantity
from chop.ir.graph.mase_graph import MaseGraph
from chop.markup import Markup, details, join_markup, tag
from chop.passes.graph.analysis.flops.count import as_info, count
from chop.passes.graph.analysis.flops.table import COLUMNS, cells, remarks
from chop.results.graph import FLOAT_BITS, NodeFacts, RoundedTensor
from chop.tables import ResultTable
from chop.views.section import Section, Tile
from chop.views.sections.exactness import in_integers
from chop.views.svg import bar_chart, drawing, line, shorten, text

Statistics = Sequence[tuple[str, str, Mapping[str, Any]]]
"""Tensor, name of the statistic, its numbers."""

BOX, TALL, ACROSS, DOWN, MARGIN = 300.0, 62.0, 28.0, 30.0, 12.0
AROUND = 92.0  # room at the right for lines that pass boxes
LINE = 46  # characters that fit into a box
QUIET_DB, LOUD_DB = 50.0, 5.0  # no colour at this SQNR and above, full colour at that and below
DEEPEST = 65  # per cent; text on a fuller colour would be hard to read
WIDE, HIGH, FOOT, SIDE = 300.0, 130.0, 34.0, 6.0
OPEN_LAYERS = 12
EXPLAINED = (
    "SQNR is the power of a tensor over that of what rounding did to it, 10 log₁₀(Σx²/Σ(x−q)²); "
    "6 dB are about one bit. Inputs are those of the batch that was recorded with the graph."
)


def graph_section(
    nodes: Sequence[NodeFacts], where: str, others: Sequence[str], features: str = ""
) -> Section:
    """The section of the graph itself."""
    has_errors = any(each.worst_sqnr is not None for each in nodes)
    parts = [
        tag("p", f"{where}: {quantity(len(nodes), 'node')}, drawn from input to output."),
        tag("p", f"Features: {features}.") if features else None,
        _chooser(has_errors),
        tag(
            "div",
            tag("div", picture(nodes), class_="scroll tall", tabindex=0, role="region",
                aria_label="Graph"),
            _legend(has_errors),
            class_="graph",
            data_colour="bits",
        ),
        node_table(nodes),
        tag("p", f"Saved earlier and not shown: {', '.join(others)}.") if others else None,
    ]  # fmt: skip
    return Section("graph", "Graph", join_markup(parts))


def _chooser(has_errors: bool) -> Markup | None:
    if not has_errors:
        return None
    options = (
        tag("option", "bits of the weight, else of the input", value="bits"),
        tag("option", "quantisation error (SQNR of the worst operand)", value="error"),
    )
    choice = tag("select", *options, class_="colour-by")
    return tag("p", tag("label", "Colour by ", choice), class_="control")


def _legend(has_errors: bool) -> Markup:
    bits = tag("span", "32 bits", tag("i", class_="ramp"), "1 bit", class_="for-bits")
    error = tag(
        "span", f"≥ {QUIET_DB:g} dB", tag("i", class_="ramp error"), f"≤ {LOUD_DB:g} dB",
        class_="for-error",
    )  # fmt: skip
    return tag("p", bits, error if has_errors else None, class_="legend")


def place_nodes(nodes: Sequence[NodeFacts]) -> dict[str, tuple[int, int]]:
    """Row and column of each node: a node is below all that it reads."""
    rows: dict[str, int] = {}
    for node in nodes:
        rows[node.name] = max((rows[each] + 1 for each in node.inputs if each in rows), default=0)
    taken: dict[int, int] = {}
    places = {}
    for name, row in rows.items():
        places[name] = (row, taken.get(row, 0))
        taken[row] = taken.get(row, 0) + 1
    return places


def picture(nodes: Sequence[NodeFacts]) -> Markup:
    """Boxes and the lines between them."""
    places = place_nodes(nodes)
    columns = max((column for _, column in places.values()), default=0) + 1
    depth = max((row for row, _ in places.values()), default=0) + 1
    corners = {
        name: (MARGIN + column * (BOX + ACROSS), MARGIN + row * (TALL + DOWN))
        for name, (row, column) in places.items()
    }
    edges = [
        (source, node.name, places[node.name][0] - places[source][0])
        for node in nodes
        for source in node.inputs
        if source in places
    ]
    lines = [edge(corners[source], corners[name], rows) for source, name, rows in edges]
    boxes = [box(node, *corners[node.name]) for node in nodes]
    around = AROUND * any(rows > 1 for *_, rows in edges)
    width = 2 * MARGIN + columns * BOX + (columns - 1) * ACROSS + around
    height = 2 * MARGIN + depth * TALL + (depth - 1) * DOWN
    return tag(
        "svg", tag("title", "Graph"), *lines, *boxes, width=width, height=height,
        viewBox=f"0 0 {width:g} {height:g}", class_="nodes", role="img", aria_label="Graph",
    )  # fmt: skip


def edge(source: tuple[float, float], target: tuple[float, float], rows: int) -> Markup:
    """From below a box to the top of the next; around the boxes between, if there are any."""
    (x1, y1), (x2, y2) = source, target
    if rows <= 1:
        start, end = (x1 + BOX / 2, y1 + TALL), (x2 + BOX / 2, y2)
        bend = f"C{start[0]:g},{start[1] + 15:g} {end[0]:g},{end[1] - 15:g}"
    else:
        start, end = (x1 + BOX, y1 + TALL / 2), (x2 + BOX, y2 + TALL / 2)
        out = max(x1, x2) + BOX + 20 + 12 * min(rows, 6)
        bend = f"C{out:g},{start[1]:g} {out:g},{end[1]:g}"
    drawn = f"M{start[0]:g},{start[1]:g}{bend} {end[0]:g},{end[1]:g}"
    return tag("path", d=drawn, class_="edge")


def box(node: NodeFacts, x: float, y: float) -> Markup:
    """A node: its name, its operation and shape, its formats; coloured by bits or by error."""
    first = f"{node.op} · {node.kind}" if node.kind not in (node.op, node.name) else node.op
    words = "\n".join(
        [node.name, first, node.shape, *(f"{role}: {fmt}" for role, fmt in node.formats.items())]
    )
    error = "" if node.worst_sqnr is None else f"{number(node.worst_sqnr, 3)} dB"
    colours = f"--bits:{bit_colour(node.bits):.0f}%;--error:{error_colour(node.worst_sqnr):.0f}%"
    return tag(
        "g",
        tag("title", words),
        tag("rect", x=x, y=y, width=BOX, height=TALL, rx=7, class_="heat"),
        text(x + 10, y + 18, shorten(node.name, 27), "start", "name"),
        text(x + BOX - 10, y + 18, f"{node.bits:.4g} bit", "end", "bits for-bits"),
        text(x + BOX - 10, y + 18, error, "end", "bits for-error"),
        text(x + 10, y + 36, shorten(f"{first}   → {node.shape or UNKNOWN}", LINE), "start"),
        text(x + 10, y + 53, shorten(brief(node.formats), LINE), "start", "quiet"),
        style=colours,
        class_="node",
    )


def group_formats(formats: Mapping[str, str]) -> list[str]:
    """The formats of all operands, equal ones together."""
    roles: dict[str, list[str]] = {}
    for role, words in formats.items():
        roles.setdefault(words, []).append(role)
    return [f"{', '.join(names)}: {words}" for words, names in roles.items()] or ["not rounded"]


def brief(formats: Mapping[str, str]) -> str:
    """The formats in one short line: ``Integer: data_in, bias 8 bit; weight 6 bit``."""
    heads = {role: words.partition(" (")[0].rsplit(" ", 2) for role, words in formats.items()}
    kinds = {kind for kind, *_ in heads.values()}
    if len(kinds) != 1:
        return "; ".join(group_formats({role: " ".join(head) for role, head in heads.items()}))
    widths: dict[str, list[str]] = {}
    for role, (_, width, unit) in heads.items():
        widths.setdefault(f"{width} {unit}", []).append(role)
    shown = "; ".join(f"{', '.join(roles)} {width}" for width, roles in widths.items())
    return f"{kinds.pop()}: {shown}"


def bit_colour(bits: float) -> float:
    """Return the fill of the colour in per cent: none for a float, the fewer bits the fuller."""
    share = 1 - math.log2(max(bits, 1.0)) / math.log2(FLOAT_BITS)
    return DEEPEST * min(1.0, max(0.0, share))


def error_colour(found: float | None) -> float:
    """The same for an SQNR in dB: none where nothing is lost."""
    if found is None:
        return 0.0
    share = (QUIET_DB - found) / (QUIET_DB - LOUD_DB)
    return DEEPEST * min(1.0, max(0.0, share))


def node_table(nodes: Sequence[NodeFacts]) -> Markup:
    """The same facts for those who would rather read, search or copy them."""
    headers = (
        "Node", "Operation", "Computed by", "Output shape", "Formats", "Bits",
        "Weight SQNR (dB)", "Input SQNR (dB)",
    )  # fmt: skip
    rows = [
        (node.name, node.op, UNKNOWN if node.kind == node.name else node.kind,
         node.shape or UNKNOWN,
         join_markup(tag("div", words, class_="formats") for words in group_formats(node.formats)),
         number(node.bits), number(node.sqnr("weight"), 3), number(node.sqnr("data_in"), 3))
        for node in nodes
    ]  # fmt: skip
    return ResultTable(headers, rows, "Nodes", text_columns=5).html()


def statistics_section(nodes: Sequence[NodeFacts]) -> Section | None:
    """The statistics that profiling has left in the metadata, if it has."""
    found = [(node.name, *each) for node in nodes for each in together(node.statistics)]
    if not found:
        return None
    fields = list(dict.fromkeys(key for *_, numbers in found for key in numbers))
    rows = [
        (node, tensor, name, *(statistic_text(numbers.get(key)) for key in fields))
        for node, tensor, name, numbers in found
    ]
    headers = ("Node", "Tensor", "Statistic", *fields)
    body = ResultTable(headers, rows, "Statistics", text_columns=3).html()
    return Section("statistics", "Statistics per node", body)


def together(statistics: Statistics) -> Statistics:
    """The statistics of each tensor in one, where they do not contradict each other."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for tensor, name, numbers in statistics:
        last = found[-1] if found else ("", "", {})
        known = {key: statistic_text(value) for key, value in last[2].items()}
        agree = all(
            known.get(key, statistic_text(value)) == statistic_text(value)
            for key, value in numbers.items()
        )
        if last[0] == tensor and agree:
            found[-1] = (tensor, f"{last[1]}, {name}", last[2] | dict(numbers))
        else:
            found.append((tensor, name, dict(numbers)))
    return found


def statistic_text(value: Any) -> str:
    """A statistic; one that has many numbers is told by their range."""
    numbers = _flat(value)
    if not numbers:
        return UNKNOWN
    if len(numbers) == 1:
        return number(numbers[0])
    return f"{number(min(numbers))} … {number(max(numbers))} ({len(numbers)} values)"


def _flat(value: Any) -> list[float]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _flat(item)]
    return [value] if isinstance(value, int | float) else []


def weights_section(nodes: Sequence[NodeFacts], graph: MaseGraph) -> Section | None:
    """Histograms of every rounded parameter, if any is rounded, and what is exact in integers."""
    tensors = [each for node in nodes for each in node.tensors]
    if not tensors:
        return None
    weights = [each for each in tensors if each.role != "data_in"]
    pairs = [pair(each) for each in weights if each.role != "bias"]
    rest = quantity(len(pairs) - OPEN_LAYERS, "more layer"), pairs[OPEN_LAYERS:]
    of_bias = [pair(each) for each in weights if each.role == "bias"]
    biases = f"Biases of {quantity(len(of_bias), 'layer')}", of_bias
    parts: list[object] = [
        tag("p", EXPLAINED),
        tag("div", *bars(tensors), class_="charts"),
        error_table(tensors),
        join_markup(pairs[:OPEN_LAYERS]),
        *(details(title, *more) for title, more in (rest, biases) if more),
        in_integers(graph),
    ]
    return Section("quantisation", "Before and after quantisation", join_markup(parts))


def bars(tensors: Sequence[RoundedTensor]) -> list[Markup]:
    """The error of each layer, weights and inputs apart."""
    charts = []
    for role, title in (("weight", "Weights"), ("data_in", "Inputs")):
        found = {
            each.node: each.sqnr
            for each in tensors
            if each.role == role and math.isfinite(each.sqnr)
        }
        if found:
            charts.append(bar_chart(BarChart(f"{title}: SQNR per layer", "SQNR (dB)", found)))
    return charts


def error_table(tensors: Sequence[RoundedTensor]) -> Markup:
    """Every rounded tensor with its format and its error."""
    headers = ("Node", "Operand", "Format", "Bits", "Elements", "SQNR (dB)")
    rows = [
        (each.node, each.role, tag("span", each.format, class_="word"), number(each.bits),
         number(each.count), number(each.sqnr, 3))
        for each in tensors
    ]  # fmt: skip
    return ResultTable(headers, rows, "Quantisation error", text_columns=3).html()


def pair(tensor: RoundedTensor) -> Markup:
    """Two histograms of one tensor over the same bins."""
    title = f"{tensor.node}: {tensor.role}"
    return tag(
        "figure",
        tag("h3", title),
        tag(
            "div",
            panel(title, "before: float", tensor.edges, tensor.before),
            panel(title, f"after: {tensor.format.partition(' (')[0]}", tensor.edges, tensor.after),
            class_="pair",
        ),
        tag(
            "figcaption",
            f"{quantity(tensor.count, 'value')}, {tensor.format}, "
            f"SQNR {number(tensor.sqnr, 3)} dB.",
        ),
    )


def panel(title: str, when: str, edges: NDArray[np.float64], counts: NDArray[np.int64]) -> Markup:
    """One histogram as one path, which stays small however many bars it has."""
    colour = "s0" if when.startswith("before") else "s1"
    low, high, most = float(edges[0]), float(edges[-1]), int(counts.max(initial=1))
    base = HIGH - FOOT
    step = (WIDE - 2 * SIDE) / len(counts)
    tops = (base - (base - 14) * counts / max(most, 1)).round(1)
    drawn = f"M{SIDE:g},{base:g}" + "".join(f"V{top:g}h{step:.4g}" for top in tops) + f"V{base:g}Z"
    zero = SIDE + (0 - low) / (high - low) * (WIDE - 2 * SIDE)
    content = join_markup(
        [
            tag("path", d=drawn, class_=f"area {colour}"),
            line(SIDE, base, WIDE - SIDE, base, "axis"),
            text(SIDE, 10, when, "start", "label"),
            text(WIDE - SIDE, 10, f"up to {number(most)} per bin", "end"),
            text(SIDE, base + 14, number(low, 3), "start"),
            text(WIDE - SIDE, base + 14, number(high, 3), "end"),
            text(round(zero, 1), base + 14, "0") if 40 < zero < WIDE - 40 else None,
            text(WIDE / 2, HIGH - 4, "value", class_="label"),
        ]
    )
    return drawing(f"{title} {when}", content, WIDE, HIGH)


CHARTS = {
    "macs": ("MACs", "multiply-accumulates per {per}"),
    "bitops": ("Bit operations", "bit operations per {per}"),
    "parameter_bits": ("Parameters", "bits"),
}
MOST_BARS = 24


def costs_section(graph: MaseGraph, where: str) -> Section:
    """MACs, FLOPs, bit operations and bits of every layer, and of the whole model."""
    info = as_info(count(graph), backward=False)
    columns = [name for name in COLUMNS if name in info["total"]]
    rows = [
        (name, each["op"], *cells(each, columns))
        for name, each in info["nodes"].items()
        if any(each[column] != 0 for column in columns)
    ]
    last = [tag("th", "Total"), "", *cells(info["total"], columns)]
    headers = ("Node", "Operation", *(COLUMNS[name] for name in columns))
    parts = [
        ResultTable(headers, [*rows, last], "Costs", text_columns=2).html(),
        tag("p", " ".join(remarks(info)), class_="quiet"),
        tag("div", *graph_charts(info), class_="charts"),
    ]
    total, tiles = info["total"], []
    if total.get("parameters"):
        bits = round(total["parameter_bits"] / total["parameters"], 2)
        detail = f"{number(bits)} bits each on average, of {where}"
        tiles.append(Tile("Parameters", number(total["parameters"]), detail, rank=2))
    return Section("costs", "Costs per layer", join_markup(parts), tuple(tiles))


def graph_charts(info: Mapping[str, Any]) -> list[object]:
    """The layers that cost most, for each kind of cost."""
    drawn: list[object] = []
    for column, (title, unit) in CHARTS.items():
        counts = {name: float(each[column]) for name, each in info["nodes"].items() if each[column]}
        largest = sorted(counts, key=counts.__getitem__, reverse=True)[:MOST_BARS]
        bars = {name: counts[name] for name in counts if name in largest}
        if bars:
            drawn.append(bar_chart(BarChart(title, unit.format(per=info["per"]), bars)))
    return drawn
