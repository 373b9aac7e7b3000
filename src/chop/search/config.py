"""The table ``[search]``, checked before any model is built."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from pydantic import ConfigDict, Field, create_model, field_validator, model_validator

from chop.errors import ConfigError, UnknownNameError
from chop.search.learned import setup as learned_setup  # noqa: F401  # registers the strategy
from chop.search.learned import space as learned_space  # noqa: F401  # and its space
from chop.search.metrics import Direction
from chop.search.runners import HW_RUNNERS, SW_RUNNERS, Runner, RunnerArgs
from chop.search.samplers import SAMPLERS
from chop.search.spaces import mixed_precision  # noqa: F401  # registers its space
from chop.search.spaces.looks import LOOKS
from chop.search.spaces.space import SPACES
from chop.search.study.setup import STRATEGIES, EngineChoice, EngineSetup, Schema, StudySetup
from chop.search.study.trial import MetricRule, SearchDescription, Trial
from chop.search.sweeps import hyperparameters  # noqa: F401  # registers its space
from chop.tasks import NUMBERS, task_named
from chop.validation import parse

Tables = dict[str, dict[str, Any]]
DEFAULT_STRATEGY = "optuna"


class SpaceConfig(Schema):
    """``[search.search_space]``: which space, how it is set up, and what it is made of."""

    name: str
    setup: dict[str, Any] = Field(default_factory=dict)
    seed: dict[str, Any] = Field(default_factory=dict)


@STRATEGIES.register(DEFAULT_STRATEGY)
class StrategySetup(EngineSetup):
    """A sampler proposes configurations, and each is measured separately.

    Attributes:
        batch: configurations that an engine takes at once; by default as many as take a tenth of
            a second, and one at a time if the sampler learns from each.
        n_trials: configurations to evaluate, counted over the whole study; repeats do not count.
        stop_dominated: the confidence, such as 0.99, at which a trial must be dominated by the
            front to stop on a share of the rows; by default every trial sees all rows.
        force: enumerate a space however large it is.
        compare: samplers to be compared on the space, in place of one search with `sampler`.
        repeats: seeds for each sampler.
    """

    strategy = "chop.search.strategy:Search"

    batch: int | None = Field(None, ge=1)
    n_trials: int = Field(20, ge=1)
    sampler: str = "tpe"
    stop_dominated: float | None = Field(None, ge=0.5, lt=1)
    force: bool = False
    compare: list[str] = Field(default_factory=list)
    repeats: int = Field(5, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _without_the_past(cls, given: Any) -> Any:
        if isinstance(given, dict):
            if given.get("pkl_ckpt") is not None:
                raise ValueError(
                    "pkl_ckpt is gone: a pickle can run any code when it is read; "
                    "a search is resumed from its journal file with --resume"
                )
            old = ("pkl_ckpt", "save_every_n_trials")  # every trial is saved as it ends
            return {key: value for key, value in given.items() if key not in old}
        return given

    @field_validator("sampler")
    @classmethod
    def _known_sampler(cls, name: str) -> str:
        if name.lower() not in SAMPLERS:
            raise ValueError(str(UnknownNameError("sampler", name, SAMPLERS)))
        return name.lower()

    @field_validator("compare")
    @classmethod
    def _known_samplers(cls, names: list[str]) -> list[str]:
        return list(dict.fromkeys(cls._known_sampler(name) for name in names))

    @property
    def method(self) -> str:
        return self.sampler

    @property
    def confidence(self) -> float | None:
        return self.stop_dominated

    @property
    def choice(self) -> EngineChoice:
        return replace(super().choice, batch=self.batch)


class Metric(MetricRule):
    """``[search.strategy.metrics.<name>]``: the role of a metric.

    Attributes:
        scale: factor of the metric in the objective; 0 only reports it.
        max: the largest value that is allowed, before scaling.
        min: the smallest.
    """

    model_config = ConfigDict(extra="forbid")

    direction: Direction


class StrategyConfig(Schema):
    """``[search.strategy]``: what is measured and what is wanted of it.

    Attributes:
        verify: compare the best trials with their integers when the search ends. By default this
            is done where all operations have integers; ``"integer"`` warns where they have not.
    """

    name: str = DEFAULT_STRATEGY
    eval_mode: bool = True
    verify: Literal["integer", "none"] | None = None
    sw_runner: Tables = Field(default_factory=dict)
    hw_runner: Tables = Field(default_factory=dict)
    setup: StudySetup = StrategySetup()
    metrics: dict[str, Metric] = Field(min_length=1)


class SearchConfig(Schema):
    """``[search]`` as a whole."""

    search_space: SpaceConfig
    strategy: StrategyConfig

    def __reduce__(self) -> tuple[Any, ...]:
        """Parse the tables again in another process, as the class is made for one strategy."""
        return parse_search, (self.model_dump(exclude_unset=True),)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics in the order of the objectives: sorted by name, as the original has them.

        Errors of a regression come first: the best trials are sorted by the first objective.
        """
        stated = self.strategy.metrics
        return {name: stated[name] for name in sorted(stated, key=_place)}

    @property
    def directions(self) -> list[Direction]:
        """One direction for each objective."""
        setup = self.strategy.setup
        if setup.sum_scaled_metrics:
            assert setup.direction is not None
            return [setup.direction]
        return [metric.direction for metric in self.metrics.values()]

    @property
    def objectives(self) -> list[str]:
        """The name of each objective."""
        if self.strategy.setup.sum_scaled_metrics:
            return [f"sum of scaled {', '.join(self.metrics)}"]
        return list(self.metrics)

    def description(
        self, space_size: int, repeats: int, trials: Iterable[Trial] = ()
    ) -> SearchDescription:
        """Return what is searched and how, for the files of the results."""
        seen = [trial.seen for trial in trials if trial.seen is not None]
        return SearchDescription(
            space=self.search_space.name, space_size=space_size, repeats=repeats,
            sampler=self.strategy.setup.method, directions=tuple(self.directions),
            metrics=dict(self.metrics), rows=self._loader_of_scores,
            rows_seen=(sum(n for n, _ in seen), sum(of for _, of in seen)) if seen else None,
        )  # fmt: skip

    @property
    def _loader_of_scores(self) -> str | None:
        """The rows that the software runners measure on, if all of them take the same."""
        loaders = {getattr(args, "data_loader", None) for _, args in self.software()}
        return loaders.pop() if len(loaders) == 1 else None

    @property
    def starts_untrained(self) -> bool:
        """Return whether the weights that the network comes with make no difference."""
        return SPACES[self.search_space.name].starts_afresh or self.strategy.setup.trains

    @property
    def sampling(self) -> StrategySetup:
        """The setup of samplers, for what only they can do."""
        setup = self.strategy.setup
        if not isinstance(setup, StrategySetup):
            raise ConfigError(
                f"search.strategy: samplers are compared with name = 'optuna', "
                f"not {self.strategy.name!r}"
            )
        return setup

    def software(self) -> list[tuple[Runner, RunnerArgs]]:
        """The runners of ``sw_runner`` with their settings."""
        return _runners(SW_RUNNERS, self.strategy.sw_runner, "search.strategy.sw_runner")

    def hardware(self) -> list[tuple[Runner, RunnerArgs]]:
        """The runners of ``hw_runner`` with their settings."""
        return _runners(HW_RUNNERS, self.strategy.hw_runner, "search.strategy.hw_runner")


def parse_search(raw: Mapping[str, Any]) -> SearchConfig:
    """``[search]`` as typed values; spaces, runners and metrics must exist."""
    if not raw:
        raise ConfigError("search needs --config with [search.search_space] and [search.strategy]")
    name = _name_in(raw, "strategy") or DEFAULT_STRATEGY
    if name not in STRATEGIES:
        raise UnknownNameError("search strategy", name, STRATEGIES, "search.strategy.name")
    where = "search.search_space"
    stated = _name_in(raw, "search_space")
    if stated in SPACES and SPACES[stated].strategy != name:  # before keys of one meet the other
        raise ConfigError(
            f"{where}: {stated!r} is searched by the strategy {SPACES[stated].strategy!r}, not by "
            f"{name!r}: change search.strategy.name or the space"
        )
    config = parse(schema_of(name), raw, "[search]")
    if config.search_space.name not in SPACES:
        raise UnknownNameError("search space", config.search_space.name, SPACES, where)
    space = SPACES[config.search_space.name]
    space.check(
        parse(space.Setup, config.search_space.setup, f"{where}.setup"), config.search_space.seed
    )
    _check_metrics(config)
    _check_stopping(config)
    return config


def check_runners(config: SearchConfig, task: str) -> None:
    """Refuse runners that measure something else than what networks of a task are for."""
    is_regression = task_named(task) is NUMBERS
    fitting = {
        name: ", ".join(each.name for each in runner.metrics)
        for name, runner in SW_RUNNERS.items()
        if runner.regression is is_regression
    }
    for runner, _ in config.software():
        if runner.regression is not None and runner.regression is not is_regression:
            there = " or ".join(f"{name} ({metrics})" for name, metrics in fitting.items())
            raise ConfigError(
                f"search.strategy.sw_runner: {runner.name} is not for {task_named(task).name}; "
                f"write {there if is_regression else ' or '.join(fitting)}"
            )


def _place(metric: str) -> tuple[bool, str]:
    return metric not in NUMBERS.metrics, metric


def _name_in(raw: Mapping[str, Any], table: str) -> Any:
    """The name in a table that is not checked yet."""
    found = raw.get(table)
    return found.get("name") if isinstance(found, Mapping) else None


@cache
def schema_of(name: str) -> type[SearchConfig]:
    """``[search]`` with the setup that a strategy has."""
    setup = STRATEGIES[name]
    strategy = create_model("StrategyConfig", __base__=StrategyConfig, setup=(setup, setup()))
    return create_model("SearchConfig", __base__=SearchConfig, strategy=(strategy, ...))


def _runners(
    registry: Mapping[str, Runner], tables: Tables, where: str
) -> list[tuple[Runner, RunnerArgs]]:
    found = []
    for name, given in tables.items():
        if name not in registry:
            raise UnknownNameError("runner", name, registry, where)
        found.append((registry[name], registry[name].parse(given, f"{where}.{name}")))
    return found


def _check_metrics(config: SearchConfig) -> None:
    produced: dict[str, str] = {}
    for runner, _ in (*config.software(), *config.hardware()):
        for metric, _, _ in runner.metrics:
            if metric in produced:
                other = produced[metric]
                raise ConfigError(
                    f"search.strategy: {other} and {runner.name} both measure {metric!r}"
                )
            produced[metric] = runner.name
    for name in config.metrics:
        if name not in produced:
            where = "search.strategy.metrics: no runner measures it"
            raise UnknownNameError("metric", name, produced, where)


def _check_stopping(config: SearchConfig) -> None:
    """Refuse to stop trials that cannot be measured row by row."""
    if config.strategy.setup.confidence is None:
        return
    where, runners = "search.strategy.setup.stop_dominated", list(config.strategy.sw_runner)
    if len(runners) != 1 or runners[0] not in LOOKS:
        raise ConfigError(
            f"{where}: the only runner of sw_runner must be {' or '.join(LOOKS)}, which measures "
            f"row by row, not {', '.join(runners) or 'none'}"
        )
    if not config.strategy.eval_mode:
        raise ConfigError(f"{where}: with eval_mode = false a row depends on others of its batch")
    if config.sampling.compare:
        raise ConfigError(f"{where}: samplers are compared on all rows; leave it out")
