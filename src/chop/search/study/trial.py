"""A trial of a search: what was asked for, what came of it, and what is wanted of its metrics.

Optuna keeps what it does not know itself in tables of attributes. Their names stand in this module
alone, which turns what a storage holds into a `Trial` and makes what a storage is to hold.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from pydantic import BaseModel, ConfigDict, Field

from chop.search.metrics import Direction

KEY, CONFIG, WORKER, TOKEN, VOID, REASON = (
    "key", "sampled_config", "worker", "claim", "void", "reason",
)  # fmt: skip
SOFTWARE, HARDWARE, SCALED = MEASURED = ("software_metrics", "hardware_metrics", "scaled_metrics")
TABLES = (CONFIG, *MEASURED)
SEEN = "rows_seen"
"""The attribute of a trial that might stop before the end: the rows that it saw, and all rows."""
CONSTRAINT = "constraints:"
"""Optuna's prefix for how far a metric lies outside its bounds."""

Metrics = Mapping[str, float]
Point = tuple[float, ...]
"""Objectives, turned so that less is better."""


def less_is_better(values: Iterable[float], directions: Iterable[Direction]) -> Point:
    """Objectives, those that are to be maximised with the opposite sign."""
    pairs = zip(values, directions, strict=True)
    return tuple(-value if direction == "maximize" else value for value, direction in pairs)


def directions_of(study: Study) -> list[Direction]:
    """The direction of each objective of a stored study."""
    return ["maximize" if each.name == "MAXIMIZE" else "minimize" for each in study.directions]


@dataclass(frozen=True)
class TrialRequest:
    """A configuration to be evaluated, as it is stored."""

    key: str
    config: dict[str, Any]
    params: dict[str, Any]
    distributions: dict[str, Any]
    system_attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial: objectives and metrics, or the reason why there are none."""

    values: list[float] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What is stored with the trial: software_metrics, hardware_metrics, scaled_metrics."""
    violations: Metrics = field(default_factory=dict)
    """How far each bounded metric lies outside its bounds; 0 or less is inside."""
    reason: str | None = None

    @classmethod
    def of(cls, trial: FrozenTrial) -> "Outcome":
        """Return what became of a stored trial."""
        request = (KEY, CONFIG, WORKER, TOKEN, VOID, REASON)
        metrics = {name: each for name, each in trial.user_attrs.items() if name not in request}
        values = trial.values if trial.state == TrialState.COMPLETE else None
        return cls(values, metrics, trial.constraints, trial.user_attrs.get(REASON))

    @property
    def is_feasible(self) -> bool:
        """Return whether there are objectives, and all bounds are kept."""
        return self.values is not None and not any(x > 0 for x in self.violations.values())

    @property
    def is_stopped(self) -> bool:
        """Return whether the objectives are those of a share of the rows."""
        seen, of = self.metrics.get(SEEN, (0, 0))
        return bool(seen < of)

    @property
    def state(self) -> TrialState:
        return TrialState.FAIL if self.values is None else TrialState.COMPLETE

    def attributes(self) -> dict[str, Any]:
        """Return what is stored for users to read."""
        return {**self.metrics} | ({REASON: self.reason} if self.reason is not None else {})

    def constraints(self) -> dict[str, float]:
        """The violations under the names that Optuna has for them."""
        return {f"{CONSTRAINT}{name}": value for name, value in self.violations.items()}


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration and what came of it, as a storage or the files of a search have it."""

    number: int
    software: Metrics
    """What the software runners measured."""
    values: Sequence[float] | None
    """The objectives; None without a result."""
    config: Mapping[Any, Any]
    """What was chosen."""
    reason: str | None = None
    """Why there is no result, or one of a share of the rows."""
    hardware: Metrics = field(default_factory=dict)
    scaled: Metrics = field(default_factory=dict)
    violations: Metrics = field(default_factory=dict)
    """How far each bounded metric lies outside its bounds."""
    state: TrialState = TrialState.COMPLETE
    begun: datetime | None = None
    ended: datetime | None = None
    key: str = ""
    """The same for equal configurations."""
    worker: str | None = None
    """The process that claimed the trial; None if there was no other to claim it against."""
    is_void: bool = False
    """Whether the trial was given up and counts for nothing."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The options taken, by the name of the choice."""
    missing: tuple[str, ...] = ()
    """The attributes that are not stored; those of `MEASURED` for a failed trial."""
    seen: tuple[int, int] | None = None
    """The rows that a trial saw which might stop before the end, and all rows."""

    @classmethod
    def of(cls, trial: "FrozenTrial | Trial") -> "Trial":
        """A stored trial; a `Trial` is returned as it is."""
        if isinstance(trial, Trial):
            return trial
        attrs = trial.user_attrs
        config, software, hardware, scaled = (attrs.get(name) or {} for name in TABLES)
        return cls(
            trial.number, software, trial.values, config, attrs.get(REASON), hardware, scaled,
            trial.constraints if trial.system_attrs else {}, trial.state, trial.datetime_start,
            trial.datetime_complete, attrs.get(KEY, ""), attrs.get(WORKER), VOID in attrs,
            trial.params, tuple([name for name in TABLES if not isinstance(attrs.get(name), dict)]),
            tuple(attrs[SEEN]) if SEEN in attrs else None,
        )  # fmt: skip

    @property
    def metrics(self) -> dict[str, float]:
        """Everything as it was measured, before any scaling."""
        return {**self.software, **self.hardware}

    @property
    def is_complete(self) -> bool:
        return self.state == TrialState.COMPLETE

    @property
    def is_stopped(self) -> bool:
        """Return whether the objectives are those of a share of the rows."""
        return self.seen is not None and self.seen[0] < self.seen[1]

    @property
    def is_feasible(self) -> bool:
        """Return whether the trial is complete and within all bounds."""
        return self.is_complete and not any(each > 0 for each in self.violations.values())

    @property
    def seconds(self) -> float | None:
        """Return the seconds it took; a clock that was set back does not make that less than 0."""
        if self.begun is None or self.ended is None:
            return None
        return max((self.ended - self.begun).total_seconds(), 0.0)

    def losses(self, directions: Iterable[Direction]) -> Point:
        """The objectives, turned so that less is better."""
        return less_is_better(self.values or (), directions)

    @property
    def attributes(self) -> dict[str, Any]:
        """Return what is stored, by its name; None for what is missing."""
        tables = zip(TABLES, (self.config, self.software, self.hardware, self.scaled), strict=True)
        return {name: None if name in self.missing else each for name, each in tables}

    @property
    def user_attrs(self) -> dict[str, Any]:
        """The attributes as Optuna's trials have them."""
        notes = {KEY: self.key or None, WORKER: self.worker, REASON: self.reason}
        found = self.attributes | notes | ({VOID: True} if self.is_void else {})
        return {name: each for name, each in found.items() if each is not None}


class Claim(NamedTuple):
    """For which configuration a trial stands in a storage, and who evaluates it."""

    key: str | None
    """None if it is not a trial of a search: somebody used the study for something else."""
    worker: str
    token: str
    is_void: bool


def claim_of(trial: FrozenTrial) -> Claim:
    """Return what a stored trial says of itself."""
    attrs = trial.user_attrs
    return Claim(attrs.get(KEY), attrs.get(WORKER, ""), attrs.get(TOKEN, ""), VOID in attrs)


def request_of(trial: FrozenTrial) -> TrialRequest:
    """Return what a stored trial was asked for."""
    attrs = trial.user_attrs
    return TrialRequest(
        attrs[KEY], attrs[CONFIG], trial.params, trial.distributions, trial.system_attrs
    )


class KnownTrial(FrozenTrial):
    """A finished trial that a sampler is told of; as nobody changes it, a copy shares its parts.

    Optuna makes a deep copy of every trial that it is told of, options of all choices included.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> "KnownTrial":
        return copy.copy(self)


Kind = TypeVar("Kind", bound=FrozenTrial)


def _new_trial(kind: type[Kind], like: TrialRequest | FrozenTrial, **fields: Any) -> Kind:
    """A trial without a number; Optuna's `create_trial` would check what is right already."""
    return kind(
        number=-1, trial_id=-1, value=None, params=like.params, distributions=like.distributions,
        system_attrs=dict(like.system_attrs), intermediate_values={}, **fields,
    )  # fmt: skip


def frozen(
    request: TrialRequest, state: TrialState, begun: datetime, attrs: Mapping[str, Any]
) -> FrozenTrial:
    """A trial to be stored."""
    stored = {KEY: request.key, CONFIG: request.config, **attrs}
    times = {"datetime_start": begun, "datetime_complete": None}
    return _new_trial(FrozenTrial, request, state=state, user_attrs=stored, **times)


def as_known(trial: FrozenTrial) -> KnownTrial:
    """Return what a sampler has to know of a finished trial."""
    times = dict.fromkeys(("datetime_start", "datetime_complete"), datetime.now())
    own = {"state": trial.state, "values": trial.values, "user_attrs": {}}
    return _new_trial(KnownTrial, trial, **own, **times)


class MetricRule(BaseModel):
    """The wish for a metric, as a file may say it."""

    model_config = ConfigDict(frozen=True)

    scale: float = 1.0
    direction: str = ""
    max: float | None = None
    min: float | None = None

    @property
    def is_bounded(self) -> bool:
        return self.max is not None or self.min is not None

    def violation(self, value: float) -> float:
        """Return how far `value` lies outside its bounds; 0 or less is inside."""
        above = value - self.max if self.max is not None else 0.0
        below = self.min - value if self.min is not None else 0.0
        return max(above, below)


class SearchDescription(BaseModel):
    """The description of a search, which the trials alone do not tell; empty where no file says."""

    space: str | None = None
    space_size: int | None = None
    sampler: str | None = None
    repeats: int | None = None
    """Proposals of the sampler that were known already."""
    directions: tuple[Direction, ...] = ()
    metrics: dict[str, MetricRule] = Field(default_factory=dict)
    rows: str | None = None
    """The loader of the rows that scores were measured on: ``val_dataloader``."""
    rows_seen: tuple[int, int] | None = None
    """The rows that all trials saw and those there were for them, if trials might stop."""

    @property
    def savings(self) -> str:
        """Return how many rows were not evaluated, in words; empty if no trial could stop."""
        if self.rows_seen is None:
            return ""
        seen, of = self.rows_seen
        share = 1 - seen / max(1, of)
        return f"{share:.0%} of the rows were saved, none of them of a trial on the front"

    @property
    def objectives(self) -> list[str]:
        """The names of the objectives."""
        if len(self.directions) > 1 and len(self.metrics) == len(self.directions):
            return list(self.metrics)
        if len(self.directions) == 1:
            return ["the sum of scaled metrics"]
        return [f"objective {place}" for place in range(len(self.directions))]

    def allows(self, trial: Trial) -> bool:
        """Return whether a trial keeps to all bounds; a metric that is missing breaks none."""
        bounds = {name: rule for name, rule in self.metrics.items() if rule.is_bounded}
        found = trial.metrics if bounds else {}
        return all(bounds[name].violation(found[name]) <= 0 for name in bounds.keys() & found)
