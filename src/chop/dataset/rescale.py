"""Rows that were scaled in one way, scaled in another."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from chop.dataset.preprocess import moments, scale_rows
from chop.dataset.rows import Splits, chunks_of
from chop.errors import DataError
from chop.preprocessing import Preprocessing

Reals = NDArray[np.float64]
NEAR = 0.5
"""How far, in deviations, means may be apart of rows that count as the same kind of rows, and the
logarithm of how many times larger one deviation may be."""
SAMPLED = 1_000  # rows looked at where they come one by one


@dataclass(frozen=True)
class Look:
    """The means and deviations of rows as they are."""

    mean: Reals
    deviation: Reals

    def distances(self, mean: Reals, deviation: Reals) -> Reals:
        """How far each column is from another with these: the larger of the two differences.

        Of a column that does not vary only the mean tells something.
        """
        ratio = np.where(self.deviation > 0, self.deviation, deviation) / deviation
        return np.maximum(np.abs(self.mean - mean) / deviation, np.abs(np.log(ratio)))


def looked_at(splits: Splits, channels: bool) -> Look:
    """What the rows of all splits together look like."""
    parts = [np.asarray(part, np.float32) for part in _features(splits)]
    found = [(len(part), *moments(part, channels)) for part in parts]
    rows = sum(count for count, _, _ in found)
    mean = np.sum([count * each for count, each, _ in found], axis=0) / rows
    squares = [count * (dev**2 + (each - mean) ** 2) for count, each, dev in found]
    return Look(mean, np.sqrt(np.sum(squares, axis=0) / rows))


def _features(splits: Splits) -> Iterator[Any]:
    """The features of each split; a sample where rows come one by one."""
    for part in splits.datasets().values():
        if isinstance(part, TensorDataset):
            yield part.tensors[0].numpy()
        else:
            count = len(part)  # type: ignore[arg-type]  # `checked` made sure
            chosen = np.linspace(0, count - 1, min(count, SAMPLED)).astype(int)
            yield np.stack([np.asarray(part[int(place)][0], np.float32) for place in chosen])


def stage_of(look: Look, how: Preprocessing) -> Preprocessing | None:
    """What was done to rows that look so, if it is a part of `how`: nothing, the division, or all.

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


def rescaled(splits: Splits, done: Preprocessing, wanted: Preprocessing) -> Splits:
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
            part[:] = _composed(part, done, wanted)
    return torch.from_numpy(values)


def _composed(rows: NDArray[np.float32], done: Preprocessing, wanted: Preprocessing) -> Reals:
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


def worst_column(trained: Preprocessing, look: Look) -> str:
    """The column that is farthest from what a network was trained on, with both its constants."""
    mean, deviation = (np.array(each) for each in trained.as_measured())
    place = int(np.argmax(look.distances(mean, deviation)))
    here = f"mean {look.mean[place]:.4g} and deviation {look.deviation[place]:.4g} here"
    trained_on = f"{mean[place]:.4g} and {deviation[place]:.4g} in training"
    return f"{trained.name_of(place)} has {here}, {trained_on}"
