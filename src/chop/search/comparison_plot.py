"""The picture of a comparison of samplers."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from chop.files import replacing
from chop.search.comparison import LEVELS, TRUE_FRONT, Comparison
from chop.search.comparison_runs import SEEDLESS


def draw_comparison(path: Path, comparison: Comparison) -> None:
    """The median of each sampler as a line, the middle 80 % of its runs as a band."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    for level in LEVELS:
        panel.axhline(level, color="0.85", linewidth=0.8, zorder=0)
    for name in comparison.samplers:
        low, median, high = comparison.band(name)
        places = range(1, len(median) + 1)
        runs = sum(run.sampler == name for run in comparison.runs)
        label = f"{name} (its order)" if name in SEEDLESS else f"{name} ({runs} runs)"
        (line,) = panel.step(places, median, where="post", label=label)
        panel.fill_between(places, low, high, step="post", alpha=0.2, color=line.get_color())
    best = "true front" if comparison.normalised_by == TRUE_FRONT else "best front known"
    panel.set(xlabel="distinct configurations evaluated", ylabel=f"hypervolume, {best} = 100 %")
    panel.set_title("median and 10–90 % of the runs", fontsize="medium")
    panel.set_xscale("log")  # most is gained early
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.legend(loc="lower right")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
