"""Formats in which every element stands for itself."""

import torch
from torch import Tensor

from chop.numerics.arithmetic import CHUNK, apply, code_dtype, refuse_nan, run
from chop.numerics.base import Encoded
from chop.numerics.grids import GridFormat


class ElementFormat(GridFormat):
    """A format that rounds each element to the same grid."""

    def round_to(self, x: Tensor) -> Tensor:
        kernel, work = self._rounding(x.dtype)
        return apply(kernel, work, x)

    def round_(self, x: Tensor) -> None:
        kernel, work = self._rounding(x.dtype)
        if x.dtype == work:
            run(kernel, x, x)
        else:
            super().round_(x)

    def encode(self, x: Tensor) -> Encoded:
        y = self.round_to(x)
        if not self.grid.has_nan:
            refuse_nan(y, type(self).__name__)
        dtype = code_dtype(self.grid.bits, self.grid.signed_codes)
        return Encoded(self.grid.codes(y).to(dtype), None, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        out = torch.empty(encoded.codes.shape, dtype=encoded.dtype, device=encoded.codes.device)
        # In pieces: the values of codes are wide, and those of a whole tensor would be all at once.
        pieces = torch.split(encoded.codes.reshape(-1), CHUNK)
        for codes, result in zip(pieces, torch.split(out.view(-1), CHUNK), strict=True):
            result.copy_(self.grid.values(codes.to(torch.int64)))
        return out
