"""How samplers compare, as a chart for the page and for a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chop.charts import Band, LineChart, Points

TRUE_FRONT = "the true front"
BEST_FRONT = "the front of all configurations that any run has measured"
SHORT = {TRUE_FRONT: "true front", BEST_FRONT: "best front known"}


@dataclass(frozen=True)
class SamplerCurves:
    """The share of the hypervolume after each evaluation, over the runs of one sampler."""

    low: Sequence[float]
    median: Sequence[float]
    high: Sequence[float]
    runs: int


def comparison_chart(
    samplers: Mapping[str, SamplerCurves], normalised_by: str, levels: Sequence[float]
) -> LineChart:
    """The median of each sampler as a line, the middle 80 % of its runs as a band."""
    shown = {f"{name} ({each.runs} run{'s' * (each.runs != 1)})": each
             for name, each in samplers.items()}  # fmt: skip
    return LineChart(
        "Median of the runs, and where eight of ten of them are",
        "distinct configurations evaluated",
        f"hypervolume, {SHORT.get(normalised_by, 'best front')} = 1",
        {name: _points(each.median) for name, each in shown.items()},
        {name: Band(_points(each.low), _points(each.high)) for name, each in shown.items()},
        steps=True,
        from_zero=True,
        logarithmic="x",  # most is gained early
        levels=tuple(levels),
    )


def _points(shares: Sequence[float]) -> Points:
    return [(float(place), share) for place, share in enumerate(shares, 1)]
