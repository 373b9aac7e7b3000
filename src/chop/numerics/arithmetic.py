"""Exact arithmetic with powers of two on tensors, and rounding kernels run in cache-sized pieces.

Logarithms are inexact next to powers of two, so exponents are read from the bits of a number.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chop.errors import ConfigError

CHUNK = 1 << 17  # half a MiB of float32: the passes of a kernel stay in the cache
EXPONENT = {  # the integer type of the same size, the exponent's bits, their place, their offset
    torch.float32: (torch.int32, 0x7F80_0000, 23, 127),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000, 52, 1023),
}
MIN_EXPONENT = -126  # of normal numbers in float32
MAX_FRACTION = 23  # bits of float32
MULTIPLIER_BITS = 24
"""Bits of a multiplier, which are those of a float32 number: a ratio is off by 2**-24 at most."""
MOST_SHIFT = 62
Codes = NDArray[np.int64]


def run_while_compiling(function: Callable[..., None]) -> Callable[..., None]:
    """Have torch.compile call `function` once, as it records, rather than record what it does.

    It is for filling caches with what cannot be recorded. `torch.compiler.assume_constant_result`
    does the same, but would import the compiler, which takes longer than most of what we do.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class Kernel(Protocol):
    """An element-wise rounding rule that writes its result into a given tensor."""

    def __call__(self, x: Tensor, out: Tensor | None) -> Tensor:
        """Round `x` into `out`, which may be `x` itself; None stands for a new tensor."""


class ShapedKernel:
    """A kernel whose rule depends on the place of an element, so that no tensor is cut for it."""

    def __call__(self, x: Tensor, out: Tensor | None) -> Tensor:
        """Round `x` into `out`, which may be `x` itself; None stands for a new tensor."""
        raise NotImplementedError


def working_dtype(dtype: torch.dtype, exponent: int = 0, fraction: int = 0) -> torch.dtype:
    """The type to compute in: float32, unless the tensor or the format needs float64."""
    wide = dtype == torch.float64 or exponent < MIN_EXPONENT or fraction > MAX_FRACTION
    return torch.float64 if wide else torch.float32


def apply(kernel: Kernel, work: torch.dtype, x: Tensor) -> Tensor:
    """A new tensor like `x` with the kernel's results, computed in the type `work`."""
    x = x.detach()
    if torch.compiler.is_compiling():
        return kernel(x.to(work), None).to(x.dtype)
    if x.dtype != work:
        wide = x.to(work)
        run_kernel(kernel, wide, wide)
        return wide.to(x.dtype)
    out = torch.empty_like(x)
    run_kernel(kernel, x, out)
    return out


def run_kernel(kernel: Kernel, x: Tensor, out: Tensor) -> None:
    """Run the kernel, in pieces that stay in the cache where the tensor is large."""
    if torch.compiler.is_compiling():  # what is compiled is one pass over the tensor anyway
        out.copy_(kernel(x, None))
        return
    small = x.numel() <= 2 * CHUNK or not (x.is_contiguous() and out.is_contiguous())
    if small or isinstance(kernel, ShapedKernel):
        kernel(x, out)
        return
    pieces, results = (torch.split(tensor.view(-1), CHUNK) for tensor in (x, out))
    for piece, result in zip(pieces, results, strict=True):
        kernel(piece, result)


def half_way_up(scaled: Tensor) -> Tensor:
    """The nearest whole numbers, the larger of two that are as near; `scaled` is used up.

    Adding one half and cutting off would be wrong next to half-way cases, where the sum rounds.
    """
    codes = scaled.round()
    # What is subtracted is -1 where the even neighbour is half a step below, and else +0, which
    # leaves -0 alone. Nothing but the result is allocated, which halves the time.
    codes.sub_(scaled.sub_(codes).lt_(0.5).sub_(1.0))
    return codes


def zero_unless(kept: Tensor, x: Tensor) -> Tensor:
    """The elements of `x` that are kept, zeros for the others; NaN for what is not finite."""
    # Not times zero, which torch.compile takes for zero whatever the other factor is.
    return x.where(kept, 0).masked_fill_(~x.isfinite(), torch.nan)


def binade(x: Tensor) -> Tensor:
    """The power of two at or below each magnitude; 0 for zero and subnormals, inf for inf, NaN."""
    integer, mask, _, _ = EXPONENT[x.dtype]
    return x.view(integer).bitwise_and(mask).view(x.dtype)


def largest_along(magnitudes: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest magnitude along some dimensions, which stay with size 1; NaN if there is any."""
    # Magnitudes and their bits have one order, NaN last, and integers compare several times faster.
    integer = EXPONENT[magnitudes.dtype][0]
    return magnitudes.view(integer).amax(dims, keepdim=True).view(magnitudes.dtype)


def exponent_of(power: Tensor) -> Tensor:
    """The exponents, as int64, of normal powers of two."""
    integer, _, place, offset = EXPONENT[power.dtype]
    return power.view(integer).bitwise_right_shift(place).to(torch.int64).sub_(offset)


def power_of_two(exponent: Tensor) -> Tensor:
    """Two to each integer power, exactly, in float64; exponents from -1022 to 1023."""
    return exponent.to(torch.int64).add(1023).bitwise_left_shift_(52).view(torch.float64)


def exponent_below(value: Fraction) -> int:
    """The exponent of the largest power of two that is not above a positive value."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def floor_to(value: Fraction, dtype: torch.dtype) -> float:
    """The largest number of a floating-point type that is not above a positive value."""
    info = torch.finfo(dtype)
    if value >= Fraction(info.max):
        return info.max
    step = max(Fraction(2) ** exponent_below(value), Fraction(info.smallest_normal)) * Fraction(
        info.eps
    )
    return float(value // step * step)


def last_exponent(dtype: torch.dtype) -> int:
    """The exponent of the largest finite number of a type."""
    return math.frexp(torch.finfo(dtype).max)[1] - 1


def code_dtype(bits: int, signed: bool = False) -> torch.dtype:
    """The smallest integer type whose range holds codes of so many bits."""
    if bits <= 8 and not signed:
        return torch.uint8
    types = ((8, torch.int8), (16, torch.int16), (32, torch.int32))
    needed = bits if signed else bits + 1
    return next((dtype for size, dtype in types if needed <= size), torch.int64)


def all_finite(x: Tensor) -> bool:
    """Surely no NaN and no infinity; False may also be a sum that is too large."""
    return bool(x.detach().sum().isfinite())  # several times faster than looking at each element


def refuse_nan(x: Tensor, name: str) -> None:
    """Refuse to encode NaN where the format has no code for it."""
    if bool(x.isnan().any()):
        raise ConfigError(f"{name} has no code for NaN, and the tensor to encode holds some")


def multiplier_and_shift(ratio: Any) -> tuple[Codes, Codes]:
    """The multipliers, odd or 0, and shifts from 0 to 62 that stand for positive ratios."""
    fraction, exponent = np.frexp(np.asarray(ratio, np.float64))
    shift = np.minimum(MULTIPLIER_BITS - exponent, MOST_SHIFT).astype(np.int64)
    multiplier = np.rint(np.ldexp(fraction, exponent + shift)).astype(np.int64)
    lowest = np.maximum(multiplier & -multiplier, 1)
    zeros = np.minimum(np.rint(np.log2(lowest)).astype(np.int64), np.maximum(shift, 0))
    multiplier, shift = multiplier >> zeros, shift - zeros
    multiplier = np.left_shift(multiplier, np.maximum(-shift, 0))
    return np.asarray(multiplier), np.asarray(np.maximum(shift, 0))


def divide_codes(codes: Any, shift: Any, rounding: str) -> Any:
    """Codes divided by ``2**shift``, which is from 0 to 62, to the nearest code.

    Half-way cases go up, or to the even code.
    """
    one = shift * 0 + 1
    half = (one << shift) >> 1
    result = (codes + half) >> shift
    if rounding == "half_even":  # what was exactly half-way went up: back to the even neighbour
        tie = (shift > 0) & ((codes & (2 * half - 1)) == half)
        result = result - (tie & (result & 1 == 1)) * one
    return result


def rescale_codes(codes: Any, multiplier: Any, shift: Any, rounding: str) -> Any:
    """Codes in another scale: ``round(codes * multiplier / 2**shift)``; products fit in 64 bits.

    This is the one definition of it: simulations, the engine and the ranges of programs compute
    it, of arrays of NumPy and tensors of PyTorch, and files are compared with the engine.
    """
    return divide_codes(codes * multiplier, shift, rounding)
