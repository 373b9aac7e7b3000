"""Rounding against its definition in exact fractions."""

from fractions import Fraction

import pytest
import torch
from numeric_samples import bit_equal, examples, hard_numbers
from rational import (
    denorm_magnitudes,
    fixed,
    ieee_magnitudes,
    least_scale,
    log_magnitudes,
    nearest,
    nearest_power,
    signed,
    two_to,
)

from chop.numerics import (
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Encoded,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def sample(representable: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x = hard_numbers(representable, dtype=dtype, count=200)
    return x[~x.isnan()]


@DTYPES
@pytest.mark.parametrize("fmt", examples("integer", "fixed"), ids=repr)
def test_fixed_point(fmt: Integer, dtype: torch.dtype) -> None:
    low, high = fmt.code_range
    codes = torch.arange(low, high + 1)[-512:]
    x = sample(fmt.decode(Encoded(codes, None, torch.float64)), dtype)
    expected = [fixed(v, fmt.width, fmt.frac_width, fmt.signed) for v in x.tolist()]
    assert torch.equal(fmt.round_to(x), torch.tensor(expected, dtype=dtype))
    if fmt.signed:
        assert torch.equal(fmt.round_to(x).signbit(), x.signbit())


@DTYPES
@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
@pytest.mark.parametrize("rounding", ["half_even", "half_up"])
@pytest.mark.parametrize("fmt", [*examples("integer"), Integer(width=32, frac_width=20)], ids=repr)
def test_fixed_point_in_all_modes(
    fmt: Integer, rounding: str, overflow: str, dtype: torch.dtype
) -> None:
    fmt = fmt.model_copy(update={"rounding": rounding, "overflow": overflow})
    low, high = fmt.code_range
    step = max(1, (high - low) // 300)
    codes = torch.cat([torch.arange(low, high + 1, step), torch.arange(high - 3, high + 1)])
    exact = fmt.decode(Encoded(codes, None, torch.float64))
    ties = torch.cat([exact, exact * 2, exact + 2.0**fmt.width]) + 2.0 ** (-fmt.frac_width - 1)
    x = torch.cat([sample(exact, dtype), ties.to(dtype), exact.to(dtype)])
    expected = [
        fixed(v, fmt.width, fmt.frac_width, fmt.signed, rounding, overflow) for v in x.tolist()
    ]
    got = fmt.round_to(x)
    wanted = torch.tensor(expected, dtype=torch.float64)
    if dtype == torch.float32 and fmt.width > 24 and overflow == "saturate":
        wanted = wanted.clamp(max=2.0**11 - 2.0**-13)  # the last code that float32 can hold
    assert torch.equal(got.double().nan_to_num(77.0), wanted.nan_to_num(77.0))
    finite = got[got.isfinite()]
    assert torch.equal(fmt.decode(fmt.encode(finite)), finite + 0.0)


@DTYPES
@pytest.mark.parametrize("fmt", examples("log"), ids=repr)
def test_log(fmt: Log, dtype: torch.dtype) -> None:
    magnitudes = log_magnitudes(fmt.width - 1, fmt.bias)
    x = sample(torch.tensor([float(m) for m in magnitudes]), dtype)
    x = x[x.abs() < float(torch.finfo(dtype).max) / 2] if magnitudes[-1] > 2**127 else x
    expected = [signed(nearest_power, magnitudes, v) for v in x.tolist()]
    assert bit_equal(fmt.round_to(x), torch.tensor(expected, dtype=dtype))


@DTYPES
@pytest.mark.parametrize("width", [3, 4, 6])
def test_minifloat_by_definition(width: int, dtype: torch.dtype) -> None:
    for exponent_width in range(1, width):
        fmt = MinifloatIEEE(width=width, exponent_width=exponent_width)
        magnitudes = ieee_magnitudes(exponent_width, fmt.mantissa, fmt.bias)
        if fmt.mantissa == 0:
            continue  # below
        x = sample(torch.tensor([float(m) for m in magnitudes]), dtype)
        expected = [signed(nearest, magnitudes, v) for v in x.tolist()]
        assert bit_equal(fmt.round_to(x), torch.tensor(expected, dtype=dtype))


def test_ties_without_fraction_go_up() -> None:
    fmt = MinifloatIEEE(width=4, exponent_width=3)  # no even significand: IEEE 754 says the larger
    x = torch.tensor([1.5, 3.0, 6.0, 0.75, 0.125, 0.1250001, -1.4999, -1.5])
    assert fmt.round_to(x).tolist() == [2.0, 4.0, 8.0, 1.0, 0.0, 0.25, -1.0, -2.0]


@DTYPES
@pytest.mark.parametrize("width", [4, 6])
def test_denorm_by_definition(width: int, dtype: torch.dtype) -> None:
    for exponent_width in range(1, width - 2):
        fmt = MinifloatDenorm(width=width, exponent_width=exponent_width)
        magnitudes = denorm_magnitudes(exponent_width, fmt.mantissa, fmt.bias)
        x = sample(torch.tensor([float(m) for m in magnitudes]), dtype)
        x = x[::3]
        got = fmt.round_to(x).tolist()
        for value, result in zip(x.tolist(), got, strict=True):
            size = min(Fraction(min(abs(value), 1e300)), magnitudes[-1])
            assert abs(Fraction(result)) in magnitudes
            assert abs(abs(Fraction(result)) - size) == min(abs(m - size) for m in magnitudes)


def fp_parts(fmt: BlockFP) -> tuple[list[Fraction], range, object]:
    grid = [two_to(1 - fmt.width) * step for step in range(2 ** (fmt.width - 1))]
    return grid, range(-fmt.bias, 2**fmt.exponent_width - fmt.bias), nearest


def minifloat_parts(fmt: BlockMinifloat) -> tuple[list[Fraction], range, object]:
    grid = ieee_magnitudes(fmt.exponent_width, fmt.fraction, bias=0)
    half = 2 ** (fmt.exponent_bias_width - 1)
    return grid, range(1 - half, half + 1), nearest  # minus the bias


def log_parts(fmt: BlockLog) -> tuple[list[Fraction], range, object]:
    half = 2 ** (fmt.exponent_bias_width - 1)
    return log_magnitudes(fmt.width - 1, bias=0), range(1 - half, half + 1), nearest_power


PARTS = {BlockFP: fp_parts, BlockMinifloat: minifloat_parts, BlockLog: log_parts}
BLOCKS = [
    BlockFP(width=4, block_size=[4]),
    BlockFP(width=8, exponent_width=4, block_size=[4]),
    BlockFP(width=2, exponent_width=5, exponent_bias=3, block_size=[4]),
    BlockMinifloat(width=8, exponent_width=3, block_size=[4]),
    BlockMinifloat(width=5, exponent_width=2, exponent_bias_width=4, block_size=[4]),
    BlockLog(width=4, block_size=[4]),
    BlockLog(width=6, exponent_bias_width=4, block_size=[4]),
]


@DTYPES
@pytest.mark.parametrize("fmt", BLOCKS, ids=repr)
def test_blocks_by_definition(fmt: BlockFP | BlockMinifloat | BlockLog, dtype: torch.dtype) -> None:
    grid, exponents, rule = PARTS[type(fmt)](fmt)  # type: ignore[operator]
    x = sample(torch.tensor([float(g) for g in grid]), dtype)
    x = x[x.isfinite() & (x.abs() < 2.0**126)]
    mixed = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(5))][:400]
    alike = x[x.abs().argsort()][:: max(1, len(x) // 600)]
    x = torch.cat([mixed[: len(mixed) // 4 * 4], alike[: len(alike) // 4 * 4]]).reshape(-1, 4)
    for block, got in zip(x.tolist(), fmt.round_to(x), strict=True):
        peak = max(Fraction(abs(v)) for v in block)
        scale = two_to(least_scale(exponents, peak, grid, rule))
        scaled = [g * scale for g in grid]
        expected = torch.tensor([signed(rule, scaled, v) for v in block], dtype=dtype)
        assert bit_equal(got, expected), (block, got, expected)
