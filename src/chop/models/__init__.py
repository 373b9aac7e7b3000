"""Models by name, built for a data set, with weights if asked for."""

import os
from typing import Any

from torch import nn

from chop.errors import CheckpointError, ConfigError
from chop.models import physical, toys, vision  # noqa: F401  (register their models)
from chop.models.info import (
    CLASSIFICATION,
    DEFAULT_DATA,
    MODELS,
    DataInfo,
    DataShape,
    MaseModelInfo,
    ModelEntry,
    ModelSource,
    ModelTaskType,
    get_model_info,
    register_model,
)
from chop.models.weights import load_weights, read_state_dict

__all__ = [
    "MODELS",
    "MaseModelInfo",
    "ModelSource",
    "ModelTaskType",
    "get_model",
    "get_model_info",
    "get_tokenizer",
    "register_model",
]


def get_model(
    name: str | None = None,
    task: str = "cls",
    dataset_info: DataInfo | None = None,
    pretrained: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    quant_config: Any = None,
) -> nn.Module:
    """The model called `name`, built for a data set.

    Args:
        dataset_info: sizes to build for; without it those the model was made for.
        pretrained: load the weights registered with the model, or raise if there are none.
        checkpoint: a file of weights to load; given alone it may also be the model's name.
        quant_config: refused: models here are quantised by the quantize pass.
    """
    if name is None:
        if checkpoint is None or str(checkpoint) not in MODELS:
            raise ConfigError("get_model needs the name of a model")
        name, checkpoint = str(checkpoint), None
    entry = MODELS[name]
    _check_request(name, task, quant_config)
    weights = _weights_file(entry, pretrained, checkpoint)
    model = entry.build(dataset_info or _default_data(entry))
    if weights is not None:
        load_weights(model, read_state_dict(weights), f"model {name!r} from {weights}")
    return model


def get_tokenizer(name: str, checkpoint: str | None = None) -> None:
    """Refuse: no model here reads text."""
    raise ConfigError(f"model {MODELS[name].info.name!r} takes no text and has no tokenizer")


def _check_request(name: str, task: str, quant_config: Any) -> None:
    if task not in CLASSIFICATION:
        raise ConfigError(f"model {name!r} is a classifier: task must be 'cls' (got {task!r})")
    if quant_config is not None:
        raise ConfigError(f"model {name!r} takes no quant_config; use the quantize pass")


def _weights_file(
    entry: ModelEntry, pretrained: bool, checkpoint: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    if checkpoint is not None or not pretrained:
        return checkpoint
    if entry.weights is None:
        raise CheckpointError(
            f"model {entry.info.name!r} has no pretrained weights; give a file of your own "
            "with checkpoint= or --load"
        )
    return entry.weights


def _default_data(entry: ModelEntry) -> DataInfo:
    return DEFAULT_DATA.get(ModelTaskType(entry.info.task_type), DataShape())
