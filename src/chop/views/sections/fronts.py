"""Searches compared: their fronts on one picture."""

from collections.abc import Mapping
from pathlib import Path

from chop.figures import number, percent
from chop.markup import join_markup, tag
from chop.results.fronts import read_fronts
from chop.tables import ResultTable
from chop.views.section import Section
from chop.views.svg import WHOLE_WIDTH, line_chart


def fronts_section(folders: Mapping[str, Path]) -> Section | None:
    """The section of searches by their names, if some can be compared."""
    fronts = read_fronts(folders)
    if fronts is None:
        return None
    shares = fronts.shares()
    rows = [
        (name, number(len(fronts.points(name))), *map(number, fronts.best(name)), percent(share))
        for name, share in shares.items()
    ]
    headers = ("Search", "On its front", f"best {fronts.good}", f"best {fronts.cost}")
    parts = [
        line_chart(fronts.chart(), WHOLE_WIDTH),
        ResultTable((*headers, "hypervolume"), rows, "Searches compared").html(),
        tag("p", "Hypervolume: the share that each search has reached of that of all fronts "
                 "together.", class_="quiet"),
    ]  # fmt: skip
    return Section("fronts", "Searches compared", join_markup(parts))
