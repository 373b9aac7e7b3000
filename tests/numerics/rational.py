"""Rounding by definition, with exact fractions: slow, plain, and independent of the package."""

from bisect import bisect_left
from fractions import Fraction
from math import floor, isinf, isnan


def two_to(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def nearest(magnitudes: list[Fraction], x: Fraction) -> Fraction:
    """The nearest of sorted magnitudes; between two, the one with the even index."""
    place = bisect_left(magnitudes, x)
    if place == 0:
        return magnitudes[0]
    if place == len(magnitudes):
        return magnitudes[-1]
    below, above = magnitudes[place - 1], magnitudes[place]
    if x - below == above - x:
        return above if place % 2 == 0 else below
    return below if x - below < above - x else above


def nearest_power(magnitudes: list[Fraction], x: Fraction) -> Fraction:
    """The nearest of zero and powers of two: by logarithm, but half-way down to zero."""
    place = bisect_left(magnitudes, x)
    if place == len(magnitudes):
        return magnitudes[-1]
    if place <= 1:
        return magnitudes[0] if x <= magnitudes[1] / 2 else magnitudes[1]
    below, above = magnitudes[place - 1], magnitudes[place]
    return above if x * x > below * above else below


def ieee_magnitudes(exponent_width: int, fraction: int, bias: int) -> list[Fraction]:
    """Magnitudes of a minifloat with a hidden one, in the order of their codes."""
    steps = range(2**fraction)
    found = [two_to(1 - bias - fraction) * step for step in steps]
    for code in range(1, 2**exponent_width):
        found += [two_to(code - bias) * (1 + two_to(-fraction) * step) for step in steps]
    return found


def denorm_magnitudes(exponent_width: int, mantissa: int, bias: int) -> list[Fraction]:
    """Magnitudes of a minifloat without a hidden one."""
    codes, steps = range(2**exponent_width), range(2**mantissa)
    return sorted({two_to(code - bias - mantissa) * step for code in codes for step in steps})


def log_magnitudes(exponent_bits: int, bias: int) -> list[Fraction]:
    """Zero, then powers of two."""
    return [Fraction(0)] + [two_to(code - bias) for code in range(1, 2**exponent_bits)]


def signed(rule: object, magnitudes: list[Fraction], x: float) -> float:
    """A magnitude rule for any number that is not NaN; infinities are the largest."""
    assert callable(rule)
    assert not isnan(x)
    size = magnitudes[-1] if isinf(x) else Fraction(abs(x))
    return float(rule(magnitudes, size)) * (-1.0 if str(x).startswith("-") else 1.0)


def fixed(
    x: float, width: int, frac_width: int, is_signed: bool,
    rounding: str = "half_even", overflow: str = "saturate",
) -> float:  # fmt: skip
    """Fixed point; Python rounds fractions to nearest even."""
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if is_signed else (0, 2**width - 1)
    if isinf(x):
        if overflow == "wrap":
            return float("nan")
        return float((high if x > 0 else low) / two_to(frac_width))
    steps = Fraction(x) * two_to(frac_width)
    code = round(steps) if rounding == "half_even" else floor(steps + Fraction(1, 2))
    if overflow == "wrap":
        return float(((code - low) % 2**width + low) / two_to(frac_width))
    return float(min(max(code, low), high) / two_to(frac_width))


def least_scale(exponents: range, peak: Fraction, grid: list[Fraction], rule: object) -> int:
    """The smallest exponent at which the largest element of a block does not overflow its grid.

    Overflow is to round, on the grid carried on upwards, to more than the grid's largest number.
    """
    assert callable(rule)
    step = grid[-1] - grid[-2] if rule is nearest else grid[-1]
    beyond = [*grid, grid[-1] + step]
    for exponent in exponents:
        if rule(beyond, peak / two_to(exponent)) <= grid[-1]:
            return exponent
    return exponents[-1]
