"""What a search says while it runs, and what it leaves: tables, best.json, log.json and a CSV."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice
from math import isfinite
from pathlib import Path
from sys import intern
from typing import Any

from optuna.study import Study

from chop.errors import SearchError
from chop.files import write_pieces, write_text
from chop.logger import get_logger
from chop.runs import BEST, LOG, TRIALS
from chop.search.front.accuracy import Judged, known_accuracies
from chop.search.front.hypervolume import Trials, best_of
from chop.search.front.verification import Marks, known_marks
from chop.search.study.store import Store
from chop.search.study.trial import CONFIG, MEASURED, REASON, Trial, directions_of
from chop.tables import as_csv

NO_MARKS: Marks = {}
NOT_JUDGED: Judged = {}
DECIMALS = 10
END = object()
"""Stands behind the names in a table."""


def best_table(best: Trials, verified: Marks = NO_MARKS) -> str:
    """The table that the labs print, numbers rounded to three places.

    Args:
        verified: whether the integers of a trial were seen to agree, by its number. There is a
            column for it if any of them was compared.
    """
    from tabulate import tabulate

    compared = any(each.equal is not None for each in verified.values())
    rows = [
        [index, trial.number, _short(trial.software), _short(trial.hardware), _short(trial.scaled)]
        + ([str(verified.get(trial.number, "no"))] if compared else [])
        for index, trial in enumerate(map(Trial.of, best))
    ]
    headers = ["", "number", *MEASURED, *(["verified"] if compared else [])]
    return tabulate(rows, headers, tablefmt="orgtbl")


def _short(metrics: Mapping[str, float]) -> str:
    return str({name: round(value, 3) for name, value in metrics.items()})


def best_json(best: Trials) -> dict[str, Any]:
    """The best trials by their place, with the fields and the nesting of the labs."""
    return {str(place): _best_row(trial) for place, trial in enumerate(map(Trial.of, best))}


def _best_row(trial: Trial) -> dict[str, Any]:
    first, *rest = values = list(trial.values or ())
    stored = trial.attributes
    row = {"number": trial.number, "value": values if rest else first}
    return row | {name: stored[name] for name in (*MEASURED, CONFIG)}


def log_json(trials: Trials, objectives: int) -> dict[str, Any]:
    """All trials by their place, with the columns that the original logs."""
    names = ["value"] if objectives == 1 else [f"values_{i}" for i in range(objectives)]
    return {str(place): _log_row(Trial.of(trial), names) for place, trial in enumerate(trials)}


def _log_row(trial: Trial, names: list[str]) -> dict[str, Any]:
    values: Sequence[float | None] = trial.values or [None] * len(names)
    begun, ended = _milliseconds(trial.begun), _milliseconds(trial.ended)
    row: dict[str, Any] = {"number": trial.number} | dict(zip(names, values, strict=True))
    stored = trial.attributes
    for name in sorted(stored):
        row[f"user_attrs_{name}"] = stored[name]
    if trial.reason is not None:
        row[f"user_attrs_{REASON}"] = trial.reason
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


def table_csv(trials: Trials) -> str:
    """All trials as a table: state, reason, time, exact metrics and every choice."""
    return as_csv(_csv_row(Trial.of(trial)) for trial in trials)


def _csv_row(trial: Trial) -> dict[str, Any]:
    row: dict[str, Any] = {
        "number": trial.number,
        "state": trial.state.name,
        "reason": trial.reason or "",
        "seconds": "" if trial.seconds is None else trial.seconds,
    }
    row |= trial.software
    row |= trial.hardware
    row |= {f"scaled_{name}": value for name, value in trial.scaled.items()}
    return row | flattened(trial.config)


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, keys joined by ``/``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= flattened(value, f"{prefix}{key}/")
        else:
            found[intern(f"{prefix}{key}")] = "NA" if value is None else value
    return found


def require_whole(study: Study, trials: Sequence[Trial]) -> None:
    """Raise for a trial that lacks what a search stores with it: part of the study is gone."""
    for trial in trials:
        for name in trial.missing if trial.is_complete else set(trial.missing) - {*MEASURED}:
            raise SearchError(
                f"study {study.study_name!r}: trial {trial.number} has no {name}: part of the "
                "study is missing; put back a copy, or start a new study without --resume"
            )


def write_results(
    folder: Path,
    study: Study,
    trials: Trials,
    features: Mapping[str, Any] | None = None,
) -> list[Trial]:
    """Write best.json, log.json and trials.csv; the best trials.

    Args:
        features: what was done to the features, stored exactly with each of the best.
    """
    found = list(map(Trial.of, trials))
    require_whole(study, found)
    best = best_of(study, found)
    write_best(folder, best, features, known_marks(folder, best), known_accuracies(folder, best))
    log = log_json(found, len(study.directions))
    write_pieces(folder / LOG, json_pieces(log))
    write_text(folder / TRIALS, table_csv(found))
    return best


def write_best(
    folder: Path,
    best: Sequence[Trial],
    features: Mapping[str, Any] | None = None,
    verified: Marks = NO_MARKS,
    judged: Judged = NOT_JUDGED,
) -> None:
    """Write best.json, with what else is known of its trials."""
    rounded = json.loads(as_json(best_json(best)))
    for point in rounded.values():
        point |= features or {}
        for name, known in (("verified", verified), ("accuracies", judged)):
            if point["number"] in known:
                point[name] = known[point["number"]].model_dump()
    write_text(folder / BEST, json.dumps(rounded, indent=4, separators=(",", ":")) + "\n")


logger = get_logger("chop")

BAR = 12  # characters
REFRESH = 0.25  # seconds
LINES_EVERY = 10.0


class Lines:
    """A line of text every few seconds."""

    every = LINES_EVERY

    def __init__(self, total: int, metrics: list[str]) -> None:
        self.total = total
        self.metrics = metrics
        self._begun = self._last = time.monotonic()
        self._done_before: int | None = None
        self._seen: Store | None = None
        self._best: list[Trial] = []
        self._looked_at = 0

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __call__(self, store: Store) -> None:
        """Show the state of the study, unless that was done just now."""
        now = time.monotonic()
        self._seen = store
        if self._done_before is None:
            self._done_before = len(store.done)
        if now - self._last >= self.every:
            self._last = now
            self.show(store, self._left(len(store.done), now))

    def show(self, store: Store, left: str) -> None:
        logger.info(
            "%d/%d configurations, %s left, %s",
            len(store.done), self.total, left, self.best(store),
        )  # fmt: skip

    def _left(self, done: int, now: float) -> str:
        fresh = done - (self._done_before or 0)
        if fresh <= 0:
            return "?"
        seconds = (now - self._begun) / fresh * (self.total - done)
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

    def best(self, store: Store) -> str:
        """The best so far in a few words: the value, or the ends of the front."""
        news = islice(store.done.values(), self._looked_at, None)
        best = self._best = best_of(store.study, [*self._best, *news])
        self._looked_at = len(store.done)
        if not best:
            return "nothing within bounds yet"
        directions = directions_of(store.study)
        if len(directions) == 1:
            return f"best {(best[0].values or [0])[0]:.4g} (trial {best[0].number})"
        points = [(trial.losses(directions), trial.metrics) for trial in best]
        ends = [min(points, key=lambda each: each[0][place]) for place in range(len(directions))]
        shown = ", ".join(
            f"{name} {measured[name]:.4g}"
            for name, (_, measured) in zip(self.metrics, ends, strict=True)
        )
        return f"front of {len(best)}: best {shown}"


class Bar(Lines):
    """A bar that is drawn a few times a second."""

    every = REFRESH

    def __init__(self, total: int, metrics: list[str]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        super().__init__(total, metrics)
        self._bar = Progress(
            TextColumn("Searching"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
        )
        self._taken = len("Searching") + BAR + 2 * len(str(total)) + len(" / ") + len("   ")
        self._task = self._bar.add_task("search", total=total, facts="")

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._seen is not None:  # the last of it came after the bar was last drawn
            self.show(self._seen, self._left(len(self._seen.done), time.monotonic()))
        self._bar.stop()

    def show(self, store: Store, left: str) -> None:
        done: Any = len(store.done)
        room = self._bar.console.width - self._taken
        facts = fitting([f"{left} left", *self.best(store).split(", ")], room)
        self._bar.update(self._task, completed=done, facts=facts)


def fitting(facts: Sequence[str], room: int) -> str:
    """As many of the facts as fit into so many characters, from the first on."""
    shown = [", ".join(facts[:count]) for count in range(len(facts), 0, -1)]
    return next((each for each in shown if len(each) <= room), "")


def make_progress(total: int, metrics: list[str]) -> Lines:
    """What fits the place where output goes."""
    return Bar(total, metrics) if sys.stdout.isatty() else Lines(total, metrics)
