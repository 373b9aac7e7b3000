"""The rows of a data set, split in up to four parts, and what a reader of them is told."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from chop.errors import DataError
from chop.preprocessing import Preprocessing

NO_HOME = "~"
"""Stands for a cache folder where there is no home directory to keep one in."""
SPLITS = ("train", "validation", "test", "pred")

Rows = tuple[Any, Any] | Dataset[Any]
"""One split: `(features, labels)` as tensors or arrays, or a map-style torch data set."""


def default_cache_dir() -> Path:
    """`CHOP_CACHE`, else the folder this platform keeps caches in."""
    chosen = os.environ.get("CHOP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    try:
        return Path(platformdirs.user_cache_dir("chop"))
    except RuntimeError:  # there is no home directory, which matters only when a cache is written
        return Path(NO_HOME)


@dataclass(frozen=True)
class DatasetRequest:
    """What was asked of a data set: by which name, from which file, with which seed.

    Args:
        preprocessing: how the rows are to be scaled, in place of constants of their own. A
            function that does not heed it has its rows scaled afterwards.
        taken_as: what was found to have been done to rows whose function does not say it.
    """

    name: str
    cache_dir: Path
    path: Path | None = None
    label_column: str | None = None
    seed: int = 0
    use_cache: bool = True
    preprocessing: Preprocessing | None = None
    taken_as: Preprocessing | None = None

    @property
    def given_path(self) -> Path | None:
        """`path`, else what the variable ``CHOP_<NAME>`` says."""
        given = self.path or os.environ.get(f"CHOP_{self.name.upper()}")
        return Path(given).expanduser() if given else None


@dataclass(frozen=True)
class Splits:
    """The rows of each split, where they came from, and their names.

    Args:
        preprocessing: what was done to the features; None if they are as they were measured, or
            nobody knows.
    """

    train: Rows | None = None
    validation: Rows | None = None
    test: Rows | None = None
    pred: Rows | None = None
    source: str = ""
    fingerprint: str = ""
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None

    @property
    def available(self) -> list[str]:
        """The names of the splits that hold rows."""
        return [split for split in SPLITS if getattr(self, split) is not None]

    def datasets(self) -> dict[str, Dataset[Any]]:
        """Each split as a torch data set; those in memory are a `TensorDataset`."""
        return {split: cast(Dataset[Any], getattr(self, split)) for split in self.available}

    def facts(self) -> dict[str, Any]:
        """What the training rows and the names tell of the data set."""
        names = {"class_names": self.class_names, "feature_names": self.feature_names}
        if not isinstance(self.train, TensorDataset):
            return {**names, "num_classes": len(self.class_names) or None}
        features, _ = self.train.tensors
        parts = [split for split in self.datasets().values() if isinstance(split, TensorDataset)]
        seen = max(int(part.tensors[1].max()) for part in parts) + 1
        shape = tuple(features.shape[1:])
        size = {"num_features": shape[0]} if len(shape) == 1 else {"image_size": shape}
        return {**names, **size, "num_classes": len(self.class_names) or seen}


def paired(features: Iterable[Any], labels: Iterable[Any]) -> tuple[Rows, Rows, Rows]:
    """Features and labels of the training, validation and test rows, brought together."""
    train, validation, test = zip(features, labels, strict=True)
    return train, validation, test


def checked(splits: Splits, where: str) -> Splits:
    """`splits` with every `(features, labels)` pair as tensors that fit together."""
    if not isinstance(splits, Splits):
        raise DataError(f"{where}: its function must return Splits, not {type(splits).__name__}")
    if splits.train is None:
        raise DataError(f"{where}: it has no training rows")
    parts: dict[str, Any] = {
        split: _dataset(getattr(splits, split), f"{where}, {split}") for split in splits.available
    }
    shapes = {tuple(part.tensors[0].shape[1:]) for part in _in_memory(parts).values()}
    if len(shapes) > 1:
        raise DataError(f"{where}: rows of different shapes in its splits: {sorted(shapes)}")
    _check_preprocessing(splits.preprocessing, shapes, where)
    named = replace(splits, **parts)
    fingerprint = splits.fingerprint or _fingerprint(_in_memory(parts))
    return replace(named, fingerprint=fingerprint, source=splits.source or f"{where}, as read")


def _check_preprocessing(done: Any, shapes: set[tuple[int, ...]], where: str) -> None:
    """Refuse a statement of what was done to features that cannot be of these."""
    if done is None:
        return
    if not isinstance(done, Preprocessing):
        raise DataError(f"{where}: preprocessing is a {type(done).__name__}, not Preprocessing")
    for shape in shapes:
        if shape[0] != len(done.mean) or (len(shape) > 1) != (done.kind == "channels"):
            raise DataError(
                f"{where}: preprocessing is of {len(done.mean)} {done.kind}, but a row has the "
                f"shape {shape}"
            )


def rows_fingerprint(features: NDArray[Any], labels: NDArray[Any]) -> str:
    """The SHA-256 of rows as they were read: a name for exactly these rows in this order."""
    digest = hashlib.sha256(f"{features.shape}".encode())
    digest.update(np.ascontiguousarray(features, np.float32).data)
    digest.update(np.ascontiguousarray(labels, np.int64).data)
    return digest.hexdigest()


def _fingerprint(parts: Mapping[str, TensorDataset]) -> str:
    """The fingerprint of the rows of all splits together; none if they come one by one."""
    arrays = [[tensor.numpy() for tensor in part.tensors] for part in parts.values()]
    each = "".join(rows_fingerprint(*pair) for pair in arrays)
    return hashlib.sha256(each.encode()).hexdigest() if each else ""


def _in_memory(parts: Mapping[str, Any]) -> dict[str, TensorDataset]:
    return {split: part for split, part in parts.items() if isinstance(part, TensorDataset)}


def _dataset(rows: Any, where: str) -> Dataset[Any]:
    if isinstance(rows, Dataset):
        if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
            raise DataError(f"{where}: a data set needs a length and rows by index")
        return rows
    try:
        features, labels = rows
    except (TypeError, ValueError):
        raise DataError(f"{where}: give (features, labels) or a torch data set") from None
    return TensorDataset(*_pair(_tensor(features, where), _tensor(labels, where), where))


def _tensor(values: Any, where: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where}: values of type {array.dtype} are not numbers")
    return torch.from_numpy(np.ascontiguousarray(array))


def _pair(features: Tensor, labels: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Features as float32 and labels as int64, row for row."""
    if features.dim() < 2 or labels.dim() != 1 or len(features) != len(labels):
        raise DataError(
            f"{where}: features {tuple(features.shape)} and labels {tuple(labels.shape)} must be "
            "(rows, …) and (rows,)"
        )
    if len(labels) == 0:
        raise DataError(f"{where}: it has no rows")
    if labels.is_floating_point():
        raise DataError(f"{where}: labels must be class indices, not {labels.dtype}")
    features, labels = features.to(torch.float32), labels.to(torch.int64)
    if int(labels.min()) < 0:
        raise DataError(f"{where}: labels must be class indices from 0 (got {int(labels.min())})")
    if not torch.isfinite(features.sum()) and not torch.isfinite(features).all():
        raise DataError(f"{where}: some features are not finite numbers")
    return features, labels
