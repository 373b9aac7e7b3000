"""NVFP4 against tables of its own: every code, exact rounding, and bits."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from numeric_samples import bit_equal, hard_numbers

from chop.errors import ConfigError
from chop.numerics import NVFP4, Encoded

ELEMENTS = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
SCALES = [
    Fraction(float(np.uint8(code).view(ml_dtypes.float8_e4m3fn))) for code in range(8, 0x7F)
]  # normal numbers only


def nearest(value: Fraction, numbers: list[Fraction]) -> Fraction:
    """The nearest of numbers in order; of two, the one at an even place."""
    best = min(abs(value - each) for each in numbers)
    ties = [place for place, each in enumerate(numbers) if abs(value - each) == best]
    return numbers[ties[0] if len(ties) == 1 or ties[0] % 2 == 0 else ties[1]]


def oracle(block: list[float], tensor: Fraction) -> list[Fraction]:
    """A block rounded in rational numbers."""
    numbers = [Fraction(each) for each in block]
    wanted = max(map(abs, numbers)) / 6 / tensor
    # An even place of the scales is an even code, as they begin with code 8.
    scale = nearest(min(max(wanted, SCALES[0]), SCALES[-1]), SCALES) * tensor
    return [nearest(min(abs(x) / scale, Fraction(6)), ELEMENTS) * scale * (-1 if x < 0 else 1)
            for x in numbers]  # fmt: skip


@pytest.mark.parametrize("tensor_scale", [None, 1.0, 0.0123])
def test_rounds_as_in_rational_numbers(tensor_scale: float | None) -> None:
    fmt = NVFP4(tensor_scale=tensor_scale)
    generator = torch.Generator().manual_seed(5)
    blocks = torch.randn(40, 16, generator=generator) * torch.logspace(-4, 3, 40)[:, None]
    # Ties of elements and of scales, whose largest element is half way between two.
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2)
    halves = [float((a + b) / 2 * 6) for a, b in zip(SCALES[::9], SCALES[1::9], strict=False)]
    ties = torch.stack([middles * 3, *(middles / 6 * half for half in halves)])
    hard = hard_numbers(torch.tensor([0.5, 6.0, 448.0]), count=160)
    hard = hard[hard.isfinite() & (hard.abs() < 1e4)][: 16 * 40].reshape(-1, 16)
    x = torch.cat([blocks, ties, hard])
    scale = fmt.tensor_scales(x)
    for block, rounded in zip(x.tolist(), fmt.round_to(x).tolist(), strict=True):
        expected = oracle(block, Fraction(float(scale)))
        assert [np.float32(float(each)) for each in expected] == [
            np.float32(each) for each in rounded
        ]


def test_every_code_is_a_number_and_back() -> None:
    fmt = NVFP4(tensor_scale=1.0)
    signs = torch.tensor([1.0] * 8 + [-1.0] * 8)
    elements = torch.tensor([float(each) for each in ELEMENTS] * 2) * signs
    for code in range(128):
        scale = float(np.uint8(code).view(ml_dtypes.float8_e4m3fn))
        encoded = Encoded(torch.arange(16), torch.tensor([code]), torch.float32)
        values = fmt.decode(encoded)
        assert bit_equal(values, elements * scale)
        if 8 <= code < 127:  # smaller scales are never chosen
            assert bit_equal(fmt.round_to(values), values)
            again = fmt.encode(values)
            assert again.codes.tolist() == list(range(16))
            assert again.shared is not None
            assert again.shared.tolist() == [code]


def test_rounding_again_changes_nothing() -> None:
    for seed in range(30):
        x = torch.randn(12, 48, generator=torch.Generator().manual_seed(seed)) * 3.0 ** (seed - 15)
        for fmt in (NVFP4(), NVFP4(skip_first_dim=True), NVFP4(tensor_scale=0.01)):
            once = fmt.round_to(x)
            assert bit_equal(fmt.round_to(once), once)


def test_rows_of_data_do_not_share_a_scale() -> None:
    x = torch.randn(5, 32) * torch.tensor([1.0, 1e-6, 1e6, 1.0, 0.0])[:, None]
    by_row = NVFP4(skip_first_dim=True)
    assert bit_equal(by_row.round_to(x), torch.cat([by_row.round_to(row[None]) for row in x]))
    assert not torch.equal(NVFP4().round_to(x), by_row.round_to(x))


def test_scales_of_tensors_are_checked() -> None:
    encoded = NVFP4().encode(torch.randn(4, 16))
    assert encoded.overall is not None
    assert encoded.overall.dtype == torch.float32
    with pytest.raises(ValueError, match="scale of the tensor"):
        NVFP4(tensor_scale=1.0).decode(encoded)
    with pytest.raises(ConfigError, match="rounds floating-point"):
        NVFP4().round_to(torch.ones(3, dtype=torch.int64))
    top = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    assert bool(NVFP4().round_to(top).isfinite().all())
    assert bool(NVFP4().round_to(torch.tensor([torch.inf, 1.0])).isnan().all())
