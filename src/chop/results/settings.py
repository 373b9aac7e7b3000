"""A study of settings: a table of the settings, best first, and plain files."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.charts import Points
from chop.errors import DataError
from chop.figures import is_usable, number
from chop.files import write_text
from chop.runs import (
    CURVES_TABLE,
    REPEAT,
    SETTINGS_TABLE,
    TRAININGS,
    TRAININGS_TABLE,
    read_stored,
)
from chop.search.config import SearchConfig
from chop.search.metrics import TRAINED
from chop.search.spaces.space import key_of
from chop.search.study.trial import Trial, less_is_better
from chop.search.sweeps.hyperparameters import Hyperparameters, Sweep
from chop.search.sweeps.trainings import Training, stored_runs, summarise_trainings
from chop.tables import ResultTable, as_csv

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

RUNNER = "hyperparameter_training"
SHOWN = ("accuracy", "loss")
MEASURED_BY = (*SHOWN, "train_accuracy")
COMPLETE, UNFINISHED = "COMPLETE", "UNFINISHED"
COLUMNS = {"": "mean", "_spread": "spread", "_best": "best", "_worst": "worst"}


@dataclass(frozen=True)
class TrainedSetting:
    """One setting of a study, its metrics, and those of its trainings that this machine has."""

    config: dict[str, Any]
    metrics: dict[str, float]
    runs: list[Training]
    state: str
    reason: str = ""
    loss: float | None = None
    """What settings are compared by, less being better; None if there is nothing."""
    is_feasible: bool = True

    @property
    def is_complete(self) -> bool:
        return self.state == COMPLETE

    @property
    def seconds(self) -> float | None:
        """The mean time of a training."""
        return sum(run.seconds for run in self.runs) / len(self.runs) if self.runs else None

    @property
    def updates(self) -> int | None:
        """The optimiser steps of a training."""
        return int(self.runs[0].history[-1]["step"]) if self.runs else None

    def values(self, metric: str) -> list[float]:
        """Return one measurement of each training."""
        return [getattr(run, metric) for run in self.runs]

    def mean(self, metric: str) -> str:
        """Return mean and standard deviation, as people write them."""
        values = self.values(metric)
        deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.4f}{deviation}"

    def curve(self, column: str, pick: Callable[[Sequence[float]], float]) -> Points:
        """Return one number for each epoch, made from those of all trainings."""
        found: dict[float, list[float]] = {}
        for row in (row for run in self.runs for row in run.history):
            if "epoch" in row and column in row:
                found.setdefault(row["epoch"], []).append(row[column])
        return [(epoch, pick(values)) for epoch, values in sorted(found.items())]


@dataclass(frozen=True)
class StudyOfSettings:
    """All settings of a study, the best first; failed and unfinished ones last."""

    title: str
    repeats: int
    settings: list[TrainedSetting]
    sweeps: list[Sweep]

    @property
    def varying(self) -> list[str]:
        """The names of the settings that are not the same everywhere."""
        return varying_names(self.settings)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for setting in self for name in setting.config))

    def save(self, folder: Path) -> None:
        """Write study.csv (settings), runs.csv (trainings) and curves.csv (epochs)."""
        runs = [run for setting in self for run in setting.runs]
        epochs = [_epoch_row(run, row) for run in runs for row in run.history]
        measured = ("repeat", "seed", *TRAINED, "seconds")
        tables = {
            SETTINGS_TABLE: [_csv_row(rank, each, self) for rank, each in enumerate(self, 1)],
            TRAININGS_TABLE: [
                run.config | {name: getattr(run, name) for name in measured} for run in runs
            ],
            CURVES_TABLE: epochs,
        }
        for name, rows in tables.items():
            write_text(folder / name, as_csv(rows))

    def __iter__(self) -> Iterator[TrainedSetting]:
        return iter(self.settings)


def varying_names(settings: Sequence[TrainedSetting]) -> list[str]:
    """Return the names whose values are not the same in all settings."""
    names = dict.fromkeys(name for each in settings for name in each.config)
    return [name for name in names if len({repr(each.config.get(name)) for each in settings}) > 1]


def read_settings(folder: Path) -> list[TrainedSetting]:
    """Read the settings of a study that were trained at least once, the best first."""
    found: dict[str, list[Training]] = {}
    for path in sorted(folder.glob(f"{TRAININGS}/*/{REPEAT.format('*')}")):
        where = f"{path.parent.name}/{path.name}"
        training = read_stored(Training, path, where)
        numbers = [getattr(training, name) for name in (*MEASURED_BY, "seconds")]
        if not all(map(is_usable, chain(numbers, *(row.values() for row in training.history)))):
            raise DataError(f"{where}: a number is not finite, or too large to be drawn")
        found.setdefault(path.parent.name, []).append(training)
    settings = [TrainedSetting(each[0].config, {}, each, UNFINISHED) for each in found.values()]
    return sorted(settings, key=lambda each: -statistics.fmean(each.values("accuracy")))


def settings_table(settings: Sequence[TrainedSetting]) -> ResultTable:
    """Return a row for each setting, in their order."""
    names = varying_names(settings)
    headers = [*names, "Trainings", "Accuracy", "Best", "Worst", "Loss (nats)",
               "Training accuracy", "Seconds"]  # fmt: skip
    rows = [
        [
            *(setting_text(each.config.get(name)) for name in names),
            number(len(each.runs)),
            each.mean("accuracy"),
            f"{max(each.values('accuracy')):.4f}",
            f"{min(each.values('accuracy')):.4f}",
            each.mean("loss"),
            each.mean("train_accuracy"),
            number(each.seconds, 3),
        ]
        for each in settings
    ]
    return ResultTable(headers, rows, "Settings of training", text_columns=len(names))


def setting_text(value: Any) -> str:
    """Return the value of a setting as the page writes it."""
    return "none" if value is None else number(value)


def is_study(config: SearchConfig) -> bool:
    """Return whether a search trains settings again and again."""
    return RUNNER in config.strategy.sw_runner


def read_study(
    folder: Path,
    space: Hyperparameters,
    config: SearchConfig,
    trials: "Sequence[Trial | FrozenTrial]",
) -> StudyOfSettings:
    """The study in a folder: its trials and the files of its trainings."""
    runs: dict[str, list[Training]] = {}
    for run in stored_runs(folder):
        runs.setdefault(key_of(run.config), []).append(run)
    settings = [
        _setting_of(trial, runs.pop(trial.key, []), config) for trial in map(Trial.of, trials)
    ]
    settings += [
        TrainedSetting(found[0].config, summarise_trainings(found), found, UNFINISHED)
        for found in runs.values()
    ]
    context = space.context
    return StudyOfSettings(
        f"{context.model_info.name} on {context.data_module.name}",
        int(config.strategy.sw_runner[RUNNER].get("repeats", 1)),
        sorted(settings, key=_place),
        space.sweeps,
    )


def _setting_of(trial: Trial, runs: list[Training], config: SearchConfig) -> TrainedSetting:
    return TrainedSetting(
        dict(trial.config),
        trial.metrics,
        runs,
        trial.state.name,
        trial.reason or "",
        _loss(trial, config),
        not trial.is_complete or trial.is_feasible,
    )


def _loss(trial: Trial, config: SearchConfig) -> float | None:
    """The sum of the metrics, or the metric that the file names first; less is better."""
    if not trial.is_complete:
        return None
    if config.strategy.setup.sum_scaled_metrics:
        (loss,) = trial.losses(config.directions)
        return loss
    name, metric = next(iter(config.strategy.metrics.items()))
    (loss,) = less_is_better([trial.scaled[name]], [metric.direction])
    return loss


def _place(setting: TrainedSetting) -> tuple[bool, bool, bool, float]:
    """Return where a setting stands in the table."""
    loss = 0.0 if setting.loss is None else setting.loss
    return not setting.is_complete, setting.state != UNFINISHED, not setting.is_feasible, loss


def heading(study: StudyOfSettings, config: SearchConfig) -> str:
    """One line: what the table shows, and what is best."""
    if config.strategy.setup.sum_scaled_metrics:
        by = f"the sum of scaled metrics ({config.directions[0]})"
    else:
        name, metric = next(iter(config.strategy.metrics.items()))
        by = f"{name} ({metric.direction})"
    repeats = f"mean ± standard deviation of {study.repeats} repeats"
    return f"Settings of {study.title}, best first by {by}, {repeats}:"


def study_table(study: StudyOfSettings) -> str:
    """The settings as a table for the terminal: mean ± standard deviation, best and worst."""
    from tabulate import tabulate

    headers = [*study.varying, "repeats"]
    for name in SHOWN:
        headers += [name, "best", "worst"]
    rows = [_shown_row(setting, study) for setting in study]
    lines = [tabulate(rows, [*headers, "train acc.", "s / run"], "github", disable_numparse=True)]
    same = [name for name in study.names if name not in study.varying]
    if same and study.settings:
        common = study.settings[0].config
        lines.append("All with " + ", ".join(f"{name} {common[name]}" for name in same))
    lines += [f"{_text(each, study)}: {each.reason}" for each in study if each.reason]
    return "\n".join(lines)


def _shown_row(setting: TrainedSetting, study: StudyOfSettings) -> list[str]:
    cells = [str(setting.config.get(name, "")) for name in study.varying]
    cells.append(_repeats(setting, study))
    for name in SHOWN:
        cells += [_mean(setting, name)]
        cells += [_number(setting.metrics.get(f"{name}{kind}")) for kind in ("_best", "_worst")]
    seconds = setting.seconds
    return [*cells, _mean(setting, "train_accuracy"), "" if seconds is None else f"{seconds:.2f}"]


def _repeats(setting: TrainedSetting, study: StudyOfSettings) -> str:
    if setting.is_complete:
        return str(study.repeats)
    return f"{len(setting.runs)} of {study.repeats}" if not setting.reason else "failed"


def _mean(setting: TrainedSetting, name: str) -> str:
    if name not in setting.metrics:
        return ""
    mean, spread = (setting.metrics[f"{name}{kind}"] for kind in ("", "_spread"))
    return f"{mean:.4f} ± {spread:.4f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _text(setting: TrainedSetting, study: StudyOfSettings) -> str:
    return label(setting.config, study.varying)


def label(config: Mapping[str, Any], names: Iterable[str]) -> str:
    """A setting in words: the values of some of its names."""
    return ", ".join(f"{name} {config[name]}" for name in names if name in config)


def _csv_row(rank: int, setting: TrainedSetting, study: StudyOfSettings) -> dict[str, Any]:
    row: dict[str, Any] = {"rank": rank, **setting.config}
    row["repeats"] = study.repeats if setting.is_complete else len(setting.runs)
    left = dict(setting.metrics)
    for name in TRAINED:
        for kind, title in COLUMNS.items():
            row[f"{name}_{title}"] = left.pop(f"{name}{kind}", "")
    row |= left
    row |= {"seconds_mean": setting.seconds, "updates": setting.updates}
    return row | {"state": setting.state, "reason": setting.reason}


def _epoch_row(run: Training, row: Mapping[str, float]) -> dict[str, Any]:
    # The rate of the setting is that of the first epoch; a schedule makes others of it.
    own = {f"{name}_of_epoch" if name in run.config else name: row[name] for name in row}
    return {**run.config, "repeat": run.repeat, "seed": run.seed, **own}
