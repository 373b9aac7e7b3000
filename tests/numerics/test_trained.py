"""The quantisers of `integer_trained` against the plain formats that they are frozen to."""

import math
from typing import Any

import pytest
import torch
from numeric_samples import hard_numbers
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quant_config import parse_quant_config
from chop.numerics import Integer, IntegerTrained, Operand
from chop.numerics.arithmetic import half_way_up
from chop.numerics.trained import TrainedData
from chop.ops.table import OPS
from chop.validation import parse

RANGES = [(0.0, 0.0), (-0.3, 0.0), (0.0, 7.9), (-8.0, 7.9), (-8.1, 1.0), (2.0, 3.0), (-1e-3, 1e-3),
          (-5e6, 3e9), (0.0, 2.0**30)]  # fmt: skip


def quantizer(low: float, high: float, frac: float, dtype: torch.dtype) -> TrainedData:
    made = IntegerTrained(frac_width=frac, granularity="tensor").quantizer(
        Operand("relu", "data_in", None)
    )
    assert isinstance(made, TrainedData)
    made.eval().to(dtype)
    made.lo.fill_(low)
    made.hi.fill_(high)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("frac", [-3.0, 0.0, 2.4, 9.0])
def test_evaluation_rounds_as_the_frozen_format(frac: float, dtype: torch.dtype) -> None:
    scale = 2.0 ** round(frac)
    x = hard_numbers(torch.arange(-300, 300) / scale, dtype=torch.float64, count=500).to(dtype)
    for low, high in RANGES:
        made = quantizer(low, high, frac, torch.promote_types(dtype, torch.float32))
        plain = made.freeze()
        assert isinstance(plain, Integer)
        rounded = made(x)
        assert rounded.dtype == dtype
        same = (rounded == plain(x)) | (rounded.isnan() & plain(x).isnan())
        assert bool(same.all()), (low, high, x[~same][:5], rounded[~same][:5])


@torch.no_grad()
def test_the_range_is_the_smallest_that_holds_what_was_seen() -> None:
    facts: dict[tuple[float, float], tuple[Any, bool]] = {
        (0.0, 7.8): (5, False), (-8.0, 7.7): (6, True), (-8.0, 1.0): (6, True),
        (-8.2, 1.0): (7, True), (-0.3, 0.0): (1, True),
        (2.0, 3.0): (4, False), (0.0, 0.1): ([0], False),
    }  # fmt: skip
    for (low, high), (width, signed) in facts.items():
        made = quantizer(low, high, 2.0, torch.float32)
        plain = made.freeze()
        assert plain.model_dump()["width"] == width, (low, high)
        if width != [0]:
            assert plain.signed is signed
            assert plain.frac_width == 2
            assert float(made.bits()) == width
        ends = torch.tensor([low, high])
        assert torch.equal(made(ends), torch.floor(ends * 4 + 0.5) / 4)


def test_nothing_seen_means_sixteen_bits_before_the_point() -> None:
    made = IntegerTrained(frac_width=3.0).quantizer(Operand("relu", "data_in", None)).eval()
    fmt = IntegerTrained(frac_width=3.0).start
    assert made.freeze() == fmt == Integer(width=20, frac_width=3, rounding="half_up")
    x: Tensor = torch.randn(100) * 1e5
    assert torch.equal(made(x), fmt(x))


def test_rules_may_mention_some_operands_and_mean_all() -> None:
    rule = {"name": "integer_trained", "weight_granularity": "channel", "data_in_frac_width": 2}
    quant = parse_quant_config(OPS["linear"], rule, "test")
    assert quant.operands == {
        "data_in": IntegerTrained(frac_width=2.0, granularity="channel"),
        "weight": IntegerTrained(frac_width=4.0, granularity="channel"),
        "bias": IntegerTrained(frac_width=6.0, learns=False),
    }
    assert parse_quant_config(OPS["linear"], quant.as_dict(), "test") == quant
    for field, value in (("frac_width", 30.0), ("granularity", "row"), ("learns", "yes")):
        with pytest.raises(ConfigError, match=field):
            parse(IntegerTrained, {field: value}, "linear")


def test_half_way_cases_go_up_next_to_them_nothing_does_and_zeros_keep_their_signs() -> None:
    exact = torch.arange(-8, 8, dtype=torch.float64) + 0.5
    near = torch.tensor([0.5, -0.5, 1.5, 4_194_303.5])
    for scaled in (
        exact,
        torch.cat([near.nextafter(torch.tensor(side)) for side in (-math.inf, math.inf)]),
        torch.tensor([0.0, -0.0, -0.25, 0.25, 2.0**30, math.inf, -math.inf, math.nan]),
    ):
        nearest = scaled.round()
        expected = torch.where(scaled - nearest == 0.5, nearest + 1, nearest)
        found = half_way_up(scaled.clone())
        assert found.numpy().tobytes() == expected.numpy().tobytes()
    assert half_way_up(exact.clone()).tolist() == list(range(-7, 9))
