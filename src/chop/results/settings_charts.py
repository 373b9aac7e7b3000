"""Pictures of a study of settings: learning curves with their spread, and how settings compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chop.charts import Band, LineChart, Points, RankingChart, make_figure, write_png
from chop.logger import get_logger
from chop.results.settings import StudyOfSettings, TrainedSetting, label
from chop.search.spaces.space import key_of
from chop.search.sweeps.hyperparameters import Sweep
from chop.search.sweeps.trainings import name_of
from chop.training.report import ACCURACY, LOSS, Curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = get_logger("chop")

MOST_PICTURES = 60
"""Settings that get a picture of their own, the best first."""
MOST_RANKED = 40
MOST_GROUPS = 6
MOST_CURVES = 12
WIDE_RANGE = 20
"""From this ratio of the largest to the smallest loss on, the axis is logarithmic."""


@dataclass(frozen=True)
class Curve:
    """A metric over the epochs: mean and standard deviation of the repeats."""

    epochs: np.ndarray
    mean: np.ndarray
    spread: np.ndarray

    def points(self, deviations: float) -> Points:
        """The line so many standard deviations above the mean."""
        values = self.mean + deviations * self.spread
        return list(zip(self.epochs.tolist(), values.tolist(), strict=True))


def curve_of(setting: TrainedSetting, column: str) -> Curve | None:
    """The curve of a metric; a repeat that stopped early counts as long as it ran."""
    tables = [[row[column] for row in run.history if column in row] for run in setting.runs]
    longest = max(map(len, tables), default=0)
    if longest == 0:
        return None
    values = np.full((len(tables), longest), np.nan)
    for row, table in zip(values, tables, strict=True):
        row[: len(table)] = table
    counts = np.sum(~np.isnan(values), axis=0)
    mean = np.nansum(values, axis=0) / counts
    squares = np.nansum((values - mean) ** 2, axis=0)
    return Curve(np.arange(1, longest + 1), mean, np.sqrt(squares / np.maximum(counts - 1, 1)))


def draw_study(folder: Path, study: StudyOfSettings) -> list[Path]:
    """Draw a picture for each setting and two that compare them; the files that were written."""
    drawn = [setting for setting in study if setting.runs]
    if not drawn:
        return []
    if len(drawn) > MOST_PICTURES:
        logger.info("Only the %d best settings get a picture of their own", MOST_PICTURES)
    pictures = {
        folder / "curves" / f"{name_of(each.config)}.png": _setting_picture(each, study)
        for each in drawn[:MOST_PICTURES]
    }
    pictures[folder / "curves.png"] = _overview(study, drawn)
    pictures[folder / "settings.png"] = _ranking(study, drawn)
    return [write_png(path, figure) for path, figure in pictures.items()]


def _setting_picture(setting: TrainedSetting, study: StudyOfSettings) -> "Figure":
    """Loss and accuracy of one setting, training and validation."""
    legend = _means(len(setting.runs)).replace(" of", "\nof")
    charts = [
        chart_of(curves, {name: curve_of(setting, c) for name, c in curves.columns.items()}, legend)
        for curves in (LOSS, ACCURACY)
    ]
    return make_figure([charts], f"{study.title}: {label(setting.config, setting.config)}")


def chart_of(curves: Curves, found: Mapping[str, Curve | None], legend: str) -> LineChart:
    """Means over the epochs in bands of one standard deviation to either side."""
    known = {name: curve for name, curve in found.items() if curve is not None}
    series = {name: curve.points(0) for name, curve in known.items()}
    bands = {name: Band(curve.points(-1), curve.points(1)) for name, curve in known.items()}
    return LineChart(curves.title, "epochs trained", curves.y, series, bands, legend=legend)


def _means(repeats: int) -> str:
    return f"mean ± std. dev. of {repeats} repeats" if repeats > 1 else "one repeat"


@dataclass(frozen=True)
class Group:
    """Settings that differ in a few names, drawn into one panel."""

    title: str
    names: list[str]
    settings: list[TrainedSetting]


def groups_of(study: StudyOfSettings, drawn: Sequence[TrainedSetting]) -> list[Group]:
    """Group the settings to be drawn together: those of a sweep along the name with most values."""
    by_key = {key_of(setting.config): setting for setting in drawn}
    groups: list[Group] = []
    for sweep in study.sweeps:
        for part in _slices(sweep):
            found = [by_key[key] for c in part.configs() if (key := key_of(c)) in by_key]
            names = part.varying or list(part.grid)
            fixed = [name for name in study.names if name not in names]
            if found:
                groups.append(Group(label(found[0].config, fixed), names, found))
    return groups


def _slices(grid: Sweep) -> list[Sweep]:
    """A grid cut along the setting with most values."""
    if not grid.varying:
        return [grid]
    along = max(grid.varying, key=lambda name: len(grid.grid[name]))
    others = [name for name in grid.grid if name != along]
    return [
        Sweep(
            grid.name,
            {along: grid.grid[along]},
            {**grid.fixed, **dict(zip(others, values, strict=True))},
        )
        for values in product(*(grid.grid[name] for name in others))
    ]


def _overview(study: StudyOfSettings, drawn: Sequence[TrainedSetting]) -> "Figure":
    """The validation curves of all settings, a row of panels for each group of them."""
    ranks = {id(setting): rank for rank, setting in enumerate(drawn)}
    groups = groups_of(study, drawn)
    best = sorted(groups, key=lambda group: min(ranks[id(each)] for each in group.settings))
    shown = [group for group in groups if group in best[:MOST_GROUPS]]
    left_out = "" if len(shown) == len(groups) else f", {len(shown)} of {len(groups)} groups"
    rows = [_group_row(group, ranks) for group in shown]
    losses = [y for row in rows for points in row[0].series.values() for _, y in points]
    if losses and min(losses) > 0 and max(losses) > WIDE_RANGE * min(losses):
        rows = [[replace(row[0], logarithmic="y"), *row[1:]] for row in rows]
    return make_figure(rows, f"{study.title}: validation, {_means(study.repeats)}{left_out}")


def _group_row(group: Group, ranks: Mapping[int, int]) -> list[LineChart]:
    best = sorted(group.settings, key=lambda each: ranks[id(each)])[:MOST_CURVES]
    shown = [setting for setting in group.settings if setting in best]
    legend = ", ".join(group.names)
    if len(shown) < len(group.settings):
        legend += f"\nthe best {len(shown)} of {len(group.settings)}"
    row = []
    for curves in (LOSS, ACCURACY):
        found = {}
        for each in shown:
            name = ", ".join(str(each.config.get(name, "")) for name in group.names)
            in_turn = (curve_of(each, curves.columns[k]) for k in ("validation", "training"))
            found[name] = next((curve for curve in in_turn if curve), None)
        chart = chart_of(curves, found, legend)
        title = f"{chart.title}, {group.title}" if group.title else chart.title
        row.append(replace(chart, title=title, is_ordered=True))
    return row


def _ranking(study: StudyOfSettings, drawn: Sequence[TrainedSetting]) -> "Figure":
    """Accuracy and loss of the settings, best first: every repeat, mean and standard deviation."""
    shown = {}
    for each in drawn[:MOST_RANKED]:
        so_far = "" if each.is_complete else f" ({len(each.runs)} repeats so far)"
        shown[(label(each.config, study.varying) or "the only setting") + so_far] = each
    of_all = "" if len(shown) == len(drawn) else f" (the best {len(shown)} of {len(drawn)})"
    charts = [
        RankingChart(
            f"{curves.title} after training",
            curves.y,
            {name: [getattr(run, metric) for run in each.runs] for name, each in shown.items()},
        )
        for metric, curves in (("accuracy", ACCURACY), ("loss", LOSS))
    ]
    title = f"{study.title}: settings, best first{of_all}, {study.repeats} repeats each"
    return make_figure([charts], f"{title}\ndots: repeats; diamonds: mean ± standard deviation")
