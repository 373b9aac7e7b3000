"""What a study of settings comes to: a table of the settings, best first, and plain files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from chop.files import write_text
from chop.runs import CURVES_TABLE, SETTINGS_TABLE, TRAININGS_TABLE
from chop.search.config import SearchConfig
from chop.search.metrics import TRAINED
from chop.search.spaces.space import key_of
from chop.search.study.trial import Trial, less_is_better
from chop.search.sweeps.hyperparameters import Hyperparameters, Sweep
from chop.search.sweeps.trainings import Run, stored_runs, summary
from chop.tables import as_csv

RUNNER = "hyperparameter_training"
SHOWN = ("accuracy", "loss")
COMPLETE, UNFINISHED = "COMPLETE", "UNFINISHED"
COLUMNS = {"": "mean", "_spread": "spread", "_best": "best", "_worst": "worst"}


@dataclass(frozen=True)
class TrainedSetting:
    """One setting of a study, its metrics, and those of its trainings that this machine has."""

    config: dict[str, Any]
    metrics: dict[str, float]
    runs: list[Run]
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
        return [name for name in self.names if len({repr(s.config.get(name)) for s in self}) > 1]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for setting in self for name in setting.config))

    def __iter__(self) -> Iterator[TrainedSetting]:
        return iter(self.settings)


def is_study(config: SearchConfig) -> bool:
    """Whether a search trains settings again and again."""
    return RUNNER in config.strategy.sw_runner


def read_study(
    folder: Path,
    space: Hyperparameters,
    config: SearchConfig,
    trials: Sequence[Trial | FrozenTrial],
) -> StudyOfSettings:
    """The study in a folder: its trials and the files of its trainings."""
    runs: dict[str, list[Run]] = {}
    for run in stored_runs(folder):
        runs.setdefault(key_of(run.config), []).append(run)
    settings = [
        _finished(trial, runs.pop(trial.key, []), config) for trial in map(Trial.of, trials)
    ]
    settings += [
        TrainedSetting(found[0].config, summary(found), found, UNFINISHED)
        for found in runs.values()
    ]
    context = space.context
    return StudyOfSettings(
        f"{context.model_info.name} on {context.data_module.name}",
        int(config.strategy.sw_runner[RUNNER].get("repeats", 1)),
        sorted(settings, key=_place),
        space.sweeps,
    )


def _finished(trial: Trial, runs: list[Run], config: SearchConfig) -> TrainedSetting:
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
    """Where a setting stands in the table."""
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


def write_study(folder: Path, study: StudyOfSettings) -> None:
    """Write study.csv (settings), runs.csv (trainings) and curves.csv (epochs)."""
    runs = [run for setting in study for run in setting.runs]
    epochs = [_epoch_row(run, row) for run in runs for row in run.history]
    measured = ("repeat", "seed", *TRAINED, "seconds")
    tables = {
        SETTINGS_TABLE: [_csv_row(rank, each, study) for rank, each in enumerate(study, 1)],
        TRAININGS_TABLE: [
            run.config | {name: getattr(run, name) for name in measured} for run in runs
        ],
        CURVES_TABLE: epochs,
    }
    for name, rows in tables.items():
        write_text(folder / name, as_csv(rows))


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


def _epoch_row(run: Run, row: Mapping[str, float]) -> dict[str, Any]:
    # The rate of the setting is that of the first epoch; a schedule makes others of it.
    own = {f"{name}_of_epoch" if name in run.config else name: row[name] for name in row}
    return {**run.config, "repeat": run.repeat, "seed": run.seed, **own}
