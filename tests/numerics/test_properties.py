"""What holds for every format, for numbers that hypothesis chooses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numeric_samples import ELEMENTWISE, SETTINGS, bit_equal, examples

from chop.numerics import FORMATS, Binary, NumberFormat, Ternary
from chop.numerics.block import BlockFormat
from chop.numerics.elementwise import ElementFormat
from chop.numerics.grids import FixedGrid, FloatGrid, Grid, LogGrid

ALL = examples()
BLOCKED = [fmt for fmt in ALL if isinstance(fmt, BlockFormat)]
ONE_BLOCK = [  # a vector is one block
    fmt.model_copy(update={"block_size": (-1,) if isinstance(fmt.block_size, tuple) else 64})  # type: ignore[attr-defined]
    for fmt in BLOCKED
]
FINITE = st.floats(-(2.0**127), 2.0**127, width=32)
MODEST = st.floats(-(2.0**13), 2.0**13, width=32)
ANY = st.floats(width=32)
QUICK = settings(max_examples=20, deadline=None, derandomize=True)


def tensors(elements: st.SearchStrategy[float]) -> st.SearchStrategy[torch.Tensor]:
    shapes = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
    return arrays(np.float32, shapes, elements=elements).map(torch.from_numpy)


def vectors(elements: st.SearchStrategy[float]) -> st.SearchStrategy[torch.Tensor]:
    return st.lists(elements, min_size=1, max_size=40).map(torch.tensor)


def every(formats: list[NumberFormat]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fmt", formats, ids=repr)


def test_every_format_is_sampled() -> None:
    assert set(SETTINGS) == set(FORMATS)


@every(ALL)
@QUICK
@given(tensors(ANY))
def test_idempotent(fmt: NumberFormat, x: torch.Tensor) -> None:
    once = fmt.round_to(x)  # ternary without a scale: as long as its threshold is below 1
    assert bit_equal(fmt.round_to(once), once)


@every(ALL)
@QUICK
@given(tensors(ANY))
def test_nan_in_nan_out(fmt: NumberFormat, x: torch.Tensor) -> None:
    rounded = fmt.round_to(x)
    assert bool(rounded[x.isnan()].isnan().all())
    if not getattr(fmt, "nan_spreads", False):
        assert not bool(rounded[~x.isnan()].isnan().any())
        if fmt.label != "Float8E5M2":
            assert bool(rounded[~x.isnan()].isfinite().all())


@every([fmt for fmt in ALL if isinstance(fmt, ElementFormat)])
@QUICK
@given(vectors(st.floats(width=32, allow_nan=False)))
def test_monotone(fmt: NumberFormat, x: torch.Tensor) -> None:
    rounded = fmt.round_to(x.sort().values)
    assert bool((rounded[1:] >= rounded[:-1]).all())


@every([*ONE_BLOCK, Binary(), Binary(bipolar=True), Ternary(), Ternary(scaling_factor=True)])
@QUICK
@given(vectors(FINITE))
def test_monotone_within_a_block(fmt: NumberFormat, x: torch.Tensor) -> None:
    rounded = fmt.round_to(x.sort().values)
    assert bool((rounded[1:] >= rounded[:-1]).all())


@every(ALL)
@QUICK
@given(tensors(FINITE))
def test_zero_and_sign_are_kept(fmt: NumberFormat, x: torch.Tensor) -> None:
    rounded = fmt.round_to(x)
    if isinstance(fmt, Binary) and fmt.bipolar:  # it has no zero
        assert torch.equal(rounded, torch.where(x >= 0, 1.0, -1.0))
        return
    assert bool((rounded[x == 0] == 0).all())
    assert bool((rounded * x.sign() >= 0).all())
    if getattr(fmt, "signed", True) and not isinstance(fmt, Binary | Ternary):
        assert torch.equal(rounded.signbit(), x.signbit())


def within_half_a_step(grid: Grid, x: torch.Tensor, rounded: torch.Tensor) -> bool:
    """The error is at most half the step of the grid there; for powers of two, by logarithm."""
    size, error = x.abs(), (rounded - x).abs()
    if isinstance(grid, FixedGrid):
        return bool((error <= 2.0 ** -(grid.fraction + 1)).all())
    if isinstance(grid, FloatGrid):
        exponent = torch.frexp(size.clamp(min=2.0**grid.low)).exponent - 1
        return bool((error <= 2.0 ** (exponent.double() - grid.fraction - 1) * (1 + 1e-12)).all())
    assert isinstance(grid, LogGrid)
    small = size < 2.0**grid.low
    ratio = rounded[~small].abs() / size[~small]
    near = bool((ratio.log2().abs() <= 0.5 + 1e-12).all())
    return near and bool((error[small] <= 2.0 ** (grid.low - 1)).all())


@every(examples(*ELEMENTWISE))
@QUICK
@given(vectors(FINITE))
def test_half_a_step_inside_and_saturating_outside(fmt: ElementFormat, x: torch.Tensor) -> None:
    x = x.double()
    rounded = fmt.round_to(x)
    low, high = fmt.round_to(torch.tensor([-1e300, 1e300], dtype=torch.float64))
    assert bool((rounded[x < low] == low).all())
    assert bool((rounded[x > high] == high).all())
    inside = (x >= low) & (x <= high)
    assert within_half_a_step(fmt.grid, x[inside], rounded[inside])


@every(ONE_BLOCK)
@QUICK
@given(vectors(MODEST))
def test_half_a_step_at_the_scale_of_the_block(fmt: BlockFormat, x: torch.Tensor) -> None:
    x = x.double()
    _, shared, _, overall = fmt.encode(x)
    assert shared is not None
    scale = fmt.shared_scales(shared.long()) * (1.0 if overall is None else overall.double())
    elements, rounded = x / scale, fmt.round_to(x) / scale
    top = fmt.grid.values(torch.arange(2 ** (fmt.element_bits - 1))).nan_to_num(posinf=0).max()
    saturated = elements.abs() > top
    assert bool((rounded[saturated].abs() == top).all())
    assert within_half_a_step(fmt.grid, elements[~saturated], rounded[~saturated])
    if not fmt.nan_spreads and int(shared) not in extreme_codes(fmt):
        assert within_half_a_step(fmt.grid, elements, rounded)  # the largest fits in every block


def extreme_codes(fmt: BlockFormat) -> list[int]:
    """The codes of the smallest and the largest scale, beyond which blocks cannot follow."""
    ends = torch.tensor([2.0**exponent for exponent in fmt.scale_range], dtype=torch.float64)
    codes: list[int] = fmt.shared_codes(ends).tolist()
    return codes


@every(ALL)
@QUICK
@given(tensors(MODEST))
def test_gradient_goes_straight_through(fmt: NumberFormat, x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    weights = torch.randn(x.shape)
    rounded = fmt(x)
    assert bit_equal(rounded.detach(), fmt.round_to(x))
    (rounded * weights).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, weights)


@every(ALL)
@QUICK
@given(tensors(ANY))
def test_any_memory_layout(fmt: NumberFormat, x: torch.Tensor) -> None:
    expected = fmt.round_to(x)
    apart = torch.stack([x, x], dim=-1)[..., 0]
    backwards = tuple(reversed(range(x.dim())))
    turned = x.permute(backwards).contiguous().permute(backwards)
    repeated = x.expand(2, *x.shape)
    assert bit_equal(fmt.round_to(apart), expected)
    assert bit_equal(fmt.round_to(turned), expected)
    assert bit_equal(fmt.round_to(repeated), fmt.round_to(repeated.contiguous()))


@every(ALL)
@QUICK
@given(tensors(FINITE))
def test_float64_gives_the_same(fmt: NumberFormat, x: torch.Tensor) -> None:
    wide = fmt.round_to(x.double())
    if bool((wide.abs() <= torch.finfo(torch.float32).max).all()):  # else float32 saturates first
        assert bit_equal(wide.float(), fmt.round_to(x))
