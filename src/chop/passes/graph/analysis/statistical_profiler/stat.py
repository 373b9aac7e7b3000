"""Statistics of a stream of samples.

A statistic is fed samples one by one (`update_a_sample`) or a batch at once (`update_a_batch`,
whose first dimension counts the samples); both give the same result. A sample of a batch of shape
``(8, 16)`` has the shape ``(1, 16)``.

`dims` says what is reduced: ``"all"`` everything, to one number; None the samples only, so that
the result has the shape of a sample; a list those dimensions of a sample and the samples. `count`
is the number of values behind each number of the result. A result that needs more values than
there were is ``"NA"``.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from chop.errors import GraphError
from chop.registry import Registry
from chop.validation import parse

Dims = Literal["all"] | list[int] | None
Result = dict[str, Any]
NA = "NA"
CHECKED = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

STAT_NAME_TO_CLS: Registry[type["Statistic"]] = Registry("statistic")


def create_new_stat(stat_name: str, **stat_kwargs: Any) -> "Statistic":
    """A new statistic of this name, with its arguments checked."""
    return parse(STAT_NAME_TO_CLS[stat_name], stat_kwargs, f"statistic {stat_name!r}")


class Statistic(ABC):
    """The interface of every statistic."""

    name: ClassVar[str]
    device: str | None
    count: int

    def update_a_sample(self, sample: Tensor) -> None:
        """Take in one sample."""
        if sample.numel():
            self._take(self._on_device(sample).unsqueeze(0))

    def update_a_batch(self, batch: Tensor) -> None:
        """Take in the samples along the first dimension."""
        if batch.dim() == 0:
            self.update_a_sample(batch)
        elif batch.numel():
            self._take(self._on_device(batch).unsqueeze(1))

    def _on_device(self, samples: Tensor) -> Tensor:
        return samples.detach().to(self.device) if self.device else samples.detach()

    @abstractmethod
    def _take(self, stacked: Tensor) -> None:
        """Take in samples that are stacked along a new first dimension."""

    @abstractmethod
    def compute(self) -> Result:
        """The result so far, as tensors and numbers."""

    def export(self) -> Result:
        """The result as plain numbers and lists."""
        return {
            key: value.tolist() if isinstance(value, Tensor) else value
            for key, value in self.compute().items()
        }


@dataclass(config=CHECKED)
class Reduced(Statistic):
    """A statistic of values along one dimension, to which what is reduced is brought."""

    device: str | None = None
    dims: Dims = "all"

    def __post_init__(self) -> None:
        self.count = 0
        self._shape: torch.Size | None = None

    def _take(self, stacked: Tensor) -> None:
        values = self._flatten(stacked.byte() if stacked.dtype is torch.bool else stacked)
        if self._shape not in (None, values.shape[1:]):
            raise GraphError(
                f"statistic {self.name!r}: samples of different shape need dims='all' "
                f"or dims that reduce what differs (got {list(stacked.shape[1:])})"
            )
        self._shape = values.shape[1:]
        self._update(values)

    @abstractmethod
    def _update(self, values: Tensor) -> None:
        """Take in values that are to be reduced along the first dimension, and count them."""

    def _flatten(self, stacked: Tensor) -> Tensor:
        """The samples with every dimension that is reduced joined into the first."""
        if self.dims == "all":
            return stacked.reshape(-1)
        sample_dims = stacked.dim() - 1
        for dim in self.dims or ():
            if not -sample_dims <= dim < sample_dims:
                shape = list(stacked.shape[1:])
                raise GraphError(
                    f"statistic {self.name!r}: samples of shape {shape} have no dimension {dim}"
                )
        reduced = [0, *sorted({dim % sample_dims + 1 for dim in self.dims or ()})]
        kept = [dim for dim in range(stacked.dim()) if dim not in reduced]
        return stacked.permute(*reduced, *kept).flatten(0, len(reduced) - 1)


@dataclass(config=CHECKED)
class KeptValues(Reduced):
    """A statistic that needs all values at once, so that it keeps them until asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kept: list[Tensor] = []

    def _update(self, values: Tensor) -> None:
        self._kept.append(values.clone())
        self.count += len(values)

    def _all(self) -> Tensor:
        """Everything kept, joined once and not at each update."""
        self._kept = [torch.cat(self._kept)]
        return self._kept[0]


@STAT_NAME_TO_CLS.register("record")
@dataclass(config=CHECKED)
class Record(Statistic):
    """All samples, joined along their first dimension."""

    name: ClassVar[str] = "record"
    device: str | None = None
    add_new_dim_before_concat: bool = False

    def __post_init__(self) -> None:
        self.count = 0
        self._kept: list[Tensor] = []

    def _take(self, stacked: Tensor) -> None:
        self._kept.append(
            (stacked if self.add_new_dim_before_concat else stacked.flatten(0, 1)).clone()
        )
        self.count += len(stacked)

    def compute(self) -> Result:
        """The samples, how many there were, and the memory they take."""
        if not self._kept:
            return {"data": NA, "count": 0, "size_in_bytes": 0}
        self._kept = [torch.cat(self._kept)]
        data = self._kept[0]
        return {"data": data, "count": self.count, "size_in_bytes": data.nbytes}


@STAT_NAME_TO_CLS.register("variance_online")
@dataclass(config=CHECKED)
class VarianceOnline(Reduced):
    """Mean and unbiased variance by Welford's method: batches are merged, none is kept."""

    name: ClassVar[str] = "variance_online"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mean: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0  # sum of squared deviations from the mean

    def _update(self, values: Tensor) -> None:
        values = values.double()
        new, total = len(values), self.count + len(values)
        mean = values.mean(0)
        shift = mean - self._mean
        squares = (values - mean).square_().sum(0)
        self._mean = self._mean + shift * (new / total)
        self._squares = self._squares + squares + shift.square() * (self.count * new / total)
        self.count = total

    def compute(self) -> Result:
        """The mean, the variance (of two values or more) and the count."""
        mean = self._mean if self.count else NA
        variance = self._squares / (self.count - 1) if self.count > 1 else NA
        return {"mean": mean, "variance": variance, "count": self.count}


@STAT_NAME_TO_CLS.register("variance_precise")
@dataclass(config=CHECKED)
class VariancePrecise(KeptValues):
    """Mean and unbiased variance of all samples at once, which takes the memory of all of them."""

    name: ClassVar[str] = "variance_precise"

    def compute(self) -> Result:
        """The mean, the variance (of two values or more) and the count."""
        if self.count == 0:
            return {"mean": NA, "variance": NA, "count": 0}
        values = self._all().double()
        variance = values.var(0) if self.count > 1 else NA
        return {"mean": values.mean(0), "variance": variance, "count": self.count}


@STAT_NAME_TO_CLS.register("range_n_sigma")
@dataclass(config=CHECKED)
class RangeNSigma(Reduced):
    """The mean plus and minus some standard deviations."""

    name: ClassVar[str] = "range_n_sigma"
    abs: bool = False
    var_mode: Literal["online", "precise"] = "online"
    num_sigma: Annotated[float, Field(ge=0)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = VarianceOnline if self.var_mode == "online" else VariancePrecise
        self._variance: VarianceOnline | VariancePrecise = kind()

    def _update(self, values: Tensor) -> None:
        self._variance._update(values.abs() if self.abs else values)

    def compute(self) -> Result:
        """The two ends, their distance and the count."""
        found = self._variance.compute()
        if isinstance(found["variance"], str):
            return range_result(NA, NA, found["count"])
        reach = self.num_sigma * found["variance"].sqrt()
        return range_result(found["mean"] - reach, found["mean"] + reach, found["count"])


@STAT_NAME_TO_CLS.register("range_min_max")
@dataclass(config=CHECKED)
class RangeMinMax(Reduced):
    """The least and the greatest value."""

    name: ClassVar[str] = "range_min_max"
    abs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ends: tuple[Tensor, Tensor] | None = None

    def _update(self, values: Tensor) -> None:
        values = values.abs() if self.abs else values
        least, greatest = values.amin(0), values.amax(0)
        if self._ends is not None:
            least, greatest = least.minimum(self._ends[0]), greatest.maximum(self._ends[1])
        self._ends = least, greatest
        self.count += len(values)

    def compute(self) -> Result:
        """The two ends, their distance and the count."""
        low, high = self._ends or (NA, NA)
        return range_result(low, high, self.count)


@STAT_NAME_TO_CLS.register("range_quantile")
@dataclass(config=CHECKED)
class RangeQuantile(KeptValues):
    """The quantiles `1 - quantile` and `quantile`, interpolated, of any number of values."""

    name: ClassVar[str] = "range_quantile"
    abs: bool = False
    quantile: Annotated[float, Field(ge=0, le=1)] = 0.975

    def _update(self, values: Tensor) -> None:
        super()._update(values.abs() if self.abs else values)

    def compute(self) -> Result:
        """The two ends, their distance and the count."""
        if self.count == 0:
            return range_result(NA, NA, 0)
        values = self._all()
        wide = torch.float64 if not values.is_floating_point() else torch.float32
        exact = values.to(torch.promote_types(values.dtype, wide))
        # numpy selects by partition and knows no limit; torch.quantile stops at 2^24 elements.
        ends = np.quantile(exact.cpu().numpy(), [1 - self.quantile, self.quantile], axis=0)
        low, high = torch.from_numpy(ends).to(exact.dtype)
        return range_result(low, high, self.count)


@STAT_NAME_TO_CLS.register("abs_mean")
@dataclass(config=CHECKED)
class AbsMean(Reduced):
    """The mean of the absolute values; no sample is kept."""

    name: ClassVar[str] = "abs_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sum: Tensor | float = 0.0

    def _update(self, values: Tensor) -> None:
        self._sum = self._sum + values.double().abs().sum(0)
        self.count += len(values)

    def compute(self) -> Result:
        """The mean and the count."""
        return {"abs_mean": self._sum / self.count if self.count else NA, "count": self.count}


def range_result(low: Any, high: Any, count: int) -> Result:
    """The keys that every range has."""
    width = NA if isinstance(low, str) else high - low
    return {"min": low, "max": high, "range": width, "count": count}
