"""The batches of an epoch, for one process or several."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler

from chop.dataset.data_module import TensorLoader
from chop.errors import DataError
from chop.ir.graph.recorder import preserve_model

Batch = tuple[Tensor, Tensor]


class Epochs:
    """A loader whose batches are asked for epoch by epoch."""

    def __init__(self, loader: Any, seed: int = 0, *, even: bool = False) -> None:
        self.loader = loader
        self.seed = seed
        self.even = even
        """Whether every process must get as many batches as the others, as training demands."""

    def batches(self, epoch: int, rank: int = 0, processes: int = 1) -> Iterator[Batch]:
        """The batches of an epoch that belong to one process."""
        if processes > 1:
            return self._share(epoch, rank, processes)
        set_epoch(self.loader, epoch)
        return (_pair(batch) for batch in self.loader)

    def steps(self, processes: int = 1) -> int | None:
        """The batches of an epoch in one process; None if the loader cannot tell."""
        try:
            return -(-len(self.loader) // processes)
        except TypeError:
            return None

    def _share(self, epoch: int, rank: int, processes: int) -> Iterator[Batch]:
        if isinstance(self.loader, TensorLoader):
            return _tensor_share(self.loader, epoch, (rank, processes), self.even)
        if getattr(self.loader, "batch_size", None) is None or not has_rows(self.loader):
            raise DataError(
                "several processes share the rows of a DataLoader with a batch_size and a data set "
                f"that knows its length; this is a {type(self.loader).__name__} without"
            )
        return (
            _pair(batch)
            for batch in _split_loader(self.loader, self._sampler(epoch, rank, processes))
        )

    def _sampler(self, epoch: int, rank: int, processes: int) -> Iterable[int]:
        rows = len(self.loader.dataset)
        if not self.even:
            return range(rank, rows, processes)
        sampler: DistributedSampler[Any] = DistributedSampler(
            self.loader.dataset,
            num_replicas=processes,
            rank=rank,
            shuffle=not isinstance(self.loader.sampler, SequentialSampler),
            seed=self.seed,
        )
        sampler.set_epoch(epoch)
        return sampler


class SharedRows:
    """The training rows of one process, as the loop takes them."""

    def __init__(self, epochs: Epochs, rank: int, processes: int) -> None:
        self.epochs, self.rank, self.processes = epochs, rank, processes

    def batches(self, epoch: int, model: nn.Module) -> Iterator[Batch]:
        """The batches of an epoch where the model is."""
        # Shares are equal, so that all processes leave out the same batch if any does.
        found = move_batches(self.epochs.batches(epoch, self.rank, self.processes), model)
        return normalisable(lay_out(found, model), model)

    @property
    def steps(self) -> int | None:
        """The batches of an epoch, if the loader can tell."""
        return self.epochs.steps(self.processes)


def lay_out(batches: Iterator[Batch], model: nn.Module) -> Iterator[Batch]:
    """The batches with features in the order in memory that the first of them calls for."""
    layout: torch.memory_format | None = None
    for features, labels in batches:
        layout = layout or memory_layout(model, features)
        yield features.contiguous(memory_format=layout), labels


def memory_layout(model: nn.Module, features: Tensor) -> torch.memory_format:
    """Channels last for pictures that are convolved, which saves a fifth of a step on a CPU.

    The weights stay as they are: torch lays out what comes out of a convolution like what goes in.
    A model that calls ``view`` may not take it, and gets its pictures as it would without.
    """
    convolved = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
    compiled = model._compiled_call_impl is not None  # torch chooses its own orders
    if compiled or not convolved or features.ndim != 4 or features.device.type != "cpu":
        return torch.contiguous_format
    try:
        with preserve_model(model):
            model(features[:2].contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return torch.contiguous_format
    return torch.channels_last


def has_rows(loader: Any) -> bool:
    """Return whether a loader has a data set whose rows can be dealt out."""
    rows = getattr(loader, "dataset", None)
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__")


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader, or the sampler in it, which epoch comes next."""
    for owner in (loader, getattr(loader, "sampler", None)):
        if callable(getattr(owner, "set_epoch", None)):
            owner.set_epoch(epoch)  # type: ignore[union-attr]  # callable, as just asked


def groups(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """The batches of one optimiser step each."""
    return iter(lambda: list(islice(batches, size)), [])


def normalisable(batches: Iterator[Batch], model: nn.Module) -> Iterator[Batch]:
    """The batches without one of a single row, from which batch normalisation can learn nothing.

    Such a batch is what is left over when one row more than full batches is there. Where a row has
    several values for each channel, as an image has, it is enough.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        return batches
    return (batch for batch in batches if len(batch[0]) > 1 or _varies(batch[0], model, layers))


def _varies(row: Tensor, model: nn.Module, layers: list[_BatchNorm]) -> bool:
    """Return whether a single row has several values for each channel of every normalisation."""
    values: list[int] = []

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        values.append(args[0][0, 0].numel())

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        with preserve_model(model):
            model(row)
    finally:
        for hook in hooks:
            hook.remove()
    return min(values, default=2) > 1


def move_batches(batches: Iterator[Batch], model: nn.Module) -> Iterator[Batch]:
    """The batches where the model is, real numbers in the model's precision, classes whole."""
    real = (value for value in model.parameters() if value.is_floating_point())
    sample = next(real, torch.zeros(()))
    device, dtype = sample.device, sample.dtype

    def kinds(x: Tensor, y: Tensor) -> tuple[torch.dtype, torch.dtype]:
        # A model in half precision is still compared with labels in full.
        labels = torch.promote_types(dtype, torch.float32) if y.is_floating_point() else torch.int64
        return dtype if x.is_floating_point() else x.dtype, labels

    return (
        (x.to(device, of_x, non_blocking=True), y.to(device, of_y, non_blocking=True))
        for x, y in batches
        for of_x, of_y in [kinds(x, y)]
    )


def _pair(batch: Any) -> Batch:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        features, labels = batch
        if isinstance(features, Tensor) and isinstance(labels, Tensor):
            return features, labels
        kinds = " and ".join(type(part).__name__ for part in batch)
        raise DataError(f"features and labels of a batch must be tensors, not {kinds}")
    raise DataError(f"a batch must be a pair (features, labels), not {type(batch).__name__}")


def _tensor_share(
    loader: TensorLoader, epoch: int, place: tuple[int, int], even: bool
) -> Iterator[Batch]:
    rank, processes = place
    set_epoch(loader, epoch)
    order = loader.order()
    rows = torch.arange(len(loader.features)) if order is None else order
    spare = -len(rows) % processes if even else 0
    rows = torch.cat([rows, rows[:spare]])  # the first rows once more make the shares equal
    for number, chosen in enumerate(torch.split(rows[rank::processes], loader.batch_size)):
        batch = number * processes + rank
        yield loader.augment(loader.features[chosen], epoch, batch), loader.labels[chosen]


def _split_loader(loader: DataLoader[Any], sampler: Iterable[int]) -> DataLoader[Any]:
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
    )
