"""Number formats by methods: what each stores, and what it loses."""

from pathlib import Path

from chop.figures import quantity
from chop.markup import join_markup, tag
from chop.results.formats import FormatComparison
from chop.views.section import Section, Tile
from chop.views.svg import WHOLE_WIDTH, line_chart


def formats_section(folder: Path) -> Section:
    """Return the section of one comparison."""
    found = FormatComparison.load(folder)
    parts = [
        tag("p", found.caption()),
        found.rows().html(),
        line_chart(found.chart(), WHOLE_WIDTH),
    ]
    same = [p for p in found.measured if found.verdict(p, found.start) != "worse"]
    least = min((p.weight_bits for p in same if p.weight_bits is not None), default=None)
    value = "-" if least is None else f"{least:.2f} bits"
    count = quantity(len(found.points), "combination")
    detail = f"of a weight lose nothing that is more than chance, of {count}"
    tile = Tile("Fewest bits", value, detail, rank=3)
    return Section("formats", "Formats compared", join_markup(parts), (tile,))
