"""Searches: the front to explore, how it was reached, and what its configurations change."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chop.figures import SCORES, number, quantity
from chop.markup import Markup, escape, join_markup, tag, without_halves
from chop.results.exports import circuits_of_front
from chop.results.front import FRONT, OUT, SearchResult
from chop.results.front_charts import (
    Importances,
    hypervolume_chart,
    hypervolumes,
    importance_charts,
    importances,
    spread_charts,
)
from chop.search.front.accuracy import Accuracies
from chop.search.metrics import METRICS
from chop.search.study.trial import Trial
from chop.search.sweeps.hyperparameters import COMMAND_LINE
from chop.tables import ResultTable
from chop.views.section import Section, Tile
from chop.views.sections.front import NO_UNIT, front_table, metrics_in_order
from chop.views.sections.graph import bit_colour
from chop.views.svg import bar_chart, line_chart

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
    search = SearchResult.load(folder)
    if not search.trials:
        return None
    anchor = f"search-{place}"
    sampler = search.problem.sampler
    title = f"Search with {sampler}" if sampler else "Search"
    parts = [
        tag("p", search_summary(search)),
        scatter(search, anchor) if search.complete else None,
        front_table(search, circuits_of_front(folder)),
        search_charts(search),
        changes(search.best) if is_by_layer(search) else None,
        failures(search),
    ]
    title += f" ({name})" if name else ""
    return Section(anchor, title, join_markup(parts), tiles(search, name and (sampler or name)))


def tiles(search: SearchResult, name: str) -> tuple[Tile, ...]:
    """Return the tiles at the top: the best network of the front beside the float one."""
    found = [_front_tile(search, name)]
    if search.start is not None and search.start.chosen_by is not None:
        detail = "before the search" + _on_test_rows(search.start)
        value = str(search.start.chosen_by)
        found.insert(0, Tile(search.start.name.capitalize(), value, detail, name, rank=0))
    trial = next(iter(search.best), None)
    if trial and (known := search.judged.get(trial.number)) and known.chosen_by:
        costs = [each for each in search.problem.metrics if each not in SCORES]
        cost = "".join(f", {number(trial.metrics.get(each))} {each}" for each in costs[:1])
        detail = f"best_0{cost}{_on_test_rows(known)}"
        found.insert(0, Tile("Best of the front", str(known.chosen_by), detail, name, rank=0))
    return tuple(found)


def _front_tile(search: SearchResult, name: str) -> Tile:
    """Return the tile with the size of the front, and how many of it are verified in integers."""
    size = number(len(search.best))
    tried = f"of {quantity(len(search.trials), 'configuration')} tried"
    if not search.verified:
        return Tile("On the front", size, tried, name)
    equal = [mark for mark in search.verified.values() if mark.equal]
    rows = f", on {number(min(mark.rows for mark in equal))} rows each" if equal else ""
    share = f"{number(len(equal))} of {size}"
    detail = f"of the front, bit for bit{rows}; {tried}"
    return Tile("Verified in integers", share, detail, name)


def _on_test_rows(known: Accuracies) -> str:
    return f"; {known.test} on test rows" if known.test is not None else ""


def search_summary(search: SearchResult) -> str:
    """Return a sentence about the trials."""
    size, repeats = search.problem.space_size, search.problem.repeats
    failed = len(search.failures)
    out = sum(search.group(trial) == OUT for trial in search.complete)
    words = [
        quantity(len(search.trials), "distinct configuration")
        + (f" of {number(size)}" if size is not None else "")
        + f" evaluated: {number(len(search.best))} on the front",
        f"{number(out)} out of bounds" if out else None,
        f"{number(failed)} failed",
        f"{quantity(repeats, 'repeated proposal')} not evaluated again" if repeats else None,
        search.problem.savings or None,
    ]
    return ", ".join(word for word in words if word) + "."


def scatter(search: SearchResult, anchor: str) -> Markup:
    """The plot that the page's script draws, with its data."""
    metrics = metrics_in_order(search)
    x, y = (
        (metrics[1], metrics[0]) if len(search.problem.metrics) > 1 else (metrics[-1], metrics[0])
    )
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


def plot_data(search: SearchResult, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the data of the script: numbers, and choices as places in lists of options."""
    trials = thin_out(search)
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
        "baseline": _baseline(search),
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


def is_by_layer(search: SearchResult) -> bool:
    """Return whether configurations have a table for each layer, not only settings."""
    return any(len(key) > 1 for trial in search.trials for key in trial.config)


@dataclass(frozen=True)
class Template:
    """The text around the configuration of a trial that makes it a file that ``ch`` can read."""

    head: str = ""
    """The settings that all files have in common."""
    prefix: tuple[str, ...] = ()
    """The tables that a configuration is inside of."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Settings that have another name on the command line."""


def template(search: SearchResult) -> Template:
    """Return that of the files ``best_<n>.toml``, if there are any that make sense."""
    for text in search.files.values():
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        if not is_by_layer(search):
            chosen = {key[0] for trial in search.trials for key in trial.config}
            found = {COMMAND_LINE.get(name, name) for name in chosen}
            kept = [each for each in text.splitlines() if each.partition(" =")[0] not in found]
            return Template("\n".join(kept).strip(), (), COMMAND_LINE)
        passes = content.get("passes")
        rules = passes.get("quantize") if isinstance(passes, dict) else None
        if isinstance(rules, dict) and rules.get("by") == "name":
            return Template(text.partition("\n[")[0].strip(), ("passes", "quantize"))
    return Template()


def _baseline(search: SearchResult) -> dict[str, Any]:
    """The network that the search started from, as a line across the plot."""
    start = search.start
    if start is None or start.chosen_by is None:
        return {}
    return {
        "name": start.name,
        "metrics": {start.chosen_by.metric: start.chosen_by.value},
    }


def _json(value: Any) -> str:
    return json.dumps(value, default=str)


def thin_out(search: SearchResult) -> list[Trial]:
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


def search_charts(search: SearchResult) -> Markup:
    """Return the charts of the progress and of the importance of choices."""
    volumes, mattered = hypervolumes(search), importances(search)
    lines = [hypervolume_chart(volumes)] if len(volumes) > 1 else []
    drawn = [line_chart(each) for each in (*spread_charts(search), *lines)]
    drawn += map(bar_chart, importance_charts(mattered.shares if mattered else {}))
    note = tag("p", meaning(mattered), class_="quiet") if mattered else None
    return join_markup([tag("div", *drawn, class_="charts"), note])


def meaning(mattered: Importances) -> str:
    """Return the meaning of the shares, or why there are none."""
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
    """Return the choices for each layer of the networks of the front, side by side."""
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
    return join_markup(
        [
            tag("h3", "What each configuration of the front changes"),
            ResultTable(
                headers, rows, "Changes layer by layer", len(headers), is_matrix=True
            ).html(),
            tag("p", f"{quantity(left, 'further configuration')} not shown.") if left else None,
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
    words = [tag("strong", name) if name is not None else None, *map(escape, lines)]
    broken = [join_markup([Markup("<br>") if place else None, word]) for place, word in
              enumerate(word for word in words if word is not None)]  # fmt: skip
    return tag("td", *broken, class_="heat change", style=f"--t:{colour:.0f}%")


def failures(search: SearchResult) -> Markup | None:
    """The trials that failed, with their reasons."""
    failed = search.failures
    if not failed:
        return None
    rows = [(str(t.number), t.reason or "no reason is stored") for t in failed[:MOST_FAILURES]]
    left = len(failed) - len(rows)
    return join_markup(
        [
            tag("h3", "Failed"),
            ResultTable(("Trial", "Reason"), rows, "Failed trials", text_columns=2).html(),
            tag("p", f"{left} more failed.") if left else None,
        ]
    )
