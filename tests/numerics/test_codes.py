"""Every code of every format of 16 bits or fewer."""

import pytest
import torch
from numeric_samples import ELEMENTWISE, MX, SHAPED, bit_equal, examples

from chop.errors import ConfigError
from chop.numerics import (
    Encoded,
    Float8E4M3,
    Float8E5M2,
    Integer,
    IntegerScaled,
    IntegerTrained,
    MinifloatDenorm,
    NumberFormat,
)
from chop.numerics.arithmetic import code_dtype
from chop.numerics.block import BlockFormat
from chop.numerics.elementwise import ElementFormat


def all_codes(fmt: ElementFormat | BlockFormat) -> torch.Tensor:
    bits, signed = fmt.element_bits, fmt.grid.signed_codes
    low = -(1 << (bits - 1)) if signed else 0
    return torch.arange(low, low + (1 << bits)).to(code_dtype(bits, signed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fmt", examples(*ELEMENTWISE), ids=repr)
def test_decoded_codes_are_fixed_points(fmt: ElementFormat, dtype: torch.dtype) -> None:
    codes = all_codes(fmt)
    values = fmt.decode(Encoded(codes, None, dtype))
    values = values[values.isfinite()]  # a top exponent of 128 is beyond float32
    assert bit_equal(fmt.round_to(values), values)
    assert bit_equal(fmt.decode(fmt.encode(values)), values)


@pytest.mark.parametrize("fmt", examples(*ELEMENTWISE), ids=repr)
def test_encoding_undoes_decoding(fmt: ElementFormat) -> None:
    codes = all_codes(fmt)
    values = fmt.decode(Encoded(codes, None, torch.float64))
    again = fmt.encode(values).codes
    if isinstance(fmt, MinifloatDenorm):  # without a hidden one, some numbers have several codes
        assert torch.equal(fmt.decode(Encoded(again, None, torch.float64)), values)
        assert len(again.unique()) == len(set(values.tolist())) + 1  # both zeros
    else:
        known = ~values.isnan()  # NaN may have several
        assert torch.equal(again[known], codes[known])
        assert values[~known].numel() == {Float8E4M3: 2, Float8E5M2: 6}.get(type(fmt), 0)


@pytest.mark.parametrize("fmt", examples(*SHAPED, *MX), ids=repr)
def test_block_codes_are_fixed_points(fmt: BlockFormat) -> None:
    codes = all_codes(fmt)
    if fmt.nan_spreads and fmt.grid.signed_codes:
        codes = codes[codes != -128]  # left unused
    elements = fmt.grid.values(codes.long())
    codes = codes[elements.isfinite()]
    top = codes[fmt.grid.values(codes.long()).argmax()]
    for exponent in range(*fmt.scale_range):
        if not -100 < exponent < 100:
            continue
        scale = torch.tensor(2.0**exponent, dtype=torch.float64)
        # One element of each block is the largest there is, which fixes the scale.
        rows = torch.stack([codes, top.expand_as(codes)], dim=1)
        blocks = fmt.blocks(rows.shape)
        shared = fmt.shared_codes(scale.expand(blocks.count))
        encoded = Encoded(rows, shared, torch.float64)
        values = fmt.decode(encoded)
        assert bit_equal(fmt.round_to(values), values)
        again = fmt.encode(values)
        assert torch.equal(again.codes, rows)
        assert again.shared is not None
        assert torch.equal(again.shared.long(), shared.long())


SHAPES = [(), (1,), (37,), (5, 33), (2, 3, 17), (2, 3, 4, 5), (0,), (3, 0)]


@pytest.mark.parametrize("fmt", examples(), ids=repr)
def test_decoding_gives_what_rounding_gives(fmt: NumberFormat) -> None:
    for shape in SHAPES:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
        encoded = fmt.encode(x)
        assert encoded.codes.shape == x.shape
        assert not encoded.codes.is_floating_point()
        assert torch.equal(fmt.decode(encoded), fmt.round_to(x)), shape
        one_zero = isinstance(fmt, Integer | IntegerScaled | IntegerTrained)
        if not one_zero and "Int8" not in fmt.label:  # those have one zero only
            assert bit_equal(fmt.decode(encoded), fmt.round_to(x)), shape


@pytest.mark.parametrize("fmt", examples(), ids=repr)
def test_codes_fit_their_width(fmt: NumberFormat) -> None:
    codes = fmt.encode(torch.randn(64, 64) * 50).codes.long()
    span = int(codes.max()) - min(int(codes.min()), 0)
    assert span < 2**fmt.element_bits


@pytest.mark.parametrize("fmt", examples(), ids=repr)
def test_nan_has_a_code_or_is_refused(fmt: NumberFormat) -> None:
    x = torch.tensor([1.0, torch.nan, -2.0])
    if isinstance(fmt, Float8E4M3 | Float8E5M2) or getattr(fmt, "nan_spreads", False):
        assert bit_equal(fmt.decode(fmt.encode(x)), fmt.round_to(x))
    else:
        with pytest.raises(ConfigError, match="has no code for NaN"):
            fmt.encode(x)


def test_infinity_has_a_code_in_e5m2() -> None:
    x = torch.tensor([torch.inf, -torch.inf, 1e30])
    assert Float8E5M2().encode(x).codes.tolist() == [0x7C, 0xFC, 0x7B]
    assert bit_equal(Float8E5M2().decode(Float8E5M2().encode(x)), Float8E5M2().round_to(x))
