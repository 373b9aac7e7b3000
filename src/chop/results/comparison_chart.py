"""What ``comparison.json`` holds, and the chart of it."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field

from chop.charts import Band, LineChart, Points
from chop.runs import Count

TRUE_FRONT = "the true front"
BEST_FRONT = "the front of all configurations that any run has measured"
SHORT = {TRUE_FRONT: "true front", BEST_FRONT: "best front known"}

Share = Annotated[float, Field(ge=0, le=2)]


class ReachedLevel(BaseModel):
    """Evaluations until a share of the hypervolume was reached, over the runs of a sampler."""

    median: float | None = None
    least: Count | None = None
    most: Count | None = None
    runs: Count


class ComparedSampler(BaseModel):
    """The share of the hypervolume after each evaluation, over the runs of one sampler."""

    reached: dict[Share, ReachedLevel]
    median: list[Share] = Field(min_length=1)
    low: list[Share] = Field(min_length=1)
    high: list[Share] = Field(min_length=1)
    runs: list[object]


class StoredComparison(BaseModel):
    """The runs of all samplers."""

    space_size: int
    normalised_by: str
    samplers: dict[str, ComparedSampler] = Field(min_length=1)

    @property
    def levels(self) -> list[float]:
        """The shares that samplers were to reach."""
        return list(dict.fromkeys(x for each in self.samplers.values() for x in each.reached))


def comparison_chart(found: StoredComparison) -> LineChart:
    """The median of each sampler as a line, the middle 80 % of its runs as a band."""
    named = {f"{name} ({len(each.runs)} run{'s' * (len(each.runs) != 1)})": each
             for name, each in found.samplers.items()}  # fmt: skip
    return LineChart(
        "Median of the runs, and where eight of ten of them are",
        "distinct configurations evaluated",
        f"hypervolume, {SHORT.get(found.normalised_by, 'best front')} = 1",
        {name: _points(each.median) for name, each in named.items()},
        {name: Band(_points(each.low), _points(each.high)) for name, each in named.items()},
        steps=True,
        from_zero=True,
        logarithmic="x",  # most is gained early
        levels=tuple(found.levels),
    )


def _points(shares: Sequence[float]) -> Points:
    return [(float(place), share) for place, share in enumerate(shares, 1)]
