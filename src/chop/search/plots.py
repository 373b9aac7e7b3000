"""Pictures of a search: the front, the metrics, what mattered, and how fast it got there."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import optuna
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial

from chop.files import replacing
from chop.search.hypervolume import (
    hypervolume_history,
    is_feasible,
    losses_of,
    worst_of,
)
from chop.search.importance import Effects, variance_shares
from chop.search.results import best_of

MOST_BARS = 20


def draw_plots(
    folder: Path, study: optuna.Study, trials: Sequence[FrozenTrial], metrics: Sequence[str]
) -> list[Path]:
    """Draw what the trials allow; the files that were written."""
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    if not complete:
        return []
    figures = {
        "front": _front(study, complete, metrics),
        "metrics": _metrics(complete, metrics),
        "hypervolume": _hypervolume(study, complete),
        "importance": _importance(study, complete, metrics),
    }
    return [_save(folder / f"{name}.png", figure) for name, figure in figures.items() if figure]


def measured(trial: FrozenTrial, metric: str) -> float:
    """A metric of a trial as it was measured, before scaling."""
    both = trial.user_attrs["software_metrics"] | trial.user_attrs["hardware_metrics"]
    return float(both[metric])


def _front(
    study: optuna.Study, trials: Sequence[FrozenTrial], metrics: Sequence[str]
) -> Figure | None:
    """Each pair of metrics: what is on the front, what is dominated, what is out of bounds."""
    pairs = list(combinations(metrics, 2))
    if not pairs:
        return None
    best = {trial.number for trial in best_of(study, trials)}
    groups = {
        "out of bounds": [t for t in trials if not is_feasible(t)],
        "dominated": [t for t in trials if is_feasible(t) and t.number not in best],
        "front": [t for t in trials if t.number in best],
    }
    figure, axes = _panels(len(pairs))
    for panel, (x, y) in zip(axes, pairs, strict=True):
        for (label, group), style in zip(groups.items(), ("x", ".", "o"), strict=True):
            points = sorted((measured(t, x), measured(t, y)) for t in group)
            line = "-" if label == "front" and len(metrics) == 2 else ""
            if points:
                panel.plot(*zip(*points, strict=True), style + line, label=label)
        panel.set(xlabel=x, ylabel=y)
        panel.legend()
    return figure


def _metrics(trials: Sequence[FrozenTrial], metrics: Sequence[str]) -> Figure:
    """Each metric against the number of the trial."""
    figure, axes = _panels(len(metrics))
    for panel, metric in zip(axes, metrics, strict=True):
        panel.plot([t.number for t in trials], [measured(t, metric) for t in trials], ".")
        panel.set(xlabel="trial", ylabel=metric)
    return figure


def _hypervolume(study: optuna.Study, trials: Sequence[FrozenTrial]) -> Figure | None:
    feasible = [trial for trial in trials if is_feasible(trial)]
    if not feasible:
        return None
    points = [losses_of(study, trial) for trial in feasible]
    history = hypervolume_history(points, worst_of(points))
    figure, (panel,) = _panels(1)
    panel.step(range(1, len(history) + 1), history, where="post")
    panel.set(xlabel="distinct configurations", ylabel="hypervolume")
    return figure


def _importance(
    study: optuna.Study, trials: Sequence[FrozenTrial], metrics: Sequence[str]
) -> Figure | None:
    """How much each choice matters for each objective, where there are enough trials to tell."""
    objectives = list(metrics) if len(study.directions) > 1 else ["sum of scaled metrics"]
    losses = [losses_of(study, trial) for trial in trials]
    chosen = [trial.params for trial in trials]
    names = dict.fromkeys(name for params in chosen for name in params)
    effects = Effects(
        {name: [str(each[name]) if name in each else None for each in chosen] for name in names}
    )
    found = [variance_shares(effects, column) for column in zip(*losses, strict=True)]
    if len(effects.names) < 2 or not any(found):  # the only choice there is matters most
        return None
    figure, axes = _panels(len(objectives))
    for panel, name, shares in zip(axes, objectives, found, strict=True):
        shown = list(shares.items())[:MOST_BARS][::-1]
        panel.barh([key.replace("/config/", " ") for key, _ in shown], [v for _, v in shown])
        panel.set(xlabel=f"share of the variance of {name}")
    return figure


def _panels(count: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(6.4 * count, 4.8), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _save(path: Path, figure: Figure) -> Path:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return path
