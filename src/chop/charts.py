"""Charts as values, and pictures of them.

A chart says what it shows: a title, axes with their units, named series. The room that has the
facts describes it once; `write_png` draws it into a file, `chop.markup` into the page.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chop.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
Mark = Literal[".", "o", "x", "o-", "*"]
"""How points are drawn; a star stands out."""

PANEL, ALONE = (5.4, 3.7), (8.0, 4.8)
"""Width and height in inches of a panel among others, and of one that is alone."""
DPI, SHARP = 110, 200
"""Dots per inch of pictures for a screen, and of one that may be shown larger or printed."""
STAR: dict[str, Any] = {
    "markersize": 17.0,
    "markeredgecolor": "white",
    "markeredgewidth": 1.2,
    "zorder": 5.0,
}
FEW_POINTS = 15
"""Up to so many points of a line are marked by dots; a single one would be no line at all."""
BESIDE = 0.05
"""How far apart lines of a single point are drawn."""


@dataclass(frozen=True)
class Band:
    """The range around a line: its lower and its upper edge."""

    low: Points
    high: Points


@dataclass(frozen=True)
class LineChart:
    """Numbers over numbers: lines, staircases or points."""

    title: str
    x: str
    """What the axis shows, with its unit."""
    y: str
    series: Mapping[str, Points]
    bands: Mapping[str, Band] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """How series are marked that are points, joined by a line only if that is in the mark."""
    steps: bool = False
    """Whether a number holds until the next."""
    from_zero: bool = False
    logarithmic: Literal["", "x", "y"] = ""
    levels: tuple[float, ...] = ()
    """Values of y that are marked."""
    named_levels: Mapping[str, float] = field(default_factory=dict)
    """Values of y to compare with, such as that of a baseline; each is a line with its name."""
    legend: str = ""
    """What the names of the series are."""
    is_legend_above: bool = False
    """Whether the names stand in one row above the chart: few and short ones leave it its width."""
    is_ordered: bool = False
    """Whether the series are steps of one quantity: colours then run from dark to light."""


@dataclass(frozen=True)
class BarChart:
    """Named bars, in their order from the top."""

    title: str
    x: str
    bars: Mapping[str, float]
    style: str = ""
    """How the numbers are written, if not with three digits that count."""


@dataclass(frozen=True)
class RankingChart:
    """Repeated measurements of things in their order from the top, with mean and deviation."""

    title: str
    x: str
    rows: Mapping[str, Sequence[float]]


Chart = LineChart | BarChart | RankingChart
Rows = Sequence[Sequence[Chart]]


def write_png(
    path: Path,
    picture: "Figure | Rows",
    title: str = "",
    *,
    is_plain: bool = False,
    dpi: int = DPI,
) -> Path:
    """Write a picture, or rows of charts with a title above them, into a file; the file.

    Args:
        is_plain: whether all numbers and names are so short that they fit into usual margins;
            fitting margins takes as long as drawing does.
    """
    figure = make_figure(picture, title, is_plain) if isinstance(picture, Sequence) else picture
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
    return path


def embed_picture(picture: Path, words: str) -> str:
    """A picture as markup that holds all of it, for notebooks; nothing if there is no such file.

    Args:
        words: what it shows, for those who cannot see it.
    """
    if not picture.is_file():
        return ""
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(words)}">'


def make_figure(rows: Rows, title: str = "", is_plain: bool = False) -> "Figure":
    """Rows of charts as a picture; what is below each other has its vertical axis in common."""
    from matplotlib.figure import Figure  # takes long to import

    columns = len(rows[0])
    width, usual = PANEL if columns * len(rows) > 1 else ALONE
    height = sum(max(_height(chart, usual) for chart in row) for row in rows)
    size = (width * columns, height + 0.3 * bool(title))
    figure = Figure(figsize=size, layout=None if is_plain else "constrained")
    if is_plain:
        figure.subplots_adjust(0.07, 0.13, 0.87, 0.85, wspace=0.22)
    figure.suptitle(title)
    shared: Literal["row", "col"] = "row" if isinstance(rows[0][0], RankingChart) else "col"
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey=shared)
    for row, panels in zip(rows, grid, strict=True):
        for chart, panel in zip(row, panels, strict=True):
            panel.set_xlabel(chart.x)
            _title(panel, chart)
            panel.grid(alpha=0.3)
            panel.set_axisbelow(True)
            _draw(panel, chart)
        _legend(panels, row[-1])
    return figure


def _title(panel: "Axes", chart: Chart) -> None:
    if _is_legend_above(chart):
        panel.set_title(chart.title, fontsize="large", loc="left", pad=26)
    else:
        panel.set_title(chart.title, fontsize="medium")


def _is_legend_above(chart: Chart) -> bool:
    return isinstance(chart, LineChart) and chart.is_legend_above


def _height(chart: Chart, usual: float) -> float:
    """The height of a panel: what has named rows is as high as they need."""
    if isinstance(chart, LineChart):
        return usual
    return 1.4 + 0.32 * len(chart.bars if isinstance(chart, BarChart) else chart.rows)


def _legend(panels: "Sequence[Axes]", last: Chart) -> None:
    """The names of what a row of panels shows, beside the last one or above it: on no line."""
    title = getattr(last, "legend", "")
    found = [panel.get_legend_handles_labels() for panel in panels]
    handles, names = max(found, key=lambda each: len(each[1]))
    if _is_legend_above(last):
        panels[-1].legend(
            handles, names, loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=len(names),
            frameon=False, borderaxespad=0.2, columnspacing=1.6, handletextpad=0.5,
        )  # fmt: skip
    elif len(names) > 1 or (names and title):
        beside = (1.02, 0.5)
        panels[-1].legend(handles, names, title=title, loc="center left", bbox_to_anchor=beside)


def _draw(panel: "Axes", chart: Chart) -> None:
    match chart:
        case LineChart():
            _lines(panel, chart)
        case BarChart():
            bars = panel.barh(list(chart.bars), list(chart.bars.values()))
            shown = [f"{each:{chart.style or '.3g'}}" for each in chart.bars.values()]
            panel.bar_label(bars, shown, padding=3)
            panel.margins(x=0.2)
            panel.invert_yaxis()
        case RankingChart():
            _ranking(panel, chart)


def _lines(panel: "Axes", chart: LineChart) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import LogLocator, MaxNLocator, StrMethodFormatter

    ordered = colormaps["viridis"] if chart.is_ordered else None
    _levels(panel, chart)
    for place, name in enumerate(chart.series):
        share = 0.9 * place / max(len(chart.series) - 1, 1)
        _line(panel, chart, name, ordered(share) if ordered else f"C{place}")
    panel.set_ylabel(chart.y)
    if not chart.marks:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        if chart.series and panel.dataLim.width < 1:  # one point, or several beside each other
            panel.set_xlim(panel.dataLim.x0 - 0.5, panel.dataLim.x0 + 1)
    if chart.from_zero:
        panel.set_ylim(bottom=0)
    if chart.logarithmic:
        panel.set(**{f"{chart.logarithmic}scale": "log"})
        axis = panel.xaxis if chart.logarithmic == "x" else panel.yaxis
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.set_minor_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_tick_params("both", length=3.5, pad=3.5)  # numbers in one row


def _levels(panel: "Axes", chart: LineChart) -> None:
    """Lines across the chart, some of them with names."""
    for level in chart.levels:
        panel.axhline(level, color="0.75", linewidth=0.8, zorder=0)
    for name, level in chart.named_levels.items():
        panel.axhline(level, color="0.35", linewidth=1.2, linestyle="--", zorder=1)
        panel.annotate(name, (0, level), (6, 4), panel.get_yaxis_transform(),
                       textcoords="offset points", color="0.25")  # fmt: skip
        panel.margins(y=0.09)  # room for a name above the highest line


def _line(panel: "Axes", chart: LineChart, name: str, colour: Any) -> None:
    points = chart.series[name]
    shift = BESIDE * len(panel.lines) if len(points) == 1 and not chart.marks else 0.0
    xs, ys = [x + shift for x, _ in points], [y for _, y in points]
    dots = "." if len(points) <= FEW_POINTS and not chart.steps else ""
    step: Literal["post"] | None = "post" if chart.steps else None
    how = "steps-post" if step else "default"
    mark = chart.marks.get(name, f"{dots}-")
    panel.plot(
        xs, ys, mark, color=colour, label=name, drawstyle=how, **(STAR if mark == "*" else {})
    )
    if band := chart.bands.get(name):
        low, high = ([y for _, y in edge] for edge in (band.low, band.high))
        if len(points) == 1:  # no area
            panel.vlines(xs, low, high, colors=[colour])
        panel.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0, step=step)


def _ranking(panel: "Axes", chart: RankingChart) -> None:
    import numpy as np

    for place, values in enumerate(chart.rows.values()):
        panel.plot(values, [place] * len(values), "o", color="C7", alpha=0.45, markersize=4)
        spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
        panel.errorbar(
            np.mean(values), place, xerr=spread, fmt="D", color="C0", markersize=5, capsize=3
        )
    panel.set_yticks(range(len(chart.rows)), list(chart.rows))
    panel.set_ylim(len(chart.rows) - 0.5, -0.5)
