"""Types, shapes, bad input and the formats as values."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
from numeric_samples import bit_equal, examples

from chop.errors import ConfigError
from chop.numerics import (
    FORMATS,
    MXFP4,
    MXFP8,
    NVFP4,
    Binary,
    BlockFP,
    BlockMinifloat,
    Float8E5M2,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt8,
    NumberFormat,
    Ternary,
)
from chop.numerics.arithmetic import CHUNK
from chop.validation import parse

every = pytest.mark.parametrize("fmt", examples(), ids=repr)
LABELS = "Integer MinifloatDenorm MinifloatIEEE Log BlockFP BlockMinifloat BlockLog Binary Ternary"
LABELS += " IntegerScaled IntegerTrained MXInt8 MXFP8 MXFP6 MXFP4 NVFP4 Float8E4M3 Float8E5M2"
NOT_A_NUMBER, INF = torch.nan, torch.inf


@every
def test_formats_are_values(fmt: NumberFormat) -> None:
    fmt(torch.ones(3))  # fills what is worked out once
    for other in (pickle.loads(pickle.dumps(fmt)), copy.deepcopy(fmt), copy.copy(fmt)):
        assert other == fmt
        assert hash(other) == hash(fmt)
        assert bit_equal(other(torch.linspace(-3, 3, 50)), fmt(torch.linspace(-3, 3, 50)))
    assert type(fmt).model_validate(fmt.model_dump()) == fmt


def test_a_changed_copy_forgets_what_was_worked_out() -> None:
    fmt = Integer(width=8, frac_width=4)
    assert fmt(torch.tensor([-1.0])).item() == -1
    assert fmt.model_copy(update={"signed": False})(torch.tensor([-1.0, 9.0])).tolist() == [
        0.0,
        9.0,
    ]
    with pytest.raises(ValueError, match="greater than 0"):
        fmt.model_copy(update={"width": 0})


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_float32_rounded(fmt: NumberFormat, dtype: torch.dtype) -> None:
    x = (torch.randn(40, 40, generator=torch.Generator().manual_seed(2)) * 4).to(dtype)
    rounded = fmt.round_to(x)
    assert rounded.dtype == dtype
    assert bool(rounded.isfinite().all())
    wide = fmt.round_to(x.float())
    exact = wide.to(dtype).float() == wide  # elsewhere the type lacks the number
    assert torch.equal(rounded.float()[exact], wide[exact])
    assert bit_equal(fmt.decode(fmt.encode(x)).abs(), rounded.abs())


@every
def test_any_rank(fmt: NumberFormat) -> None:
    for shape in [(), (0,), (0, 4), (3, 0, 2), (7,), (2, 3, 4, 5, 6)]:
        assert fmt(torch.zeros(shape)).shape == shape
        assert fmt(torch.ones(shape, requires_grad=True)).shape == shape


@every
def test_only_floating_point(fmt: NumberFormat) -> None:
    for dtype in (torch.int32, torch.bool, torch.complex64):
        for use in (fmt, fmt.round_to, fmt.encode):
            with pytest.raises(ConfigError, match="rounds floating-point tensors, not"):
                use(torch.ones(2, dtype=dtype))


@every
def test_no_graph_without_need_and_no_aliasing(fmt: NumberFormat) -> None:
    x = torch.randn(6, 8)
    before = x.clone()
    assert not fmt(x).requires_grad
    with torch.no_grad():
        assert fmt(x.clone().requires_grad_()).grad_fn is None
    assert not fmt.round_to(x.clone().requires_grad_()).requires_grad
    fmt(x).fill_(7)
    assert torch.equal(x, before)


@every
def test_large_tensors_are_rounded_as_small_ones(fmt: NumberFormat) -> None:
    rows = 3 * CHUNK // 1000
    x = torch.randn(rows, 1000, generator=torch.Generator().manual_seed(4))
    if getattr(fmt, "skip_first_dim", True) or fmt.label.startswith("MX"):
        assert bit_equal(fmt.round_to(x)[-6:], fmt.round_to(x[-6:]))
    assert bit_equal(fmt.round_to(x.t().contiguous().t()), fmt.round_to(x))
    line = x.flatten()
    assert bit_equal(fmt(line.clone().requires_grad_()).detach(), fmt.round_to(line))


@every
def test_bits(fmt: NumberFormat) -> None:
    assert fmt.bits >= fmt.element_bits or fmt.label in ("Binary", "Ternary")
    assert fmt.bits_of((64, 64)) > 0


def test_bits_count_what_is_shared() -> None:
    assert BlockFP(width=8, block_size=[16]).bits == 8.5
    assert BlockFP(width=8, block_size=[16], skip_first_dim=False).bits_of((4, 32)) == 8 + 8 / 64
    assert BlockFP(width=8, block_size=[16]).bits_of((4, 20)) == 8 + 8 * 8 / 80
    assert MXFP4().bits == 4.25
    assert MXFP8(block_size=16).bits_of((3, 8)) == 9
    assert NVFP4().bits == 4.5
    assert NVFP4().bits_of((64, 32)) == 4.5 + 32 / 2048
    assert NVFP4(skip_first_dim=True).bits_of((4, 20)) == 4 + 8 * 8 / 80 + 32 * 4 / 80
    assert Binary().bits_of((10, 32)) == 2
    assert Integer(width=5).bits == 5


def test_special_numbers() -> None:
    x = torch.tensor([INF, -INF, NOT_A_NUMBER, 1.0])
    assert Integer(width=8, frac_width=4)(x)[:2].tolist() == [7.9375, -8.0]
    assert MinifloatIEEE(width=8, exponent_width=4)(x)[:2].tolist() == [480.0, -480.0]
    assert Log(width=4)(x)[:2].tolist() == [16.0, -16.0]
    assert Float8E5M2()(x)[:2].tolist() == [INF, -INF]
    assert bool(MXFP8()(x).isnan().all())
    assert MXFP8(block_size=1)(x)[3].item() == 1.0
    block = BlockFP(width=8, exponent_width=4)(x)
    assert block[:2].tolist() == [254.0, -254.0]
    assert block[2].isnan()
    assert Binary(bipolar=True)(x)[[0, 1, 3]].tolist() == [1.0, -1.0, 1.0]
    assert Ternary(scaling_factor=True)(torch.tensor([INF, 3.0, NOT_A_NUMBER]))[:2].tolist() == [
        3,
        3,
    ]


def test_nan_and_infinity_in_a_block() -> None:
    with_nan, with_infinity = torch.tensor([NOT_A_NUMBER, 1.0]), torch.tensor([INF, 1.0])
    for fmt in examples("block_fp", "block_minifloat", "block_log"):
        rounded = fmt(with_nan)
        assert rounded[0].isnan()
        assert rounded[1] == fmt(torch.tensor([1.0]))[0]
        rounded = fmt(with_infinity)
        assert rounded[0].isfinite()
        assert rounded[0] == fmt(torch.tensor([3.4e38]))[0]
    for fmt in examples("mxint8", "mxfp8", "mxfp6", "mxfp4"):
        assert bool(fmt(with_nan).isnan().all())
        assert bool(fmt(with_infinity).isnan().all())


def test_unsigned_zero_has_no_sign() -> None:
    fmt = Integer(width=8, frac_width=4, signed=False)
    for size in (1, 7, 64, 1001):
        assert not bool(fmt(torch.full((size,), -0.01)).signbit().any())
        assert not bool(fmt(torch.full((size,), -0.0)).signbit().any())


def test_saturates_at_the_last_number_the_type_has() -> None:
    wide = Integer(width=32, frac_width=0)
    x = torch.tensor([1e30, -1e30])
    assert wide(x).tolist() == [2.0**31 - 128, -(2.0**31)]
    assert wide.encode(x).codes.tolist() == [2**31 - 128, -(2**31)]
    assert wide(x.double()).tolist() == [2.0**31 - 1, -(2.0**31)]
    half = torch.tensor([6e4, -6e4], dtype=torch.float16)
    assert Integer(width=16, frac_width=0)(half).tolist() == [32752, -32768]
    assert Integer(width=20, frac_width=0)(half).tolist() == half.tolist()
    brain = MinifloatIEEE(width=16, exponent_width=8)  # its top binade is above that of float32
    assert brain(torch.tensor([INF])).item() == 2.0**127 * (2 - 2.0**-7)
    assert brain(torch.tensor([INF], dtype=torch.float64)).item() == 2.0**128 * (2 - 2.0**-7)


def test_thresholds_are_exact() -> None:
    x = torch.tensor([1.5])
    just_below, just_above = (1.5 * (1 + part) / 0.75 for part in (-1e-9, 1e-9))
    assert Ternary(mean=just_below)(x).item() == 1
    assert Ternary(mean=just_above)(x).item() == 0
    assert Ternary(mean=2.0)(x).item() == 0


def test_where_the_original_was_wrong() -> None:
    one_row = torch.tensor([[100.0, 50.0, 25.0, 30.0]])
    assert BlockMinifloat(width=8, exponent_width=3)(one_row).tolist() == [[100.0, 50, 25, 30]]
    assert MinifloatIEEE(width=8, exponent_width=4)(torch.tensor([1.99, 3.9])).tolist() == [
        2.0,
        4.0,
    ]
    assert MinifloatDenorm(width=8, exponent_width=4)(torch.tensor([1.0, 0.5])).tolist() == [
        1.0,
        0.5,
    ]
    assert BlockFP(width=8)(torch.tensor([1.0, 0.5, 0.25])).tolist() == [1.0, 0.5, 0.25]
    assert Log(width=4)(torch.tensor([0.0, -0.1, -0.013])).tolist() == [0.0, 0.0, 0.0]
    assert MXInt8()(torch.tensor([1.0, 0.5, -1.0])).tolist() == [1.0, 0.5, -1.0]
    matrix = torch.tensor([[1.0, -2.0], [0.1, 4.0]])
    assert Binary()(matrix).tolist() == [[1.0, 0.0], [pytest.approx(2.05), pytest.approx(2.05)]]
    assert Ternary(mean=2.0)(matrix).tolist() == [[0.0, -1.0], [0.0, 1.0]]
    assert Ternary(mean=200.0)(matrix).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_stochastic_binary_follows_its_probability() -> None:
    torch.manual_seed(0)
    x = torch.tensor([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5]).expand(4000, 7)
    share = (Binary(stochastic=True, bipolar=True)(x) > 0).float().mean(0)
    expected = torch.tensor([0, 0, 0.25, 0.5, 0.75, 1, 1])
    assert torch.allclose(share, expected, atol=0.04)
    assert share[[0, 1, 6]].tolist() == [0, 0, 1]


def test_block_shapes() -> None:
    x = torch.arange(1.0, 25).reshape(2, 3, 4)
    for size, shared in [([4], 2), ([-1], 2), ([100], 2), ([1, 4], 6), ([2, 2], 8), ([9, 3, 2], 4)]:
        encoded = BlockFP(width=8, block_size=size).encode(x)
        assert encoded.shared is not None
        assert encoded.shared.numel() == shared, size
    whole = BlockFP(width=8, block_size=[4], skip_first_dim=False).encode(x).shared
    assert whole is not None
    assert whole.numel() == 1


BAD = [
    ("integer", {"width": 0}, "width: input should be greater than 0 (got 0)"),
    ("integer", {"width": -2, "frac_width": 1}, "width: input should be greater than 0 (got -2)"),
    ("integer", {"width": 8, "frac_width": 2.5}, "frac_width: input should be a valid integer"),
    ("integer", {"width": True}, "width: input should be a valid integer (got True)"),
    ("integer", {"wdith": 8}, "unknown key 'wdith': did you mean 'width'?"),
    (
        "minifloat_ieee",
        {"width": 4, "exponent_width": 4},
        "exponent_width 4 does not fit in a width",
    ),
    ("minifloat_denorm", {"width": 4, "exponent_width": 3}, "there is room for 2"),
    ("block_minifloat", {"width": 3, "exponent_width": 3}, "there is room for 2"),
    ("log", {"width": 1}, "width: input should be greater than or equal to 2 (got 1)"),
    ("block_fp", {"width": 8, "block_size": [0]}, "a block size is a list of positive numbers"),
    ("block_fp", {"width": 8, "block_size": []}, "a block size is a list of positive numbers"),
    (
        "block_log",
        {"width": 4, "block_size": [1.5]},
        "block_size.0: input should be a valid integer",
    ),
    ("mxint8", {"block_size": 0}, "block_size: input should be greater than 0 (got 0)"),
    ("mxfp6", {"element": "e1m4"}, "element: input should be 'e2m3' or 'e3m2' (got 'e1m4')"),
    ("ternary", {"mean": -1.0}, "mean: input should be greater than or equal to 0 (got -1.0)"),
    ("binary", {"width": 0}, "width: input should be greater than 0 (got 0)"),
]


@pytest.mark.parametrize(("name", "fields", "message"), BAD)
def test_bad_fields_get_one_line(name: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        parse(FORMATS[name], fields, "linear")
    assert str(caught.value).startswith("linear: ")
    assert "\n" not in str(caught.value)


def test_labels_and_field_order() -> None:
    assert {cls.label for cls in FORMATS.values()} == set(LABELS.split())
    keys = {name: list(cls.model_fields) for name, cls in FORMATS.items()}
    assert keys["block_fp"][:4] == ["width", "exponent_width", "exponent_bias", "block_size"]
    assert keys["block_log"][:3] == ["width", "exponent_bias_width", "block_size"]
    assert keys["ternary"] == ["width", "scaling_factor", "mean", "median", "max"]
    assert Integer(width=9).frac_width == 4  # type: ignore[call-arg]
    assert (Binary().width, Ternary().width) == (1, 2)
    assert BlockFP(width=8, block_size=16) == BlockFP(width=8, block_size=[16])  # type: ignore[arg-type]


def test_every_format_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    headings = {
        name
        for line in re.findall(r"^## (.*)$", text, re.M)
        for name in re.findall(r"`(\w+)`", line)
    }
    assert headings >= set(FORMATS)
