"""What a search leaves behind: the table of the best, best.json, log.json and a CSV."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from math import isfinite
from pathlib import Path
from sys import intern
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from chop.errors import SearchError
from chop.files import write_pieces, write_text
from chop.runs import BEST, LOG, TRIALS
from chop.search.results.hypervolume import front_of, is_feasible, losses_of
from chop.search.study.store import REASON

DECIMALS = 10
END = object()
"""Stands behind the names in a table."""
MEASURED = ("software_metrics", "hardware_metrics", "scaled_metrics")


def best_of(study: Study, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The best trials: all that no other beats in every objective, within all bounds.

    With one objective it is one trial, the first of equals.
    """
    good = [trial for trial in trials if is_feasible(trial)]
    losses = [losses_of(study, trial) for trial in good]
    if len(study.directions) == 1:
        best = min(zip(losses, good, strict=True), key=lambda e: (e[0], e[1].number), default=None)
        return [best[1]] if best else []
    front = set(front_of(losses))
    return [trial for trial, loss in zip(good, losses, strict=True) if loss in front]


def best_table(best: Sequence[FrozenTrial]) -> str:
    """The table that the labs print, numbers rounded to three places."""
    from tabulate import tabulate

    rows = [
        {"number": trial.number} | {name: _short(trial.user_attrs[name]) for name in MEASURED}
        for trial in best
    ]
    return tabulate(
        [[index, *row.values()] for index, row in enumerate(rows)],
        ["", "number", *MEASURED],
        tablefmt="orgtbl",
    )


def _short(metrics: Mapping[str, float]) -> str:
    return str({name: round(value, 3) for name, value in metrics.items()})


def best_json(best: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The best trials by their place, with the fields and the nesting of the labs."""
    return {
        str(place): {
            "number": trial.number,
            "value": list(trial.values) if len(trial.values) > 1 else trial.values[0],
            **{name: trial.user_attrs[name] for name in MEASURED},
            "sampled_config": trial.user_attrs["sampled_config"],
        }
        for place, trial in enumerate(best)
    }


def log_json(trials: Sequence[FrozenTrial], objectives: int) -> dict[str, Any]:
    """All trials by their place, with the columns that the original logs."""
    return {str(place): _log_row(trial, objectives) for place, trial in enumerate(trials)}


def _log_row(trial: FrozenTrial, objectives: int) -> dict[str, Any]:
    names = ["value"] if objectives == 1 else [f"values_{i}" for i in range(objectives)]
    values = trial.values or [None] * objectives
    begun, ended = _milliseconds(trial.datetime_start), _milliseconds(trial.datetime_complete)
    row: dict[str, Any] = {"number": trial.number} | dict(zip(names, values, strict=True))
    for name in ("hardware_metrics", "sampled_config", "scaled_metrics", "software_metrics"):
        row[f"user_attrs_{name}"] = trial.user_attrs.get(name)
    if REASON in trial.user_attrs:
        row[f"user_attrs_{REASON}"] = trial.user_attrs[REASON]
    return row | {
        "state": trial.state.name,
        "datetime_start": begun,
        "datetime_complete": ended,
        # A clock that was set back must not make a trial take less than no time.
        "duration": None if begun is None or ended is None else max(ended - begun, 0),
    }


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def as_json(value: Any) -> str:
    """JSON as pandas writes it: four spaces, no space after a colon, ten decimals."""
    return _json(value, "\n") + "\n"


def json_pieces(table: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """The same text row by row: of many trials it is larger than they are.

    What depends on names alone is made once for all rows that have the same.
    """
    begin, line = "{", "\n    "
    for key, row in table.items():
        shape: list[Any] = []
        texts: list[str] = []
        _take_apart(row, line, shape, texts)
        yield f"{begin}{line}{_key(key)}:{_template(tuple(shape)) % tuple(texts)}"
        begin = ","
    yield "\n}\n" if table else "{}\n"


def _take_apart(table: dict[Any, Any], line: str, shape: list[Any], texts: list[str]) -> None:
    """Add the names in a table to `shape`, those of tables as tuples, and the texts of the rest."""
    inner = line + "    "
    for key, item in table.items():
        if isinstance(item, dict):
            shape.append((key,))
            _take_apart(item, inner, shape, texts)
            shape.append(END)
        else:
            shape.append(key)
            texts.append(repr(item) if type(item) is int else _json(item, inner))


@lru_cache(maxsize=100)
def _template(shape: tuple[Any, ...]) -> str:
    return _template_of_table(iter(shape), "\n    ")


def _template_of_table(names: Iterator[Any], line: str) -> str:
    inner = line + "    "
    items = []
    for name in iter(lambda: next(names, END), END):
        if isinstance(name, tuple):
            items.append(f"{_name(name[0])}:{_template_of_table(names, inner)}")
        else:
            items.append(f"{_name(name)}:%s")
    return f"{{{inner}{f',{inner}'.join(items)}{line}}}" if items else "{}"


def _name(key: Any) -> str:
    return _key(key).replace("%", "%%")


def _json(value: Any, line: str) -> str:
    """A value; `line` is a new line with the indentation of what the value is in."""
    if isinstance(value, float) and isfinite(value):
        return repr(round(value, DECIMALS))
    if not isinstance(value, dict | list | tuple):
        return _text(value)
    if not value:
        return json.dumps(value)
    inner = line + "    "
    if isinstance(value, dict):
        items = [f"{_key(key)}:{_json(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{line}}}"
    return f"[{inner}{f',{inner}'.join([_json(item, inner) for item in value])}{line}]"


_text = lru_cache(maxsize=10_000, typed=True)(json.dumps)
"""Names and options, most of which come again."""


def _key(key: Any) -> str:
    return _text(key if isinstance(key, str) else _text(key))


def table_csv(trials: Sequence[FrozenTrial]) -> str:
    """All trials as a table: state, reason, time, exact metrics and every choice."""
    return as_csv(map(_csv_row, trials))


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV, with the columns that any of them has."""
    shapes: dict[tuple[str, ...], tuple[str, ...]] = {}  # names, which many rows have in common
    found = []
    for row in rows:
        names = tuple(row)
        found.append((shapes.setdefault(names, names), [*row.values()]))
    columns = tuple(dict.fromkeys(name for names in shapes for name in names))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for names, values in found:
        if names != columns:
            cells = dict(zip(names, values, strict=True))
            values = [cells.get(name) for name in columns]
        writer.writerow(values)
    return stream.getvalue()


def _csv_row(trial: FrozenTrial) -> dict[str, Any]:
    row: dict[str, Any] = {
        "number": trial.number,
        "state": trial.state.name,
        "reason": trial.user_attrs.get(REASON, ""),
        "seconds": max(trial.duration.total_seconds(), 0.0) if trial.duration else "",
    }
    for group in ("software_metrics", "hardware_metrics"):
        row |= trial.user_attrs.get(group, {})
    row |= {f"scaled_{name}": v for name, v in trial.user_attrs.get("scaled_metrics", {}).items()}
    return row | flattened(trial.user_attrs["sampled_config"])


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, keys joined by ``/``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= flattened(value, f"{prefix}{key}/")
        else:
            found[intern(f"{prefix}{key}")] = "NA" if value is None else value
    return found


def require_whole(study: Study, trials: Sequence[FrozenTrial]) -> None:
    """Raise for a trial that lacks what a search stores with it: part of the study is gone."""
    for trial in trials:
        measured = MEASURED if trial.state == TrialState.COMPLETE else ()
        for name in ("sampled_config", *measured):
            if not isinstance(trial.user_attrs.get(name), Mapping):
                raise SearchError(
                    f"study {study.study_name!r}: trial {trial.number} has no {name}: part of the "
                    "study is missing; put back a copy, or start a new study without --resume"
                )


def write_results(
    folder: Path,
    study: Study,
    trials: Sequence[FrozenTrial],
    features: Mapping[str, Any] | None = None,
) -> list[FrozenTrial]:
    """Write best.json, log.json and trials.csv; the best trials.

    Args:
        features: what was done to the features, stored exactly with each of the best.
    """
    require_whole(study, trials)
    best = best_of(study, trials)
    rounded = json.loads(as_json(best_json(best)))
    points = {place: {**point, **(features or {})} for place, point in rounded.items()}
    write_text(folder / BEST, json.dumps(points, indent=4, separators=(",", ":")) + "\n")
    log = log_json(trials, len(study.directions))
    write_pieces(folder / LOG, json_pieces(log))
    write_text(folder / TRIALS, table_csv(trials))
    return best
