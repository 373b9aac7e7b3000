"""A user's own rows, as actions take them.

Either a file with a column of classes or of targets, given with `--dataset-path`, or a Lightning
data module or loaders, given in Python.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chop.dataset.cache import file_sha256, load_or_build
from chop.dataset.info import DatasetSource, MaseDatasetInfo, register_dataset
from chop.dataset.preprocess import standardise, target_scaling
from chop.dataset.rows import (
    DatasetRequest,
    Splits,
    pair_splits,
    rows_fingerprint,
    seeded_split,
)
from chop.dataset.tables import LabelledTable, Wanted, class_indices, read_table
from chop.dataset.tables.growing import entries_at, picked_rows
from chop.errors import ConfigError, DataError, UnknownNameError

LEAST_ROWS = 10
STEPS = "own-1"  # part of the cache key: another number where the steps below change


def read_own_file(kind: str, request: DatasetRequest) -> Splits:
    """The rows of a file in one format, split by the seed and standardised on the training part."""
    path = existing_file(kind, request)
    digest = file_sha256(path, request.cache_dir)
    key: dict[str, Any] = {
        "steps": STEPS,
        "kind": kind,
        "file": digest,
        "label": request.label_column,
        "seed": request.seed,
    }
    key |= {"targets": True} if request.regression else {}
    key |= {"classes": list(request.class_names)} if request.class_names else {}
    return load_or_build(request, key, partial(_prepare_table, kind, request), path, {path: digest})


def existing_file(kind: str, request: DatasetRequest) -> Path:
    """The file that a request names."""
    path = request.path
    if path is None:
        raise DataError(f"data set {kind!r} is a custom file: name it with --dataset-path")
    if not path.is_file():
        what = "is a folder; name the file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}")
    return path


def _prepare_table(kind: str, request: DatasetRequest) -> Splits:
    path, folder = request.path, request.cache_dir
    assert path is not None
    table = read_table(path, kind, Wanted(request.label_column, request.regression), folder)
    rows = len(table.labels)
    if rows < LEAST_ROWS:
        some = "1 row is" if rows == 1 else f"{rows} rows are"
        raise DataError(f"{path}: {some} too few; give at least {LEAST_ROWS}")
    labels, class_names = _labels(table, request)
    fingerprint = rows_fingerprint(table.features, labels)
    chosen = seeded_split(len(labels), request.seed)
    parts = [picked_rows(table.features, rows, folder) for rows in chosen]
    of_parts = [picked_rows(labels, rows, folder) for rows in chosen]
    done = standardise(
        *parts,
        channels=table.features.ndim > 2,
        names=table.feature_names,
        given=request.preprocessing,
    )
    if request.regression and done.targets is None:
        done = replace(done, targets=target_scaling(of_parts[0], table.target_names))
    return Splits(
        *pair_splits(parts, of_parts),
        source=f"{kind}: {len(labels):,} rows, split by seed {request.seed}",
        fingerprint=fingerprint,
        class_names=class_names,
        feature_names=table.feature_names,
        preprocessing=done,
    )


def _labels(table: LabelledTable, request: DatasetRequest) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Targets as they are, or classes as indices with their names."""
    if table.classes is None:
        return table.labels, ()
    assert request.path is not None
    indices, names = class_indices(table.classes, request.path, table.class_names)
    if wanted := request.class_names:
        indices = np.array([wanted.index(name) for name in names], np.int64)[indices]
    return entries_at(table.labels, indices, request.cache_dir), wanted or names


LINES = {
    "csv": "Your own CSV file with a header, through --dataset-path and --label-column",
    "npz": "Your own NumPy archive of features and labels, through --dataset-path",
    "parquet": "Your own Parquet file, through --dataset-path and --label-column",
}

for _kind, _line in LINES.items():
    register_dataset(_kind, description=_line)(partial(read_own_file, _kind))


TEXT_LENGTH, BYTES = 128, 256
ROWS_OF_PASSAGE = 16
"""Rows that follow each other in a text and are in one split."""


@register_dataset(
    "text",
    description="Your own text file, its bytes as tokens, through --dataset-path",
    causal_LM=True,
    num_features=TEXT_LENGTH,
    num_classes=BYTES,
    vocab_size=BYTES,
)
def read_own_text(request: DatasetRequest) -> Splits:
    """The rows of a text file: 128 bytes each, to be continued byte by byte.

    Passages of 2,048 bytes are split by the seed, so that no row continues one of another split.
    """
    path = existing_file("text", request)
    data = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64)
    if not data.all():
        raise DataError(f"{path}: holds bytes of zero, so it is not a text")
    size = ROWS_OF_PASSAGE * TEXT_LENGTH
    passages = (len(data) - 1) // size
    if passages < LEAST_ROWS:
        raise DataError(f"{path}: {len(data):,} bytes are too few; give {LEAST_ROWS * size + 1:,}")
    shape = (passages, ROWS_OF_PASSAGE, TEXT_LENGTH)
    tokens, following = (data[at : at + passages * size].reshape(shape) for at in (0, 1))
    chosen = seeded_split(passages, request.seed)
    parts = (
        [each[rows].reshape(-1, TEXT_LENGTH) for rows in chosen] for each in (tokens, following)
    )
    return Splits(
        *pair_splits(*parts), source=f"text: {len(data):,} bytes, split by seed {request.seed}"
    )


LOADERS = {
    "train": "train_dataloader",
    "validation": "val_dataloader",
    "test": "test_dataloader",
    "pred": "predict_dataloader",
}
"""The method of a Lightning data module for each split."""
STAGES = {"train": "fit", "validation": "fit", "test": "test", "pred": "predict"}
"""What Lightning calls the preparation of each split."""
WANTED = (
    "a MaseDataModule, a LightningDataModule, loaders (train, validation) or "
    '{"train": …, "val": …, "test": …}'
)


def as_data_module(given: Any, main: str) -> "GivenRows":
    """A data module as actions take it, made of what is not ours.

    Args:
        main: the split that a single loader stands for: train or test.
    """
    if given is None:
        raise ConfigError(f"data_module is missing: give data_module= {WANTED}")
    if any(callable(getattr(given, method, None)) for method in LOADERS.values()):
        rows = FromLightning(given, main)
        if not rows.splits():
            methods = " and ".join(LOADERS[split] for split in ("train", "validation"))
            raise ConfigError(f"data_module: {rows.name} has no rows: it must have {methods}")
        return rows
    return FromLoaders(named_loaders(given, main), main)


class GivenRows:
    """The interface of `MaseDataModule` on loaders that were made elsewhere."""

    fingerprint = None

    def __init__(self, name: str, main: str, class_names: Iterable[str] = ()) -> None:
        self.name = name
        self.main = main
        self.source = f"rows of {name}"
        self.class_names = tuple(class_names)

    def splits(self) -> list[str]:
        """The splits there are."""
        raise NotImplementedError

    def loader(self, split: str) -> Any:
        """The loader of a split that is there."""
        raise NotImplementedError

    @property
    def dataset_info(self) -> MaseDatasetInfo:
        """The facts that are known: the splits, and the names of the classes if they were given."""
        return MaseDatasetInfo(
            self.name, DatasetSource.MANUAL, tuple(self.splits()), class_names=self.class_names
        )

    @property
    def batch_size(self) -> int:
        """The rows in a full batch, as the loader says, else those in its first batch."""
        loader = self.loader_of(self.main if self.main in self.splits() else self.splits()[0])
        for owner in (loader, getattr(loader, "batch_sampler", None)):
            if isinstance(size := getattr(owner, "batch_size", None), int):
                return size
        first: Any = next(iter(loader), None)
        return len(first[1]) if is_batch(first) else 0  # training says what is wrong with it

    @property
    def missing(self) -> str:
        """One line: what is not known of these rows, and what follows."""
        names = "" if self.class_names else "class names (classes are numbered), "
        return f"{names}a fingerprint of the rows (resuming cannot tell whether they changed)"

    def prepare_data(self) -> None:
        """Nothing: what is needed is prepared with the first loader."""

    def setup(self, stage: str | None = None) -> None:
        """As `prepare_data`."""

    def loader_of(self, split: str) -> Any:
        """The loader of a split; an error if there is none."""
        if split not in self.splits():
            raise DataError(f"{self.name} has no {split} rows; it has {', '.join(self.splits())}")
        return checked_loader(self.loader(split), split)

    def train_dataloader(self) -> Any:
        return self.loader_of("train")

    def val_dataloader(self) -> Any:
        return self.loader_of("validation")

    def test_dataloader(self) -> Any:
        return self.loader_of("test")

    def pred_dataloader(self) -> Any:
        return self.loader_of("pred")


class FromLightning(GivenRows):
    """A Lightning data module, prepared for a split when that is first asked for."""

    def __init__(self, module: Any, main: str) -> None:
        super().__init__(type(module).__name__, main, getattr(module, "class_names", ()))
        self.module = module
        self._done: set[str] = set()

    def splits(self) -> list[str]:
        # What a data module leaves out is there as well, and does nothing but raise.
        methods = {split: getattr(self.module, name, None) for split, name in LOADERS.items()}
        return [
            split
            for split, method in methods.items()
            if callable(method) and not getattr(method, "__module__", "").endswith("core.hooks")
        ]

    def loader(self, split: str) -> Any:
        self._prepare(STAGES[split])
        loader = getattr(self.module, LOADERS[split])()
        if isinstance(loader, list | tuple) and loader and not is_batch(loader[0]):
            if len(loader) > 1:
                raise DataError(f"{self.name} gives {len(loader)} {split} loaders: one is wanted")
            return loader[0]
        return loader

    def _prepare(self, stage: str) -> None:
        if not self._done and hasattr(self.module, "prepare_data"):
            self.module.prepare_data()
        if stage not in self._done and hasattr(self.module, "setup"):
            self.module.setup(stage)
        self._done.add(stage)


class FromLoaders(GivenRows):
    """Loaders by split."""

    def __init__(self, loaders: Mapping[str, Any], main: str) -> None:
        super().__init__("the loaders given", main)
        self.loaders = dict(loaders)

    def splits(self) -> list[str]:
        return list(self.loaders)

    def loader(self, split: str) -> Any:
        return self.loaders[split]


def named_loaders(given: Any, main: str) -> dict[str, Any]:
    """The loader of each split, from a dictionary, a pair, three of them, or a single one."""
    if isinstance(given, Mapping):
        names = {str(name): "validation" if name == "val" else str(name) for name in given}
        for name, split in names.items():
            if split not in LOADERS:
                raise UnknownNameError(
                    "split", name, ["train", "val", "test", "pred"], "data_module"
                )
        found = {names[str(name)]: loader for name, loader in given.items()}
    elif isinstance(given, list | tuple) and given and not is_batch(given[0]):
        if len(given) > 3:
            raise ConfigError(f"data_module: {len(given)} loaders were given: {WANTED} is wanted")
        found = dict(zip(("train", "validation", "test"), given, strict=False))
    else:
        found = {main: given}
    found = {split: loader for split, loader in found.items() if loader is not None}
    if not found:
        raise ConfigError(f"data_module: there is no loader: {WANTED} is wanted")
    return {split: checked_loader(loader, split) for split, loader in found.items()}


def is_batch(value: Any) -> bool:
    """Return whether a value is a pair of features and labels; a list of these is a loader."""
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(part, Tensor) for part in value)
    )


def checked_loader(loader: Any, split: str) -> Any:
    """A loader, if it can be iterated over in every epoch."""
    if isinstance(loader, str) or not isinstance(loader, Iterable):
        kind = type(loader).__name__
        raise ConfigError(
            f"data_module: a {kind} is not a loader of {split} rows: {WANTED} is wanted"
        )
    if isinstance(loader, Iterator):
        raise ConfigError(
            f"data_module: the {split} rows come from an iterator, which can be used up only once: "
            "give a DataLoader, or a list of batches"
        )
    return loader
