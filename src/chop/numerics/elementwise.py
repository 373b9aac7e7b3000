"""Formats in which every element stands for itself."""

from abc import abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from chop.numerics.arithmetic import apply, code_dtype, refuse_nan, run
from chop.numerics.base import Encoded, NumberFormat, require_float
from chop.numerics.grids import Grid, Rounding


class ElementFormat(NumberFormat):
    """A format that rounds each element to the same grid."""

    @cached_property
    @abstractmethod
    def grid(self) -> Grid:
        """The numbers of the format."""

    @cached_property
    def _roundings(self) -> dict[torch.dtype, Rounding]:
        return {}  # by type of tensor, filled as they come

    @property
    def element_bits(self) -> int:
        return self.grid.bits

    def round_to(self, x: Tensor) -> Tensor:
        kernel, work = self._roundings.get(x.dtype) or self._rounding(x.dtype)
        return apply(kernel, work, x)

    def round_(self, x: Tensor) -> None:
        kernel, work = self._roundings.get(x.dtype) or self._rounding(x.dtype)
        if x.dtype == work:
            run(kernel, x, x)
        else:
            super().round_(x)

    def _rounding(self, dtype: torch.dtype) -> Rounding:
        require_float(self, dtype)
        return self._roundings.setdefault(dtype, self.grid.rounding(dtype))

    def encode(self, x: Tensor) -> Encoded:
        y = self.round_to(x)
        if not self.grid.has_nan:
            refuse_nan(y, type(self).__name__)
        dtype = code_dtype(self.grid.bits, self.grid.signed_codes)
        return Encoded(self.grid.codes(y).to(dtype), None, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        return self.grid.values(encoded.codes.to(torch.int64)).to(encoded.dtype)
