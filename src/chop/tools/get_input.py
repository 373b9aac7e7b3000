"""Batches of a data set in the form a graph takes them: a dictionary by argument name."""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from chop.dataset.data_module import AnyLoader, MaseDataModule
from chop.dataset.loader import TensorLoader
from chop.errors import ConfigError, UnknownNameError
from chop.models.info import CLASSIFICATION, MaseModelInfo

Batch = dict[str, Tensor]

LOADERS = {
    "train": "train_dataloader",
    "val": "val_dataloader",
    "validation": "val_dataloader",
    "test": "test_dataloader",
    "pred": "pred_dataloader",
}


class InputGenerator:
    """The inputs of a data set, batch by batch, as ``{"x": batch}``.

    It can be gone through any number of times and gives the same batches each time: those of the
    first epoch for the data module's seed. `next()` draws from a pass of its own, which starts
    again after the last batch.

    Args:
        which_dataloader: train, val (or validation), test or pred.
        max_batches: stop after so many batches.
    """

    def __init__(
        self,
        model_info: MaseModelInfo,
        data_module: MaseDataModule,
        task: str,
        which_dataloader: str,
        max_batches: int | None = None,
    ) -> None:
        _check_task(model_info, task)
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
        """A loader of its own, at the start of its first epoch."""
        loader: AnyLoader = getattr(self.data_module, LOADERS[self.which_dataloader])()
        return loader


def get_dummy_input(
    model_info: MaseModelInfo, data_module: MaseDataModule, task: str, device: str = "meta"
) -> Batch:
    """One batch of training inputs; on the device "meta" only its shape and type."""
    _check_task(model_info, task)
    loader = data_module.train_dataloader()
    if device == "meta" and isinstance(loader, TensorLoader):
        rows = min(loader.batch_size, len(loader.features))
        return {"x": torch.empty(rows, *loader.features.shape[1:], device="meta")}
    x, _ = next(iter(loader))
    return {"x": x.to(device)}


def get_cf_args(model_info: MaseModelInfo, task: str, model: nn.Module) -> dict[str, object]:
    """Arguments that tracing must hold fixed: none for models that take one tensor."""
    _check_task(model_info, task)
    return {}


def _check_task(model_info: MaseModelInfo, task: str) -> None:
    if task not in CLASSIFICATION:
        raise ConfigError(
            f"model {model_info.name!r} is a classifier: task must be 'cls' (got {task!r})"
        )
