"""Samplers compared: the share of the hypervolume that each has after so many evaluations."""

from pathlib import Path

from chop.figures import number
from chop.markup import join_markup, tag
from chop.results.comparison_chart import ReachedLevel, StoredComparison, comparison_chart
from chop.runs import read_stored
from chop.tables import ResultTable
from chop.views.section import Section
from chop.views.svg import line_chart


def comparison_section(path: Path) -> Section:
    """The section of the comparison in a file."""
    found = read_stored(StoredComparison, path, f"{path.parent.name}/{path.name}")
    words = (
        f"How much of the hypervolume of {found.normalised_by} each sampler has after so many "
        f"distinct evaluations, in a space of {number(found.space_size)}."
    )
    headers = ("Sampler", "Runs", *(f"evaluations to {100 * level:g} %" for level in found.levels))
    rows = [
        (name, number(len(each.runs)), *(_words(each.reached.get(level)) for level in found.levels))
        for name, each in found.samplers.items()
    ]
    parts = [
        tag("p", words),
        ResultTable(headers, rows, "Samplers compared", text_columns=1).html(),
        tag("div", line_chart(comparison_chart(found)), class_="charts"),
    ]
    return Section("comparison", "Samplers compared", join_markup(parts))


def _words(reached: ReachedLevel | None) -> str:
    """The median and the range of evaluations until a share was reached."""
    if reached is None:
        return ""
    if not reached.runs:
        return "never"
    middle = "not by most" if reached.median is None else number(reached.median)
    most = "never" if reached.most is None else number(reached.most)
    return f"{middle} ({number(reached.least)} to {most})"
