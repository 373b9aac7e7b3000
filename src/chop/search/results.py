"""What a search leaves behind: the table of the best, best.json, log.json and a CSV."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from chop.errors import SearchError
from chop.files import write_text
from chop.search.store import REASON

DECIMALS = 10
MEASURED = ("software_metrics", "hardware_metrics", "scaled_metrics")


def best_of(study: Study, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The best trials: all that no other beats in every objective, within all bounds.

    With one objective it is one trial, the first of equals.
    """
    good = [
        trial
        for trial in trials
        if trial.state == TrialState.COMPLETE and all(v <= 0 for v in trial.constraints.values())
    ]
    signs = [1 if direction.name == "MINIMIZE" else -1 for direction in study.directions]
    losses = {t.number: [s * v for s, v in zip(signs, t.values, strict=True)] for t in good}
    if len(signs) == 1:
        return [min(good, key=lambda trial: (losses[trial.number], trial.number))] if good else []
    return [trial for trial in good if not _beaten(losses[trial.number], losses.values())]


def _beaten(losses: list[float], others: Any) -> bool:
    return any(
        other != losses and all(o <= own for o, own in zip(other, losses, strict=True))
        for other in others
    )


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
    return _dumped(_rounded(value))


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=4, separators=(",", ":")) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def table_csv(trials: Sequence[FrozenTrial]) -> str:
    """All trials as a table: state, reason, time, exact metrics and every choice."""
    return as_csv([_csv_row(trial) for trial in trials])


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with the columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
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
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}/")
        else:
            found[f"{prefix}{key}"] = "NA" if value is None else value
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
    points = {
        place: {**point, **(features or {})} for place, point in _rounded(best_json(best)).items()
    }
    write_text(folder / "best.json", _dumped(points))
    write_text(folder / "log.json", as_json(log_json(trials, len(study.directions))))
    write_text(folder / "trials.csv", table_csv(trials))
    return best
