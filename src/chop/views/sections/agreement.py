"""A network node by node: its noise, and the forms that give the engine's codes."""

from pathlib import Path

from chop.markup import join_markup, tag
from chop.results.agreement import AgreementByNode
from chop.views.section import Section, Tile
from chop.views.svg import WHOLE_WIDTH, line_chart


def agreement_section(folder: Path) -> Section:
    """Return the section of the export in a folder."""
    found = AgreementByNode.load(folder)
    chart = found.chart()
    parts = [
        tag("p", found.caption()),
        line_chart(chart, WHOLE_WIDTH) if chart.series else None,
        found.rows().html(),
    ]
    differing = found.differences
    first = "; ".join(f"{form}: {node}" for form, node in differing.items())
    value = "differs" if differing else "equal"
    detail = first or f"{', '.join(found.forms)} in {len(found.nodes)} nodes"
    tile = Tile("Forms, node by node", value, detail, rank=3)
    return Section("agreement", "Node by node", join_markup(parts), (tile,))
