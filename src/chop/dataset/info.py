"""Data sets: their descriptions, the table of all of them, and the way to join it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from chop.dataset.rows import SPLITS, DatasetRequest, Splits
from chop.errors import ConfigError, DataError, RegistrationError, UnknownNameError
from chop.registry import Registry, description

Load = Callable[[DatasetRequest], Splits]


class DatasetSource(StrEnum):
    """The origin of the rows of a data set."""

    MANUAL = "manual"
    HF_DATASETS = "hf_datasets"
    TORCHVISION = "torchvision"
    OTHERS = "others"


@dataclass(frozen=True)
class MaseDatasetInfo:
    """The facts about a data set that models, losses and reports depend on.

    Sizes are None while only the rows can tell them, as with a user's own file.
    """

    name: str
    dataset_source: DatasetSource | str
    available_splits: tuple[str, ...]
    preprocess_one_split_for_all: bool = True
    data_collator_cls: type | None = None
    image_classification: bool = False
    physical_data_point_classification: bool = False
    sequence_classification: bool = False
    causal_LM: bool = False
    seq2seqLM: bool = False
    regression: bool = False
    num_classes: int | None = None
    num_targets: int | None = None
    image_size: tuple[int, ...] | None = None
    num_features: int | None = None
    nerf_config: Mapping[str, object] | None = None
    class_names: tuple[str, ...] = field(default=())
    feature_names: tuple[str, ...] = field(default=())
    target_names: tuple[str, ...] = field(default=())
    vocab_size: int | None = None
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        where = f"data set {self.name!r}"
        for name in (
            "available_splits", "image_size", "class_names", "feature_names", "target_names",
        ):  # fmt: skip
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else _as_tuple(value, name, where))
        object.__setattr__(self, "dataset_source", _source(self.dataset_source, where))
        _check_splits(self.available_splits, where)
        for name in (*FLAGS, "preprocess_one_split_for_all"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{where}: {name} must be true or false")
        _check_facts(self, where)

    @property
    def train_split_available(self) -> bool:
        return "train" in self.available_splits

    @property
    def validation_split_available(self) -> bool:
        return "validation" in self.available_splits

    @property
    def test_split_available(self) -> bool:
        return "test" in self.available_splits

    @property
    def pred_split_available(self) -> bool:
        return "pred" in self.available_splits

    @property
    def tokens(self) -> bool:
        """Return whether its rows are numbers of words."""
        return self.sequence_classification or self.causal_LM or self.seq2seqLM

    @property
    def num_outputs(self) -> int | None:
        """The numbers that a network gives for a row: one for each class, or for each target."""
        return self.num_targets if self.regression else self.num_classes

    @property
    def complete(self) -> bool:
        """Return whether a model can be built for it without looking at the rows."""
        sized = self.num_features is not None or self.image_size is not None
        words = self.vocab_size is not None or not self.tokens
        return sized and words and self.num_outputs is not None


@dataclass(frozen=True)
class DatasetEntry:
    """A data set in the table: its facts and the function that reads its rows."""

    info: MaseDatasetInfo
    load: Load
    description: str


DATASETS: Registry[DatasetEntry] = Registry("data set", users_win=True)


def get_dataset_info(name: str) -> MaseDatasetInfo:
    """The facts about the data set called `name`, in any case of letters."""
    return DATASETS[name.lower()].info


def register_dataset(
    name: str, *, description: str = "", **facts: Any
) -> Callable[[Callable[..., Splits]], Callable[..., Splits]]:
    """Decorator that adds a function `(request) -> Splits`, or `() -> Splits`, as a data set.

    Args:
        description: the line `ch info` shows; the docstring's first line if left out.
        facts: fields of `MaseDatasetInfo`; sizes left out are read off the rows.
    """

    def add(load: Callable[..., Splits]) -> Callable[..., Splits]:
        info = _info(name.lower(), facts)
        DATASETS.add(
            name.lower(),
            DatasetEntry(info, _with_request(load, name), description or _first_line(load)),
        )
        return load

    return add


def complete_info(info: MaseDatasetInfo, splits: Splits) -> MaseDatasetInfo:
    """`info` with what only the rows could tell: splits, sizes and names."""
    found = splits.facts()
    targets = splits.preprocessing and splits.preprocessing.targets
    if targets and targets.own:  # of rows that had classes; labels end in the mark of odd rows
        flags: dict[str, Any] = dict.fromkeys(FLAGS, False)
        count = found["num_targets"] - 1
        info = replace(info, num_classes=None, class_names=(), num_targets=count, **flags)
    info = replace(info, regression=info.regression or "num_targets" in found)
    open_facts = {name: value for name, value in found.items() if not getattr(info, name)}
    whole = replace(info, available_splits=tuple(splits.available), **open_facts)
    return whole if _has_kind(whole) else replace(whole, **_kind(whole.image_size))


def check_stated_sizes(stated: MaseDatasetInfo, splits: Splits) -> None:
    """Refuse rows that do not fit what a data set says of itself."""
    where, found = f"data set {stated.name!r}", splits.facts()
    for size in ("num_features", "image_size", "num_targets"):
        want, got = getattr(stated, size), found.get(size)
        if want is not None and got is not None and want != got:
            raise DataError(f"{where}: {size} is {got}, not {want}")
    words, used = stated.vocab_size, found.get("vocab_size")
    if words is not None and used is not None and used > words:
        raise DataError(f"{where}: token {used - 1}, but {words} words")
    classes, seen = stated.num_classes, found.get("num_classes")
    if classes is not None and seen is not None and seen > classes:
        raise DataError(f"{where}: label {seen - 1}, but {classes} classes")


def _info(name: str, facts: dict[str, Any]) -> MaseDatasetInfo:
    known = [one.name for one in fields(MaseDatasetInfo) if one.name != "name"]
    for fact in facts:
        if fact not in known:
            raise UnknownNameError("fact", fact, known, where=f"data set {name!r}")
    defaults: dict[str, Any] = {
        "dataset_source": DatasetSource.MANUAL,
        "available_splits": ("train", "validation", "test"),
    }
    info = MaseDatasetInfo(name, **(defaults | facts))
    if _has_kind(info) or not info.complete:
        return info
    return replace(info, **_kind(info.image_size))


def _has_kind(info: MaseDatasetInfo) -> bool:
    return any(getattr(info, flag) for flag in FLAGS)


def _kind(image_size: tuple[int, ...] | None) -> dict[str, Any]:
    flag = "physical_data_point_classification" if image_size is None else "image_classification"
    return {flag: True}


def _with_request(load: Callable[..., Splits], name: str) -> Load:
    """`load` as a function of one request, whether or not it wants it."""
    required = [
        parameter
        for parameter in inspect.signature(load).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 1:
        raise RegistrationError(
            f"data set {name!r}: its function must take one request or nothing, "
            f"not {len(required)} arguments"
        )
    return load if inspect.signature(load).parameters else (lambda request: load())


def _first_line(load: Callable[..., Splits]) -> str:
    return description(load) or f"the rows {getattr(load, '__name__', 'a function')} returns"


FLAGS = (
    "image_classification",
    "physical_data_point_classification",
    "sequence_classification",
    "causal_LM",
    "seq2seqLM",
    "regression",
)


def _as_tuple(value: Any, name: str, where: str) -> tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ConfigError(f"{where}: {name} must be a list or tuple (got {value!r})")


def _source(source: DatasetSource | str, where: str) -> DatasetSource:
    try:
        return DatasetSource(source)
    except ValueError:
        known = [one.value for one in DatasetSource]
        raise UnknownNameError("dataset_source", source, known, where) from None


def _check_splits(splits: tuple[str, ...], where: str) -> None:
    for split in splits:
        if split not in SPLITS:
            raise UnknownNameError("split", split, SPLITS, where)
    if not splits:
        raise ConfigError(f"{where}: available_splits is empty; give at least 'train'")


def _check_facts(info: MaseDatasetInfo, where: str) -> None:
    counts = ("num_classes", "num_targets", "num_features", "vocab_size")
    sizes = {name: [getattr(info, name)] for name in counts}
    for name, given in (sizes | {"image_size": list(info.image_size or ())}).items():
        for size in given:
            whole = isinstance(size, int) and not isinstance(size, bool)
            if size is not None and not (whole and size > 0):
                raise ConfigError(f"{where}: {name} must be a whole number above 0 (got {size!r})")
    for kind, plural in (("class", "classes"), ("feature", "features"), ("target", "targets")):
        count, size = len(getattr(info, f"{kind}_names")), getattr(info, f"num_{plural}")
        if count and size is not None and count != size:
            raise ConfigError(f"{where}: {count} {kind}_names for {size}")
    if info.regression and info.num_classes is not None:
        raise ConfigError(f"{where}: regression has no classes: say num_targets, not num_classes")
