"""What training and testing have in common: settings, the model to start from, the record."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from chop.errors import ConfigError
from chop.tools.logger import get_logger
from chop.validation import parse

if TYPE_CHECKING:
    from torch import nn

    from chop.config.run import RunConfig
    from chop.models import MaseModelInfo
    from chop.preprocessing import Preprocessing
    from chop.training.settings import TrainingSettings

logger = get_logger("chop")

TASKS = ("classification", "cls")
UNTRAINED = (
    "No weights were loaded: the network is UNTRAINED and its results mean nothing. "
    "Name a checkpoint with --load and --load-type."
)


def settings_of(config: "RunConfig") -> dict[str, Any]:
    """The settings of the command line under the names that Lightning has for them."""
    from chop.training.settings import TrainingSettings

    same = TrainingSettings.model_fields.keys() & {field.name for field in fields(config)}
    return {name: getattr(config, name) for name in same} | {
        "optimizer": config.training_optimizer,
        "precision": config.trainer_precision,
        "devices": config.num_devices,
        "auto_requeue": config.is_to_auto_requeue,
    }


def chosen_settings(
    action: str, plt_trainer_args: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> "TrainingSettings":
    """The settings that were given in either of two ways, checked."""
    from chop.training.settings import TrainingSettings

    return parse(TrainingSettings, {**(plt_trainer_args or {}), **given}, action)


def check_task(task: str) -> None:
    """Refuse tasks of the original that are not here."""
    if task not in TASKS:
        raise ConfigError(f"task {task!r} is not supported: every model here is a classifier")


def loaded(
    model: "nn.Module", load_name: str | os.PathLike[str] | None, load_type: str
) -> "nn.Module":
    """`model` with the weights it is to start from."""
    from chop.tools.checkpoint_load import load_model

    return model if load_name is None else load_model(load_name, load_type, model)


def known_preprocessing(model: "nn.Module", data_module: Any) -> "Preprocessing | None":
    """What was done to the features: as the model says it, else as the rows do."""
    from chop.preprocessing import preprocessing_of

    return preprocessing_of(model) or getattr(data_module, "preprocessing", None)


def features_of(model: "nn.Module", data_module: Any) -> dict[str, Any]:
    """The same for a record."""
    known = known_preprocessing(model, data_module)
    return {"preprocessing": known and known.as_plain()}


def rows_of(data_module: Any, main: str, action: str) -> Any:
    """The data module of an action, whatever it was given; what is not known of it is said.

    Args:
        main: the split that a single loader stands for.
    """
    from chop.dataset.given import GivenRows, as_data_module

    try:
        rows = as_data_module(data_module, main)
    except ConfigError as error:
        raise ConfigError(f"{action}: {error}") from None
    if isinstance(rows, GivenRows):
        logger.info("Data: %s, without %s", rows.source, rows.missing)
    return rows


def name_of(model: "nn.Module", model_info: Any) -> str:
    """What a model is called: its registered name, else its class."""
    return type(model).__name__ if model_info is None else str(model_info.name)


def facts_of(model: "nn.Module", model_info: "MaseModelInfo | None") -> "MaseModelInfo":
    """The facts about a model; of one that is not registered, that it is a classifier."""
    from chop.models.info import MaseModelInfo

    return model_info or MaseModelInfo(
        type(model).__name__,
        model_source="manual",
        task_type="physical",
        physical_data_point_classification=True,
        is_fx_traceable=True,
    )


def full_record(record: Mapping[str, Any] | None, data_module: Any) -> dict[str, Any]:
    """What was run, and on which rows."""
    facts = {
        "data": getattr(data_module, "source", ""),
        "fingerprint": getattr(data_module, "fingerprint", None),
        "batch_size": data_module.batch_size,
    }
    return {**(record or {}), **facts}
