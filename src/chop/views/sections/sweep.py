"""Studies of training: every setting trained several times, as mean and spread, with its curves."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from chop.charts import Band, LineChart, Points
from chop.figures import LARGEST_NUMBER, number, quantity
from chop.markup import Markup, join_markup, tag
from chop.runs import REPEAT, TRAININGS, read_stored
from chop.tables import ResultTable
from chop.training.report import ACCURACY, LOSS
from chop.views.section import Section
from chop.views.svg import line_chart

Number = Annotated[float, Field(gt=-LARGEST_NUMBER, lt=LARGEST_NUMBER)]

MOST_LINES = 8


class StoredTraining(BaseModel):
    """What ``runs/<setting>/repeat_<n>.json`` holds of one training."""

    config: dict[str, Any]
    accuracy: Number
    loss: Number
    train_accuracy: Number
    seconds: Number
    history: list[dict[str, Number]] = Field(default_factory=list)


@dataclass(frozen=True)
class StudiedSetting:
    """One setting and its trainings."""

    trainings: list[StoredTraining]

    @property
    def config(self) -> dict[str, Any]:
        return self.trainings[0].config

    def values(self, metric: str) -> list[float]:
        """What each training was measured by."""
        return [getattr(each, metric) for each in self.trainings]

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.values("accuracy"))

    def spread(self, metric: str) -> str:
        """Mean and standard deviation, as people write them."""
        values = self.values(metric)
        deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.4f}{deviation}"

    def curve(self, column: str, pick: Callable[[Sequence[float]], float]) -> Points:
        """One number for each epoch, made from those of all trainings."""
        found: dict[float, list[float]] = {}
        for row in (row for training in self.trainings for row in training.history):
            if "epoch" in row and column in row:
                found.setdefault(row["epoch"], []).append(row[column])
        return [(epoch, pick(values)) for epoch, values in sorted(found.items())]


def read_studied_settings(folder: Path) -> list[StudiedSetting]:
    """The settings of a study that were trained at least once, in the order of their names."""
    found: dict[str, list[StoredTraining]] = {}
    for path in sorted(folder.glob(f"{TRAININGS}/*/{REPEAT.format('*')}")):
        run = read_stored(StoredTraining, path, f"{path.parent.name}/{path.name}")
        found.setdefault(path.parent.name, []).append(run)
    return [StudiedSetting(trainings) for trainings in found.values()]


def study_section(folder: Path, name: str, place: int) -> Section | None:
    """The section of one study, if there is one; `name` tells it from others."""
    settings = read_studied_settings(folder)
    if not settings:
        return None
    varied = varied_names(settings)
    most = max(len(each.trainings) for each in settings)
    words = (
        f"{quantity(len(settings), 'setting')}, each trained up to {quantity(most, 'time')} from "
        "different initial weights: mean ± standard deviation. A difference that is smaller than "
        "the spread means nothing."
    )
    parts = [
        tag("p", words),
        settings_table(settings, varied),
        tag("div", *sweep_charts(settings, varied), class_="charts"),
    ]
    title = "Settings of training" + (f" ({name})" if name else "")
    return Section(f"study-{place}", title, join_markup(parts))


def varied_names(settings: Sequence[StudiedSetting]) -> list[str]:
    """The settings that are not the same in all trainings."""
    names = dict.fromkeys(name for each in settings for name in each.config)
    return [name for name in names if len({str(each.config.get(name)) for each in settings}) > 1]


def settings_table(settings: Sequence[StudiedSetting], varied: Sequence[str]) -> Markup:
    """A row for each setting, the best first."""
    headers = [*varied, "Trainings", "Accuracy", "Best", "Worst", "Loss (nats)",
               "Training accuracy", "Seconds"]  # fmt: skip
    rows = [
        [
            *(_value_text(each.config.get(name)) for name in varied),
            number(len(each.trainings)),
            each.spread("accuracy"),
            f"{max(each.values('accuracy')):.4f}",
            f"{min(each.values('accuracy')):.4f}",
            each.spread("loss"),
            each.spread("train_accuracy"),
            number(statistics.fmean(each.values("seconds")), 3),
        ]
        for each in sorted(settings, key=lambda each: -each.accuracy)
    ]
    return ResultTable(headers, rows, "Settings of training", text_columns=len(varied)).html()


def sweep_charts(settings: Sequence[StudiedSetting], varied: Sequence[str]) -> list[Markup]:
    """Mean curves of the best settings, with the range of their trainings behind."""
    best = sorted(settings, key=lambda each: -each.accuracy)[:MOST_LINES]
    more = f", the best {len(best)} settings" if len(best) < len(settings) else ""
    names = [
        ", ".join(f"{key} {_value_text(each.config.get(key))}" for key in varied) for each in best
    ]
    named = {
        name or f"setting {n}": each for n, (name, each) in enumerate(zip(names, best, strict=True))
    }
    drawn = []
    for curves in (ACCURACY, LOSS):
        column, title = curves.columns["validation"], f"Validation {curves.title.lower()}"
        found = {name: each.curve(column, statistics.fmean) for name, each in named.items()}
        series = {name: points for name, points in found.items() if points}
        bands = {
            name: Band(named[name].curve(column, min), named[name].curve(column, max))
            for name in series
        }
        if series:
            title += f", mean and range{more}"
            drawn.append(line_chart(LineChart(title, "epoch", curves.y, series, bands)))
    return drawn


def _value_text(value: Any) -> str:
    return "none" if value is None else number(value)
