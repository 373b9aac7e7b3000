"""Fixed point with widths, binary points and signs for each channel or element."""

import copy
import pickle
import re
from itertools import product

import numpy as np
import pytest
import torch
from numeric_samples import bit_equal, hard_numbers
from rational import fixed

from chop.errors import ConfigError
from chop.numerics import Encoded, Integer, IntTensor
from chop.numerics.arithmetic import CHUNK
from chop.validation import parse

KINDS = list(product([0, 1, 2, 5, 8], [-3, 0, 4, 11], [True, False]))
WIDE = [*KINDS, (30, 20, True), (53, 2, False), (32, 0, True), (24, 126, True), (8, -126, False)]
MODES = pytest.mark.parametrize(
    ("rounding", "overflow"), list(product(["half_even", "half_up"], ["saturate", "wrap"]))
)


def columns(kinds: list[tuple[int, int, bool]], **modes: str) -> Integer:
    """A format that has one kind for each column."""
    width, frac_width, signed = zip(*kinds, strict=True)
    return Integer(
        width=IntTensor(width), frac_width=IntTensor(frac_width), signed=IntTensor(signed), **modes
    )


def plain(kind: tuple[int, int, bool], fmt: Integer) -> Integer | None:
    """The same for a whole tensor; None for no bits, which a plain format cannot have."""
    width, frac_width, signed = kind
    fields = {"width": width, "frac_width": frac_width, "signed": signed}
    return fmt.model_copy(update=fields) if width else None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@MODES
def test_each_column_is_rounded_as_by_its_plain_format(
    rounding: str, overflow: str, dtype: torch.dtype
) -> None:
    kinds = KINDS if dtype == torch.float16 else WIDE
    fmt = columns(kinds, rounding=rounding, overflow=overflow)
    wide = hard_numbers(torch.arange(-20, 21) / 16, dtype=torch.float64, count=200)
    x = torch.cat([wide, torch.arange(-600, 600).double() / 32]).to(dtype)
    rounded = fmt.round_to(x[:, None].expand(-1, len(kinds)))
    for place, kind in enumerate(kinds):
        one = plain(kind, fmt)
        got = rounded[:, place].contiguous()
        if one is not None:
            wanted = one.round_to(x)
            positive = kind[0] == 1  # where 0 is the largest number, all zeros are positive
            assert bit_equal(got, wanted + 0.0 if positive else wanted), kind
        else:
            kept = ~(x.isnan() | (x.isinf() if overflow == "wrap" else x.isnan()))
            assert torch.equal(got[kept], torch.zeros_like(got[kept])), kind
            assert not bool(got.signbit()[kept].any())


@MODES
def test_each_element_is_rounded_by_definition(rounding: str, overflow: str) -> None:
    kinds = [kind for kind in KINDS if kind[0]]
    fmt = columns(kinds, rounding=rounding, overflow=overflow)
    x = torch.arange(-100, 100).double().mul(0.15625 / 2).repeat_interleave(2)
    x[1::2] += 0.03125
    rounded = fmt.round_to(x.float()[:, None].repeat(1, len(kinds)))
    expected = [[fixed(v, *kind, rounding, overflow) for kind in kinds] for v in x.tolist()]
    assert torch.equal(rounded, torch.tensor(expected, dtype=torch.float32))


@MODES
def test_all_codes_are_numbers_that_stay(rounding: str, overflow: str) -> None:
    fmt = columns(KINDS, rounding=rounding, overflow=overflow)
    codes = torch.zeros(256, len(KINDS), dtype=torch.int64)
    for place, (width, _, signed) in enumerate(KINDS):
        low = -(1 << (width - 1)) if signed and width else 0
        codes[:, place] = torch.arange(256) % (1 << width) + low
    fractions = torch.tensor([frac for _, frac, _ in KINDS])
    for dtype in (torch.float16, torch.float32, torch.float64):
        numbers = torch.ldexp(codes.double(), -fractions).to(dtype)
        assert torch.equal(fmt.round_to(numbers), numbers)
        encoded = fmt.encode(numbers)
        assert encoded.codes.dtype == torch.int8  # unsigned codes of 8 bits are bit patterns there
        assert torch.equal(encoded.codes.long() & 255, codes & 255)
        assert torch.equal(fmt.decode(encoded), numbers)


def test_codes_without_negative_ones_are_unsigned() -> None:
    fmt = Integer(width=[8, 3], frac_width=[0, 1], signed=False)
    encoded = fmt.encode(torch.tensor([[300.0, 9.0], [-1.0, 0.5]]))
    assert encoded.codes.dtype == torch.uint8
    assert encoded.codes.tolist() == [[255, 7], [0, 1]]
    assert fmt.decode(encoded).tolist() == [[255.0, 3.5], [0.0, 0.5]]


SHAPES = [
    ((5,), (7, 5)),
    ((4, 1), (4, 5)),
    ((4, 5), (4, 5)),
    ((3, 1, 1), (2, 3, 4, 5)),
    ((6, 1, 1, 1), (6, 3, 2, 2)),
    ((1,), (0, 4)),
    ((4,), (3, 0, 4)),
]


@pytest.mark.parametrize(("own", "shape"), SHAPES)
def test_widths_broadcast_from_the_right(own: tuple[int, ...], shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    widths = torch.randint(0, 9, own, generator=generator)
    points = torch.randint(-2, 6, own, generator=generator)
    fmt = Integer(width=IntTensor(widths), frac_width=IntTensor(points))
    x = torch.randn(shape, generator=generator) * 4
    got = fmt.round_to(x)
    assert got.shape == x.shape
    everywhere = (each.expand(shape).reshape(-1).tolist() for each in (widths, points))
    for width, point, value, result in zip(
        *everywhere, x.flatten().tolist(), got.flatten().tolist(), strict=True
    ):
        assert result == (fixed(value, width, point, True) if width else 0)
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert bit_equal(fmt.round_to(turned), got)
    assert torch.equal(fmt.decode(fmt.encode(x)), got)


def test_large_tensors_and_one_field_for_each_dimension() -> None:
    fmt = Integer(width=[[2], [8]] * 300, frac_width=[0, 3, 5] * 300, signed=True)
    x = torch.randn(600, 900, generator=torch.Generator().manual_seed(1))
    assert x.numel() > 2 * CHUNK
    got = fmt(x)
    assert torch.equal(got[::2, ::3], Integer(width=2, frac_width=0)(x[::2, ::3]))
    assert torch.equal(got[1::2, 2::3], Integer(width=8, frac_width=5)(x[1::2, 2::3]))
    assert (fmt.bits, fmt.element_bits, fmt.code_range) == (5, 8, (-128, 127))


def test_gradients_pass_also_after_inference() -> None:
    fmt = Integer(width=[0, 4], frac_width=2)
    with torch.inference_mode():
        fmt(torch.ones(3, 2))
    x = torch.full((3, 2), 0.3, requires_grad=True)
    rounded = fmt(x)
    assert rounded.tolist() == [[0.0, 0.25]] * 3
    (rounded * torch.tensor([2.0, 3.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [[2.0, 3.0]] * 3


def test_granular_formats_are_values() -> None:
    lists = [[8], [0], [3]]
    made = [lists, np.array(lists, dtype=np.int8), torch.tensor(lists), IntTensor(lists)]
    formats = [Integer.model_validate({"width": each, "signed": [[1], [0], [1]]}) for each in made]
    fmt = formats[0]
    fmt(torch.ones(3, 4))
    dumped = fmt.model_dump()
    assert dumped["width"] == lists
    assert dumped["frac_width"] == [[4], [0], [1]]
    assert dumped["signed"] == [[True], [False], [True]]
    others = [pickle.loads(pickle.dumps(fmt)), copy.deepcopy(fmt), fmt.model_copy()]
    for other in [*formats, *others, Integer.model_validate(dumped)]:
        assert other == fmt
        assert hash(other) == hash(fmt)
        assert bit_equal(other(torch.full((3, 2), -1.3)), fmt(torch.full((3, 2), -1.3)))
    for field, other in [("width", [8, 0, 3]), ("width", [[8], [0], [4]]), ("signed", True)]:
        assert fmt.model_copy(update={field: other}) != fmt
    assert parse(Integer, {"width": torch.tensor(6)}, "") == Integer(width=6, frac_width=3)
    assert repr(IntTensor(list(range(20)))) == "<0/9.5/19, shape (20,)>"
    assert repr(fmt).startswith("Integer(width=[[8], [0], [3]], ")
    with pytest.raises(ValueError, match="read-only"):
        IntTensor(lists).array[0, 0] = 1


def test_an_int_tensor_keeps_its_contents() -> None:
    source = np.array([1, 2])
    kept = IntTensor(source)
    source[0] = 7
    assert kept == IntTensor([1, 2])
    assert kept != IntTensor([[1, 2]])
    assert IntTensor([True]) != IntTensor([1])
    assert kept != [1, 2]


BAD = [
    ({"width": [8, 54]}, "width: numbers from 0 to 53 expected, and 54 is one"),
    ({"width": [8, -1]}, "width: numbers from 0 to 53 expected, and -1 is one"),
    ({"width": [8, 4], "frac_width": [1, 200]}, "frac_width: numbers from -126 to 126 expected"),
    ({"width": [[8, 4], [1]]}, "lists inside a list must have one length"),
    ({"width": []}, "at least one number expected, and the shape is (0,)"),
    ({"width": [8, 2.5], "frac_width": 1}, "width: small integers expected"),
    ({"width": ["8"], "frac_width": 1}, "width: small integers expected"),
    ({"width": [10**30], "frac_width": 1}, "width: small integers expected"),
    ({"width": [True, False], "frac_width": 0}, "width: integers expected"),
    ({"width": 8, "frac_width": 4, "signed": [0, 2]}, "signed: numbers from 0 to 1 expected"),
    ({"width": torch.tensor(0)}, "width: input should be greater than 0"),
    (
        {"width": [[8], [4]], "frac_width": [[1], [2], [3]]},
        "shapes that do not broadcast: width (2, 1), frac_width (3, 1)",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_bad_granular_fields_get_one_line(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        parse(Integer, fields, "linear: weight")
    assert str(caught.value).startswith("linear: weight: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (2, 3, 1), (5, 3)])
def test_tensors_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    fmt = Integer(width=[[8], [4]], frac_width=[1, 2, 3])
    message = re.escape(f"widths have the shape (2, 3) cannot round a tensor of shape {shape}")
    codes = Encoded(torch.zeros(shape, dtype=torch.int8), None, torch.float32)
    for use in (fmt, fmt.encode, lambda x: fmt.decode(codes)):
        with pytest.raises(ConfigError, match=message):
            use(torch.ones(shape))


def test_other_formats_stay_as_they_are() -> None:
    with pytest.raises(ConfigError, match="width: input should be a valid integer"):
        from chop.numerics import Log

        parse(Log, {"width": [4, 5]}, "linear")
