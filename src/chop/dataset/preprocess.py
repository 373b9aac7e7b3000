"""Scaling of features and targets: on the training rows, and as other rows were scaled."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from chop.dataset.rows import Floats, Splits, chunks_of
from chop.errors import ConfigError, DataError, UnknownNameError
from chop.preprocessing import Kind, Preprocessing, Targets

LARGE = np.float32(1e38)  # differences of larger numbers may not fit in float32
Reals = NDArray[np.float64]
NEAR = 0.5
"""How far, in deviations, means may be apart of rows that count as the same kind of rows, and the
logarithm of how many times larger one deviation may be."""
SAMPLED = 1_000  # rows looked at where they come one by one


def standardise(
    train: Floats,
    *others: Floats,
    channels: bool = False,
    names: Sequence[str] = (),
    divisor: float = 1.0,
    given: Preprocessing | None = None,
) -> Preprocessing:
    """Shift and scale in place so that each column of `train` has mean 0 and deviation 1.

    The mean and deviation are those of `train` alone. A column that does not vary becomes 0
    there and keeps its unit elsewhere.

    Args:
        channels: treat axis 1 of images as the columns.
        names: of the columns.
        divisor: what all values are divided by first.
        given: what is done in place of all this.

    Returns:
        what was done.
    """
    parts = (train, *others)
    if given is None:
        if divisor == 1 and any(max(rows.max(), -rows.min()) > LARGE for rows in chunks_of(train)):
            divisor = 4.0  # a power of two, which changes no ratio
        if divisor != 1:
            for rows in chain.from_iterable(map(chunks_of, parts)):
                np.divide(rows, np.float32(divisor), out=rows)
        mean, deviation = scaling(train, channels)
        kind: Kind = "channels" if channels else "features"
        done = Preprocessing(kind, tuple(mean), tuple(deviation), names=tuple(names))
        for rows in chain.from_iterable(map(chunks_of, parts)):
            scale_rows(rows, done)
        return replace(done, divisor=divisor)
    for rows in chain.from_iterable(map(chunks_of, parts)):
        scale_rows(rows, given)
    return given


def target_scaling(train: Floats, names: Sequence[str] = ()) -> Targets:
    """Return the scaling of targets: mean and deviation of those of the training rows."""
    mean, deviation = scaling(train.reshape(len(train), -1), channels=False)
    return Targets(tuple(mean), tuple(deviation), tuple(names))


def scaling(rows: Floats, channels: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the deviation that columns are scaled with: 1 of one that does not vary."""
    mean, deviation = moments(rows, channels)
    least = np.maximum(1e-6 * np.abs(mean), np.finfo(np.float32).tiny)
    deviation[deviation <= least] = 1.0  # below what float32 can hold apart
    return mean, deviation


def moments(rows: Floats, channels: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the deviation of each column, or of each channel of images."""
    axes = tuple(axis for axis in range(rows.ndim) if axis != 1) if channels else (0,)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(rows.shape))
    mean, squares = np.zeros(shape), np.zeros(shape)
    for part in chunks_of(rows):  # a whole float64 copy could fill the memory
        mean += part.sum(axis=axes, dtype=np.float64, keepdims=True)
    mean /= rows.size // mean.size
    for part in chunks_of(rows):
        away = part - mean
        squares += np.square(away, out=away).sum(axis=axes, keepdims=True)
    return mean.ravel(), np.sqrt(squares * (mean.size / rows.size)).ravel()


def scale_rows(rows: Floats, how: Preprocessing) -> None:
    """Do to rows in place what was done to others, by the same operations in the same order."""
    shape = (1, -1, *[1] * (rows.ndim - 2))
    if how.divisor != 1:
        np.divide(rows, np.float32(how.divisor), out=rows)
    np.subtract(rows, np.array(how.mean, np.float32).reshape(shape), out=rows)
    np.divide(rows, np.array(how.scale, np.float32).reshape(shape), out=rows)


@dataclass(frozen=True)
class FeatureStatistics:
    """The means and deviations of rows as they are."""

    mean: Reals
    deviation: Reals

    def distances(self, mean: Reals, deviation: Reals) -> Reals:
        """Return the distance of each column from another: the larger of the two differences.

        Of a column that does not vary only the mean tells something.
        """
        ratio = np.where(self.deviation > 0, self.deviation, deviation) / deviation
        return np.maximum(np.abs(self.mean - mean) / deviation, np.abs(np.log(ratio)))


def feature_statistics(splits: Splits, channels: bool) -> FeatureStatistics:
    """Return the statistics of the rows of all splits together."""
    parts = [np.asarray(part, np.float32) for part in _features(splits)]
    found = [(len(part), *moments(part, channels)) for part in parts]
    rows = sum(count for count, _, _ in found)
    mean = np.sum([count * each for count, each, _ in found], axis=0) / rows
    squares = [count * (dev**2 + (each - mean) ** 2) for count, each, dev in found]
    return FeatureStatistics(mean, np.sqrt(np.sum(squares, axis=0) / rows))


def _features(splits: Splits) -> Iterator[Any]:
    """The features of each split; a sample where rows come one by one."""
    for part in splits.datasets().values():
        if isinstance(part, TensorDataset):
            yield part.tensors[0].numpy()
        else:
            count = len(part)  # type: ignore[arg-type]  # `checked` made sure
            chosen = np.linspace(0, count - 1, min(count, SAMPLED)).astype(int)
            yield np.stack([np.asarray(part[int(place)][0], np.float32) for place in chosen])


def stage_of(look: FeatureStatistics, how: Preprocessing) -> Preprocessing | None:
    """Return the part of `how` that was done to such rows: nothing, the division, or all.

    None if they look like none of these.
    """
    mean, deviation = np.array(how.mean), np.array(how.scale)
    divided = replace(how.identity, divisor=how.divisor)
    looks = {
        how.identity: (mean * how.divisor, deviation * how.divisor),
        divided: (mean, deviation),
        how: (np.zeros_like(mean), np.ones_like(mean)),
    }
    # The column in the middle: some may be of another kind, or the same in all rows.
    distances = {stage: np.median(look.distances(*each)) for stage, each in looks.items()}
    nearest = min(distances, key=lambda stage: distances[stage])
    return nearest if distances[nearest] <= NEAR else None


def split_classes(text: str | None, regression: bool, augment: str | None) -> tuple[str, ...]:
    """Return the names in ``--odd-class``, which needs rows that are their own targets."""
    names = tuple(filter(None, (part.strip() for part in (text or "").split(","))))
    if names and not regression:
        raise ConfigError("--odd-class: odd rows are told by what a regression reproduces badly: "
                          "write task 'regression'")  # fmt: skip
    if names and augment:
        raise ConfigError("--odd-class: rows to be reproduced are not changed; leave out --augment")
    return names


def reproduce_rows(splits: Splits, odd: Sequence[str], stated: Sequence[str], where: str) -> Splits:
    """Make each row its own target, with a mark of the odd classes, which training does without.

    The labels are a second copy of the rows in memory.

    Args:
        stated: the classes, if the rows do not say them; else they are numbers.
    """
    classes = splits.class_names or stated or [*map(str, range(splits.facts()["num_classes"]))]
    for name in odd:
        if name not in classes:
            raise UnknownNameError("class", name, classes, f"{where}, --odd-class")
    if len(set(odd)) == len(classes):
        raise ConfigError(f"{where}: --odd-class names all classes, so nothing is left to train on")
    numbers = torch.tensor([classes.index(name) for name in odd])
    parts: dict[str, Any] = {}
    for split, rows in splits.datasets().items():
        if not isinstance(rows, TensorDataset) or not rows.tensors[0].is_floating_point():
            raise ConfigError(f"{where}: --odd-class needs rows of numbers that fit in memory")
        features, labels = rows.tensors
        is_odd = torch.isin(labels, numbers)
        if split == "train":
            features, is_odd = features[~is_odd], is_odd[~is_odd]
        wanted = torch.cat([features.flatten(1), is_odd[:, None].to(features.dtype)], dim=1)
        parts[split] = TensorDataset(features, wanted)
    shape = parts["train"].tensors[0].shape[1:]
    done = splits.preprocessing
    if done is None:
        kind, count = "channels" if len(shape) > 1 else "features", shape[0]
        done = Preprocessing(kind, (0.0,) * count, (1.0,) * count)  # type: ignore[arg-type]
    done = replace(done, targets=Targets((0.0,), (1.0,), own=True))
    source = f"{splits.source}; training without {', '.join(odd)}"
    return replace(splits, **parts, source=source, preprocessing=done, class_names=())


def rescale_splits(splits: Splits, done: Preprocessing, wanted: Preprocessing) -> Splits:
    """The rows of all splits scaled as `wanted`, which were scaled as `done`."""
    parts: dict[str, Any] = {
        split: _rescaled_dataset(part, done, wanted) for split, part in splits.datasets().items()
    }
    return replace(splits, preprocessing=wanted, **parts)


def _rescaled_dataset(
    part: Dataset[Any], done: Preprocessing, wanted: Preprocessing
) -> Dataset[Any]:
    if done.constants == wanted.constants:
        return part
    if isinstance(part, TensorDataset):
        features, labels = part.tensors
        return TensorDataset(rescaled_rows(features, done, wanted), labels)
    return RescaledDataset(part, done, wanted)


class RescaledDataset(Dataset[Any]):
    """Another data set whose rows are scaled when they are asked for."""

    def __init__(self, rows: Any, done: Preprocessing, wanted: Preprocessing) -> None:
        self.rows = rows
        self.done = done
        self.wanted = wanted

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        features, *rest = self.rows[place]
        row = torch.as_tensor(features, dtype=torch.float32)[None]
        return (rescaled_rows(row, self.done, self.wanted)[0], *rest)


def rescaled_rows(rows: Tensor, done: Preprocessing, wanted: Preprocessing) -> Tensor:
    """A copy of the rows, scaled as `wanted`.

    Rows to which nothing was done, or the division alone, become to the last bit what they would
    have been at once. Of others the measured values are computed back, in float64.
    """
    if done.constants == wanted.constants:
        return rows
    values: NDArray[np.float32] = rows.numpy().copy()
    divided = replace(wanted.identity, divisor=wanted.divisor)
    if done.is_identity:
        scale_rows(values, wanted)
    elif done.constants == divided.constants:
        scale_rows(values, replace(wanted, divisor=1.0))
    else:
        for part in chunks_of(values):  # a whole float64 copy may not fit
            part[:] = _compose(part, done, wanted)
    return torch.from_numpy(values)


def _compose(rows: NDArray[np.float32], done: Preprocessing, wanted: Preprocessing) -> Reals:
    shape = (1, -1, *[1] * (rows.ndim - 2))
    before, scale = (np.array(each).reshape(shape) for each in (done.mean, done.scale))
    mean, deviation = (np.array(each).reshape(shape) for each in (wanted.mean, wanted.scale))
    measured = (rows.astype(np.float64) * scale + before) * done.divisor
    composed: Reals = (measured / wanted.divisor - mean) / deviation
    return composed


def check_same_features(splits: Splits, names: tuple[str, ...], trained: Preprocessing) -> str:
    """Raise DataError unless rows have the features that a network was trained on.

    Args:
        names: of the features of the rows.

    Returns:
        how names differ, if they do; the order of the columns is all that a network knows.
    """
    shape = np.shape(next(_features(splits)))[1:]
    is_images = trained.kind == "channels"
    count = len(trained.mean)
    if (len(shape) > 1) != is_images or shape[0] != count:
        things = f"{shape[0]} {'channels' if len(shape) > 1 else 'features'}"
        raise DataError(
            f"the model was trained on {count} {trained.kind}, but the rows have {things}, so it "
            "does not fit them"
        )
    if not names or not trained.names or len(names) != count:
        return ""
    pairs = list(zip(names, trained.names, strict=True))
    differ = [f"{theirs!r:.40} for {ours!r:.40}" for theirs, ours in pairs if theirs != ours]
    if differ and sorted(names) == sorted(trained.names):
        raise DataError(
            f"the rows have the features of the model in another order ({differ[0]}): order the "
            f"columns as {', '.join(trained.names)}"
        )
    return differ[0] if differ else ""


def worst_column(trained: Preprocessing, look: FeatureStatistics) -> str:
    """The column that is farthest from what a network was trained on, with both its constants."""
    mean, deviation = (np.array(each) for each in trained.as_measured())
    place = int(np.argmax(look.distances(mean, deviation)))
    here = f"mean {look.mean[place]:.4g} and deviation {look.deviation[place]:.4g} here"
    trained_on = f"{mean[place]:.4g} and {deviation[place]:.4g} in training"
    return f"{trained.name_of(place)} has {here}, {trained_on}"
