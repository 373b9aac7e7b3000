"""Rounding against implementations that share nothing with ours."""

from collections.abc import Callable

import gfloat
import gfloat.formats as known
import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat.block import compute_scale_amax
from numeric_samples import bit_equal, examples, hard_numbers

from chop.numerics import (
    MXFP4,
    MXFP6,
    MXFP8,
    Encoded,
    Float8E4M3,
    Float8E5M2,
    MinifloatIEEE,
    MXInt8,
    NumberFormat,
)
from chop.numerics.block import BlockFormat
from chop.numerics.floating import Minifloat

ML_DTYPES = [
    (Float8E4M3(), ml_dtypes.float8_e4m3fn, 448.0),
    (Float8E5M2(), ml_dtypes.float8_e5m2, 57344.0),
    (MinifloatIEEE(width=6, exponent_width=2), ml_dtypes.float6_e2m3fn, 7.5),
    (MinifloatIEEE(width=6, exponent_width=3), ml_dtypes.float6_e3m2fn, 28.0),
    (MinifloatIEEE(width=4, exponent_width=2), ml_dtypes.float4_e2m1fn, 6.0),
]


def all_values(fmt: NumberFormat) -> torch.Tensor:
    codes = torch.arange(2**fmt.element_bits)
    return fmt.decode(Encoded(codes, None, torch.float64))


@pytest.mark.parametrize(("fmt", "dtype", "top"), ML_DTYPES, ids=repr)
def test_rounds_as_ml_dtypes(fmt: NumberFormat, dtype: type, top: float) -> None:
    x = hard_numbers(all_values(fmt))
    x = x[~x.isnan()].clamp(-top, top)  # there, overflow is NaN or infinite
    expected = x.numpy().astype(dtype).astype(np.float32)
    assert bit_equal(fmt.round_to(x), torch.from_numpy(expected))


@pytest.mark.parametrize(("fmt", "dtype", "top"), ML_DTYPES, ids=repr)
def test_codes_are_those_of_ml_dtypes(fmt: NumberFormat, dtype: type, top: float) -> None:
    codes = torch.arange(2**fmt.element_bits)
    theirs = codes.to(torch.uint8).numpy().view(dtype).astype(np.float32)
    ours = fmt.decode(Encoded(codes, None, torch.float32))
    assert bit_equal(ours, torch.from_numpy(theirs))


def as_gfloat(fmt: Minifloat) -> gfloat.FormatInfo:
    """The grid of a minifloat, with more exponents above where it has no hidden one."""
    grid = fmt.grid
    return gfloat.FormatInfo(
        "minifloat",
        k=1 + (fmt.exponent_width + (not grid.hidden)) + grid.fraction,
        precision=grid.fraction + 1,
        bias=fmt.bias if grid.hidden else fmt.bias + 2,
        is_signed=True,
        domain=gfloat.Domain.Finite,
        has_nz=True,
        num_high_nans=0,
        has_subnormals=True,
        is_twos_complement=False,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fmt", examples("minifloat_ieee", "minifloat_denorm"), ids=repr)
def test_rounds_as_gfloat(fmt: Minifloat, dtype: torch.dtype) -> None:
    top = float(all_values(fmt).max())
    x = hard_numbers(all_values(fmt)[:4096], dtype=dtype)
    x = x[~x.isnan()]
    last = torch.finfo(dtype).max
    if top > last:  # what float32 lacks: the largest of the format that it has
        x, top = x[x.abs() < 2.0**127], last
    clipped = x.double().clamp(-top, top).numpy()
    expected = gfloat.round_ndarray(as_gfloat(fmt), clipped, sat=True)
    assert bit_equal(fmt.round_to(x), torch.from_numpy(expected).to(dtype))


@pytest.mark.parametrize("fmt", examples("minifloat_ieee"), ids=repr)
def test_codes_are_those_of_gfloat(fmt: Minifloat) -> None:
    info = as_gfloat(fmt)
    codes = torch.arange(2**fmt.width)[:: max(1, 2**fmt.width // 512)]
    expected = [gfloat.decode_float(info, code).fval for code in codes.tolist()]
    ours = fmt.decode(Encoded(codes, None, torch.float64))
    assert bit_equal(ours, torch.tensor(expected, dtype=torch.float64))


MX_FORMATS: list[tuple[Callable[[int], BlockFormat], gfloat.FormatInfo]] = [
    (lambda k: MXInt8(block_size=k), known.format_info_ocp_int8),
    (lambda k: MXFP8(block_size=k), known.format_info_ocp_e4m3),
    (lambda k: MXFP8(block_size=k, element="e5m2"), known.format_info_ocp_e5m2),
    (lambda k: MXFP6(block_size=k), known.format_info_ocp_e2m3),
    (lambda k: MXFP6(block_size=k, element="e3m2"), known.format_info_ocp_e3m2),
    (lambda k: MXFP4(block_size=k), known.format_info_ocp_e2m1),
]


@pytest.mark.parametrize("size", [4, 32])
@pytest.mark.parametrize(("make", "element"), MX_FORMATS, ids=lambda p: getattr(p, "name", ""))
def test_blocks_round_as_gfloat(
    make: Callable[[int], BlockFormat], element: gfloat.FormatInfo, size: int
) -> None:
    fmt = make(size)
    x = hard_numbers(fmt.grid.values(torch.arange(2**fmt.element_bits)), seed=size)
    x = x[x.isfinite()]
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(3))]
    # Blocks of numbers of like magnitude say more than blocks in which all but one vanish.
    x = torch.cat([x[: 64 * size], x.abs().sort().values[: len(x) // size * size : 7]])
    x = x[: len(x) // size * size].reshape(-1, size)
    ours = fmt.round_to(x)
    for block, rounded in zip(x.double(), ours, strict=True):
        scale = compute_scale_amax(element.emax, block.numpy())
        expected = gfloat.round_ndarray(element, block.numpy() / scale, sat=True)
        if element.is_twos_complement:
            expected = np.maximum(expected, -127 / 64)  # ours leaves -2 unused
        assert torch.equal(rounded.double(), torch.from_numpy(expected * scale))
