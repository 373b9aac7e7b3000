"""Samplers compared: the share of the hypervolume that each has after so many evaluations."""

from typing import Annotated

from pydantic import BaseModel, Field

from chop.report.html import Count, Markup, Section, joined, line_chart, number, table, tag
from chop.search.comparison.plots import SamplerCurves, comparison_chart

Share = Annotated[float, Field(ge=0, le=2)]


class ReachedLevel(BaseModel):
    """Evaluations until a share of the hypervolume was reached, over the runs of a sampler."""

    median: float | None = None
    least: Count | None = None
    most: Count | None = None
    runs: Count

    @property
    def words(self) -> str:
        """The median and the range."""
        if not self.runs:
            return "never"
        middle = "not by most" if self.median is None else number(self.median)
        most = "never" if self.most is None else number(self.most)
        return f"{middle} ({number(self.least)} to {most})"


class ComparedSampler(BaseModel):
    """The runs of one sampler together."""

    reached: dict[Share, ReachedLevel]
    median: list[Share] = Field(min_length=1)
    low: list[Share] = Field(min_length=1)
    high: list[Share] = Field(min_length=1)
    runs: list[object]


class StoredComparison(BaseModel):
    """What ``comparison.json`` holds of all samplers."""

    space_size: int
    normalised_by: str
    samplers: dict[str, ComparedSampler] = Field(min_length=1)

    @property
    def levels(self) -> list[float]:
        """The shares that samplers were to reach."""
        return list(dict.fromkeys(x for each in self.samplers.values() for x in each.reached))


def comparison_section(found: StoredComparison) -> Section:
    """The section of one comparison."""
    curves = {
        name: SamplerCurves(each.low, each.median, each.high, len(each.runs))
        for name, each in found.samplers.items()
    }
    chart = comparison_chart(curves, found.normalised_by, found.levels)
    words = (
        f"How much of the hypervolume of {found.normalised_by} each sampler has after so many "
        f"distinct evaluations, in a space of {number(found.space_size)}."
    )
    parts = [
        tag("p", words),
        levels_table(found),
        tag("div", line_chart(chart), class_="charts"),
    ]
    return Section("comparison", "Samplers compared", joined(parts))


def levels_table(found: StoredComparison) -> Markup:
    """Evaluations until each share, sampler by sampler."""
    headers = ("Sampler", "Runs", *(f"evaluations to {100 * level:g} %" for level in found.levels))
    rows = [
        (name, number(len(each.runs)),
         *(each.reached[level].words if level in each.reached else "" for level in found.levels))
        for name, each in found.samplers.items()
    ]  # fmt: skip
    return table(headers, rows, "Samplers compared", text_columns=1)
