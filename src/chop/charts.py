"""Charts as values, and pictures of them.

A chart says what it shows: a title, axes with their units, named series. The room that has the
facts describes it once; `write_png` draws it into a file, `chop.report.html` into the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chop.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]

PANEL, ALONE = (5.4, 3.7), (8.0, 4.8)
"""Width and height in inches of a panel among others, and of one that is alone."""
ROW = 0.32
"""Height of a named row, of bars and of rankings."""
FEW_POINTS = 15
"""Up to so many points of a line are marked by dots; a single one would be no line at all."""
BESIDE = 0.05
"""How far apart lines of a single point are drawn."""
WIDE_RANGE = 20
"""From this ratio of the largest to the smallest number on, an axis should be logarithmic."""


@dataclass(frozen=True)
class Band:
    """What lies around a line: its lower and its upper edge."""

    low: Points
    high: Points


@dataclass(frozen=True)
class LineChart:
    """Lines over an axis of whole numbers."""

    title: str
    x: str
    """What the axis shows, with its unit."""
    y: str
    series: Mapping[str, Points]
    bands: Mapping[str, Band] = field(default_factory=dict)
    """What lies around some of the lines."""
    steps: bool = False
    """Whether a number holds until the next."""
    from_zero: bool = False
    logarithmic: Literal["", "x", "y"] = ""
    levels: tuple[float, ...] = ()
    """Values of y that are marked."""
    legend: str = ""
    """What the names of the lines are."""
    is_ordered: bool = False
    """Whether the lines are steps of one quantity, whose colours should run from dark to light."""


@dataclass(frozen=True)
class BarChart:
    """Named bars, in their order from the top."""

    title: str
    x: str
    bars: Mapping[str, float]
    style: str = ""
    """How the numbers are written, if not with three digits that count."""


@dataclass(frozen=True)
class Dots:
    """Points of one kind."""

    points: Points
    mark: Literal[".", "o", "x"] = "."
    is_joined: bool = False


@dataclass(frozen=True)
class ScatterChart:
    """Points of several kinds."""

    x: str
    y: str
    dots: Mapping[str, Dots]
    title: str = ""


@dataclass(frozen=True)
class RankingChart:
    """Repeated numbers of things in their order: each number, mean and standard deviation."""

    x: str
    rows: Mapping[str, Sequence[float]]
    title: str = ""


Chart = LineChart | BarChart | ScatterChart | RankingChart


def is_wide(series: Mapping[str, Points]) -> bool:
    """Whether the numbers of lines are so different that their axis should be logarithmic."""
    values = [y for points in series.values() for _, y in points]
    return bool(values) and min(values) > 0 and max(values) > WIDE_RANGE * min(values)


def write_png(path: Path, rows: Sequence[Sequence[Chart]], title: str = "", note: str = "") -> Path:
    """Draw rows of charts into a file, with a title above and a note below them; the file."""
    return write_figure(path, make_figure(rows, title, note))


def write_figure(path: Path, figure: "Figure") -> Path:
    """Write a picture; the file."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return path


def make_figure(rows: Sequence[Sequence[Chart]], title: str = "", note: str = "") -> "Figure":
    """The picture; charts below each other have their vertical axis in common."""
    from matplotlib.figure import Figure  # takes long to import

    columns = len(rows[0])
    width, usual = PANEL if columns * len(rows) > 1 else ALONE
    height = sum(max(_height(chart, usual) for chart in row) for row in rows)
    figure = Figure(figsize=(width * columns, height + 0.3 * bool(title)), layout="constrained")
    if title:
        figure.suptitle(title)
    if note:
        figure.supxlabel(note, fontsize="small")
    share: Literal["row", "col"] = "row" if isinstance(rows[0][0], RankingChart) else "col"
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey=share)
    for row, panels in zip(rows, grid, strict=True):
        for chart, panel in zip(row, panels, strict=True):
            _draw(panel, chart)
        _legend(panels, getattr(row[-1], "legend", ""))
    return figure


def _height(chart: Chart, usual: float) -> float:
    """The height of a panel: what has named rows is as high as they need."""
    if not isinstance(chart, BarChart | RankingChart):
        return usual
    return 1.4 + ROW * len(chart.bars if isinstance(chart, BarChart) else chart.rows)


def _draw(panel: "Axes", chart: Chart) -> None:
    panel.set_xlabel(chart.x)
    panel.set_title(chart.title, fontsize="medium")
    match chart:
        case LineChart():
            _lines(panel, chart)
        case BarChart():
            _bars(panel, chart)
        case RankingChart():
            _ranking(panel, chart)
        case ScatterChart():
            for name, dots in chart.dots.items():
                style = dots.mark + "-" * dots.is_joined
                panel.plot(*zip(*dots.points, strict=True), style, label=name)
            panel.set_ylabel(chart.y)
    panel.grid(alpha=0.3)


def _legend(panels: "Sequence[Axes]", title: str) -> None:
    """The names of what a row of panels shows, beside the last one, where no line is."""
    handles, names = max(
        (each.get_legend_handles_labels() for each in panels), key=lambda found: len(found[1])
    )
    if len(names) > 1 or (names and title):
        panels[-1].legend(
            handles, names, title=title, loc="center left", bbox_to_anchor=(1.02, 0.5)
        )


def _lines(panel: "Axes", chart: LineChart) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    for level in chart.levels:
        panel.axhline(level, color="0.75", linewidth=0.8, zorder=0)
    spread = colormaps["viridis"]
    for place, (name, points) in enumerate(chart.series.items()):
        share = 0.9 * place / max(len(chart.series) - 1, 1)
        colour = spread(share) if chart.is_ordered else f"C{place}"
        shift = BESIDE * place if len(points) == 1 else 0.0
        xs, ys = [x + shift for x, _ in points], [y for _, y in points]
        style = "steps-post" if chart.steps else "default"
        mark = "." if len(points) <= FEW_POINTS and not chart.steps else ""
        panel.plot(xs, ys, color=colour, label=name, marker=mark, drawstyle=style)
        if name in chart.bands:
            low, high = ([y for _, y in edge] for edge in vars(chart.bands[name]).values())
            if len(points) == 1:  # no area
                panel.vlines(xs, low, high, colors=[colour])
            kind: Literal["post"] | None = "post" if chart.steps else None
            panel.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0, step=kind)
    panel.set_ylabel(chart.y)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.dataLim.width < 1:  # one point, or several beside each other
        panel.set_xlim(panel.dataLim.x0 - 0.5, panel.dataLim.x0 + 1)
    if chart.from_zero:
        panel.set_ylim(bottom=0)
    if chart.logarithmic:
        axis = panel.xaxis if chart.logarithmic == "x" else panel.yaxis
        (panel.set_xscale if chart.logarithmic == "x" else panel.set_yscale)("log")
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def _bars(panel: "Axes", chart: BarChart) -> None:
    bars = panel.barh(list(chart.bars), list(chart.bars.values()))
    shown = [f"{each:{chart.style or '.3g'}}" for each in chart.bars.values()]
    panel.bar_label(bars, shown, padding=3)
    panel.margins(x=0.2)
    panel.set_axisbelow(True)
    panel.invert_yaxis()


def _ranking(panel: "Axes", chart: RankingChart) -> None:
    import numpy as np

    for place, values in enumerate(chart.rows.values()):
        panel.plot(values, [place] * len(values), "o", color="C7", alpha=0.45, markersize=4)
        spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
        panel.errorbar(
            np.mean(values), place, xerr=spread, fmt="D", color="C0", markersize=5, capsize=3
        )
    panel.set_yticks(range(len(chart.rows)), list(chart.rows))
    if not panel.yaxis_inverted():  # panels beside each other have one axis in common
        panel.invert_yaxis()
