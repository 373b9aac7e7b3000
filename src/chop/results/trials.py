"""Trials in the files of a search: best.json in the form of the labs, log.json, trials.csv."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from pydantic import AliasChoices, BaseModel, Field

from chop.errors import DataError, SearchError
from chop.figures import is_usable
from chop.runs import BEST, FRONT_GRAPHS, Count, as_stored, read_json, snapshot_name
from chop.search.front.accuracy import Accuracies, Judged
from chop.search.front.verification import Marks, Verified
from chop.search.study.trial import CONFIG, HARDWARE, MEASURED, REASON, SOFTWARE, Trial
from chop.tables import as_csv

Trials = Sequence[Trial | FrozenTrial]
Config = dict[tuple[str, ...], Any]
"""Choices by the names of the tables that they are in and their own."""
DECIMALS = 10
LOGGED = "user_attrs_"


def stored_as(name: str) -> AliasChoices:
    """Return the names of an attribute in ``log.json`` and in ``best.json``."""
    return AliasChoices(f"{LOGGED}{name}", name)


class TrialRow(BaseModel):
    """A trial as ``log.json`` has it, or ``best.json`` with what is known of it."""

    number: Count
    state: str | None = None
    software: dict[str, float] | None = Field(None, validation_alias=stored_as(SOFTWARE))
    hardware: dict[str, float] | None = Field(None, validation_alias=stored_as(HARDWARE))
    config: dict[str, Any] | None = Field(None, validation_alias=stored_as(CONFIG))
    reason: str | None = Field(None, validation_alias=stored_as(REASON))
    verified: Verified | None = None
    accuracies: Accuracies | None = None

    @classmethod
    def trial(cls, row: Any, where: str) -> Trial:
        """Return the trial of an entry of ``log.json``, its choices in one table."""
        found = as_stored(cls, row, where)
        if found.state is None:
            raise DataError(f"{where}: it has no state")
        values = [each for name, each in row.items() if name == "value" or name[:7] == "values_"]
        done = found.state == "COMPLETE" and all(map(is_usable, values)) and bool(values)
        return Trial(
            found.number,
            _usable(found.software),
            tuple(map(float, values)) if done else None,
            nested_keys(found.config or {}),
            found.reason,
            _usable(found.hardware),
            state=TrialState.COMPLETE if done else TrialState.FAIL,
        )


def read_best(folder: Path) -> list[TrialRow]:
    """Return the entries of ``best.json``."""
    best = read_json(folder / BEST)
    if not isinstance(best, dict):
        raise DataError(f"{folder.name}: best.json must hold a table")
    return [as_stored(TrialRow, each, f"{folder.name}/best.json") for each in best.values()]


def known_of_front(folder: Path, best: Sequence[Trial]) -> tuple[Marks, Judged]:
    """Return what an earlier run of the study has verified and measured of these trials.

    What was wrong then is left out, to be compared again, as is all of a damaged file.
    """
    configs = {trial.number: trial.config for trial in best}
    try:
        rows = read_best(folder) if (folder / BEST).is_file() else []
    except DataError:  # it is written again in any case
        rows = []
    same = [row for row in rows if configs.get(row.number) == row.config]
    return (
        {r.number: r.verified for r in same if r.verified and not r.verified.is_broken},
        {row.number: row.accuracies for row in same if row.accuracies is not None},
    )


def first_graphs(folder: Path) -> list[Path]:
    """Return the saved graph of the first network on a learned front, if it says which it is."""
    first = next(iter(read_best(folder)), None)
    name = None if first is None else snapshot_name(first.config or {})
    return [] if name is None else [folder / FRONT_GRAPHS / name]


def _usable(metrics: Mapping[str, float] | None) -> dict[str, float]:
    return {name: value for name, value in (metrics or {}).items() if is_usable(value)}


def nested_keys(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Config:
    """Return nested tables as one."""
    found: Config = {}
    for key, value in config.items():
        inner = _share((*above, key))
        if isinstance(value, dict):
            found |= nested_keys(value, inner)
        else:
            found[inner] = _leaf(value)
    return found


@lru_cache(maxsize=10_000)  # most trials have the same choices
def _share(key: tuple[str, ...]) -> tuple[str, ...]:
    return key


def _leaf(value: Any) -> Any:
    """Return a choice as the page can hold it: JSON has no word for what is not a number."""
    if isinstance(value, str):
        return intern(value)
    if value is None or isinstance(value, int):
        return value
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return str(value)
    return value


def require_whole(study: Study, trials: Sequence[Trial]) -> None:
    """Raise for a trial that lacks what a search stores with it: part of the study is gone."""
    for trial in trials:
        for name in trial.missing if trial.is_complete else set(trial.missing) - {*MEASURED}:
            raise SearchError(
                f"study {study.study_name!r}: trial {trial.number} has no {name}: part of the "
                "study is missing; put back a copy, or start a new study without --resume"
            )


def best_json(best: Trials) -> dict[str, dict[str, Any]]:
    """Return the best trials by their place, with the fields and the nesting of the labs."""
    return {str(place): _best_row(trial) for place, trial in enumerate(map(Trial.of, best))}


def _best_row(trial: Trial) -> dict[str, Any]:
    first, *rest = values = list(trial.values or ())
    stored = trial.attributes
    row = {"number": trial.number, "value": values if rest else first}
    return row | {name: stored[name] for name in (*MEASURED, CONFIG)}


def as_json(value: Any) -> str:
    """Return JSON as pandas writes it: four spaces, no space after a colon, ten decimals."""
    return indent_json(round_numbers(value))


def indent_json(value: Any) -> str:
    """Return JSON with the white space of pandas, every number exact."""
    return json.dumps(value, indent=4, separators=(",", ":")) + "\n"


def round_numbers(value: Any) -> Any:
    """Return a value with ten decimals of every number in it."""
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, dict):
        return {key: round_numbers(each) for key, each in value.items()}
    return [round_numbers(each) for each in value] if isinstance(value, list | tuple) else value


def log_json(trials: Trials, objectives: int) -> dict[str, dict[str, Any]]:
    """Return all trials by their place, with the columns that the original logs."""
    names = ["value"] if objectives == 1 else [f"values_{i}" for i in range(objectives)]
    return {str(place): _log_row(Trial.of(trial), names) for place, trial in enumerate(trials)}


def log_pieces(trials: Trials, objectives: int) -> Iterator[str]:
    """Return the text of ``log.json``, a line for each trial."""
    begin = "{\n"
    for key, row in log_json(trials, objectives).items():
        yield f'{begin}"{key}": {json.dumps(round_numbers(row))}'
        begin = ",\n"
    yield "\n}\n" if trials else "{}\n"


def _log_row(trial: Trial, names: list[str]) -> dict[str, Any]:
    values: Sequence[float | None] = trial.values or [None] * len(names)
    begun, ended = _milliseconds(trial.begun), _milliseconds(trial.ended)
    row: dict[str, Any] = {"number": trial.number} | dict(zip(names, values, strict=True))
    stored = trial.attributes
    row |= {f"{LOGGED}{name}": stored[name] for name in sorted(stored)}
    if trial.reason is not None:
        row[f"{LOGGED}{REASON}"] = trial.reason
    return row | {
        "state": trial.state.name,
        "datetime_start": begun,
        "datetime_complete": ended,
        # A clock that was set back must not make a trial take less than no time.
        "duration": None if begun is None or ended is None else max(ended - begun, 0),
    }


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def table_csv(trials: Trials) -> str:
    """Return all trials as a table: state, reason, time, exact metrics and every choice."""
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
    choices = nested_keys(trial.config).items()
    return row | {intern("/".join(key)): "NA" if each is None else each for key, each in choices}
