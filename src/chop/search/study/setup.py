"""``[search.strategy.setup]``: what the setups of all strategies have in common.

A strategy is a registered setup that names the class which searches:

    @STRATEGIES.register("learned")
    class LearnedSetup(StudySetup):
        strategy = "chop.search.learned.search:LearnedSearch"

`chop.search.strategy.make_strategy` makes it.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chop.errors import ConfigError
from chop.masking import mask_passwords
from chop.registry import Registry
from chop.search.metrics import Direction
from chop.training.settings import MOST_PROCESSES

SERIAL, LOCAL, RAY = ENGINES = ("serial", "local", "ray")


@dataclass(frozen=True)
class EngineChoice:
    """The engine that evaluates, and its place.

    Attributes:
        name: by default `serial` for one slot, else `local`.
        slots: processes of this machine.
        address: of a Ray cluster: ``auto``, ``host:port``, or ``local`` to start one here.
        batch: trials of a batch; by default as many as take a tenth of a second.
        gpus: GPUs of a trial, on Ray.
    """

    name: str | None = None
    slots: int = 1
    address: str | None = None
    batch: int | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.name == SERIAL and self.slots > 1:
            raise ConfigError(f"engine = 'serial' has one slot, not n_jobs = {self.slots}")
        if self.name != RAY and (self.address or self.gpus):
            what = "address" if self.address else "gpus_per_trial"
            raise ConfigError(f"{what} is for engine = 'ray'")

    @property
    def kind(self) -> str:
        """The name of the engine."""
        return self.name or (SERIAL if self.slots == 1 else LOCAL)


class Schema(BaseModel):
    """A table of ``[search]``: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StudySetup(Schema):
    """The storage of a study, its objectives, and its end.

    Attributes:
        timeout: seconds after which no new trial starts.
        sum_scaled_metrics: one objective, the sum of the scaled metrics, instead of one each.
        direction: of that sum.
        storage: where the study is kept: by default a journal file in the project folder; else the
            URL of a database (``postgresql://…``) or of an Optuna proxy (``grpc://host:port``).
        study_name: what the study is called in a storage that holds several.
        plots: draw pictures of the results.
    """

    strategy: ClassVar[str]
    """The class that searches, as ``module:name``."""

    timeout: float | None = Field(None, gt=0)
    sum_scaled_metrics: bool = False
    direction: Direction | None = None
    storage: str | None = None
    study_name: str | None = None
    plots: bool = True

    @field_validator("storage")
    @classmethod
    def _no_connection_string(cls, storage: str | None) -> str | None:
        if storage is not None and "://" not in storage and mask_passwords(storage) != storage:
            raise ValueError("a URL is expected, such as postgresql://user:password@host/name")
        return storage

    @model_validator(mode="after")
    def _direction_fits(self) -> "StudySetup":
        if self.sum_scaled_metrics and self.direction is None:
            raise ValueError(
                "direction: must be 'maximize' or 'minimize' when sum_scaled_metrics = true"
            )
        return self

    @property
    @abstractmethod
    def method(self) -> str:
        """Return what finds the configurations, in a word or two, for files and pages."""

    @property
    def choice(self) -> EngineChoice:
        """Return what evaluates."""
        return EngineChoice()

    @property
    def confidence(self) -> float | None:
        """At which a trial must be dominated to stop before its end; None if none may."""
        return None

    @property
    def trains(self) -> bool:
        """Return whether the search trains the network, so that it may come without weights."""
        return False

    def identity(self) -> dict[str, Any]:
        """Return what must be the same when a study is resumed."""
        return {}


class EngineSetup(StudySetup):
    """A study whose parts an engine evaluates.

    Attributes:
        n_jobs: processes that search together; for engine = "ray", those of a cluster that is
            started on this machine, by default one for each core.
        engine: what evaluates: ``serial`` (this process), ``local`` (n_jobs processes of this
            machine) or ``ray`` (a cluster); by default one of the first two, by n_jobs.
        address: of a Ray cluster: ``auto`` or ``host:port``; by default one is started here.
        gpus_per_trial: GPUs of each trial on a Ray cluster; it may be a part of one.
    """

    n_jobs: int = Field(1, ge=1)
    engine: Literal["serial", "local", "ray"] | None = None
    address: str | None = None
    gpus_per_trial: float = Field(0.0, ge=0)

    @field_validator("n_jobs")
    @classmethod
    def _not_too_many(cls, jobs: int) -> int:
        if jobs > MOST_PROCESSES:
            raise ValueError(f"this machine takes at most {MOST_PROCESSES} processes")
        return jobs

    @model_validator(mode="after")
    def _engine_fits(self) -> "EngineSetup":
        try:
            assert self.choice
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def choice(self) -> EngineChoice:
        return EngineChoice(self.engine, self.n_jobs, self.address, gpus=self.gpus_per_trial)


STRATEGIES: Registry[type[StudySetup]] = Registry("search strategy")
