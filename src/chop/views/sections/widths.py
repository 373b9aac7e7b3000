"""The bits of the weights and data of each layer, where they have several widths."""

from collections.abc import Sequence

from chop.charts import BarChart
from chop.figures import quantity
from chop.markup import details, join_markup, tag
from chop.results.graph import NodeFacts
from chop.views.section import Section
from chop.views.svg import bar_chart

OPEN_CHARTS = 12
EXPLAINED = (
    "Widths that were given for each channel or element: how many of them have so many bits. "
    "What has 0 bits is always zero and costs nothing."
)


def widths_section(nodes: Sequence[NodeFacts]) -> Section | None:
    """A chart for each operand that has several widths, if any has."""
    charts = [
        bar_chart(BarChart(f"{node.name}: {role}", "channels or elements", bars, ".0f"))
        for node in nodes
        for role, widths in node.widths.items()
        if (bars := {f"{bits} bit": float(widths[bits]) for bits in sorted(widths)})
    ]
    if not charts:
        return None
    more = charts[OPEN_CHARTS:]
    parts = [
        tag("p", EXPLAINED),
        tag("div", *charts[:OPEN_CHARTS], class_="charts"),
        details(quantity(len(more), "more operand"), tag("div", *more, class_="charts"))
        if more
        else None,
    ]
    return Section("widths", "Bits per layer", join_markup(parts))
