"""The fronts of several searches that have objectives in common, side by side."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chop.charts import LineChart, Mark
from chop.figures import SCORES, significant
from chop.results.exports import ExportSource
from chop.results.front import SearchResult
from chop.results.front_charts import LOGARITHMIC_FROM
from chop.runs import (
    BEST_SETTINGS,
    EXPORT,
    MANIFEST,
    RUN_RECORD,
    RunRecord,
    read_stored,
    snapshot_name,
)
from chop.search.front.hypervolume import front_of, hypervolume, worst_of
from chop.search.metrics import METRICS, Direction, MetricInfo
from chop.search.study.trial import Point, Trial, less_is_better

FEW_NAMES = 3
"""So many names of searches fit into one row above a chart."""
ROWS = {
    "train_dataloader": "training",
    "val_dataloader": "validation",
    "test_dataloader": "test",
}
"""Rows by their loaders."""


@dataclass(frozen=True)
class Fronts:
    """The fronts of several searches on two objectives."""

    good: str
    cost: str
    directions: tuple[Direction, Direction]
    """Of the two."""
    trials: Mapping[str, list[Trial]]
    """The complete trials of each search, by what it is called."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """What the networks reach that the searches started from, by name; nothing but accuracies."""
    exported: Mapping[str, list[Trial]] = field(default_factory=dict)
    """Trials on fronts that were exported, by the forms."""
    subject: str = ""
    """The network and the data of all searches, if they are the same."""
    rows: str | None = None
    """The loader that all searches measured on, if it is the same."""

    def points(self, name: str) -> list[Point]:
        """The front of a search, turned so that less is better."""
        return front_of([self._point(trial) for trial in self.trials[name]])

    def _point(self, trial: Trial) -> Point:
        return less_is_better(self._objectives(trial), self.directions)

    def _objectives(self, trial: Trial) -> tuple[float, float]:
        return trial.metrics[self.good], trial.metrics[self.cost]

    def shares(self) -> dict[str, float]:
        """The hypervolume of each front as a part of that of all of them together."""
        fronts = {name: self.points(name) for name in self.trials}
        everything = [self._point(trial) for each in self.trials.values() for trial in each]
        reference = worst_of(everything)
        whole = hypervolume(front_of(everything), reference)
        return {name: hypervolume(front, reference) / whole for name, front in fronts.items()}

    def best(self, name: str) -> tuple[float, float]:
        """The best of each objective that a search has reached."""
        signs = [-1.0 if each == "maximize" else 1.0 for each in self.directions]
        columns = zip(*self.points(name), strict=True)
        good, cost = (sign * min(column) for sign, column in zip(signs, columns, strict=True))
        return good, cost

    def chart(self) -> LineChart:
        """The front of each search as a line through its points, exported ones as stars."""
        good, cost = (-1.0 if each == "maximize" else 1.0 for each in self.directions)
        series = {
            name: sorted((cost * y, good * x) for x, y in self.points(name)) for name in self.trials
        }
        costs = [x for points in series.values() for x, _ in points]
        is_wide = min(costs) > 0 and max(costs) > LOGARITHMIC_FROM * min(costs)
        marks: dict[str, Mark] = dict.fromkeys(series, "o-")
        for forms, trials in self.exported.items():
            measured = (self._objectives(trial) for trial in trials)
            series[forms] = sorted((cost_of, good_of) for good_of, cost_of in measured)
            marks[forms] = "*"
        return LineChart(
            f"Fronts of the searches{self.subject and f': {self.subject}'}",
            _axis_name(self.cost), _axis_name(self.good, self.rows), series, marks=marks,
            logarithmic="x" if is_wide else "", named_levels=self.baselines,
            is_legend_above=len(series) <= FEW_NAMES,
        )  # fmt: skip


def _axis_name(metric: str, rows: str | None = None) -> str:
    """Return the name of an axis: a score with its rows, a cost with its unit."""
    if metric in SCORES and rows in ROWS:
        return f"{metric} on {ROWS[rows]} rows"
    unit = METRICS.get(metric, MetricInfo(metric)).unit
    return f"{metric}, {unit}" if unit else metric


def read_fronts(folders: Mapping[str, Path]) -> Fronts | None:
    """The fronts of searches by their names; None unless two have two objectives in common."""
    searches = {name: SearchResult.load(folder) for name, folder in folders.items()}
    for first in searches.values():
        wanted = _objectives(first)
        alike = [name for name, each in searches.items() if _objectives(each) == wanted]
        trials = {name: _comparable_trials(searches[name], list(wanted)) for name in alike}
        found = {name: searches[name] for name in alike if trials[name]}
        if len(wanted) == 2 and len(found) > 1:
            (good, one), (cost, other) = wanted.items()
            names = _names(found)
            return Fronts(
                good, cost, (one, other), {names[name]: trials[name] for name in found},
                _baselines({names[name]: each for name, each in found.items()}, good),
                _trials_by_form({folders[name]: each for name, each in found.items()}, wanted),
                _subject([folders[name] for name in found]),
                _common([each.problem.rows for each in found.values()]),
            )  # fmt: skip
    return None


def _common(rows: list[str | None]) -> str | None:
    """Return the loader that all searches measured on, if it is one."""
    return rows[0] if len(set(rows)) == 1 else None


def _names(searches: Mapping[str, SearchResult]) -> dict[str, str]:
    """Return names of searches: by their samplers; where those are the same, by folders, too."""
    samplers = {name: each.problem.sampler or "search" for name, each in searches.items()}
    often = Counter(samplers.values())
    return {
        name: sampler if often[sampler] == 1 else f"{sampler} ({name})"
        for name, sampler in samplers.items()
    }


def _baselines(searches: Mapping[str, SearchResult], good: str) -> dict[str, float]:
    """The scores of the networks that searches started from; of one network, one."""
    starts = {
        name: (each.start.name, each.start.chosen_by.value)
        for name, each in searches.items()
        if each.start is not None and each.start.chosen_by is not None
        if each.start.chosen_by.metric == good
    }
    is_same = len(set(starts.values())) == 1
    return {
        f"{network}{'' if is_same else f' of {name}'}, {significant(value)}": value
        for name, (network, value) in starts.items()
    }


def _trials_by_form(
    searches: Mapping[Path, SearchResult], wanted: Mapping[str, Direction]
) -> dict[str, list[Trial]]:
    """The trials of fronts that were exported, by the forms; `wanted` are the objectives."""
    found: dict[str, list[Trial]] = {}
    for folder, search in searches.items():
        forms = _forms(folder)
        for place, trial in enumerate(search.best):
            graph = snapshot_name(trial.config) or ""
            made = sorted({*forms.get(graph, ()), *forms.get(BEST_SETTINGS.format(place), ())})
            if made and wanted.keys() <= trial.metrics.keys():
                found.setdefault(f"exported: {', '.join(made)}", []).append(trial)
    return found


def _forms(folder: Path) -> dict[str, list[str]]:
    """The forms of the exports in the folder of a search, by what they were made of."""
    found: dict[str, list[str]] = {}
    for path in folder.glob(f"{EXPORT.format('*')}/{MANIFEST}"):
        export = read_stored(ExportSource, path, f"{folder.name}/{path.parent.name}/{path.name}")
        found.setdefault(Path(export.source).name, []).append(export.form)
    return found


def _objectives(search: SearchResult) -> dict[str, Direction]:
    """The metrics that a search had for objectives, and their directions."""
    names, directions = search.problem.objectives, search.problem.directions
    return dict(zip(names, directions, strict=True)) if set(names) <= {*_metrics(search)} else {}


def _metrics(search: SearchResult) -> Sequence[str]:
    return list(search.problem.metrics)


def _comparable_trials(search: SearchResult, names: Sequence[str]) -> list[Trial]:
    """The complete trials within bounds that have all of these metrics."""
    return [
        trial
        for trial in search.complete
        if search.problem.allows(trial) and all(name in trial.metrics for name in names)
    ]


def _subject(folders: Sequence[Path]) -> str:
    """The network and the data that all searches were about, as far as their records tell."""
    records = [folder / RUN_RECORD.format("search") for folder in folders]
    if not all(path.is_file() for path in records):
        return ""
    read = [read_stored(RunRecord, path) for path in records]
    found = {f"{record.setting('model')} on {record.setting('dataset')}" for record in read}
    return found.pop() if len(found) == 1 else ""
