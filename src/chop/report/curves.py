"""Learning curves, from the tables that training writes."""

import csv
import math
from pathlib import Path

from chop.errors import DataError
from chop.report.folders import RunFolder
from chop.report.markup import (
    Markup,
    Section,
    Tile,
    counted,
    folded,
    is_usable,
    joined,
    number,
    percent,
    tag,
)
from chop.report.svg import line_chart

Rows = list[dict[str, float]]

CHARTS = (
    ("Loss", "cross entropy (nats)", {"training": "train_loss", "validation": "val_loss_epoch"}),
    ("Accuracy", "fraction of rows", {"training": "train_acc", "validation": "val_acc_epoch"}),
    ("Learning rate", "learning rate", {"learning rate": "learning_rate"}),
    ("Time", "seconds per epoch", {"seconds": "seconds"}),
)
FROM_ZERO = ("Learning rate", "Time")
"""Title, label of the vertical axis with its unit, and the columns that are drawn."""


def learning_curves(run: RunFolder) -> Section | None:
    """The section, if a training run has finished an epoch."""
    logs = [(path, rows) for path in run.training_logs if (rows := read_log(path))]
    if not logs:
        return None
    newest, *older = [(run.name_of(path), charts(rows)) for path, rows in logs]
    parts = [newest[1], *(folded(f"Earlier: {name}", body) for name, body in older)]
    return Section("training", "Learning curves", joined(parts), (tile(logs[0][1]),))


def read_log(path: Path) -> Rows:
    """The epochs of a run; cells that are no numbers are left out."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            table = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name}: cannot be read: {error}") from None
    rows = [{name: _float(cell) for name, cell in row.items() if name} for row in table]
    clean = [{name: v for name, v in row.items() if is_usable(v)} for row in rows]
    return [row for row in clean if "epoch" in row]


def _float(cell: object) -> float:
    try:
        return float(str(cell))
    except ValueError:
        return math.nan


def charts(rows: Rows) -> Markup:
    """One chart for each kind of number that the rows have."""
    figures = []
    for title, label, columns in CHARTS:
        series = {
            name: [(row["epoch"], row[column]) for row in rows if column in row]
            for name, column in columns.items()
        }
        series = {name: points for name, points in series.items() if points}
        if series:
            labels, zero = ("epoch", label), title in FROM_ZERO
            figures.append(line_chart(title, series, labels, from_zero=zero))
    return joined([tag("p", summary(rows)), tag("div", *figures, class_="charts")])


def summary(rows: Rows) -> str:
    """The best epoch in a sentence."""
    best = min(rows, key=lambda row: row.get("val_loss_epoch", math.inf))
    seconds = sum(row.get("seconds", 0.0) for row in rows)
    words = f"{counted(len(rows), 'epoch')} in {number(round(seconds, 1))} s."
    if "val_loss_epoch" not in best:
        return words
    accuracy = percent(best.get("val_acc_epoch", math.nan))
    return (
        f"{words} The best is epoch {number(best['epoch'])}: validation loss "
        f"{number(best['val_loss_epoch'])}, accuracy {accuracy}."
    )


def tile(rows: Rows) -> Tile:
    """The best validation accuracy."""
    best = min(rows, key=lambda row: row.get("val_loss_epoch", math.inf))
    value = percent(best["val_acc_epoch"]) if "val_acc_epoch" in best else number(len(rows))
    label = "Validation accuracy" if "val_acc_epoch" in best else "Epochs"
    return Tile(label, value, f"best of {counted(len(rows), 'epoch')}")
