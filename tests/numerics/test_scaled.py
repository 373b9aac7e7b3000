"""Integers with scales that are no powers of two."""

import copy
import pickle
import re
from fractions import Fraction
from math import floor, isinf
from typing import Any

import numpy as np
import pytest
import torch
from numeric_samples import bit_equal, hard_numbers

from chop.errors import ConfigError
from chop.numerics import Encoded, FloatTensor, Integer, IntegerScaled
from chop.validation import parse

FORMATS = [
    IntegerScaled(width=8, scale=0.1),
    IntegerScaled(width=8, scale=0.1, rounding="half_up"),
    IntegerScaled(width=3, scale=0.7, narrow=True),
    IntegerScaled(width=1, scale=1 / 3),
    IntegerScaled(width=1, scale=1 / 3, signed=False),
    IntegerScaled(width=4, scale=0.0123, signed=False, narrow=True),
    IntegerScaled(width=8, scale=0.017, signed=False, zero_point=77),
    IntegerScaled(width=8, scale=0.5, zero_point=-3),
    IntegerScaled(width=8, scale=0.5, zero_point=-3, rounding="half_up"),
    IntegerScaled(width=5, scale=2.0**-126),
    IntegerScaled(width=12, scale=1e30, zero_point=5),
]
every = pytest.mark.parametrize("fmt", FORMATS, ids=repr)


def by_definition(fmt: IntegerScaled, x: float) -> tuple[int, float]:
    """Code and number, in exact fractions; the number is a float64, which is wide enough."""
    low, high = fmt.code_range
    scale = Fraction(np.float32(fmt.scale).item())
    if isinf(x):
        code = high if x > 0 else low
    else:
        exact = Fraction(x) / scale + fmt.zero_point
        code = round(exact) if fmt.rounding == "half_even" else floor(exact + Fraction(1, 2))
        code = min(max(code, low), high)
    return code, float((code - fmt.zero_point) * scale)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_by_definition(fmt: IntegerScaled, dtype: torch.dtype) -> None:
    low, high = fmt.code_range
    codes = torch.arange(low, high + 1)
    numbers = fmt.decode(Encoded(codes, None, torch.float64))
    ties = (numbers[1:] + numbers[:-1]) / 2
    spread = hard_numbers(numbers[-20:], dtype=dtype, count=60)
    x = torch.cat([numbers.to(dtype), ties.to(dtype), spread[~spread.isnan()]])
    expected = [by_definition(fmt, value) for value in x.tolist()]
    wanted = torch.tensor([number for _, number in expected], dtype=torch.float64)
    assert torch.equal(fmt.round_to(x), wanted.to(dtype))
    encoded = fmt.encode(x)
    assert encoded.codes.tolist() == [code for code, _ in expected]
    assert torch.equal(fmt.decode(encoded), fmt.round_to(x))


@every
def test_all_codes(fmt: IntegerScaled) -> None:
    low, high = fmt.code_range
    codes = torch.arange(low, high + 1)
    for dtype in (torch.float32, torch.float64):
        numbers = fmt.decode(Encoded(codes, None, dtype))
        assert torch.equal(fmt.round_to(numbers), numbers)
        assert torch.equal(fmt.encode(numbers).codes.long(), codes)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_as_the_formula_of_qonnx(width: int, signed: bool, narrow: bool) -> None:
    """In float32 and away from ties, as its executor and Brevitas compute."""
    fmt = IntegerScaled(width=width, scale=0.037, zero_point=1, signed=signed, narrow=narrow)
    x = np.random.default_rng(0).normal(0, 2, 4000).astype(np.float32)
    scale, zero = np.float32(0.037), np.float32(1)
    least = -(2 ** (width - 1)) + narrow if signed else 0
    most = 2 ** (width - 1) - 1 if signed else 2**width - 1 - narrow
    quotient = x / scale + zero
    away = np.abs(quotient - np.floor(quotient) - np.float32(0.5)) > 1e-3
    theirs = (np.clip(np.round(quotient), least, most).astype(np.float32) - zero) * scale
    assert np.array_equal(fmt(torch.from_numpy(x)).numpy()[away], theirs[away])


def test_a_scale_for_each_channel() -> None:
    scales = [[0.1], [0.25], [3.0]]
    fmt = IntegerScaled(width=4, scale=FloatTensor(scales))
    x = torch.randn(2, 3, 5) * 2
    for channel, (scale,) in enumerate(scales):
        plain = IntegerScaled(width=4, scale=scale)
        assert bit_equal(fmt(x)[:, channel], plain(x[:, channel]))
    assert torch.equal(fmt.decode(fmt.encode(x)), fmt.round_to(x))
    given: list[Any] = [scales, np.array(scales), torch.tensor(scales), tuple(map(tuple, scales))]
    for other in given:
        assert parse(IntegerScaled, {"width": 4, "scale": other}, "") == fmt
    for other in (pickle.loads(pickle.dumps(fmt)), copy.deepcopy(fmt)):
        assert other == fmt
        assert hash(other) == hash(fmt)
    again = IntegerScaled.model_validate(fmt.model_dump())
    assert bit_equal(again(x), fmt(x))  # what is worked out is no part of the value
    assert again == fmt
    assert fmt.model_dump()["scale"][2] == [3.0]
    with pytest.raises(ConfigError, match=r"scales have the shape \(3, 1\) cannot round .* \(4,\)"):
        fmt(torch.ones(4))


def test_powers_of_two_are_fixed_point() -> None:
    x = hard_numbers(torch.arange(-20, 20) / 8)
    for signed in (True, False):
        for rounding in ("half_even", "half_up"):
            fmt = IntegerScaled(width=6, scale=0.125, signed=signed, rounding=rounding)
            plain = Integer(width=6, frac_width=3, signed=signed, rounding=rounding)
            assert fmt.as_integer() == plain
            assert bit_equal(fmt(x), plain(x))
    wide = IntegerScaled(width=6, scale=FloatTensor([[0.5], [8.0]]))
    assert wide.as_integer() == Integer(width=6, frac_width=[[1], [-3]])
    for fields in ({"scale": 0.1}, {"narrow": True}, {"zero_point": 1}, {"width": 25}):
        settings = {"width": 6, "scale": 0.5} | fields
        assert parse(IntegerScaled, settings, "").as_integer() is None


BAD = [
    ({"scale": 0.0}, "scale: scales are numbers of float32 from 1.17549e-38 up"),
    ({"scale": -1.0}, "scale: scales are numbers of float32"),
    ({"scale": float("nan")}, "scale: scales are numbers of float32"),
    ({"scale": [1.0, float("inf")]}, "scale: scales are numbers of float32"),
    ({"scale": "a"}, "scale: a number or a list of numbers expected (got 'a')"),
    ({"scale": True}, "scale: a number or a list of numbers expected"),
    ({"scale": [[1.0], [1.0, 2.0]]}, "scale: lists inside a list must have one length"),
    ({"scale": ["a"]}, "scale: numbers expected"),
    ({"scale": []}, "scale: at least one number expected"),
    ({"scale": 3e38}, "the largest number is beyond float32: scale is too large"),
    ({"scale": 0.1, "zero_point": 200}, "zero_point must be a code, from -128 to 127"),
    ({"scale": 0.1, "zero_point": 0.5}, "zero_point: input should be a valid integer"),
    ({"scale": 0.1, "width": 1, "narrow": True}, "a narrow range needs a width of at least 2"),
    ({"scale": 0.1, "width": 33}, "width: input should be less than or equal to 32"),
    ({}, "scale: field required"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_bad_fields_get_one_line(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        parse(IntegerScaled, {"width": 8} | fields, "linear: weight")
    assert "\n" not in str(caught.value)
