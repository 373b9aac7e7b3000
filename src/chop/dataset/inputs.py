"""Batches of inputs for passes, and rows scaled as those that a network was trained on."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from chop.dataset.data_module import AnyLoader, MaseDataModule, TensorLoader
from chop.dataset.preprocess import (
    FeatureStatistics,
    check_same_features,
    feature_statistics,
    stage_of,
    worst_column,
)
from chop.errors import ConfigError, UnknownNameError
from chop.logger import get_logger
from chop.masking import printable
from chop.preprocessing import Preprocessing, Targets, preprocessing_of, set_preprocessing

Batch = dict[str, Tensor]

LOADERS = {
    "train": "train_dataloader",
    "val": "val_dataloader",
    "validation": "val_dataloader",
    "test": "test_dataloader",
    "pred": "pred_dataloader",
}


class TakesTasks(Protocol):
    """The facts about a model, as far as they are asked here."""

    def check_task(self, task: str) -> None:
        """Refuse a task that the model is not made for."""


class InputGenerator:
    """The inputs of a data set, batch by batch, as ``{"x": batch}``.

    It can be iterated over any number of times and gives the same batches each time: those of the
    first epoch for the data module's seed. `next()` draws from a separate pass, which starts
    again after the last batch.

    Args:
        which_dataloader: train, val (or validation), test or pred.
        max_batches: stop after so many batches.
    """

    def __init__(
        self,
        model_info: TakesTasks,
        data_module: MaseDataModule,
        task: str,
        which_dataloader: str,
        max_batches: int | None = None,
    ) -> None:
        model_info.check_task(task)
        if which_dataloader not in LOADERS:
            raise UnknownNameError("data loader", which_dataloader, LOADERS)
        if max_batches is not None and max_batches < 1:
            raise ConfigError(f"max_batches must be at least 1 (got {max_batches})")
        self.data_module = data_module
        self.which_dataloader = which_dataloader
        self.max_batches = max_batches
        self._pass: Iterator[Batch] | None = None

    @property
    def batch_size(self) -> int:
        """The rows in a full batch."""
        return self.data_module.batch_size

    def __len__(self) -> int:
        batches = len(self._loader())
        return batches if self.max_batches is None else min(batches, self.max_batches)

    def __iter__(self) -> Iterator[Batch]:
        return islice(({"x": x} for x, _ in self._loader()), self.max_batches)

    def __next__(self) -> Batch:
        if self._pass is None:
            self._pass = iter(self)
        try:
            return next(self._pass)
        except StopIteration:
            self._pass = None
            raise

    def _loader(self) -> AnyLoader:
        """A new loader, at the start of its first epoch."""
        loader: AnyLoader = getattr(self.data_module, LOADERS[self.which_dataloader])()
        return loader


def get_dummy_input(
    model_info: TakesTasks, data_module: MaseDataModule, task: str, device: str = "meta"
) -> Batch:
    """One batch of training inputs; on the device "meta" only its shape and type."""
    model_info.check_task(task)
    loader = data_module.train_dataloader()
    if device == "meta" and isinstance(loader, TensorLoader):
        rows = min(loader.batch_size, len(loader.features))
        shape, kind = loader.features.shape[1:], loader.features.dtype
        return {"x": torch.empty(rows, *shape, dtype=kind, device="meta")}
    x, _ = next(iter(loader))
    return {"x": x.to(device)}


def as_example(batch: Batch) -> Batch | Tensor:
    """A batch as `MaseGraph` takes it: an only column is the first argument, whatever its name."""
    return next(iter(batch.values())) if len(batch) == 1 else batch


def get_cf_args(model_info: TakesTasks, task: str, model: nn.Module) -> dict[str, object]:
    """Arguments that tracing must hold fixed: none for models that take one tensor."""
    model_info.check_task(task)
    return {}


logger = get_logger("chop")


def rows_for(model: nn.Module, data: Any) -> Any:
    """`data` with its rows scaled as those that `model` was trained on; what is done is said.

    A model that does not say how those were scaled takes the rows as they are.

    Args:
        data: a data module; one of another kind than ours is left as it is.
    """
    trained = preprocessing_of(model)
    done = getattr(data, "preprocessing", None)
    if trained is None:
        if done is not None:
            logger.info("Features: %s", done)
            _tell_targets(done)
        return data
    logger.info("Features of the model: %s", trained)
    _tell_targets(trained)
    if not isinstance(data, MaseDataModule):
        logger.warning(
            "The rows come from a custom %s and are taken as they are; they must be scaled as "
            "in training", type(data).__name__,
        )  # fmt: skip
        return data
    other_name = check_same_features(data.splits, data.dataset_info.feature_names, trained)
    if other_name:
        logger.warning(
            "The rows have other features than the model was trained on: %s; they are taken by "
            "their order", other_name,
        )  # fmt: skip
    data = _with_classes_of(data, trained.classes)
    return _unknown_rows(data, trained) if done is None else _known_rows(data, trained, done)


def _tell_targets(known: Preprocessing) -> None:
    if known.targets is not None:
        logger.info("Targets: %s", known.targets)


def _with_classes_of(data: MaseDataModule, trained: tuple[str, ...]) -> MaseDataModule:
    """The rows with the numbers that their classes had in training.

    A file numbers its classes by their names, so one with fewer of them has other numbers.
    """
    rows = data.dataset_info.class_names
    if rows == trained or not rows or not trained:
        return data
    if data.request.path is not None and set(rows) <= set(trained):
        logger.info("The classes of the rows are numbered as in training: %s", _list_names(trained))
        return data.with_classes(trained)
    shown = f"{_list_names(rows)}; in training {_list_names(trained)}"
    logger.warning("The rows have other classes than the model was trained on (%s)", shown)
    return data


def _list_names(names: tuple[str, ...]) -> str:
    """Some names of classes, which come from files, for a message."""
    return printable(", ".join(names[:SHOWN])) + (", …" if len(names) > SHOWN else "")


SHOWN = 8  # names of classes in a message


def remember_rows(model: nn.Module, data: Any) -> None:
    """Note on a model that is to be trained how its rows are scaled, unless it knows.

    The names of the classes are those of these rows in any case.
    """
    known = preprocessing_of(model) or getattr(data, "preprocessing", None)
    if known is not None:
        names = tuple(map(str, data.dataset_info.class_names))
        set_preprocessing(model, replace(known, classes=names))


def targets_for(model: nn.Module, data: Any) -> Targets | None:
    """Return the scaling of the numbers that `model` predicts: as it says, else as the rows do."""
    known = preprocessing_of(model) or getattr(data, "preprocessing", None)
    return None if known is None else known.targets


def _known_rows(
    data: MaseDataModule, trained: Preprocessing, done: Preprocessing
) -> MaseDataModule:
    """Rows that say what was done to them."""
    wanted = trained.of_rows
    if done.constants == wanted.constants:
        return data
    if done.constants != trained.constants and not done.is_identity:
        theirs = FeatureStatistics(*(np.array(each) for each in done.as_measured()))
        logger.warning(
            "The rows have other means and deviations than those the model was trained on (%s); "
            "they are scaled with the constants of the model", worst_column(trained, theirs),
        )  # fmt: skip
    if trained.in_graph:
        logger.info("The rows are taken as they were measured, as the graph scales them itself")
    return data.scaled_as(wanted)


def _unknown_rows(data: MaseDataModule, trained: Preprocessing) -> MaseDataModule:
    """Rows that do not say what was done to them, which their numbers may tell."""
    look = feature_statistics(data.splits, trained.kind == "channels")
    stage = stage_of(look, trained)
    both = worst_column(trained, look)
    then = "they are scaled with the constants of the model"
    if trained.in_graph:
        then = "the graph scales them itself"
    if stage is None:
        logger.warning(
            "The rows look neither like those that the model was trained on nor standardised (%s); "
            "they are taken as measured, and %s", both, then,
        )  # fmt: skip
    elif stage.is_identity:
        logger.info("The rows look as they were measured, and %s", then)
    elif stage.constants == trained.constants:
        remedy = f"; {then}, so give it rows as they were measured" if trained.in_graph else ""
        logger.warning(
            "The rows look standardised already and are left as they are (%s)%s", both, remedy
        )
        return data
    else:
        logger.warning("The rows look divided by %g already (%s); %s", stage.divisor, both, then)
    return data.scaled_as(trained.of_rows, taken_as=stage or trained.identity)
