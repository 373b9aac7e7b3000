"""Tables as values, and their forms: text for a terminal, markup for a notebook, CSV."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV, with the columns that any of them has."""
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
