"""Charts of trials: how fast the front was reached, and which choices mattered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from chop.charts import Band, BarChart, Chart, LineChart, Mark, Points, write_png
from chop.results.front import DOMINATED, FRONT, OUT, SearchResult
from chop.runs import config_entry
from chop.search.front.hypervolume import hypervolume_history, worst_of
from chop.search.front.importance import Effects, variance_shares
from chop.search.front.spread import spread_of
from chop.search.study.trial import Point, Trial

MOST_BARS = 20
LOGARITHMIC_FROM = 10.0
"""The largest cost over the smallest from which on its axis is logarithmic."""


def hypervolumes(result: SearchResult) -> list[float]:
    """Return the hypervolume after each configuration within bounds, if directions are known."""
    directions = result.problem.directions
    inside = [trial for trial in _with_objectives(result) if result.is_inside(trial)]
    points = [trial.losses(directions) for trial in inside]
    return hypervolume_history(points, worst_of(points)) if points else []


def _with_objectives(result: SearchResult) -> list[Trial]:
    count = len(result.problem.directions)
    return [trial for trial in result.complete if count and len(trial.values or ()) == count]


def hypervolume_chart(history: Sequence[float]) -> LineChart:
    """Return the chart of the hypervolume after each configuration that is within bounds."""
    points = {"hypervolume": [(float(n), volume) for n, volume in enumerate(history, 1)]}
    title, x = "Hypervolume, a product of objectives", "distinct configurations"
    return LineChart(title, x, "hypervolume", points, steps=True)


@dataclass(frozen=True)
class Importances:
    """The importance of choices, and the trials it takes to tell."""

    shares: dict[str, dict[str, float]]
    """The share of the variance of each objective that each choice explains, the largest first."""
    trials: int
    trials_needed: int
    choices: int
    """How many choices there are that can be told apart."""


def importances(result: SearchResult) -> Importances | None:
    """Return how much each choice matters; None if nothing was chosen."""
    trials = _with_objectives(result)
    chosen = [choices_of(trial) for trial in trials]
    varied = varied_choices(chosen)
    if not varied:
        return None
    effects = Effects(
        {name: [str(each[name]) if name in each else None for each in chosen] for name in varied}
    )
    losses = zip(*(trial.losses(result.problem.directions) for trial in trials), strict=True)
    shares = zip(result.problem.objectives, losses, strict=True)
    found = {name: variance_shares(effects, column) for name, column in shares}
    return Importances(found, len(trials), effects.trials_needed, len(effects.names))


def choices_of(trial: Trial) -> Mapping[str, Any]:
    """Return the options that a trial took, by choices in words: the table ``config`` says nothing.

    A trial that was read from a file has them only in its configuration.
    """
    if trial.params:
        return {name.replace("/config/", " "): each for name, each in trial.params.items()}
    return {
        " ".join(part for part in key if part != "config"): each
        for key, each in trial.config.items()
    }


def varied_choices(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the choices that were not the same in all trials that had them."""
    used: dict[str, set[str]] = {}
    for each in chosen:
        for name, value in each.items():
            used.setdefault(name, set()).add(str(value))
    return [name for name, values in used.items() if len(values) > 1]


def importance_charts(shares: Mapping[str, Mapping[str, float]]) -> list[BarChart]:
    """Return what matters for each objective, if it is known: the choices that matter most."""
    return [
        BarChart(f"What matters for {name}", "share of the variance", bars, ".3f")
        for name, found in shares.items()
        if any((bars := dict(list(found.items())[:MOST_BARS])).values())
    ]


def spread_charts(result: SearchResult) -> list[LineChart]:
    """Return what the members of a population reach at each cost, in the band of their spread."""
    members: dict[Any, list[Point]] = {}
    for trial in filter(result.is_inside, _with_objectives(result)):
        if (member := config_entry(trial.config, "member")) is not None:
            members.setdefault(member, []).append(trial.losses(result.problem.directions))
    found = spread_of(list(members.values())) if len(result.metrics) == 2 else None
    if found is None:
        return []
    good, cost = (-1.0 if each == "maximize" else 1.0 for each in result.problem.directions)
    together, middle, best, worst = ([(cost * x, good * y) for x, y in line] for line in found)
    name = f"median, best and worst of {len(members)} members"
    series: dict[str, Points] = {name: middle, "all together": together}
    is_wide = 0 < LOGARITHMIC_FROM * together[0][0] < together[-1][0]
    return [
        LineChart("Spread over seeds", result.metrics[1], result.metrics[0], series,
                  {name: Band(best, worst)}, steps=True, logarithmic="x" if is_wide else "",
                  is_legend_above=True)
    ]  # fmt: skip


def draw_front(result: SearchResult, folder: Path) -> list[Path]:
    """Draw what the trials allow; return the files that were written."""
    if not result.complete:
        return []
    history, mattered = hypervolumes(result), importances(result)
    numbers = {name: [(t.number, t.metrics[name]) for t in result.complete]
               for name in result.metrics}  # fmt: skip
    charts: dict[str, Sequence[Chart]] = {
        "front": _front_charts(result),
        "spread": spread_charts(result),
        "metrics": [
            LineChart("", "trial", name, {name: points}, marks={name: "."})
            for name, points in numbers.items()
        ],
        "hypervolume": [hypervolume_chart(history)] if history else [],
        # The only choice there is matters most.
        "importance": importance_charts(mattered.shares)
        if mattered and mattered.choices > 1
        else [],
    }
    return [write_png(folder / f"{name}.png", [row]) for name, row in charts.items() if row]


def _front_charts(result: SearchResult) -> list[LineChart]:
    """Return each pair of metrics: what is on the front, dominated, or out of bounds."""
    groups: dict[str, list[Trial]] = {OUT: [], DOMINATED: [], FRONT: []}
    for trial in result.complete:
        groups[result.group(trial)].append(trial)
    joined: Mark = "o-" if len(result.metrics) == 2 else "o"
    marks: dict[str, Mark] = {OUT: "x", DOMINATED: ".", FRONT: joined}
    charts = []
    for x, y in combinations(result.metrics, 2):
        points = {
            name: sorted((trial.metrics[x], trial.metrics[y]) for trial in group)
            for name, group in groups.items()
            if group
        }
        charts.append(LineChart("", x, y, points, marks=marks))
    return charts
