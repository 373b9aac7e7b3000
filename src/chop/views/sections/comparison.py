"""Samplers compared: the share of the hypervolume that each has after so many evaluations."""

from pathlib import Path

from chop.figures import number
from chop.markup import join_markup, tag
from chop.results.comparison import SamplerComparison
from chop.views.section import Section
from chop.views.svg import line_chart


def comparison_section(path: Path) -> Section:
    """The section of the comparison in a file."""
    found = SamplerComparison.load(path)
    words = (
        f"How much of the hypervolume of {found.normalised_by} each sampler has after so many "
        f"distinct evaluations, in a space of {number(found.space_size)}."
    )
    parts = [
        tag("p", words),
        found.rows().html(),
        tag("div", line_chart(found.chart()), class_="charts"),
    ]
    return Section("comparison", "Samplers compared", join_markup(parts))
