"""What a search has left on disk, and what follows from it."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from sys import intern
from typing import Any

from optuna.trial import TrialState
from pydantic import BaseModel, Field

from chop.errors import DataError
from chop.markup import is_usable
from chop.runs import (
    BEST,
    BEST_SETTINGS,
    FRONT_GRAPHS,
    JOURNAL,
    LOG,
    SEARCH_RECORD,
    SNAPSHOT_GRAPH,
    Count,
    as_stored,
    read_json,
    read_stored,
)
from chop.search.front.accuracy import UNKNOWN, Accuracies, Start
from chop.search.front.hypervolume import Effects, variance_shares
from chop.search.front.verification import Verified
from chop.search.study.trial import SearchDescription, Trial
from chop.validation import parse

Config = dict[tuple[str, ...], Any]
"""Choices by the names of the tables that they are in and their own."""
LARGEST_LOG = 256 * 2**20  # bytes: some hundred thousand trials
FRONT, DOMINATED, OUT = "front", "dominated", "out of bounds"


class LoggedTrial(BaseModel):
    """One entry of ``log.json``."""

    number: Count
    state: str
    software: dict[str, float] | None = Field(None, alias="user_attrs_software_metrics")
    hardware: dict[str, float] | None = Field(None, alias="user_attrs_hardware_metrics")
    config: dict[str, Any] | None = Field(None, alias="user_attrs_sampled_config")
    reason: str | None = Field(None, alias="user_attrs_reason")


class BestTrial(BaseModel):
    """What ties an entry of ``best.json`` to the log."""

    number: Count
    verified: Verified | None = None
    accuracies: Accuracies = UNKNOWN


class BestSnapshot(BaseModel):
    """What ties an entry of ``best.json`` to a graph that was saved while widths were learned."""

    sampled_config: dict[str, Any] = Field(default_factory=dict)


class StoredStart(BaseModel):
    """What ``search.json`` says of the network that a search started from."""

    start: Start | None = None


@dataclass(frozen=True)
class Search:
    """A study as it is on disk."""

    trials: list[Trial]
    front: list[int]
    """Numbers of the best trials, in the order of ``best_0.toml`` and so on."""
    problem: SearchDescription
    files: dict[int, str]
    """What ``best_<n>.toml`` holds, by the number of the trial."""
    verified: dict[int, Verified] = field(default_factory=dict)
    """Whether the best trials were seen to compute what their integers do, by their numbers."""
    judged: dict[int, Accuracies] = field(default_factory=dict)
    """The accuracies of the best trials with their intervals, on test rows as well."""
    start: Start | None = None
    """The same of the network that the search started from."""

    @cached_property
    def complete(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.is_complete]

    @property
    def best(self) -> list[Trial]:
        """The trials on the front, in the order of their files."""
        known = {trial.number: trial for trial in self.trials}
        return [known[number] for number in self.front if number in known]

    @property
    def is_by_layer(self) -> bool:
        """Whether configurations have a table for each layer, not only settings."""
        return any(len(key) > 1 for trial in self.trials for key in trial.config)

    @cached_property
    def _front(self) -> frozenset[int]:
        return frozenset(self.front)

    def group(self, trial: Trial) -> str:
        """Whether a trial is on the front, dominated or out of bounds."""
        if trial.number in self._front:
            return FRONT
        return DOMINATED if self.problem.allows(trial) else OUT


def read_search(folder: Path) -> Search:
    """The study in a folder."""
    log, best = read_json(folder / LOG, LARGEST_LOG), read_json(folder / BEST)
    if not isinstance(log, dict) or not isinstance(best, dict):
        raise DataError(f"{folder.name}: log.json and best.json must hold tables")
    where = f"{folder.name}/log.json"
    # Of many trials what was read is gone as soon as there is something smaller.
    trials = [_trial(log.pop(place), f"{where}: {place}") for place in list(log)]
    points = [as_stored(BestTrial, each, f"{folder.name}/best.json") for each in best.values()]
    front = [point.number for point in points]
    files = {
        number: text
        for place, number in enumerate(front)
        if (text := _text(folder / BEST_SETTINGS.format(place))) is not None
    }
    verified = {point.number: point.verified for point in points if point.verified is not None}
    judged = {point.number: point.accuracies for point in points if point.accuracies != UNKNOWN}
    return Search(trials, front, read_problem(folder), files, verified, judged, read_start(folder))


def first_graphs(folder: Path) -> list[Path]:
    """The saved graph of the first network on a learned front, if the front says which it is."""
    best = read_json(folder / BEST)
    first: Any = next(iter(best.values()), {}) if isinstance(best, dict) else {}
    epoch = as_stored(BestSnapshot, first, f"{folder.name}/best.json").sampled_config.get("epoch")
    return [] if epoch is None else [folder / FRONT_GRAPHS / SNAPSHOT_GRAPH.format(epoch)]


def read_start(folder: Path) -> Start | None:
    """The accuracies of the network that a search started from, if they are stored."""
    path = folder / SEARCH_RECORD
    if not path.is_file():
        return None
    return read_stored(StoredStart, path, f"{folder.name}/{path.name}").start


def _trial(row: Any, where: str) -> Trial:
    found = as_stored(LoggedTrial, row, where)
    values = [value for name, value in row.items() if name == "value" or name.startswith("values_")]
    done = found.state == "COMPLETE" and all(map(is_usable, values)) and bool(values)
    return Trial(
        found.number,
        _usable(found.software),
        tuple(map(float, values)) if done else None,
        flat(found.config or {}),
        found.reason,
        _usable(found.hardware),
        state=TrialState.COMPLETE if done else TrialState.FAIL,
    )


def _usable(metrics: Mapping[str, float] | None) -> dict[str, float]:
    return {name: value for name, value in (metrics or {}).items() if is_usable(value)}


def flat(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Config:
    """Nested tables as one."""
    found: Config = {}
    for key, value in config.items():
        inner = _shared((*above, key))
        if isinstance(value, dict):
            found |= flat(value, inner)
        else:
            found[inner] = _leaf(value)
    return found


@lru_cache(maxsize=10_000)  # most trials have the same choices
def _shared(key: tuple[str, ...]) -> tuple[str, ...]:
    return key


def _leaf(value: Any) -> Any:
    """A choice as the page can hold it: JSON has no word for what is not a number."""
    if isinstance(value, str):
        return intern(value)
    if value is None or isinstance(value, int):
        return value
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return str(value)
    return value


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def read_problem(folder: Path) -> SearchDescription:
    """What was searched for: from ``search.json``, else from the journal of the study."""
    if (folder / SEARCH_RECORD).is_file():
        where = f"{folder.name}/{SEARCH_RECORD}"
        return read_stored(SearchDescription, folder / SEARCH_RECORD, where)
    journal = folder / JOURNAL
    facts = _journal(journal) if journal.is_file() else {}
    return parse(SearchDescription, facts, journal.name)


def _journal(path: Path) -> dict[str, Any]:
    """Directions and metrics of the last study in an Optuna journal."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        studies = JournalStorage(JournalFileBackend(str(path))).get_all_studies()
    except Exception as error:  # noqa: BLE001  # whatever a damaged journal makes Optuna raise
        raise DataError(f"{path.name}: cannot be read: {error}") from None
    if not studies:
        return {}
    attributes = studies[-1].user_attrs.get("problem", {})
    directions = [each.name.lower() for each in studies[-1].directions]
    return {"directions": directions, "metrics": attributes.get("metrics", {})}


def hypervolumes(search: Search) -> list[float]:
    """The hypervolume after each configuration within bounds; nothing if directions are unknown."""
    from chop.search.front.hypervolume import hypervolume_history, worst_of

    problem = search.problem
    inside = [t for t in search.complete if problem.allows(t) and _fits(problem, t)]
    if not inside:
        return []
    points = [trial.losses(problem.directions) for trial in inside]
    return hypervolume_history(points, worst_of(points))


def _fits(problem: SearchDescription, trial: Trial) -> bool:
    return len(trial.values or ()) == len(problem.directions)


@dataclass(frozen=True)
class Importances:
    """What mattered, and what it takes to tell."""

    shares: dict[str, dict[str, float]]
    """The share of the variance of each objective that each choice explains, the largest first."""
    trials: int
    trials_needed: int


def importances(search: Search) -> Importances | None:
    """How much each choice matters; None if nothing was chosen."""
    trials = [trial for trial in search.complete if _fits(search.problem, trial)]
    varied = varied_choices(trials)
    if not varied:
        return None
    effects = Effects(
        {
            choice_name(key): [str(t.config[key]) if key in t.config else None for t in trials]
            for key in varied
        }
    )
    losses = zip(*(trial.losses(search.problem.directions) for trial in trials), strict=True)
    shares = zip(search.problem.objectives, losses, strict=True)
    found = {name: variance_shares(effects, column) for name, column in shares}
    return Importances(found, len(trials), effects.trials_needed)


def varied_choices(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """The choices that were not the same in all trials that had them."""
    used: dict[tuple[str, ...], set[str]] = {}
    for trial in trials:
        for key, value in trial.config.items():
            used.setdefault(key, set()).add(str(value))
    return [key for key, values in used.items() if len(values) > 1]


def choice_name(key: tuple[str, ...]) -> str:
    """A choice in words: the table ``config`` says nothing."""
    return " ".join(part for part in key if part != "config")


@dataclass(frozen=True)
class Template:
    """How the configuration of a trial becomes a file that ``ch`` can read."""

    head: str = ""
    """The settings that all files have in common."""
    prefix: tuple[str, ...] = ()
    """The tables that a configuration is inside of."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Settings that have another name on the command line."""


def template(search: Search) -> Template:
    """That of the files ``best_<n>.toml``, if there are any that make sense."""
    for text in search.files.values():
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        if not search.is_by_layer:
            return _of_settings(search, content, text)
        passes = content.get("passes")
        rules = passes.get("quantize") if isinstance(passes, dict) else None
        if isinstance(rules, dict) and rules.get("by") == "name":
            return Template(text.partition("\n[")[0].strip(), ("passes", "quantize"))
    return Template()


def _of_settings(search: Search, content: Mapping[str, Any], text: str) -> Template:
    chosen = dict.fromkeys(key[0] for trial in search.trials for key in trial.config)
    found = {
        name: next((key for key in content if key == name or key.endswith(f"_{name}")), name)
        for name in chosen
    }
    kept = [line for line in text.splitlines() if line.partition(" =")[0] not in found.values()]
    return Template("\n".join(kept).strip(), (), found)
