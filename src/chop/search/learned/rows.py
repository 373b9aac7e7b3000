"""The rows that a network learns from, and the targets of each."""

import copy
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.dataset.data_module import TensorLoader
from chop.search.spaces.samples import SHUFFLED, sample_of
from chop.search.spaces.space import Batch, SearchContext
from chop.tasks import NUMBERS, as_rows, task_named
from chop.training.batches import Epochs, lay_out, normalisable

AT_ONCE = 2**17
"""Elements of the rows that are run at once where no gradients are needed: many small batches of a
small network take four times as long."""
MOST_BATCHES = 256
"""Batches that tell how much targets vary."""


def largest_batch(features: Tensor, batch_size: int) -> int:
    """Return how many such rows are run at once; a batch, or more."""
    return max(batch_size, AT_ONCE // max(features[0].numel(), 1))


def join_batches(batches: list[Batch]) -> list[Batch]:
    """The same rows in batches as large as `largest_batch` allows."""
    longest = max((len(features) for features, _ in batches), default=0)
    size = largest_batch(batches[0][0], longest) if longest else 0
    if size == longest:
        return batches
    features, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    return list(zip(torch.split(features, size), torch.split(labels, size), strict=True))


class Rows:
    """The training rows of a search; the order of each epoch is a function of the seed.

    Args:
        teacher: predicts a part of what is to be learned.
        share: how large that part is.
    """

    def __init__(
        self, context: SearchContext, teacher: nn.Module | None = None, share: float = 0.0
    ) -> None:
        self.device, self.seed = context.device, context.seed
        self.teacher = teacher
        self.share = share
        self.scaling = context.targets
        self.is_regression = task_named(context.task) is NUMBERS
        self.loader: Any = context.data_module.train_dataloader()
        self.is_prepared = False
        """Whether the loader gives targets, rather than labels."""
        if isinstance(self.loader, TensorLoader):
            # What a teacher says of a picture depends on how it was changed.
            self.is_prepared = teacher is None or self.loader.augmentation is None
            self.loader = self._in_memory(self.loader)
        self.steps = Epochs(self.loader).steps()
        self.first_epoch = 0
        """The number of epochs of the rows that were used before."""

    def after(self, epochs: int) -> "Rows":
        """The same rows, of which some epochs were used."""
        later = copy.copy(self)
        later.first_epoch = self.first_epoch + epochs
        return later

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a network on some of these rows."""
        if not self.is_regression:
            return F.cross_entropy(outputs, targets)
        return (as_rows(outputs) - targets).square().mean() / self.variance

    @cached_property
    def variance(self) -> float:
        """The variance of unscaled targets, by which the cost of bits means the same for all."""
        if self.scaling is not None:
            return 1.0
        batches = Epochs(self.loader).batches(0)
        found = torch.cat([labels for _, labels in islice(batches, MOST_BATCHES)])
        return float(found.double().var(dim=0).mean()) or 1.0

    def _in_memory(self, loader: TensorLoader) -> TensorLoader:
        """The rows with their targets; what is left over after whole batches waits an epoch."""
        features, targets = loader.features, loader.labels
        if self.is_prepared:
            size = largest_batch(features, loader.batch_size)
            chunks = zip(*(torch.split(each, size) for each in (features, targets)), strict=True)
            targets = torch.cat([self._targets(*self._moved(each)).cpu() for each in chunks])
        whole = len(features) >= loader.batch_size
        found = TensorLoader(
            features, targets, loader.batch_size, True, loader.seed, drop_last=whole
        )
        found.augmentation = loader.augmentation
        return found

    def _moved(self, batch: Batch) -> Batch:
        return batch[0].to(self.device), batch[1].to(self.device)

    def _targets(self, features: Tensor, labels: Tensor) -> Tensor:
        """Labels, or a mixture with what a teacher says: shares of classes, or numbers."""
        if self.is_regression:
            labels = as_rows(labels) if self.scaling is None else self.scaling.scale_labels(labels)
        if self.teacher is None:
            return labels
        with torch.no_grad():
            predicted = self.teacher(features.clone())
        if self.is_regression:
            return self.share * as_rows(predicted) + (1 - self.share) * labels
        predicted = predicted.softmax(1)
        ones = F.one_hot(labels, predicted.shape[1])
        mixed: Tensor = self.share * predicted + (1 - self.share) * ones
        return mixed

    def batches(self, epoch: int, model: nn.Module) -> Iterator[Batch]:
        """The batches of an epoch for a model; random numbers restart, too."""
        epoch += self.first_epoch
        torch.manual_seed(self.seed * 1_000_003 + epoch)  # dropout is the same when a run resumes
        served = normalisable(Epochs(self.loader).batches(epoch), model)
        found = lay_out(map(self._moved, served), model)
        if self.is_prepared:
            return found
        return ((x, self._targets(x, y)) for x, y in found)

    def draw(self, count: int) -> list[Tensor]:
        """Random rows without their targets, the same for every seed."""
        drawn = [features.to(self.device) for features, _ in sample_of(self.loader, count)]
        if isinstance(self.loader, TensorLoader):
            size = largest_batch(drawn[0], self.loader.batch_size)
            return [part for each in drawn for part in torch.split(each, size)]
        return drawn

    def everything(self) -> Iterator[Tensor]:
        """All rows without their targets."""
        if isinstance(self.loader, TensorLoader):
            features = self.loader.features
            size = largest_batch(features, self.loader.batch_size)
            return (x.to(self.device) for x in torch.split(features, size))
        return (x.to(self.device) for x, _ in Epochs(self.loader).batches(SHUFFLED))
