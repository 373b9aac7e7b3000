"""Searches: the front to explore, how it was reached, and what its configurations change."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.report.html import (
    Markup,
    Section,
    Tile,
    bar_chart,
    counted,
    escaped,
    joined,
    line_chart,
    number,
    table,
    tag,
    without_halves,
)
from chop.report.read.search import (
    FRONT,
    OUT,
    Importances,
    Search,
    hypervolumes,
    importances,
    read_search,
    template,
)
from chop.report.sections.exports import (
    CIRCUIT_HEADERS,
    StoredCircuit,
    circuit_cells,
    circuits_of_front,
)
from chop.report.sections.graph import bit_colour
from chop.runs import BEST_SETTINGS, SNAPSHOT_GRAPH
from chop.search.metrics import METRICS, MetricInfo
from chop.search.results.accuracy import SCORES, UNKNOWN, Accuracies, Start
from chop.search.results.front import hypervolume_chart, importance_charts
from chop.search.results.verification import Verified
from chop.search.study.trial import Trial

NO_UNIT = MetricInfo("")
NOT_CHOSEN_BY = tag("small", "95 % sure; not chosen by")

MOST_POINTS, MOST_COLUMNS, MOST_FAILURES = 3000, 24, 10
MOST_CHOICES = 250_000  # of all configurations that are drawn
MOST_FILES = 400_000  # characters of configurations that go into the page as they are
HINT = (
    "Point at or focus a configuration to see it; click it or press Enter to copy its TOML. "
    "← and → go through all configurations, ↑ and ↓ through the front. Filled: on the front; "
    "hollow: dominated; crosses: out of bounds."
)


def search_section(folder: Path, name: str, place: int) -> Section | None:
    """The section of one search, if it has trials; `name` tells it from others."""
    search = read_search(folder)
    if not search.trials:
        return None
    anchor = f"search-{place}"
    sampler = search.problem.sampler
    title = f"Search with {sampler}" if sampler else "Search"
    parts = [
        tag("p", summary(search)),
        scatter(search, anchor) if search.complete else None,
        front_table(search, circuits_of_front(folder)),
        charts(search),
        changes(search.best) if search.is_by_layer else None,
        failures(search),
    ]
    title += f" ({name})" if name else ""
    return Section(anchor, title, joined(parts), tiles(search, name and (sampler or name)))


def tiles(search: Search, name: str) -> tuple[Tile, ...]:
    """What a reader sees first: the best network of the front beside the float one."""
    which = f", {name}" if name else ""
    tried = f"of {counted(len(search.trials), 'configuration')} tried"
    found = [Tile(f"On the front{which}", number(len(search.front)), tried)]
    if search.start is not None and search.start.chosen_by is not None:
        detail = "before the search" + _on_test_rows(search.start)
        label = f"{name_of_start(search.start).capitalize()}{which}"
        found.insert(0, Tile(label, str(search.start.chosen_by), detail))
    if search.front and (known := search.judged.get(search.front[0])) and known.chosen_by:
        trial = next(each for each in search.best if each.number == search.front[0])
        costs = [name for name in search.problem.metrics if name not in SCORES]
        cost = "".join(f", {number(trial.metrics.get(name))} {name}" for name in costs[:1])
        detail = f"best_0{cost}{_on_test_rows(known)}"
        found.insert(0, Tile(f"Best of the front{which}", str(known.chosen_by), detail))
    return tuple(found)


def name_of_start(start: Start) -> str:
    """What the network is called that a search started from."""
    return "float network" if start.is_float else "network at the start"


def _on_test_rows(known: Accuracies) -> str:
    return f"; {known.test} on test rows" if known.test is not None else ""


def summary(search: Search) -> str:
    """What was tried, in a sentence."""
    size, repeats = search.problem.space_size, search.problem.repeats
    failed = len(search.trials) - len(search.complete)
    out = sum(search.group(trial) == OUT for trial in search.complete)
    words = [
        counted(len(search.trials), "distinct configuration")
        + (f" of {number(size)}" if size is not None else "")
        + f" evaluated: {number(len(search.front))} on the front",
        f"{number(out)} out of bounds" if out else None,
        f"{number(failed)} failed",
        f"{counted(repeats, 'repeated proposal')} not evaluated again" if repeats else None,
    ]
    return ", ".join(word for word in words if word) + "."


def scatter(search: Search, anchor: str) -> Markup:
    """The plot that the page's script draws, with its data."""
    metrics = metric_names(search)
    chosen = [name for name in search.problem.metrics if name in metrics] or metrics
    x, y = (chosen[1], chosen[0]) if len(chosen) > 1 else (metrics[-1], metrics[0])
    data = plot_data(search, metrics)
    select = []
    for axis, at in (("x", x), ("y", y)):
        options = (
            tag("option", name, value=place, selected="" if name == at else None)
            for place, name in enumerate(metrics)
        )
        choice = tag("select", *options, class_=f"axis-{axis}")
        select.append(tag("label", f"{axis} axis ", choice))
    shown = len(data["trials"])
    note = f" {number(shown)} of {number(len(search.complete))} are drawn."
    return tag(
        "div",
        tag("p", *select, class_="control"),
        tag(
            "div",
            tag("div", class_="plot"),
            tag("div", tag("p", "No configuration is chosen."), class_="detail", tabindex=0),
            class_="plot-and-detail",
        ),
        tag("p", HINT + (note if shown < len(search.complete) else ""), class_="quiet"),
        tag("p", class_="status", role="status"),
        json_block(data, f"{anchor}-data"),
        class_="scatter",
        data_source=f"{anchor}-data",
    )


def metric_names(search: Search) -> list[str]:
    """Everything that was measured."""
    return list(dict.fromkeys(name for trial in search.complete for name in trial.metrics))


def plot_data(search: Search, metrics: Sequence[str]) -> dict[str, Any]:
    """What the script needs: numbers, and choices as places in lists of options, which is small."""
    trials = thinned(search)
    keys = list(dict.fromkeys(key for trial in trials for key in trial.config))
    options = [
        list(dict.fromkeys(_json(t.config[key]) for t in trials if key in t.config)) for key in keys
    ]
    form = template(search)
    rules = search.problem.metrics
    files = search.files if sum(map(len, search.files.values())) <= MOST_FILES else {}
    return {
        "metrics": [
            {"name": name, "unit": METRICS.get(name, NO_UNIT).unit,
             "direction": rules[name].direction if name in rules else ""}
            for name in metrics
        ],
        "keys": [[form.names.get(part, part) for part in key] for key in keys],
        "options": [[json.loads(option) for option in each] for each in options],
        "head": form.head,
        "prefix": form.prefix,
        "first": 'by = "name"' if form.prefix else "",
        "trials": [
            {
                "n": trial.number,
                "g": search.group(trial),
                "m": [trial.metrics.get(name) for name in metrics],
                "c": [
                    each.index(_json(trial.config[key])) if key in trial.config else -1
                    for key, each in zip(keys, options, strict=True)
                ],
                **({"toml": files[trial.number]} if trial.number in files else {}),
            }
            for trial in trials
        ],
    }  # fmt: skip


def _json(value: Any) -> str:
    return json.dumps(value, default=str)


def thinned(search: Search) -> list[Trial]:
    """All of the front, and evenly chosen others if there are more than can be drawn."""
    best = [t for t in search.complete if search.group(t) == FRONT]
    others = [t for t in search.complete if search.group(t) != FRONT]
    choices = max((len(trial.config) for trial in search.complete), default=1) or 1
    room = max(1, min(MOST_POINTS, MOST_CHOICES // choices) - len(best))
    every = -(-len(others) // room) if len(others) > room else 1
    return [*best, *others[::every]]


def json_block(data: Any, anchor: str) -> Markup:
    """Data inside the page; a ``<`` in it cannot end the block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    safe = Markup(
        without_halves(text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )
    return tag("script", safe, type="application/json", id=anchor)


def front_table(search: Search, circuits: Mapping[str, StoredCircuit]) -> Markup | None:
    """The best configurations by their numbers; `circuits` are those of saved graphs."""
    if not search.best:
        return None
    metrics = metric_names(search)
    units = [
        tag("small", unit) if (unit := METRICS.get(name, NO_UNIT).unit) else None
        for name in metrics
    ]
    named = [joined([name, unit]) for name, unit in zip(metrics, units, strict=True)]
    marks = search.verified
    made = {
        trial.number: circuit_cells(circuits[graph])
        for trial in search.best
        if (graph := SNAPSHOT_GRAPH.format(trial.config.get(("epoch",)))) in circuits
    }
    nothing = ("",) * len(CIRCUIT_HEADERS)
    tested = {each.test.metric for each in search.judged.values() if each.test}
    rows = [
        (BEST_SETTINGS.format(place) if trial.number in search.files else "", str(trial.number),
         *(_measured(name, trial.metrics.get(name), known) for name in metrics),
         *([str(known.test or "")] if tested else []),
         *([str(marks.get(trial.number, "no"))] if marks else []),
         *(made.get(trial.number, nothing) if made else ()))
        for trial in search.best
        for place in [search.front.index(trial.number)]
        for known in [search.judged.get(trial.number, UNKNOWN)]
    ]  # fmt: skip
    headers = [
        "File",
        "Trial",
        *named,
        *(joined([f"test {name}", NOT_CHOSEN_BY]) for name in tested),
    ]
    headers += [*(["Verified in integers"] if marks else []), *(CIRCUIT_HEADERS if made else ())]
    if search.start is not None:
        start = [
            name_of_start(search.start),
            "",
            *(_measured(name, None, search.start) for name in metrics),
        ]
        start += [str(search.start.test or "")] if tested else []
        rows.insert(0, (*start, *[""] * (len(headers) - len(start))))
    shown = [tag("h3", "The front"), table(headers, rows, "The front"), unverified(marks)]
    return joined(shown)


def _measured(name: str, value: float | None, known: Accuracies) -> str:
    """A metric; what decides with the interval that is 95 % sure."""
    if known.chosen_by is not None and known.chosen_by.metric == name:
        return str(known.chosen_by)
    return "" if value is None else number(value)


def unverified(marks: Mapping[int, Verified]) -> Markup | None:
    """Why trials were not compared with their integers, or are not what those are."""
    reasons = Counter(mark.reason for mark in marks.values() if mark.reason)
    words = [f"{counted(some, 'trial')}: {why}" for why, some in reasons.most_common(MOST_FAILURES)]
    return tag("p", f"Not verified: {'; '.join(words)}.", class_="quiet") if words else None


def charts(search: Search) -> Markup:
    """How fast the front was reached, and what mattered."""
    volumes, mattered = hypervolumes(search), importances(search)
    drawn = [line_chart(hypervolume_chart(volumes))] if len(volumes) > 1 else []
    drawn += map(bar_chart, importance_charts(mattered.shares if mattered else {}))
    note = tag("p", meaning(mattered), class_="quiet") if mattered else None
    return joined([tag("div", *drawn, class_="charts"), note])


def meaning(mattered: Importances) -> str:
    """What the shares are, or why there are none."""
    if mattered.trials < mattered.trials_needed:
        return (
            f"What matters is not shown: {number(mattered.trials_needed)} complete trials are "
            f"needed to tell these choices apart, and there are {number(mattered.trials)}."
        )
    return (
        f"What matters: the share of the variance between {number(mattered.trials)} trials that "
        "only this choice explains. The rest is interaction of choices and noise."
    )


def changes(best: Sequence[Trial]) -> Markup | None:
    """What each configuration of the front does to each layer, side by side."""
    shown = best[:MOST_COLUMNS]
    layers = layer_settings(shown)
    rows = [
        [tag("th", layer, scope="row"), *(_cell(each.get(trial.number)) for trial in shown)]
        for layer, each in layers.items()
    ]
    if not rows:
        return None
    headers = ("Layer", *(f"trial {trial.number}" for trial in shown))
    left = len(best) - len(shown)
    return joined(
        [
            tag("h3", "What each configuration of the front changes"),
            table(headers, rows, "Changes layer by layer", text_columns=len(headers)),
            tag("p", f"{counted(left, 'further configuration')} not shown.") if left else None,
        ]
    )


def layer_settings(trials: Sequence[Trial]) -> dict[str, dict[int, dict[str, Any]]]:
    """The settings of each layer in each trial; layers that are never changed are left out."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for trial in trials:
        for key, value in trial.config.items():
            layer = key[0] if len(key) > 1 else key[-1]
            settings = found.setdefault(layer, {}).setdefault(trial.number, {})
            settings[key[-1]] = value
    return {
        layer: each
        for layer, each in found.items()
        if any(value is not None for settings in each.values() for value in settings.values())
    }


def _cell(settings: Mapping[str, Any] | None) -> Markup:
    """The settings of a layer in a few words, coloured by the width of its weight."""
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    if not given:
        return tag("td", "float" if "name" in (settings or {}) else "none", class_="quiet")
    name = given.pop("name", None)
    lines = [f"{key.removesuffix('_width')} {value}" for key, value in given.items()]
    width = given.get("weight_width", given.get("data_in_width"))
    colour = bit_colour(width) if isinstance(width, int | float) else 0.0
    words = [tag("strong", name) if name is not None else None, *map(escaped, lines)]
    broken = [joined([Markup("<br>") if place else None, word]) for place, word in
              enumerate(word for word in words if word is not None)]  # fmt: skip
    return tag("td", *broken, class_="heat change", style=f"--t:{colour:.0f}%")


def failures(search: Search) -> Markup | None:
    """The trials that failed, with their reasons."""
    failed = [trial for trial in search.trials if not trial.is_complete]
    if not failed:
        return None
    rows = [(str(t.number), t.reason or "no reason is stored") for t in failed[:MOST_FAILURES]]
    left = len(failed) - len(rows)
    return joined(
        [
            tag("h3", "Failed"),
            table(("Trial", "Reason"), rows, "Failed trials", text_columns=2),
            tag("p", f"{left} more failed.") if left else None,
        ]
    )
