"""The rows of a data set: how they are asked for, split, scaled and checked."""

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from chop.tasks import IGNORED

NO_HOME = "~"
"""Stands for a cache folder where there is no home directory to keep one in."""
SPLITS = ("train", "validation", "test", "pred")

CHUNK_ROWS, CHUNK_BYTES = 65_536, 64 << 20
"""What is worked on at a time, where a whole copy might not fit in memory."""
MANY_BYTES = 128 << 20
"""Rows that take more than this leave memory as soon as they were served."""

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
    """A request for a data set: its name, its file, its seed.

    Args:
        regression: whether labels are numbers to be predicted, rather than classes.
        class_names: the classes in the order that a network has them; a file may hold fewer.
        preprocessing: how the rows are to be scaled, in place of the rows' constants. Rows of a
            function that ignores it are scaled afterwards.
        taken_as: what was found to have been done to rows whose function does not say it.
    """

    name: str
    cache_dir: Path
    path: Path | None = None
    label_column: str | None = None
    seed: int = 0
    use_cache: bool = True
    regression: bool = False
    class_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    taken_as: Preprocessing | None = None

    @property
    def variable(self) -> str:
        """The environment variable that names the files: ``CHOP_<NAME>``."""
        return f"CHOP_{self.name.upper().replace('-', '_')}"

    @property
    def given_path(self) -> Path | None:
        """`path`, else the value of `variable`."""
        given = self.path or os.environ.get(self.variable)
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
        """Return the facts that the training rows and the names tell of the data set."""
        names = {"class_names": self.class_names, "feature_names": self.feature_names}
        if not isinstance(self.train, TensorDataset):
            return {**names, "num_classes": len(self.class_names) or None}
        features, labels = self.train.tensors
        if labels.is_floating_point():
            return {**names, **_size(features), **self._target_facts(labels)}
        parts = [split for split in self.datasets().values() if isinstance(split, TensorDataset)]
        size = _size(features)
        if not features.is_floating_point():
            tokens = [part.tensors[0] for part in parts]
            size |= {"vocab_size": max(int(each.max()) for each in tokens) + 1}
        classes = len(self.class_names) or max(int(part.tensors[1].max()) for part in parts) + 1
        return {**names, **size, "num_classes": classes}

    def _target_facts(self, labels: Tensor) -> dict[str, Any]:
        """Return the number of targets, and their names."""
        targets = self.preprocessing and self.preprocessing.targets
        return {"num_targets": labels.shape[1], "target_names": targets.names if targets else ()}


def _size(features: Tensor) -> dict[str, Any]:
    shape = tuple(features.shape[1:])
    return {"num_features": shape[0]} if len(shape) == 1 else {"image_size": shape}


def pair_splits(features: Iterable[Any], labels: Iterable[Any]) -> tuple[Rows, Rows, Rows]:
    """Features and labels of the training, validation and test rows, brought together."""
    train, validation, test = zip(features, labels, strict=True)
    return train, validation, test


def check_splits(
    splits: Splits, where: str, *, tokens: bool = False, regression: bool = False
) -> Splits:
    """`splits` with every `(features, labels)` pair as tensors that fit together.

    Args:
        tokens: features are numbers of words and stay whole numbers.
        regression: labels are real numbers, and become a row for each row.
    """
    if not isinstance(splits, Splits):
        raise DataError(f"{where}: its function must return Splits, not {type(splits).__name__}")
    if splits.train is None:
        raise DataError(f"{where}: it has no training rows")
    pair = _token_pair if tokens else _target_pair if regression else _pair
    parts: dict[str, Any] = {
        split: _dataset(getattr(splits, split), f"{where}, {split}", pair)
        for split in splits.available
    }
    shapes = {tuple(part.tensors[0].shape[1:]) for part in _in_memory(parts).values()}
    if len(shapes) > 1:
        raise DataError(f"{where}: rows of different shapes in its splits: {sorted(shapes)}")
    _check_preprocessing(splits.preprocessing, shapes, where)
    if regression:
        _check_targets(splits.preprocessing, _in_memory(parts), where)
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


def _check_targets(
    done: Preprocessing | None, parts: Mapping[str, TensorDataset], where: str
) -> None:
    """Refuse numbers of targets that differ."""
    counts = {part.tensors[1].shape[1] for part in parts.values()}
    if done is not None and done.targets is not None and parts:
        counts.add(len(done.targets.mean))
    if len(counts) > 1:
        raise DataError(f"{where}: different numbers of targets: {sorted(counts)}")


def rows_fingerprint(features: NDArray[Any], labels: NDArray[Any]) -> str:
    """The SHA-256 of rows as they were read: a name for exactly these rows in this order."""
    digest = hashlib.sha256(f"{features.shape}".encode())
    for part in chunks_of(features):
        digest.update(np.ascontiguousarray(part, np.float32).data)
    kind = np.float32 if labels.dtype.kind == "f" else np.int64
    for part in chunks_of(labels):
        digest.update(np.ascontiguousarray(part, kind).data)
    return digest.hexdigest()


class StoredRows(TensorDataset):
    """Rows that are mapped from files of the cache, where they were checked before."""

    def __init__(self, features: NDArray[Any], labels: NDArray[Any]) -> None:
        super().__init__(torch.from_numpy(features), torch.from_numpy(labels))
        self._maps = (features, labels)

    def forget(self) -> None:
        """Take them out of memory, if they are many; the next reader gets them from the files."""
        for each in self._maps:
            if each.nbytes > MANY_BYTES:
                forget_pages(each, unchanged=True)


def rows_in_chunk(rows: NDArray[Any]) -> int:
    """Return how many rows are worked on at a time."""
    return min(CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, rows[:1].nbytes)))


def chunks_of(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield views of rows that follow one another; those of a file leave memory afterwards."""
    step = rows_in_chunk(rows)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
        forget_pages(rows)


def forget_pages(rows: NDArray[Any], *, unchanged: bool = False) -> None:
    """Take the pages of a memory-mapped file out of memory; what was written stays in the file.

    Args:
        unchanged: nobody has written to a map of mode ``c``, where that would be lost.
    """
    held = getattr(rows, "_mmap", None)
    safe = unchanged or getattr(rows, "mode", "c") != "c"
    if held is not None and safe and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)


def _fingerprint(parts: Mapping[str, TensorDataset]) -> str:
    """The fingerprint of the rows of all splits together; none if they come one by one."""
    arrays = [[tensor.numpy() for tensor in part.tensors] for part in parts.values()]
    each = "".join(rows_fingerprint(*pair) for pair in arrays)
    return hashlib.sha256(each.encode()).hexdigest() if each else ""


def _in_memory(parts: Mapping[str, Any]) -> dict[str, TensorDataset]:
    return {split: part for split, part in parts.items() if isinstance(part, TensorDataset)}


Pair = Callable[[Tensor, Tensor, str], tuple[Tensor, Tensor]]


def _dataset(rows: Any, where: str, pair: Pair) -> Dataset[Any]:
    if isinstance(rows, Dataset):
        if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
            raise DataError(f"{where}: a data set needs a length and rows by index")
        return rows
    try:
        features, labels = rows
    except (TypeError, ValueError):
        raise DataError(f"{where}: give (features, labels) or a torch data set") from None
    return TensorDataset(*pair(_tensor(features, where), _tensor(labels, where), where))


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
        raise DataError(
            f"{where}: labels must be class indices, not {labels.dtype}; to predict numbers, "
            "register it with regression=True"
        )
    features, labels = features.to(torch.float32), labels.to(torch.int64)
    if int(labels.min()) < 0:
        raise DataError(f"{where}: labels must be class indices from 0 (got {int(labels.min())})")
    _check_finite(features, "features", where)
    return features, labels


def _target_pair(features: Tensor, labels: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Features and targets as float32; of each row the targets are a row."""
    labels = labels[:, None] if labels.dim() == 1 else labels
    if features.dim() < 2 or labels.dim() != 2 or len(features) != len(labels):
        raise DataError(
            f"{where}: features {tuple(features.shape)} and targets {tuple(labels.shape)} must be "
            "(rows, …) and (rows,) or (rows, targets)"
        )
    if labels.numel() == 0:
        raise DataError(f"{where}: it has no rows")
    features, labels = features.to(torch.float32), labels.to(torch.float32)
    _check_finite(features, "features", where)
    _check_finite(labels, "targets", where)
    return features, labels


def _check_finite(values: Tensor, what: str, where: str) -> None:
    if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
        raise DataError(f"{where}: some {what} are not finite numbers")


def _token_pair(tokens: Tensor, labels: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Numbers of words, with a class for each row or, to be continued, one for each token."""
    if tokens.dim() != 2 or labels.shape not in (tokens.shape[:1], tokens.shape):
        raise DataError(
            f"{where}: tokens {tuple(tokens.shape)} and labels {tuple(labels.shape)} must be "
            "(rows, length) and (rows,) or (rows, length)"
        )
    if tokens.numel() == 0:
        raise DataError(f"{where}: it has no rows")
    if tokens.is_floating_point() or labels.is_floating_point() or int(tokens.min()) < 0:
        raise DataError(f"{where}: tokens and labels must be whole numbers, tokens from 0")
    tokens, labels = tokens.to(torch.int64), labels.to(torch.int64)
    asked = labels[labels != IGNORED]
    if asked.numel() == 0 or int(asked.min()) < 0:
        raise DataError(f"{where}: labels must be classes from 0, or {IGNORED} for none")
    return tokens, labels


Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Indices = NDArray[np.integer[Any]]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: spreads every bit


def distinct_rows(features: Floats, labels: Labels) -> Indices:
    """The index of the first of each set of equal rows, in the order of the rows.

    Rows are told apart by a 64-bit hash, and rows of equal hash are compared, so the answer is
    exact and costs one sort of whole numbers. Negative zeros in `features` become zeros.
    """
    np.add(features, np.float32(0), out=features)  # -0.0 equals 0.0 but has other bits
    hashes = _hashes(features.view(np.uint32), labels)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    same_as = first[group]
    (repeated,) = np.nonzero(same_as != np.arange(len(labels)))
    originals = same_as[repeated]
    equal = np.array_equal(labels[repeated], labels[originals])
    if equal and np.array_equal(features[repeated], features[originals]):
        return np.sort(first)
    whole = np.column_stack([features, labels])  # two different rows share a hash
    return np.sort(np.unique(whole, axis=0, return_index=True)[1])


def _hashes(words: NDArray[np.uint32], labels: Labels) -> NDArray[np.uint64]:
    hashes = labels.astype(np.uint64)
    for column in words.T:
        hashes = (hashes ^ column) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes


def original_split(rows: int) -> tuple[Indices, Indices]:
    """Rows for training and for testing, 80 to 20, as the original project draws them.

    It calls scikit-learn's `train_test_split(test_size=0.2, random_state=42)`: a permutation by
    the legacy generator, of which the first fifth (rounded up) is the test part.
    """
    order = np.random.RandomState(42).permutation(rows)
    tests = -(-rows // 5)
    return order[tests:], order[:tests]


def seeded_split(rows: int, seed: int) -> tuple[Indices, Indices, Indices]:
    """Rows for training, validation and testing, 70 to 10 to 20, drawn by `seed`."""
    order: Indices = np.arange(rows, dtype=np.uint32 if rows < 2**32 else np.intp)
    np.random.default_rng(seed).shuffle(order)
    tests, validations = -(-rows // 5), -(-rows // 10)
    rest = order[tests:]
    return rest[validations:], rest[:validations], order[:tests]


def carve_validation(training: Indices) -> tuple[Indices, Indices]:
    """The last tenth of the training rows set aside to validate on."""
    validations = -(-len(training) // 10)
    return training[:-validations], training[-validations:]
