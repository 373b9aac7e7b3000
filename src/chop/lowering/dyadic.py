"""Floating-point numbers as integers and a binary point, without rounding."""

import numpy as np
import torch
from torch import Tensor

from chop.lowering.program import Codes
from chop.lowering.ranges import TooWideError, codes

SIGNIFICAND = 53


def dyadic(numbers: Tensor) -> tuple[Codes, int]:
    """Codes and one `frac`, as small as can be: ``codes * 2**-frac`` are the numbers."""
    exact = numbers.detach().to(torch.float64).numpy()
    if not np.isfinite(exact).all():
        raise TooWideError("holds numbers that are infinite or not numbers")
    fraction, exponent = np.frexp(exact)
    significand = np.ldexp(np.abs(fraction), SIGNIFICAND).astype(np.int64)
    used = significand > 0
    if not used.any():
        return codes(np.zeros(exact.shape)), 0
    zeros = np.log2((significand & -significand)[used].astype(np.float64)).astype(np.int64)
    frac = int((SIGNIFICAND - exponent[used] - zeros).max())
    if int(exponent[used].max()) + frac > 62:
        spread = int(exponent[used].max()) + frac
        raise TooWideError(f"needs {spread + 1} bits as integers, and 64 are the most")
    return codes(np.ldexp(exact, frac)), frac


def odd_part(values: Codes) -> int:
    """The largest magnitude that is left when trailing zero bits are dropped."""
    magnitudes = np.abs(values)
    lowest = np.maximum(magnitudes & -magnitudes, 1)
    return int((magnitudes // lowest).max(initial=0))
