"""Learning curves and test results."""

import csv
import math
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, Field

from chop.errors import DataError
from chop.preprocessing import from_plain
from chop.report.html import (
    Count,
    Markup,
    Section,
    Tile,
    counted,
    folded,
    is_usable,
    joined,
    line_chart,
    number,
    percent,
    table,
    tag,
)
from chop.runs import RunFolder, read_stored
from chop.training.report import ALL_CURVES, learning_chart

Rows = list[dict[str, float]]


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
    found = [learning_chart(rows, curves) for curves in ALL_CURVES]
    figures = [line_chart(chart) for chart in found if chart.series]
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


TILES = {
    "test": "Test accuracy",
    "val": "Validation accuracy",
    "all": "Accuracy on all rows",
}


class StoredResult(BaseModel):
    """What ``ch test`` stores."""

    accuracy: float = Field(
        validation_alias=AliasChoices(*(f"{split}_acc_epoch" for split in TILES))
    )
    loss: float | None = Field(
        None, validation_alias=AliasChoices(*(f"{split}_loss_epoch" for split in TILES))
    )
    rows: Count
    accuracy_95_percent_interval: tuple[float, float] | None = None
    per_class_accuracy: dict[str, float | None] = Field(default_factory=dict)
    class_names: list[str] = Field(default_factory=list)
    confusion_matrix: list[list[Count]] = Field(default_factory=list)
    load_name: str | None = None
    split: str = "test"
    preprocessing: dict[str, Any] | None = None

    @property
    def interval(self) -> str:
        if self.accuracy_95_percent_interval is None:
            return ""
        low, high = self.accuracy_95_percent_interval
        return f"{percent(low)} to {percent(high)}"


def tested(run: RunFolder) -> Section | None:
    """The section, if anything was tested."""
    found = [(path, read_stored(StoredResult, path)) for path in run.test_results]
    if not found:
        return None
    headers = ("Result", "Tested", "Accuracy", "95 % confidence", "Loss (nats)", "Rows")
    rows = [
        (path.name, run.short(result.load_name) or "the model as it was",
         percent(result.accuracy), result.interval, number(result.loss),
         f"{number(result.rows)} {result.split}")
        for path, result in found
    ]  # fmt: skip
    parts = [table(headers, rows, "Test results", text_columns=2)]
    best_path, best = found[0]
    known = from_plain(best.preprocessing, best_path.name)
    parts += [tag("p", f"Features of {best_path.name}: {known}.")] if known else []
    newest, *older = [(path.name, confusion(result)) for path, result in found]
    parts += [newest[1]] if newest[1] else []
    parts += [folded(f"Confusion matrix of {name}", body) for name, body in older if body]
    tile = Tile(TILES.get(best.split, TILES["test"]), percent(best.accuracy), best.interval)
    return Section("test", "Test results", joined(parts), (tile,))


def confusion(result: StoredResult) -> Markup | None:
    """The matrix as a table; the share of its row colours a cell."""
    matrix, names = result.confusion_matrix, result.class_names
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        return None
    names = names if len(names) == len(matrix) else [str(i) for i in range(len(matrix))]
    rows = [
        [tag("th", name, scope="row"), *_cells(row, names, name), _share(row, place)]
        for place, (name, row) in enumerate(zip(names, matrix, strict=True))
    ]
    headers = ("true ↓ / predicted →", *names, "accuracy")
    words = (
        "Confusion matrix: rows are the true classes, columns the predicted ones. "
        "The fuller the colour, the larger the share of the row."
    )
    shown = table(headers, rows, "Confusion matrix")
    return tag("figure", tag("h3", "Confusion matrix"), shown, tag("figcaption", words))


def _cells(row: list[int], names: list[str], true: str) -> list[Markup]:
    total = sum(row) or 1
    return [
        tag(
            "td",
            number(count),
            class_="number heat",
            style=f"--t:{70 * count / total:.0f}%",
            title=f"{number(count)} of class {true} taken for {name}: {percent(count / total)}",
        )
        for name, count in zip(names, row, strict=True)
    ]


def _share(row: list[int], place: int) -> str:
    return percent(row[place] / sum(row)) if sum(row) else "no rows"
