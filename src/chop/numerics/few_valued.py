"""Formats of two or three values, scaled by what the tensor holds."""

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from chop.numerics.arithmetic import CHUNK, all_finite, refuse_nan, working_dtype
from chop.numerics.base import FORMATS, Encoded, NumberFormat, require_float

SCALE_BITS = 32
MEAN_PART, MAX_PART, MEDIAN_PART = 0.75, 0.05, 0.75  # of a statistic, as the threshold of ternary


class FewValued(NumberFormat):
    """A format whose codes are small integers, times one scale for each index of the first dim.

    Scales and thresholds come from the finite elements; NaN stays NaN.
    """

    @abstractmethod
    def integers(self, x: Tensor, finite: Tensor) -> Tensor:
        """The integer each element becomes, in the type of `x`; `finite` is `x` for statistics."""

    @property
    @abstractmethod
    def scaled(self) -> bool:
        """The integers are multiplied by the mean magnitude of what they stand for."""

    @property
    def shared_bits(self) -> int:
        return SCALE_BITS if self.scaled else 0

    def bits_of(self, shape: Sequence[int]) -> float:
        rows = shape[0] if len(shape) > 1 else 1
        return self.bits + self.shared_bits * rows / max(prod(shape), 1)

    def round_to(self, x: Tensor) -> Tensor:
        integers, scales = self._split(x)
        values = integers if scales is None else integers.mul_(scales)
        return values.add_(0.0).to(x.dtype)  # no codes tell one zero from the other

    def encode(self, x: Tensor) -> Encoded:
        integers, scales = self._split(x)
        refuse_nan(integers, type(self).__name__)
        return Encoded(self.to_codes(integers), scales, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        codes, scales = encoded.codes, encoded.shared
        if scales is None:
            return self.from_codes(codes).to(encoded.dtype)
        if scales.numel() > (codes.shape[0] if codes.dim() > 1 else 1):
            raise ValueError(f"there are more scales than rows: {[*scales.shape]}")
        return (self.from_codes(codes) * scales).to(encoded.dtype)

    def to_codes(self, integers: Tensor) -> Tensor:
        """The stored form of the integers."""
        return integers.to(torch.int8)

    def from_codes(self, codes: Tensor) -> Tensor:
        """The integers of their stored form."""
        return codes

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The integers, NaN among them, and the scale of each row."""
        require_float(self, x.dtype)
        # Means must not depend on the memory layout.
        x = x.detach().to(working_dtype(x.dtype)).contiguous()
        plain = all_finite(x)
        finite = x if plain else x.where(x.isfinite(), 0)
        integers = self.integers(x, finite)
        scales = row_means(finite * integers, otherwise=1.0).to(x.dtype) if self.scaled else None
        return integers if plain else integers.masked_fill(x.isnan(), torch.nan), scales


def row_means(x: Tensor, otherwise: float, zeros: bool = False) -> Tensor:
    """The mean magnitude for each index of the first dimension, in float64.

    A tensor of one dimension or none is a single row.

    Args:
        otherwise: the mean of nothing.
        zeros: zeros count as elements.
    """
    height = x.shape[0] if x.dim() > 1 else 1
    rows = x.reshape(height, x.numel() // max(height, 1))
    sums = row_sums(rows.abs())
    counts = row_sums(torch.ones_like(rows) if zeros else rows.sign().abs_())
    means = torch.where(counts > 0, sums / counts.clamp(min=1), otherwise)
    return means.reshape((-1,) + (1,) * (x.dim() - 1) if x.dim() else ())


def row_sums(rows: Tensor) -> Tensor:
    """The sum of each row in float64, taken in pieces: torch would make a wide copy of it all."""
    height = max(CHUNK // max(rows.shape[1], 1), 1)
    return torch.cat(
        [
            torch.stack([part.sum(1, dtype=torch.float64) for part in torch.split(some, CHUNK, 1)])
            for some in torch.split(rows, height)
        ],
        dim=1,
    ).sum(0)


@FORMATS.register("binary")
class Binary(FewValued):
    """One bit: -1 and 1 with `bipolar`, else 0 and the mean of the positive values."""

    label: ClassVar[str] = "Binary"

    width: int = Field(default=1, gt=0)
    stochastic: bool = False
    bipolar: bool = False

    @property
    def element_bits(self) -> int:
        return 1

    @property
    def bits(self) -> float:
        return self.width

    @property
    def scaled(self) -> bool:
        return not self.bipolar

    def integers(self, x: Tensor, finite: Tensor) -> Tensor:
        if self.stochastic:  # the further up, the likelier: certain from 1 on, impossible below -1
            signs = x.add(1).div_(2).clamp_(0, 1).sub_(torch.rand_like(x)).sign_()
        else:
            signs = x.sign()
        return signs.mul_(2).add_(1).clamp_(-1, 1) if self.bipolar else signs.clamp_(min=0)

    def to_codes(self, integers: Tensor) -> Tensor:
        return (integers > 0).to(torch.uint8)

    def from_codes(self, codes: Tensor) -> Tensor:
        return codes.to(torch.int8).mul_(2).sub_(1) if self.bipolar else codes


@FORMATS.register("ternary")
class Ternary(FewValued):
    """-1, 0 and 1, optionally times a scale: zero where the magnitude is small."""

    label: ClassVar[str] = "Ternary"

    width: int = Field(default=2, gt=0)
    scaling_factor: bool = False
    mean: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    median: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    max: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @property
    def element_bits(self) -> int:
        return 2

    @property
    def bits(self) -> float:
        return self.width

    @property
    def scaled(self) -> bool:
        return self.scaling_factor

    def threshold(self, finite: Tensor) -> Tensor:
        """The magnitude up to which elements become zero, in float64: as given, or of each row."""
        given = ((MEAN_PART, self.mean), (MAX_PART, self.max), (MEDIAN_PART, self.median))
        for part, statistic in given:
            if statistic is not None:
                return torch.tensor(part * statistic, dtype=torch.float64, device=finite.device)
        return row_means(finite, otherwise=0.0, zeros=True).mul_(MEAN_PART)

    def integers(self, x: Tensor, finite: Tensor) -> Tensor:
        exact = self.threshold(finite)
        rounded = exact.to(x.dtype)
        # Rounded down, so that the comparison comes out as it would with the exact threshold.
        below = torch.where(rounded > exact, rounded.nextafter(torch.zeros_like(rounded)), rounded)
        return x.abs().sub_(below).sign_().clamp_(min=0).mul_(x.sign())
