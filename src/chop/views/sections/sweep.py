"""Studies of training: every setting trained several times, as mean and spread, with its curves."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from chop.charts import Band, LineChart
from chop.figures import quantity
from chop.markup import Markup, join_markup, tag
from chop.results.settings import (
    TrainedSetting,
    read_settings,
    setting_text,
    settings_table,
    varying_names,
)
from chop.training.report import ACCURACY, LOSS
from chop.views.section import Section
from chop.views.svg import line_chart

MOST_LINES = 8


def study_section(folder: Path, name: str, place: int) -> Section | None:
    """The section of one study, if there is one; `name` tells it from others."""
    settings = read_settings(folder)
    if not settings:
        return None
    most = max(len(each.runs) for each in settings)
    words = (
        f"{quantity(len(settings), 'setting')}, each trained up to {quantity(most, 'time')} from "
        "different initial weights: mean ± standard deviation. A difference that is smaller than "
        "the spread means nothing."
    )
    parts = [
        tag("p", words),
        settings_table(settings).html(),
        tag("div", *sweep_charts(settings), class_="charts"),
    ]
    title = "Settings of training" + (f" ({name})" if name else "")
    return Section(f"study-{place}", title, join_markup(parts))


def sweep_charts(settings: Sequence[TrainedSetting]) -> list[Markup]:
    """Return mean curves of the best settings, with the range of their trainings behind."""
    best = settings[:MOST_LINES]
    more = f", the best {len(best)} settings" if len(best) < len(settings) else ""
    varying = varying_names(settings)
    names = [
        ", ".join(f"{key} {setting_text(each.config.get(key))}" for key in varying) for each in best
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
