"""Charts as SVG: axes with labels and units, lines, steps and bars, sized for a phone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chop.report.html.markup import Markup, joined, number, swatches, tag

Points = Sequence[tuple[float, float]]

COLOURS = 8
SIZES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
WIDTH, HEIGHT = 390.0, 236.0
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


@dataclass(frozen=True)
class Band:
    """What lies around a line: its lower and its upper edge."""

    low: Points
    high: Points


@dataclass(frozen=True)
class Axis:
    """One direction of a chart."""

    label: str
    ticks: list[float]
    start: float
    """Where the first tick is on the page."""
    end: float

    def at(self, value: float) -> float:
        """Where a value is on the page."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 2)

    def shown(self, tick: float) -> str:
        """A number along the axis; long ones would run into each other: 3 M for 3,000,000."""
        most = max(map(abs, self.ticks))
        size, unit = next(((s, u) for s, u in SIZES if most >= max(s, 1e5)), (1.0, ""))
        return f"{number(tick / size)} {unit}".rstrip() if tick else "0"


@dataclass(frozen=True)
class Frame:
    """The two axes of a chart."""

    x: Axis
    y: Axis
    height: float = HEIGHT

    def drawn(self) -> Markup:
        """Grid, numbers and labels."""
        x, y = self.x, self.y
        base = self.height - BOTTOM
        middle = (y.start + y.end) / 2
        return joined(
            [
                *(line(LEFT, y.at(t), WIDTH - RIGHT, y.at(t), "grid") for t in y.ticks),
                *(text(LEFT - 6, y.at(t) + 4, y.shown(t), "end") for t in y.ticks),
                line(LEFT, base, WIDTH - RIGHT, base, "axis"),
                *(text(x.at(t), base + 16, x.shown(t)) for t in x.ticks),
                text((x.start + x.end) / 2, self.height - 8, x.label, class_="label"),
                text(14, middle, y.label, class_="label", turned=True),
            ]
        )


def make_frame(xs: Sequence[float], ys: Sequence[float], labels: tuple[str, str]) -> Frame:
    """A frame around these values, with whole numbers along x."""
    x = Axis(labels[0], nice_ticks(min(xs), max(xs), whole=True), LEFT, WIDTH - RIGHT)
    y = Axis(labels[1], nice_ticks(min(ys), max(ys)), HEIGHT - BOTTOM, TOP)
    return Frame(x, y)


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


def line_chart(
    title: str, series: Mapping[str, Points], labels: tuple[str, str], *, steps: bool = False,
    bands: Mapping[str, Band] | None = None, from_zero: bool = False,
) -> Markup:  # fmt: skip
    """Lines over an axis of whole numbers; every point says its values when it is pointed at."""
    around = [edge for each in (bands or {}).values() for edge in (each.low, each.high)]
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in (*series.values(), *around) for _, y in points]
    ys += [0.0] * from_zero
    frame = make_frame(xs, ys, labels)
    areas = [_area(frame, place, bands[name]) for place, name in enumerate(series) if bands]
    lines = [
        joined(_series(frame, place, name, points, steps))
        for place, (name, points) in enumerate(series.items())
    ]
    picture = drawing(title, joined([frame.drawn(), *areas, *lines]))
    return figure(title, picture, swatches(series) if len(series) > 1 else None)


def _area(frame: Frame, place: int, band: Band) -> Markup:
    edge = [*band.low, *reversed(band.high)]
    around = path([(frame.x.at(x), frame.y.at(y)) for x, y in edge])
    return tag("path", d=around + "Z", class_=f"band s{place % COLOURS}")


def _series(frame: Frame, place: int, name: str, points: Points, steps: bool) -> Iterator[Markup]:
    places = [(frame.x.at(x), frame.y.at(y)) for x, y in points]
    yield tag("path", d=path(places, steps), class_=f"line s{place % COLOURS}")
    if len(points) > 60:  # dots would hide the line
        return
    for (x, y), (at_x, at_y) in zip(points, places, strict=True):
        words = tag("title", f"{name}: {number(y)} at {frame.x.label} {number(x)}")
        yield tag("circle", words, cx=at_x, cy=at_y, r=3, class_=f"dot s{place % COLOURS}")


def path(places: Points, steps: bool = False) -> str:
    """The line through places on the page, or the staircase."""
    first = f"M{places[0][0]:g},{places[0][1]:g}"
    if steps:  # all that is on one level is one line
        up = [(x, y) for (_, before), (x, y) in pairwise(places) if y != before]
        return first + "".join(f"H{x:g}V{y:g}" for x, y in up) + f"H{places[-1][0]:g}"
    return first + "".join(f"L{x:g},{y:g}" for x, y in places[1:])


def bar_chart(title: str, bars: Mapping[str, float], label: str, style: str = "") -> Markup:
    """Horizontal bars with their names and numbers; `label` says what the length means.

    Args:
        style: how the numbers are written, if not with three digits that count.
    """
    height = len(bars) * (BAR + GAP) + 26
    most = max(0.0, *bars.values()) or 1.0
    room = WIDTH - NAMES - 56
    parts: list[Markup] = []
    for place, (name, value) in enumerate(bars.items()):
        top = place * (BAR + GAP)
        length = round(max(0.0, value) / most * room, 2)
        words = tag("title", f"{name}: {number(value)}")
        shown = f"{value:{style}}" if style else number(value, 3)
        parts += [
            text(NAMES - 6, top + 13, shortened(name), "end"),
            tag("rect", words, x=NAMES, y=top, width=length, height=BAR, rx=2, class_="bar s0"),
            text(NAMES + length + 5, top + 13, shown, "start"),
        ]
    parts += [
        line(NAMES, 0, NAMES, height - 26, "axis"),
        text(NAMES + room / 2, height - 7, label, class_="label"),
    ]
    return figure(title, drawing(title, joined(parts), WIDTH, height))


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits; its end tells more than its middle."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"
