"""What rounding does to each layer: histograms side by side and the error in dB."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chop.charts import BarChart
from chop.report.html import (
    Markup,
    Section,
    bar_chart,
    counted,
    drawing,
    folded,
    joined,
    line,
    number,
    table,
    tag,
    text,
)
from chop.report.read.graph import NodeFacts, RoundedTensor

WIDE, HIGH, FOOT, SIDE = 300.0, 130.0, 34.0, 6.0
OPEN_LAYERS = 12
EXPLAINED = (
    "SQNR is the power of a tensor over that of what rounding did to it, 10 log₁₀(Σx²/Σ(x−q)²); "
    "6 dB are about one bit. Inputs are those of the batch that was recorded with the graph."
)


def weights_section(nodes: Sequence[NodeFacts]) -> Section | None:
    """Histograms of every rounded parameter, if any is rounded."""
    tensors = [each for node in nodes for each in node.tensors]
    if not tensors:
        return None
    weights = [each for each in tensors if each.role != "data_in"]
    pairs = [pair(each) for each in weights if each.role != "bias"]
    biases = [pair(each) for each in weights if each.role == "bias"]
    parts = [
        tag("p", EXPLAINED),
        tag("div", *bars(tensors), class_="charts"),
        error_table(tensors),
        joined(pairs[:OPEN_LAYERS]),
        _fold(counted(len(pairs) - OPEN_LAYERS, "more layer"), pairs[OPEN_LAYERS:]),
        _fold(f"Biases of {counted(len(biases), 'layer')}", biases),
    ]
    return Section("quantisation", "Before and after quantisation", joined(parts))


def _fold(title: str, parts: Sequence[Markup]) -> Markup | None:
    return folded(title, *parts) if parts else None


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
    return table(headers, rows, "Quantisation error", text_columns=3)


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
            f"{counted(tensor.count, 'value')}, {tensor.format}, SQNR {number(tensor.sqnr, 3)} dB.",
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
    content = joined(
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
