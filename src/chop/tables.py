"""Tables as values, and their forms: text for a terminal, markup for a notebook, CSV."""

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chop.markup import Markup, escape, tag

NO_VALUE = "-"


@dataclass(frozen=True)
class ResultTable:
    """Rows under headers; a cell that is None says nothing.

    Args:
        label: what the table shows, for those who cannot see it.
        text_columns: how many columns, from the left, are text; the others are numbers.
        spare: columns that a narrow terminal goes without, the first of them first.
        is_matrix: whether rows mean little without those above and below them.
    """

    headers: Sequence[object]
    rows: Sequence[Sequence[object]]
    label: str = ""
    text_columns: int = 1
    spare: Sequence[str] = ()
    is_matrix: bool = False

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, Sequence[object]], label: str = "", spare: Sequence[str] = ()
    ) -> "ResultTable":
        """Return the table of columns by their names."""
        return cls(list(columns), list(zip(*columns.values(), strict=True)), label, 1, spare)

    def without(self, name: object) -> "ResultTable":
        """Return the table without one of its columns."""
        return self._select([place for place, each in enumerate(self.headers) if each != name])

    def drop_empty_columns(self) -> "ResultTable":
        """Return the table without the columns in which no row says anything."""
        places = range(len(self.headers))
        return self._select([place for place in places if any(row[place] for row in self.rows)])

    def _select(self, places: Sequence[int]) -> "ResultTable":
        return replace(
            self,
            headers=[self.headers[place] for place in places],
            rows=[[row[place] for place in places] for row in self.rows],
            text_columns=sum(place < self.text_columns for place in places),
        )

    def text(self, width: int | None = None, style: str = "simple") -> str:
        """Return the table for a terminal; what does not fit into `width` is left out."""
        from tabulate import tabulate

        spare = [name for name in self.spare if name in self.headers]
        sides = ["left" if at < self.text_columns else "right" for at in range(len(self.headers))]
        rows = [[NO_VALUE if cell is None else cell for cell in row] for row in self.rows]
        found = tabulate(
            rows, list(map(str, self.headers)), style, disable_numparse=True,
            colalign=sides if rows else None,
        )  # fmt: skip
        if width is None or not spare or max(map(len, found.splitlines())) <= width:
            return found
        return replace(self.without(spare[0]), spare=spare[1:]).text(width, style)

    def html(self) -> Markup:
        """Return markup; where a page is narrow each row is a card, a matrix scrolls in its box."""
        kinds = ["number" if at >= self.text_columns else None for at in range(len(self.headers))]
        head = [
            tag("th", each, class_=kind, scope="col")
            for each, kind in zip(self.headers, kinds, strict=True)
        ]
        names = [None if self.is_matrix else _plain_text(each) for each in self.headers]
        body = [
            tag("tr", *(_cell(*each) for each in zip(row, kinds, names, strict=True)))
            for row in self.rows
        ]
        inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
        kind = "scroll" if self.is_matrix else "scroll cards"
        return tag("div", inner, class_=kind, tabindex=0, role="region", aria_label=self.label)


def _cell(value: object, kind: str | None, name: str | None) -> Markup:
    """Return a cell; `name` is that of its column, for cards, which have no head."""
    if not (isinstance(value, Markup) and value.startswith(("<td", "<th"))):
        return tag("td", value, class_=kind, data_label=name)
    labelled = "" if name is None else f' data-label="{escape(name)}"'
    return Markup(f"{value[:3]}{labelled}{value[3:]}")


def _plain_text(words: object) -> str:
    """Return what a reader sees of a header, its unit after a comma."""
    if not isinstance(words, Markup):
        return str(words)
    return html.unescape(re.sub(r"<[^>]*>", "", words.replace("<small>", ", ")))


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with the columns that any of them has."""
    shapes: dict[tuple[str, ...], tuple[str, ...]] = {}  # names, which many rows have in common
    found = []
    for row in rows:
        names = tuple(row)
        found.append((shapes.setdefault(names, names), [*row.values()]))
    columns = tuple(dict.fromkeys(name for names in shapes for name in names))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for names, values in found:
        if names != columns:
            cells = dict(zip(names, values, strict=True))
            values = [cells.get(name) for name in columns]
        writer.writerow(values)
    return stream.getvalue()
