"""HTML from Python values; whatever is not `Markup` already is escaped.

File contents are not trusted: a node may be called ``<script>``. So text becomes HTML in one place
only, `tag`, and a string that was not made here can never be taken for HTML.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from chop.masking import masked

UNKNOWN = "–"
LARGEST_NUMBER = 1e60  # what is drawn can be squared and multiplied without overflow
NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


Count = Annotated[int, Field(ge=0, lt=10**15)]
"""A number of things in a file."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True)
class Tile:
    """One number that a reader should see first."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    anchor: str
    title: str
    body: Markup
    tiles: tuple[Tile, ...] = field(default=())


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element; attributes that are None are left out, ``aria_label`` means ``aria-label``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Markup:
    """Pieces after one another; None is nothing, text is escaped."""
    return Markup("".join(escaped(child) for child in children if child is not None))


def escaped(value: object) -> Markup:
    """Any value as HTML."""
    if isinstance(value, Markup):
        return value
    text = masked(without_halves(str(value)))
    return Markup(html.escape(NOT_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)))


def without_halves(text: str) -> str:
    """Text that a file can hold: JSON can name half of a surrogate pair, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def number(value: object, digits: int = 4) -> str:
    """A number as people write it: thousands apart, no more digits than mean something."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNKNOWN if value is None else str(value)
    if isinstance(value, int) and abs(value) >= 10**15:
        return f"{Decimal(value):.3g}"
    if not math.isfinite(value):
        return UNKNOWN if math.isnan(value) else "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def counted(count: int, thing: str) -> str:
    """How many of a thing there are: ``1 run``, ``2 runs``."""
    return f"{number(count)} {thing}" + ("" if count == 1 else "s")


def percent(share: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * share:.2f} %" if is_usable(share) else UNKNOWN


def is_usable(value: object) -> bool:
    """Whether a value is a number that charts can be computed from."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST_NUMBER


def table(
    headers: Sequence[object], rows: Iterable[Sequence[object]], label: str, text_columns: int = 1
) -> Markup:
    """A table in a box that scrolls by itself where the page is narrow.

    Args:
        label: what the table shows, for those who cannot see it.
        text_columns: how many columns, from the left, are text; the others are numbers.
    """
    head = tag("tr", *(_cell("th", each, i >= text_columns) for i, each in enumerate(headers)))
    body = [
        tag("tr", *(_cell("td", each, i >= text_columns) for i, each in enumerate(row)))
        for row in rows
    ]
    inner = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=label)


def _cell(kind: str, value: object, is_number: bool) -> Markup:
    scope = "col" if kind == "th" else None
    if isinstance(value, Markup) and value.startswith(("<td", "<th")):
        return value
    return tag(kind, value, class_="number" if is_number else None, scope=scope)


def folded(title: str, *children: object, is_open: bool = False, is_minor: bool = False) -> Markup:
    """A part that opens when its title is chosen; a minor one is not printed."""
    opened, kind = "" if is_open else None, "minor" if is_minor else None
    return tag("details", tag("summary", title), *children, open=opened, class_=kind)


def swatches(names: Iterable[object]) -> Markup:
    """The legend of a chart: a mark in the colour of each series and its name."""
    marks = (
        tag("span", tag("i", class_=f"swatch s{place}"), str(name), class_="key")
        for place, name in enumerate(names)
    )
    return tag("figcaption", *marks)
