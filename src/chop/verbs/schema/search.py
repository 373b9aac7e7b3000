"""``[search]``: the space, the runners and the metrics."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from chop.config.schema import Schema
from chop.registry import Registry, description
from chop.search.config import (
    DEFAULT_STRATEGY,
    Metric,
    SearchConfig,
    StrategyConfig,
    StrategySetup,
)
from chop.search.runners import HW_RUNNERS, SW_RUNNERS, Runner, RunnerArgs
from chop.search.samplers import SAMPLERS
from chop.search.spaces.mixed_precision import MixedPrecisionPTQ
from chop.search.spaces.space import SPACES
from chop.search.study.setup import STRATEGIES, StudySetup
from chop.search.sweeps.hyperparameters import CHOICES, Hyperparameters
from chop.search.sweeps.trainings import BATCH_SIZE
from chop.training.settings import LIGHTNING_SPELLINGS, TrainingSettings
from chop.verbs.schema.quantize import SEED, reference
from chop.verbs.schema.tables import (
    described_table,
    one_or_several,
    plain_line,
    table_schema,
)

METRIC = "metric"
GONE = ("pkl_ckpt", "save_every_n_trials")
"""Keys of the labs' files that are read and mean nothing."""


def search_definitions() -> dict[str, Schema]:
    """Return the schema that all metrics share."""
    return {METRIC: table_schema(Metric)}


def search_schema() -> Schema:
    """The whole of ``[search]``."""
    parts = {"search_space": space_schema(), "strategy": strategy_schema()}
    return _table(SearchConfig, parts, required=["search_space", "strategy"])


def space_schema() -> Schema:
    """``[search.search_space]``: what `setup` and `seed` may hold follows from the name."""
    cases = [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {
                "properties": {"setup": table_schema(space.Setup), "seed": seed_schema(space)}
            },
        }
        for name, space in sorted(SPACES.items())
    ]
    names = {name: plain_line(description(space)) for name, space in sorted(SPACES.items())}
    return {
        "type": "object",
        "properties": {
            "name": {"enum": list(names), "description": "; ".join(map(": ".join, names.items()))},
            "setup": {"type": "object"},
            "seed": {"type": "object"},
        },
        "required": ["name"],
        "additionalProperties": False,
        "allOf": cases,
    }


def seed_schema(space: type[Any]) -> Schema:
    """Return what a space chooses from; a user's own space may take anything."""
    if issubclass(space, MixedPrecisionPTQ):
        return {"type": "object", "additionalProperties": reference(SEED)}
    if issubclass(space, Hyperparameters):
        return hyperparameters_schema()
    return {"type": "object"}


def hyperparameters_schema() -> Schema:
    """The settings of training that can be chosen, with values to choose from."""
    training = table_schema(TrainingSettings)["properties"]
    training["precision"]["enum"] += LIGHTNING_SPELLINGS
    training[BATCH_SIZE] = {"type": "integer", "exclusiveMinimum": 0}
    for field in training.values():
        field.pop("default", None)
    properties = {name: one_or_several(training[name]) for name in sorted(CHOICES)}
    grid = {"type": "object", "properties": properties, "additionalProperties": False}
    said = "One grid of settings, or one table for each sweep"
    return {**grid, "description": said, "additionalProperties": grid}


def strategy_schema() -> Schema:
    """``[search.strategy]``: runners by name, and the metrics that they measure."""
    measured = [metric.name for runner in (*SW_RUNNERS.values(), *HW_RUNNERS.values())
                for metric in runner.metrics]  # fmt: skip
    table = table_schema(StrategyConfig)["properties"]
    names = {name: plain_line(description(setup)) for name, setup in sorted(STRATEGIES.items())}
    parts = {
        "name": {
            "enum": list(names),
            "default": DEFAULT_STRATEGY,
            "description": "; ".join(map(": ".join, names.items())),
        },
        "eval_mode": table["eval_mode"],
        "verify": table["verify"],
        "sw_runner": runners_schema(SW_RUNNERS),
        "hw_runner": runners_schema(HW_RUNNERS),
        "setup": {"type": "object"},
        "metrics": metrics_schema(measured),
    }
    cases = [_setup_case(name, setup) for name, setup in sorted(STRATEGIES.items())]
    return _table(StrategyConfig, parts, required=["metrics"]) | {"allOf": cases}


def _setup_case(name: str, setup: type[StudySetup]) -> Schema:
    """Return what `setup` may hold where the strategy has this name."""
    named: Schema = {"properties": {"name": {"const": name}}}
    if name != DEFAULT_STRATEGY:
        named["required"] = ["name"]
    table = sampling_schema() if setup is StrategySetup else table_schema(setup)
    return {"if": named, "then": {"properties": {"setup": table}}}


def sampling_schema() -> Schema:
    """``[search.strategy.setup]`` of samplers."""
    table = table_schema(StrategySetup)
    samplers = {"enum": sorted(SAMPLERS)}
    properties = table["properties"]
    properties["sampler"] |= samplers
    properties["compare"] |= {"items": samplers}
    properties |= {name: {"description": "no effect"} for name in GONE}
    return table


def runners_schema(runners: Registry[Runner]) -> Schema:
    """The tables of all runners of a kind."""
    tables = {
        name: described_table(runner, runner.schema or RunnerArgs)
        for name, runner in sorted(runners.items())
    }
    return {"type": "object", "properties": tables, "additionalProperties": False}


def metrics_schema(measured: Iterable[str]) -> Schema:
    """``[search.strategy.metrics]``: a table for each metric that some runner measures."""
    return {
        "type": "object",
        "properties": dict.fromkeys(sorted(set(measured)), reference(METRIC)),
        "additionalProperties": False,
        "minProperties": 1,
    }


def _table(model: type[BaseModel], parts: dict[str, Schema], required: list[str]) -> Schema:
    assert set(parts) == set(model.model_fields), "a key of the class is not in its schema"
    return {
        "type": "object",
        "properties": parts,
        "required": required,
        "additionalProperties": False,
    }
