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

from chop.masking import masked

UNKNOWN = "–"
LARGEST_NUMBER = 1e60  # what is drawn can be squared and multiplied without overflow
NOT_TEXT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, and marks that would show what follows in another order."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True)
class Tile:
    """One number that a reader should see first."""

    label: str
    value: str
    detail: str = ""
    search: str = ""
    """Which of several searches it is about."""
    rank: int = 1
    """Which tiles give way where there are too many: those of the highest rank."""

    @property
    def title(self) -> str:
        return f"{self.label}, {self.search}" if self.search else self.label


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    anchor: str
    title: str
    body: Markup
    tiles: tuple[Tile, ...] = field(default=())
    comes_first: bool = False
    """Whether its tiles stand before those of all others."""
    is_folded: bool = False
    """Whether the body opens only when a reader asks for it."""
    note: Markup | None = None
    """What a reader must not miss, for the top of the page."""


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
    headers: Sequence[object],
    rows: Iterable[Sequence[object]],
    label: str,
    text_columns: int = 1,
    *,
    is_matrix: bool = False,
) -> Markup:
    """A table; where the page is narrow each row is a card, and a matrix scrolls in its box.

    Args:
        label: what the table shows, for those who cannot see it.
        text_columns: how many columns, from the left, are text; the others are numbers.
        is_matrix: whether rows mean little without those above and below them.
    """
    numbers = ["number" if place >= text_columns else None for place in range(len(headers))]
    head = [
        tag("th", each, class_=kind, scope="col")
        for each, kind in zip(headers, numbers, strict=True)
    ]
    names = [None if is_matrix else plain_text(each) for each in headers]
    body = [
        tag("tr", *(_cell(*each) for each in zip(row, numbers, names, strict=True))) for row in rows
    ]
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    kind = "scroll" if is_matrix else "scroll cards"
    return tag("div", inner, class_=kind, tabindex=0, role="region", aria_label=label)


def _cell(value: object, kind: str | None, name: str | None) -> Markup:
    """A cell; `name` is what its column is called, for cards, which have no head."""
    if not (isinstance(value, Markup) and value.startswith(("<td", "<th"))):
        return tag("td", value, class_=kind, data_label=name)
    labelled = "" if name is None else f' data-label="{escaped(name)}"'
    return Markup(f"{value[:3]}{labelled}{value[3:]}")


def plain_text(words: object) -> str:
    """What a reader sees of a header, its unit after a comma."""
    if not isinstance(words, Markup):
        return str(words)
    return html.unescape(re.sub(r"<[^>]*>", "", words.replace("<small>", ", ")))


def filled(
    headers: Sequence[object], rows: Sequence[Sequence[object]]
) -> tuple[list[object], list[list[object]]]:
    """Headers and rows without the columns in which no row says anything."""
    kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
    return [headers[at] for at in kept], [[row[at] for at in kept] for row in rows]


def folded(title: str, *children: object, is_open: bool = False, is_minor: bool = False) -> Markup:
    """A part that opens when its title is chosen; a minor one is not printed."""
    opened, kind = "" if is_open else None, "minor" if is_minor else None
    return tag("details", tag("summary", title), *children, open=opened, class_=kind)
