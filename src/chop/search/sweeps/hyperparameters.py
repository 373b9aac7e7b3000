"""Settings of training as a search space, each setting trained several times."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field

from chop.errors import ConfigError, UnknownNameError
from chop.search.metrics import STATISTICS, TRAINED
from chop.search.runners import LoaderName, RunnerArgs, software_runner
from chop.search.spaces.space import SPACES, Candidate, Choice, SearchSpace, SpaceSetup, options
from chop.search.sweeps.trainings import (
    BATCH_SIZE,
    MeasuredRows,
    Repeats,
    summarise_trainings,
    training_settings,
)
from chop.training.job import check_single_row
from chop.training.settings import TrainingSettings

NOT_CHOSEN = frozenset(("seed", "accelerator", "devices", "num_nodes", "strategy", "auto_requeue"))
CHOICES = {BATCH_SIZE, *TrainingSettings.model_fields} - NOT_CHOSEN
COMMAND_LINE = {"optimizer": "training_optimizer", "precision": "trainer_precision"}
"""Settings that ``ch train`` has under another name."""
WHERE = "search.search_space.seed"
SETTING = "setting"


class HyperparametersSetup(SpaceSetup):
    """Fixed settings of all trainings."""

    fixed: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A grid over some settings; all others are as they are fixed."""

    name: str
    grid: dict[str, tuple[Any, ...]]
    fixed: dict[str, Any]

    @property
    def varying(self) -> list[str]:
        """The settings of which there are several values."""
        return [name for name, values in self.grid.items() if len(values) > 1]

    def configs(self) -> list[dict[str, Any]]:
        """Every setting of the grid; the last name changes fastest."""
        return [
            {**self.fixed, **dict(zip(self.grid, values, strict=True))}
            for values in itertools.product(*self.grid.values())
        ]


def sweeps_of(fixed: Mapping[str, Any], seed: Mapping[str, Any]) -> list[Sweep]:
    """The sweeps that a seed of tables states; a seed of plain settings is one grid of them all."""
    tables = {name: value for name, value in seed.items() if isinstance(value, Mapping)}
    if not tables:
        return [_sweep("", fixed, seed, WHERE)]
    for name in seed:
        if name not in tables:
            raise ConfigError(
                f"{WHERE}: {name!r} stands beside the sweep {next(iter(tables))!r}; put it into a "
                "sweep, or into search.search_space.setup.fixed"
            )
    return [_sweep(name, fixed, table, f"{WHERE}.{name}") for name, table in tables.items()]


def _sweep(name: str, fixed: Mapping[str, Any], table: Mapping[str, Any], where: str) -> Sweep:
    if not table:
        raise ConfigError(f"{where}: there is no setting to choose")
    grid = {key: options(value, f"{where}.{key}") for key, value in table.items()}
    return Sweep(name, grid, dict(fixed))


@SPACES.register("train/hyperparameters")
class Hyperparameters(SearchSpace):
    """Batch size, epochs, learning rate and other settings of training: one grid, or several."""

    Setup: ClassVar[type[SpaceSetup]] = HyperparametersSetup
    starts_afresh: ClassVar[bool] = True

    @classmethod
    def check(cls, setup: Any, seed: Mapping[str, Any]) -> None:
        """Refuse settings that training does not have, and values it would not take."""
        for sweep in sweeps_of(setup.fixed, seed):
            for name in (*sweep.grid, *sweep.fixed):
                if name not in CHOICES:
                    raise UnknownNameError("setting", name, CHOICES, "search.search_space")
            for name, values in sweep.grid.items():
                for value in values:
                    check_setting({**sweep.fixed, name: value})

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """The grids whose settings make up the space."""
        return sweeps_of(self.setup.fixed, self.seed)

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings of all sweeps by their texts; one that is in several of them is there once.

        Sweeps have a centre in common, and no tree of choices leads to it once only.
        """
        names = dict.fromkeys(name for sweep in self.sweeps for name in sweep.grid)
        found = [config for sweep in self.sweeps for config in sweep.configs()]
        return {", ".join(f"{n}={c[n]}" for n in names if n in c): c for c in found}

    @property
    def is_one_grid(self) -> bool:
        """Return whether every combination of the listed values is a setting."""
        return len(self.sweeps) == 1

    def choices(self) -> tuple[Choice, ...]:
        """One choice for each setting of a grid; else one between all settings."""
        self._check_single_rows()
        if self.is_one_grid:
            return tuple(Choice(name, values) for name, values in self.sweeps[0].grid.items())
        return (Choice(SETTING, tuple(self.settings)),)

    def _check_single_rows(self) -> None:
        """Refuse batches of one row if the network normalises over the batch."""
        sizes = [
            size
            for sweep in self.sweeps
            for size in sweep.grid.get(BATCH_SIZE, (sweep.fixed.get(BATCH_SIZE),))
        ]
        if 1 in sizes:
            row = next(iter(self.context.dummy_in.values()))[:1]
            check_single_row((row, row), self.context.pristine().to(row.device))

    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """The chosen and the fixed settings together."""
        if self.is_one_grid:
            return {**self.setup.fixed, **chosen}
        return self.settings[chosen[SETTING]]

    def candidate(self, config: dict[str, Any]) -> Candidate:
        """The model before training."""
        return Candidate(self.context, config, self.context.pristine)

    def toml_of(self, config: dict[str, Any]) -> dict[str, Any]:
        """The setting as ``ch train`` takes it."""
        return {COMMAND_LINE.get(name, name): value for name, value in config.items()}


def check_setting(config: Mapping[str, Any]) -> None:
    """Refuse values that no training would take."""
    training_settings(config, 0)
    size = config.get(BATCH_SIZE, 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f"search space: batch_size must be a whole number from 1 up, not {size}")


class TrainingArgs(RunnerArgs):
    """The number of trainings, and the rows to evaluate on."""

    repeats: int = Field(1, ge=1)
    """Trainings with different seeds, from different initial weights."""
    data_loader: LoaderName = "val_dataloader"
    num_samples: int | None = Field(None, ge=1)


def repeats_of(candidate: Candidate, args: TrainingArgs) -> Repeats:
    """The trainings that a candidate is measured by."""
    return Repeats(candidate, args.repeats, MeasuredRows(args.data_loader, args.num_samples))


@software_runner(
    "hyperparameter_training",
    metrics=[f"{name}{kind}" for name in TRAINED for kind in ("", *STATISTICS)],
    parts=repeats_of,
    regression=False,
)
def hyperparameter_training(candidate: Candidate, args: TrainingArgs) -> dict[str, float]:
    """Mean, spread, best and worst of accuracy and loss over several trainings from scratch."""
    return summarise_trainings(repeats_of(candidate, args).complete())
