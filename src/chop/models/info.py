"""Models: their descriptions, the table of all of them, the way to join it and to build one."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import nn

from chop.errors import CheckpointError, ConfigError, RegistrationError, UnknownNameError
from chop.models.weights import load_weights, read_state_dict
from chop.registry import Registry, description
from chop.tasks import CLASSES, NUMBERS, TOKENS
from chop.validation import parse

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


class ModelSource(StrEnum):
    """The origin of a model."""

    HF_TRANSFORMERS = "hf_transformers"
    MANUAL = "manual"
    PATCHED = "patched"
    TOY = "toy"
    TORCHVISION = "torchvision"
    VISION_OTHERS = "vision_others"
    PHYSICAL = "physical"
    NERF = "nerf"


class ModelTaskType(StrEnum):
    """The kind of data that a model takes."""

    NLP = "nlp"
    VISION = "vision"
    PHYSICAL = "physical"
    NERF = "nerf"
    SPEECH = "speech"


CLASSIFICATION, LANGUAGE, REGRESSION = CLASSES.names, TOKENS.names, NUMBERS.names
HUB = "hf:"
"""Begins the name of a model of transformers: a folder, or a name of the Hugging Face hub."""

TASKS = {
    ModelTaskType.NLP: ("sequence_classification", "seq2seqLM", "causal_LM"),
    ModelTaskType.VISION: (
        "image_classification",
        "image_detection",
        "image_segmentation",
        "image_instance_segmentation",
    ),
    ModelTaskType.PHYSICAL: ("physical_data_point_classification",),
}
"""The tasks each kind of model can have; the first is what a bare registration assumes."""


@dataclass(frozen=True)
class MaseModelInfo:
    """The facts about a model that actions and passes depend on."""

    name: str
    model_source: ModelSource | str
    task_type: ModelTaskType | str
    image_classification: bool = False
    physical_data_point_classification: bool = False
    sequence_classification: bool = False
    seq2seqLM: bool = False
    causal_LM: bool = False
    is_quantized: bool = False
    is_lora: bool = False
    is_sparse: bool = False
    is_fx_traceable: bool = False
    image_detection: bool = False
    image_segmentation: bool = False
    image_instance_segmentation: bool = False

    def __post_init__(self) -> None:
        where = f"model {self.name!r}"
        object.__setattr__(self, "model_source", _member(ModelSource, self.model_source, where))
        object.__setattr__(self, "task_type", _member(ModelTaskType, self.task_type, where))
        for name, value in vars(self).items():
            if name not in ("name", "model_source", "task_type") and not isinstance(value, bool):
                raise ConfigError(f"{where}: {name} must be true or false (got {value!r})")
        _check_tasks(self, where)

    @property
    def is_nlp_model(self) -> bool:
        return self.task_type is ModelTaskType.NLP

    @property
    def is_vision_model(self) -> bool:
        return self.task_type is ModelTaskType.VISION

    @property
    def is_physical_model(self) -> bool:
        return self.task_type is ModelTaskType.PHYSICAL

    @property
    def is_nerf_model(self) -> bool:
        return self.task_type is ModelTaskType.NERF

    def check_task(self, task: str) -> None:
        """Refuse a task that does not exist, or not one of this model."""
        if task not in (*CLASSIFICATION, *LANGUAGE, *REGRESSION):
            raise ConfigError(
                f"task {task!r} is not supported: a model is a classifier (cls), a language "
                "model (lm) or predicts numbers (regression)"
            )
        if task in REGRESSION and self.is_nlp_model:
            raise ConfigError(
                f"model {self.name!r} takes text: task must be 'cls' or 'lm' (got {task!r})"
            )
        if task in LANGUAGE and not self.causal_LM:
            raise ConfigError(
                f"model {self.name!r} is a classifier: task must be 'cls' (got {task!r})"
            )
        others = [name for names in TASKS.values() for name in names if name != "causal_LM"]
        if task in CLASSIFICATION and self.causal_LM and not any(getattr(self, n) for n in others):
            raise ConfigError(
                f"model {self.name!r} is a language model: task must be 'lm' (got {task!r})"
            )


class DataInfo(Protocol):
    """Facts about the data that a model must know: a `MaseDatasetInfo` has these attributes.

    It also has `num_targets`, the numbers to be predicted in place of classes, and `num_outputs`,
    which is the one or the other.
    """

    @property
    def num_features(self) -> int | None: ...

    @property
    def num_classes(self) -> int | None: ...

    @property
    def image_size(self) -> tuple[int, ...] | None: ...


@dataclass(frozen=True)
class DataShape:
    """The data a model is built for when no data set is named."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # a name that pydantic reads

    num_features: int | None = None
    num_classes: int | None = None
    image_size: tuple[int, ...] | None = None
    vocab_size: int | None = None
    pad_token_id: int = 0


DEFAULT_DATA = {
    ModelTaskType.PHYSICAL: DataShape(num_features=16, num_classes=5),
    ModelTaskType.VISION: DataShape(image_size=(3, 32, 32), num_classes=10),
    ModelTaskType.NLP: DataShape(num_features=32, num_classes=2, vocab_size=256),
}


@dataclass(frozen=True)
class ModelEntry:
    """A model in the table: its facts, the function that builds it, its trained weights if any."""

    info: MaseModelInfo
    build: Callable[[DataInfo], nn.Module]
    description: str
    weights: Path | None = None


MODELS: Registry[ModelEntry] = Registry("model", users_win=True)


def register_model(
    name: str, *, description: str = "", weights: str | Path | None = None, **facts: Any
) -> Callable[[Builder], Builder]:
    """Decorator that adds a class or function `(info) -> nn.Module`, or `() -> …`, as a model.

    Args:
        description: the line `ch info` shows; the docstring's first line if left out.
        weights: the file that `pretrained=True` loads.
        facts: fields of `MaseModelInfo`. Without any, the model classifies rows of numbers and
            can be traced; with ``task_type="vision"`` it classifies images.
    """

    def add(builder: Builder) -> Builder:
        line = description or _first_line(builder)
        trained = Path(weights) if weights is not None else None
        entry = ModelEntry(_info(name, facts), _with_info(builder, name), line, trained)
        MODELS.add(name, entry)
        return builder

    return add


def get_model_info(name: str) -> MaseModelInfo:
    """The facts about the model called `name`."""
    if name.startswith(HUB):
        return MaseModelInfo(
            name, ModelSource.HF_TRANSFORMERS, "nlp", sequence_classification=True, causal_LM=True
        )
    return MODELS[name].info


def get_model(  # noqa: PLR0913  (the labs give six of them by position)
    name: str | None = None,
    task: str = "cls",
    dataset_info: DataInfo | Mapping[str, Any] | None = None,
    pretrained: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    quant_config: Any = None,
    *,
    fetch: bool = True,
) -> nn.Module:
    """The model called `name`, built for a data set.

    Args:
        dataset_info: sizes to build for, by attributes or keys; without it the model's own.
        pretrained: load the weights registered with the model, or raise if there are none.
        checkpoint: a file of weights to load; given alone it may also be the model's name.
        quant_config: refused: models here are quantised by the quantize pass.
        fetch: whether a hub may be asked for ``hf:NAME``; not if the name comes from a file.
    """
    if name is None:
        if checkpoint is None or str(checkpoint) not in MODELS:
            raise ConfigError("get_model needs the name of a model")
        name, checkpoint = str(checkpoint), None
    facts = get_model_info(name)
    facts.check_task(task)
    if quant_config is not None:
        raise ConfigError(f"model {name!r} takes no quant_config; use the quantize pass")
    if isinstance(dataset_info, Mapping):
        dataset_info = parse(DataShape, dataset_info, "dataset_info")
    data = dataset_info or DEFAULT_DATA.get(ModelTaskType(facts.task_type), DataShape())
    if name.startswith(HUB):
        from chop.models.hf import by_name

        model, weights = by_name(name, task, data, pretrained=pretrained, fetch=fetch), checkpoint
    else:
        entry = MODELS[name]
        model, weights = _build(entry, data), _weights_file(entry, pretrained, checkpoint)
    if weights is not None:
        load_weights(model, read_state_dict(weights), f"model {name!r} from {weights}")
    return model


def get_tokenizer(name: str, checkpoint: str | os.PathLike[str] | None = None) -> Any:
    """The tokeniser of a model: that of a folder, or of ``hf:NAME``.

    Args:
        checkpoint: the folder, if `name` is not that of a model of transformers.
    """
    if not get_model_info(name).is_nlp_model:
        raise ConfigError(f"model {name!r} takes no text and has no tokenizer")
    if checkpoint is None and not name.startswith(HUB):
        raise ConfigError(f"model {name!r} takes tokens and has no tokenizer: name a folder")
    from chop.models.hf import tokenizer_of

    return tokenizer_of(name.removeprefix(HUB) if checkpoint is None else checkpoint)


def _build(entry: ModelEntry, data: DataInfo) -> nn.Module:
    """The model for a data set; one that asks for classes where there are none is told so."""
    try:
        return entry.build(data)
    except TypeError as error:
        if data.num_classes is not None or outputs_of(data) is None:
            raise
        raise ConfigError(
            f"model {entry.info.name!r} cannot be built for regression ({error}): its data set has "
            f"no num_classes; let it give num_outputs numbers, which is {outputs_of(data)} here"
        ) from error


def _weights_file(
    entry: ModelEntry, pretrained: bool, checkpoint: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    if checkpoint is not None or not pretrained:
        return checkpoint
    if entry.weights is None:
        raise CheckpointError(
            f"model {entry.info.name!r} has no pretrained weights; give a file "
            "with checkpoint= or --load"
        )
    return entry.weights


def outputs_of(info: DataInfo) -> int | None:
    """The numbers that a model gives for a row: one for each class, or for each target."""
    targets: int | None = getattr(info, "num_targets", None)
    return info.num_classes if targets is None else targets


def rows_of(info: DataInfo, name: str) -> tuple[int, int]:
    """The number of features and of outputs, for a model that takes rows of numbers."""
    is_text = getattr(info, "vocab_size", None) is not None
    outputs = outputs_of(info)
    if info.num_features is None or outputs is None or is_text:
        raise ConfigError(f"model {name!r} takes rows of features, which this data set has not")
    return info.num_features, outputs


def class_rows_of(info: DataInfo, name: str, end: str) -> tuple[int, int]:
    """As `rows_of`, for a model whose `end` lets no output be negative, as targets are."""
    if getattr(info, "num_targets", None) is not None:
        raise ConfigError(
            f"model {name!r} ends in a {end}, so it cannot predict numbers below their mean: take "
            "'jsc-mlp' or 'toy_mlp'"
        )
    return rows_of(info, name)


def images_of(info: DataInfo, name: str) -> tuple[tuple[int, int, int], int]:
    """The size `(channels, height, width)` of an image and the number of outputs."""
    outputs = outputs_of(info)
    if info.image_size is None or len(info.image_size) != 3 or outputs is None:
        raise ConfigError(f"model {name!r} takes images, which this data set has not")
    channels, height, width = info.image_size
    return (channels, height, width), outputs


class Tokens(NamedTuple):
    """The sizes of a data set of text."""

    words: int
    """In the vocabulary."""
    length: int
    """Tokens of a row."""
    classes: int
    pad: int
    """The token that fills short rows up."""


def tokens_of(info: DataInfo, name: str) -> Tokens:
    """The sizes of text, for a model that takes rows of tokens."""
    words = getattr(info, "vocab_size", None)
    if words is None or info.num_features is None or info.num_classes is None:
        raise ConfigError(f"model {name!r} takes rows of tokens, which this data set has not")
    return Tokens(words, info.num_features, info.num_classes, getattr(info, "pad_token_id", 0))


def _info(name: str, facts: dict[str, Any]) -> MaseModelInfo:
    known = [field for field in MaseModelInfo.__dataclass_fields__ if field != "name"]
    for fact in facts:
        if fact not in known:
            raise UnknownNameError("fact", fact, known, where=f"model {name!r}")
    usual = {"model_source": "manual", "task_type": "physical", "is_fx_traceable": True}
    facts = {**usual, **facts}
    tasks = TASKS.get(facts["task_type"], ())
    if tasks and not any(facts.get(task) for task in tasks):
        facts[tasks[0]] = True
    return MaseModelInfo(name, **facts)


def _with_info(builder: Callable[..., nn.Module], name: str) -> Callable[[DataInfo], nn.Module]:
    """`builder` as a function of the data's facts: it takes all of them, or some by their names."""
    facts = (*DataShape.__dataclass_fields__, "num_targets")
    parameters = inspect.signature(builder).parameters.values()
    named = [one.name for one in parameters if one.name in facts]
    others = [one for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
    required = [one.name for one in others if one.default is one.empty and one.name not in named]
    if len(required) > 1:
        words = ", ".join(required)
        raise RegistrationError(f"model {name!r} must be built from one argument, not ({words})")
    if required or any(one.name == "info" for one in others):
        return builder
    return lambda info: builder(**{
        fact: value for fact in named if (value := getattr(info, fact, None)) is not None
    })  # fmt: skip


def _first_line(builder: Callable[..., nn.Module]) -> str:
    inherited = isinstance(builder, type) and builder.__doc__ == nn.Module.__doc__
    own = "" if inherited else description(builder)
    return own or f"the model {getattr(builder, '__name__', 'a function')} builds"


def _member(kind: type[StrEnum], value: str, where: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        label = "model_source" if kind is ModelSource else "task_type"
        raise UnknownNameError(label, value, [str(one.value) for one in kind], where) from None


def _check_tasks(info: MaseModelInfo, where: str) -> None:
    """Refuse a task that does not go with the kind of model, and a model without any."""
    allowed = TASKS.get(ModelTaskType(info.task_type), ())
    stated = [task for tasks in TASKS.values() for task in tasks if getattr(info, task)]
    kind = ModelTaskType(info.task_type).value
    for task in stated:
        if task not in allowed:
            raise ConfigError(f"{where}: a {kind} model cannot have the task {task}")
    if allowed and not stated:
        raise ConfigError(f"{where}: a {kind} model needs a task: {' or '.join(allowed)}")
