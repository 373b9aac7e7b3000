"""Charts as SVG, from the same descriptions that matplotlib draws."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from chop.charts import Band, BarChart, LineChart, Points
from chop.figures import number
from chop.markup import Markup, join_markup, tag

COLOURS = 8
SIZES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
WIDTH, HEIGHT = 390.0, 236.0
WHOLE_WIDTH = 760.0
"""Of a chart that has a section to itself."""
LEFT, RIGHT, TOP, BOTTOM = 62.0, 24.0, 10.0, 44.0
BAR, GAP, NAMES = 17.0, 5.0, 206.0
LONGEST_NAME = 31


def nice_ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that cover the range from `low` to `high`."""
    if not high - low > max(1e-9 * max(abs(low), abs(high)), 1e-200):
        pad = abs(low) / 2 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    step = max(1.0, math.ceil(step)) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float, count: int = 7) -> list[float]:
    """Round numbers that cover the range, each some times the one before."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ladder = [factor * 10.0**power for power in powers for factor in factors]
        first = max(place for place, tick in enumerate(ladder) if tick <= low)
        last = min(place for place, tick in enumerate(ladder) if place > first and tick >= high)
        if last - first < count:
            break
    return ladder[first : last + 1]


@dataclass(frozen=True)
class Axis:
    """One direction of a chart."""

    label: str
    ticks: list[float]
    start: float
    """Where the first tick is on the page."""
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value on the page."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 2)

    def tick_text(self, tick: float) -> str:
        """A number along the axis; long ones would run into each other: 3 M for 3,000,000."""
        most = max(map(abs, self.ticks))
        size, unit = next(((s, u) for s, u in SIZES if most >= max(s, 1e5)), (1.0, ""))
        return f"{number(tick / size)} {unit}".rstrip() if tick else "0"


@dataclass(frozen=True)
class Frame:
    """The two axes of a chart."""

    x: Axis
    y: Axis

    def markup(self) -> Markup:
        """Grid, numbers and labels."""
        x, y = self.x, self.y
        base = HEIGHT - BOTTOM
        middle = (y.start + y.end) / 2
        return join_markup(
            [
                *(line(LEFT, y.at(t), x.end, y.at(t), "grid") for t in y.ticks),
                *(text(LEFT - 6, y.at(t) + 4, y.tick_text(t), "end") for t in y.ticks),
                line(LEFT, base, x.end, base, "axis"),
                *(text(x.at(t), base + 16, x.tick_text(t)) for t in x.ticks),
                text((x.start + x.end) / 2, HEIGHT - 8, x.label, class_="label"),
                text(14, middle, y.label, class_="label", turned=True),
            ]
        )


def make_frame(chart: LineChart, width: float = WIDTH) -> Frame:
    """The axes around all lines of a chart."""
    around = [edge for each in chart.bands.values() for edge in (each.low, each.high)]
    places = [place for points in (*chart.series.values(), *around) for place in points]
    xs = [x for x, _ in places]
    ys = [*(y for _, y in places), *chart.named_levels.values(), *[0.0] * chart.from_zero]
    log_x, log_y = chart.logarithmic == "x", chart.logarithmic == "y"
    x_ticks = (log_ticks if log_x else partial(nice_ticks, whole=True))(min(xs), max(xs))
    y_ticks = (log_ticks if log_y else nice_ticks)(min(ys), max(ys))
    return Frame(
        Axis(chart.x, x_ticks, LEFT, width - RIGHT, log_x),
        Axis(chart.y, y_ticks, HEIGHT - BOTTOM, TOP, log_y),
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def text(
    x: float, y: float, words: object, anchor: str = "middle", class_: str | None = None,
    *, turned: bool = False,
) -> Markup:  # fmt: skip
    """Words at a place; `turned` ones are read from below."""
    turn = f"rotate(-90 {x} {y})" if turned else None
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_, transform=turn)


def drawing(title: str, content: object, width: float = WIDTH, height: float = HEIGHT) -> Markup:
    """A picture with a name, scaled to the width that there is."""
    return tag(
        "svg",
        tag("title", title),
        content,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
        style=f"max-width:{width * 1.35:.0f}px",
    )


def figure(title: str, picture: Markup, *below: object) -> Markup:
    """A picture with its title and what belongs below it."""
    return tag("figure", tag("h3", title), picture, *below)


def line_chart(chart: LineChart, width: float = WIDTH) -> Markup:
    """Lines; every point says its values when it is pointed at."""
    frame = make_frame(chart, width)
    levels = (frame.y.at(level) for level in chart.levels)
    parts = [frame.markup(), *(line(LEFT, at, frame.x.end, at, "grid") for at in levels)]
    for name, level in chart.named_levels.items():
        at = frame.y.at(level)
        parts += [
            tag(
                "line",
                x1=LEFT,
                y1=at,
                x2=frame.x.end,
                y2=at,
                class_="axis",
                stroke_dasharray="5 4",
            ),
            text(LEFT + 5, at - 4, name, "start"),
        ]
    for place, name in enumerate(chart.series):
        if name in chart.bands:
            parts.append(_area(frame, place, chart.bands[name], chart.steps))
    for place, (name, points) in enumerate(chart.series.items()):
        parts += _series(frame, place, name, points, chart)
    below = _swatches(chart) if len(chart.series) > 1 else None
    return figure(chart.title, drawing(chart.title, join_markup(parts), width), below)


def _swatches(chart: LineChart) -> Markup:
    """The legend: a mark in the colour of each line and its name."""
    marks = (
        tag("span", tag("i", class_=f"swatch s{place % COLOURS}"), str(name), class_="key")
        for place, name in enumerate(chart.series)
    )
    return tag("figcaption", f"{chart.legend}: " if chart.legend else None, *marks)


def _area(frame: Frame, place: int, band: Band, steps: bool) -> Markup:
    low, high = (_places(frame, edge, steps) for edge in (band.low, band.high))
    return tag("path", d=path([*low, *reversed(high)]) + "Z", class_=f"band s{place % COLOURS}")


def _series(
    frame: Frame, place: int, name: str, points: Points, chart: LineChart
) -> Iterator[Markup]:
    mark = chart.marks.get(name, "")
    if not mark or mark.endswith("-"):
        drawn = path(_places(frame, points, chart.steps))
        yield tag("path", d=drawn, class_=f"line s{place % COLOURS}")
    if not mark and len(points) > 60:  # dots would hide the line
        return
    for x, y in points:
        words = tag("title", f"{name}: {number(y)} at {frame.x.label} {number(x)}")
        at_x, at_y, size = frame.x.at(x), frame.y.at(y), 6 if mark == "*" else 3
        yield tag("circle", words, cx=at_x, cy=at_y, r=size, class_=f"dot s{place % COLOURS}")


def _places(frame: Frame, points: Points, steps: bool) -> list[tuple[float, float]]:
    """The corners of a line on the page; of a staircase, those where it rises or falls."""
    places = [(frame.x.at(x), frame.y.at(y)) for x, y in points]
    if not steps:
        return places
    corners = [
        corner
        for (_, before), (x, y) in pairwise(places)
        if y != before
        for corner in ((x, before), (x, y))
    ]
    return [places[0], *corners, places[-1]]


def path(places: Points) -> str:
    """The line through places on the page."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in places)


def bar_chart(chart: BarChart) -> Markup:
    """Horizontal bars with their names and numbers."""
    height = len(chart.bars) * (BAR + GAP) + 26
    most = max(0.0, *chart.bars.values()) or 1.0
    room = WIDTH - NAMES - 56
    parts: list[Markup] = []
    for place, (name, value) in enumerate(chart.bars.items()):
        top = place * (BAR + GAP)
        length = round(max(0.0, value) / most * room, 2)
        words = tag("title", f"{name}: {number(value)}")
        shown = f"{value:{chart.style}}" if chart.style else number(value, 3)
        parts += [
            text(NAMES - 6, top + 13, shorten(name), "end"),
            tag("rect", words, x=NAMES, y=top, width=length, height=BAR, rx=2, class_="bar s0"),
            text(NAMES + length + 5, top + 13, shown, "start"),
        ]
    parts += [
        line(NAMES, 0, NAMES, height - 26, "axis"),
        text(NAMES + room / 2, height - 7, chart.x, class_="label"),
    ]
    return figure(chart.title, drawing(chart.title, join_markup(parts), WIDTH, height))


def shorten(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits; its end tells more than its middle."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"
