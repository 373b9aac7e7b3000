"""The loss of each layer by itself and the bits that are enough; formats by methods."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chop.figures import quantity
from chop.markup import join_markup, tag
from chop.results.formats import FormatComparison
from chop.results.sensitivity import Sensitivity
from chop.views.section import Section, Tile
from chop.views.svg import WHOLE_WIDTH, line_chart


def sensitivity_section(folders: Sequence[Path]) -> Section:
    """Return the section of the newest of several folders."""
    newest, *older = folders
    found = Sensitivity.load(newest)
    enough = {layer: found.enough(layer) for layer in found.layers}
    narrow = [width for width in enough.values() if width is not None]
    heads = ["Layer", *(quantity(width, "bit") for width in found.widths), "Enough", "Saves"]
    parts = [
        tag("p", found.caption()),
        replace(found.rows(), headers=heads).html(),
        line_chart(found.chart(), WHOLE_WIDTH),
        tag("p", f"Measured earlier and not shown: {', '.join(each.name for each in older)}.")
        if older
        else None,
    ]
    value = f"{len(narrow)} of {quantity(len(enough), 'layer')}"
    most = quantity(max(narrow, default=max(found.widths)), "bit")
    detail = f"alone lose at most {100 * found.tolerance:g} % with {most} or fewer"
    tile = Tile("Narrow layers", value, detail, rank=3)
    return Section("sensitivity", "Each layer alone", join_markup(parts), (tile,))


def formats_section(folder: Path) -> Section:
    """Return the section of one comparison."""
    found = FormatComparison.load(folder)
    parts = [
        tag("p", found.caption()),
        found.rows().html(),
        line_chart(found.chart(), WHOLE_WIDTH),
    ]
    same = [p for p in found.points_measured if found.verdict(p, found.start) != "worse"]
    least = min((p.weight_bits for p in same if p.weight_bits is not None), default=None)
    value = "-" if least is None else f"{least:.2f} bits"
    count = quantity(len(found.points), "combination")
    detail = f"of a weight lose nothing that is more than chance, of {count}"
    tile = Tile("Fewest bits", value, detail, rank=3)
    return Section("formats", "Formats compared", join_markup(parts), (tile,))
