"""Observations of an operand, and the scale of its number format that fits them best.

The scale of a format is the number that divides all its values by a power of two: `frac_width` of
an integer, `exponent_bias` of a minifloat. Values are looked at twice: at first for their range,
then for what each scale in question makes of them. So nothing has to be kept, however many there
are, and every share is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from chop.errors import UnknownNameError
from chop.nn.quant_config import OUTPUT
from chop.numerics import Integer, NumberFormat
from chop.numerics.arithmetic import CHUNK
from chop.numerics.int_tensor import IntTensor
from chop.ops.table import OPS
from chop.passes.base import PassArgs

FINER = 24
"""Scales in question, each twice as fine as the one before; the first saturates nowhere."""
TOO_MANY = 0.01
"""The share of saturated values that deserves a warning."""
OCTAVES = 256
"""Exponents of float32."""
Shape = tuple[int, ...]
Per = Literal["tensor", "channel"]


class Calibration(PassArgs):
    """The way a scale that is "auto" is chosen from observed values.

    Args:
        method: min_max takes the finest scale at which no observed value saturates, percentile the
            finest at which the given percentage does not saturate, mse the scale with the least
            squared error.
        percentile: the percentage of values that must not saturate, for the method percentile.
        per: one scale for each tensor or for each channel, or one of these for each operand, as in
            ``per = {weight = "channel"}``. Linear layers, convolutions and batch normalisation in
            the format integer have channels; all others get one scale.
        num_samples: how many rows to observe, from the first on; none means all.
    """

    method: Literal["min_max", "percentile", "mse"] = "mse"
    percentile: float = Field(default=99.9, ge=50, le=100)
    per: Per | dict[str, Per] = "tensor"
    num_samples: int | None = Field(default=1024, gt=0)

    @model_validator(mode="after")
    def _percentile_counts(self) -> Self:
        if "percentile" in self.model_fields_set and self.method != "percentile":
            raise ValueError(f'percentile is for method = "percentile" (got {self.method!r})')
        return self

    @field_validator("per")
    @classmethod
    def _known_operands(cls, per: Any) -> Any:
        known = {role for op in OPS.values() for role in op.roles} | {OUTPUT}
        for role in per if isinstance(per, dict) else ():
            if role not in known:
                raise ValueError(str(UnknownNameError("operand", role, known)))
        return per

    def by_channel(self, role: str) -> bool:
        """True if an operand gets a scale for each of its channels."""
        per = self.per if isinstance(self.per, str) else self.per.get(role, "tensor")
        return per == "channel"


@dataclass(frozen=True)
class Fit:
    """The observations of one operand in one format."""

    fmt: NumberFormat
    """The format; if its scale was "auto", with the scale that was chosen."""
    calibrated: bool
    """Whether the scale was chosen from the values."""
    low: float
    high: float
    saturated: float
    """The share of values beyond the last codes."""
    better: NumberFormat | None
    """The format with a scale at which fewer saturate, if more than 1 % do."""
    better_saturated: float = 0.0


class OperandTally:
    """Values of one operand, counted for one number format.

    Args:
        shape: of the scales: () for one, else it broadcasts against the operand.
        floor: of the values; 0 for what is meant to lose its sign, as the input of a ReLU.
    """

    def __init__(
        self, fmt: NumberFormat, settings: Calibration, shape: Shape, floor: float = -inf
    ) -> None:
        self.fmt, self.settings, self.floor = fmt, settings, floor
        self.shape = self.parts = shape if isinstance(fmt, Integer) else ()
        if fmt.scale_field is not None:
            bounds: Any = fmt.with_scale(0).saturation  # of several widths, if there are any
            self.parts = np.broadcast_shapes(self.shape, np.shape(bounds[0]))
        self.count, self.beyond = 0, 0
        self.low, self.high = torch.tensor(inf), torch.tensor(-inf)
        self.octaves = torch.zeros(OCTAVES, dtype=torch.int64)
        self.base = torch.tensor(0.0)
        self.candidates: list[NumberFormat] = []
        self.saturated: list[Tensor] = []
        self.errors: list[Tensor] = []

    def look(self, x: Tensor) -> None:
        """Take in the range of some values, and how many of them saturate."""
        x = x.clamp(self.floor) if self.floor > -inf else x
        self.count += x.numel()
        self.low = torch.minimum(self.low, reduced(x, self.parts, torch.amin).double())
        self.high = torch.maximum(self.high, reduced(x, self.parts, torch.amax).double())
        if self.counts_octaves:
            self.octaves += count_octaves(x)
        if not self.fmt.is_open:
            self.beyond += int(saturates(x, self.fmt).count_nonzero())

    @property
    def needs_scales(self) -> bool:
        """True if there is a scale to choose, or to recommend."""
        too_many = self.fmt.scale_field is not None and self.beyond > TOO_MANY * self.count
        return self.fmt.is_open or too_many

    def prepare(self) -> None:
        """List the scales in question, from that at which no value saturates."""
        assert self.fmt.scale_field is not None
        finest = finest_scale(self.fmt, self.low, self.high)
        self.base = reduced(finest, self.shape, torch.amin)
        finer = {"min_max": 0, "percentile": FINER, "mse": min(FINER, self.fmt.element_bits)}
        steps = range(finer[self.settings.method] + 1)
        self.candidates = [self.at(torch.full(self.shape, step)) for step in steps]
        if self.counts_octaves:
            self.candidates = self.worth_a_look(self.candidates)
        self.saturated = [torch.zeros(self.shape, dtype=torch.int64) for _ in self.candidates]
        self.errors = [torch.zeros(self.shape, dtype=torch.float64) for _ in self.candidates]

    @property
    def is_whole(self) -> bool:
        """True if all values are rounded to one grid of integers, each by itself."""
        return isinstance(self.fmt, Integer) and not self.parts

    @property
    def counts_octaves(self) -> bool:
        """True if octaves can tell which scales are not worth a look."""
        by_error = self.settings.method == "mse" and self.floor == -inf
        return by_error and self.fmt.is_open and self.is_whole

    def within(self, fmt: NumberFormat) -> bool:
        """True if all values lie between the last codes of a format that has one grid."""
        if not self.is_whole or fmt.saturation is None:
            return False
        low, high = map(float, fmt.saturation)
        return low <= float(self.low) and float(self.high) < high

    def worth_a_look(self, formats: list[NumberFormat]) -> list[NumberFormat]:
        """Leave out scales whose saturated values alone err more than all values do at the first.

        A value is off by at least its distance from the last codes. They come ever closer, so all
        scales after one that is left out are left out as well.
        """
        if self.base.isinf() or not self.within(formats[0]):
            return formats  # nothing but zeros, or negative numbers in an unsigned format
        most = self.count * 4.0 ** -(int(self.base) + 1)  # half a unit each
        least = 2.0 ** (torch.arange(OCTAVES, dtype=torch.float64) - 127)
        least[0] = 0.0
        for place, fmt in enumerate(formats):
            bound = max(abs(float(each)) for each in fmt.saturation or ())
            if float((self.octaves * (least - bound).clamp(min=0).square()).sum()) > most:
                return formats[:place]
        return formats

    def at(self, steps: Tensor) -> NumberFormat:
        """The format with a scale so many steps finer; what was zero throughout has the default."""
        default = self.fmt.with_scale(None)
        largest = self.fmt.largest_scale
        numbers = (self.base + steps).clamp(-largest, largest)
        if not self.shape:
            return default if self.base.isinf() else self.fmt.with_scale(int(numbers))
        assert isinstance(default, Integer)
        usual = default.frac_width
        other = torch.as_tensor(usual.array if isinstance(usual, IntTensor) else usual)
        return self.fmt.with_scale(torch.where(self.base.isinf(), other, numbers).to(torch.int16))

    def look_again(self, x: Tensor) -> None:
        """Take in what the scales in question make of some values."""
        x = x.clamp(self.floor) if self.floor > -inf else x
        for piece in torch.split(x.reshape(-1), CHUNK) if self.is_whole else (x,):
            for step, fmt in enumerate(self.candidates):
                if not self.within(fmt):
                    self.saturated[step] += reduced(saturates(piece, fmt), self.shape)
                if self.settings.method == "mse":
                    error = (fmt.round_to(piece) - piece).double().square()
                    self.errors[step] += reduced(error, self.shape)

    def fit(self) -> Fit:
        """The observations and the scale that fits them."""
        low, high = float(self.low.min()), float(self.high.max())
        is_open = self.fmt.is_open
        if not self.candidates:
            return Fit(self.fmt, is_open, low, high, self.beyond / max(self.count, 1), None)
        chosen = self.chosen(self.settings.method)
        saturated = self.share(chosen) if is_open else self.beyond / self.count
        other = chosen if self.share(chosen) <= TOO_MANY else self.chosen("percentile", TOO_MANY)
        is_better = saturated > TOO_MANY and self.share(other) < saturated
        fmt, better = self.at(chosen) if is_open else self.fmt, self.at(other)
        return Fit(
            fmt, is_open, low, high, saturated, better if is_better else None, self.share(other)
        )

    def chosen(self, method: str, allowed: float | None = None) -> Tensor:
        """The number of steps by which the chosen scale is finer than the first."""
        saturated = torch.stack(self.saturated)
        if method == "mse":
            return torch.stack(self.errors).argmin(0)
        if allowed is None:
            allowed = 1 - self.settings.percentile / 100 if method == "percentile" else 0.0
        most = allowed * self.count / prod(self.shape)
        fitting = (saturated <= most + 1e-6).sum(0) - 1  # they only grow in number
        return fitting.clamp(0, len(self.saturated) - 1)

    def share(self, steps: Tensor) -> float:
        """The share of values that saturate at a scale so many steps finer."""
        saturated = torch.stack(self.saturated).gather(0, steps.unsqueeze(0))
        return float(saturated.sum()) / self.count


def reduced(x: Tensor, shape: Shape, how: Callable[..., Tensor] = torch.sum) -> Tensor:
    """`x` reduced to a shape that broadcasts against it, on the CPU."""
    lead = x.dim() - len(shape)
    dims = [dim for dim in range(x.dim()) if dim < lead or shape[dim - lead] == 1]
    return (how(x, dims) if dims else x).reshape(shape).cpu()


def count_octaves(x: Tensor) -> Tensor:
    """Count the values by magnitude: those from 2**n to less than 2**(n + 1) at place n + 127.

    What is beyond float32 is at the last place, what is below its normal numbers at the first.
    """
    found = torch.zeros(OCTAVES, dtype=torch.int64)
    for piece in torch.split(x.reshape(-1), CHUNK):
        exponents = (piece.float().view(torch.int32) >> 23).bitwise_and_(0xFF)
        found += torch.bincount(exponents, minlength=OCTAVES).cpu()
    return found


def saturates(x: Tensor, fmt: NumberFormat) -> Tensor:
    """The values that are beyond the last codes of a format."""
    assert fmt.saturation is not None
    low, high = (
        torch.as_tensor(bound, dtype=torch.float64, device=x.device) for bound in fmt.saturation
    )
    return (x < low) | (x >= high)


def finest_scale(fmt: NumberFormat, low: Tensor, high: Tensor) -> Tensor:
    """The largest scale at which nothing between two numbers saturates; infinite for zeros.

    An unsigned format has no scale for negative numbers, so they are left aside.
    """
    bounds: Any = fmt.with_scale(0).saturation
    least, most = (torch.as_tensor(bound, dtype=torch.float64) for bound in bounds)
    below = torch.where(least > -1, inf, largest_shift(-low, torch.nextafter(-least, -2 * least)))
    return torch.minimum(below, largest_shift(high, most))


def largest_shift(magnitude: Tensor, bound: Tensor) -> Tensor:
    """The largest integer n with ``magnitude * 2**n < bound``; infinite if there is no limit."""
    magnitude = magnitude.clamp(min=0)
    shift = (bound / magnitude).log2().floor()
    finite = shift.isfinite()
    start = torch.where(finite, shift, 0)
    start = torch.where(magnitude * 2**start >= bound, start - 1, start)
    start = torch.where(magnitude * 2 ** (start + 1) < bound, start + 1, start)
    return torch.where(finite, start, inf)
