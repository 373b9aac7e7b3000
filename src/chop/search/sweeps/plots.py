"""Pictures of a study of settings: learning curves with their spread, and how settings compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from chop.files import replacing
from chop.search.spaces.space import key_of
from chop.search.sweeps.hyperparameters import Sweep
from chop.search.sweeps.table import Setting, StudyOfSettings, label
from chop.search.sweeps.trainings import name_of
from chop.tools.logger import get_logger

logger = get_logger("chop")

PANELS = {
    "loss (cross entropy, nats)": {"training": "train_loss", "validation": "val_loss_epoch"},
    "accuracy (fraction of rows)": {"training": "train_acc", "validation": "val_acc_epoch"},
}
MOST_PICTURES = 60
"""Settings that get a picture of their own, the best first."""
MOST_RANKED = 40
MOST_GROUPS = 6
MOST_CURVES = 12
FEW_EPOCHS = 15
"""Up to so many, each epoch is marked by a dot; a single epoch would be no line at all."""
BESIDE = 0.05
"""How far apart on the axis of epochs settings of one epoch are drawn."""
WIDE_RANGE = 20
"""From this ratio of the largest to the smallest loss on, the axis is logarithmic."""


@dataclass(frozen=True)
class Curve:
    """A metric over the epochs: mean and standard deviation of the repeats."""

    epochs: np.ndarray
    mean: np.ndarray
    spread: np.ndarray


def curve_of(setting: Setting, column: str) -> Curve | None:
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
    for path, figure in pictures.items():
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=110)
    return list(pictures)


def _setting_picture(setting: Setting, study: StudyOfSettings) -> Figure:
    """Loss and accuracy of one setting, training and validation."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(f"{study.title}: {label(setting.config, setting.config)}")
    for panel, (name, columns) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for place, (kind, column) in enumerate(columns.items()):
            curve = curve_of(setting, column)
            if curve is not None:
                _draw(panel, curve, f"C{place}", kind)
        _finish(panel, name)
    _legend(panel, _means(len(setting.runs)).replace(" of", "\nof"))
    return figure


def _draw(panel: Axes, curve: Curve, colour: Any, name: str) -> None:
    """A line in a band; a single epoch, which has neither, is a dot with a bar."""
    epochs = curve.epochs
    if len(epochs) == 1:  # beside those that are there already
        epochs = epochs + BESIDE * len(panel.lines)
        panel.vlines(epochs, curve.mean - curve.spread, curve.mean + curve.spread, colors=colour)
    marker = "." if len(epochs) <= FEW_EPOCHS else ""
    panel.plot(epochs, curve.mean, color=colour, label=name, marker=marker)
    low, high = curve.mean - curve.spread, curve.mean + curve.spread
    panel.fill_between(epochs, low, high, color=colour, alpha=0.12, linewidth=0)


def _finish(panel: Axes, name: str) -> None:
    panel.set_xlabel("epochs trained")
    panel.set_ylabel(name)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.dataLim.x1 < 2:
        panel.set_xlim(0.5, 2)
    panel.grid(alpha=0.3)


def _legend(panel: Axes, title: str) -> None:
    """A legend beside the last panel of a row, where no curve is."""
    panel.legend(title=title, loc="center left", bbox_to_anchor=(1.02, 0.5))


def _means(repeats: int) -> str:
    return f"mean ± std. dev. of {repeats} repeats" if repeats > 1 else "one repeat"


@dataclass(frozen=True)
class Group:
    """Settings that differ in a few names, drawn into one panel."""

    title: str
    names: list[str]
    settings: list[Setting]


def groups_of(study: StudyOfSettings, drawn: Sequence[Setting]) -> list[Group]:
    """What belongs side by side: the settings of a sweep along the name with most values."""
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


def _overview(study: StudyOfSettings, drawn: Sequence[Setting]) -> Figure:
    """The validation curves of all settings, a row of panels for each group of them."""
    ranks = {id(setting): rank for rank, setting in enumerate(drawn)}
    groups = groups_of(study, drawn)
    best = sorted(groups, key=lambda group: min(ranks[id(each)] for each in group.settings))
    shown = [group for group in groups if group in best[:MOST_GROUPS]]
    figure = Figure(figsize=(11, 0.8 + 3.3 * len(shown)), layout="constrained")
    left_out = "" if len(shown) == len(groups) else f", {len(shown)} of {len(groups)} groups"
    figure.suptitle(f"{study.title}: validation, {_means(study.repeats)}{left_out}")
    rows = figure.subplots(len(shown), 2, squeeze=False, sharey="col")
    for panels, group in zip(rows, shown, strict=True):
        _group_row(panels, group, ranks)
    losses = [value for panel in rows[:, 0] for line in panel.lines for value in line.get_ydata()]
    if losses and min(losses) > 0 and max(losses) > WIDE_RANGE * min(losses):
        rows[0, 0].set_yscale("log")
    return figure


def _group_row(panels: Sequence[Axes], group: Group, ranks: dict[int, int]) -> None:
    best = sorted(group.settings, key=lambda each: ranks[id(each)])[:MOST_CURVES]
    shown = [setting for setting in group.settings if setting in best]
    colours = colormaps["viridis"](np.linspace(0, 0.9, max(len(shown), 2)))
    for panel, (name, columns) in zip(panels, PANELS.items(), strict=True):
        for setting, colour in zip(shown, colours, strict=False):
            curve = curve_of(setting, columns["validation"]) or curve_of(
                setting, columns["training"]
            )
            if curve is not None:
                text = ", ".join(str(setting.config.get(each, "")) for each in group.names)
                _draw(panel, curve, colour, text)
        panel.set_title(group.title, fontsize="medium")
        _finish(panel, name)
    title = ", ".join(group.names)
    if len(shown) < len(group.settings):
        title += f"\nthe best {len(shown)} of {len(group.settings)}"
    _legend(panels[-1], title)


def _ranked(setting: Setting, study: StudyOfSettings) -> str:
    text = label(setting.config, study.varying) or "the only setting"
    return text if setting.is_complete else f"{text} ({len(setting.runs)} repeats so far)"


def _ranking(study: StudyOfSettings, drawn: Sequence[Setting]) -> Figure:
    """Accuracy and loss of the settings, best first: every repeat, mean and standard deviation."""
    shown = list(drawn[:MOST_RANKED])
    figure = Figure(figsize=(11, 1.6 + 0.32 * len(shown)), layout="constrained")
    of_all = "" if len(shown) == len(drawn) else f" (the best {len(shown)} of {len(drawn)})"
    figure.suptitle(f"{study.title}: settings, best first{of_all}, {study.repeats} repeats each")
    places = np.arange(len(shown))
    left, right = figure.subplots(1, 2, sharey=True)
    for panel, name in ((left, "accuracy"), (right, "loss")):
        for place, setting in zip(places, shown, strict=True):
            values = [getattr(run, name) for run in setting.runs]
            panel.plot(values, [place] * len(values), "o", color="C7", alpha=0.45, markersize=4)
            panel.errorbar(
                np.mean(values), place, xerr=np.std(values, ddof=1) if len(values) > 1 else 0,
                fmt="D", color="C0", markersize=5, capsize=3,
            )  # fmt: skip
        panel.grid(alpha=0.3)
    left.set_yticks(places, [_ranked(each, study) for each in shown])
    left.invert_yaxis()
    left.set_xlabel("accuracy after training (fraction of rows)")
    right.set_xlabel("loss after training (cross entropy, nats)")
    figure.supxlabel("dots: repeats; diamonds: mean ± standard deviation", fontsize="small")
    return figure
