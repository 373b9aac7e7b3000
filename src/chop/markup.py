"""HTML from Python values; whatever is not `Markup` already is escaped.

File contents are not trusted: a node may be called ``<script>``. So text becomes HTML in one place
only, `tag`, and a string that was not made here can never be taken for HTML.
"""

import html
import re
from collections.abc import Iterable

from chop.masking import mask_passwords

NOT_TEXT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, and marks that would show what follows in another order."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element; attributes that are None are left out, ``aria_label`` means ``aria-label``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join_markup(children)}</{name}>")


def join_markup(children: Iterable[object]) -> Markup:
    """Pieces after one another; None is nothing, text is escaped."""
    return Markup("".join(escape(child) for child in children if child is not None))


def escape(value: object) -> Markup:
    """Any value as HTML."""
    if isinstance(value, Markup):
        return value
    text = mask_passwords(without_halves(str(value)))
    return Markup(html.escape(NOT_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)))


def without_halves(text: str) -> str:
    """Text that a file can hold: JSON can name half of a surrogate pair, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def details(title: str, *children: object, is_open: bool = False, is_minor: bool = False) -> Markup:
    """A part that opens when its title is chosen; a minor one is not printed."""
    opened, kind = "" if is_open else None, "minor" if is_minor else None
    return tag("details", tag("summary", title), *children, open=opened, class_=kind)
