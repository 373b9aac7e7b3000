"""The parts of the file format by themselves: values, TOML and packed codes."""

import json
import math
import tomllib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.ir.stored.codec import (
    NotStorable,
    pack,
    pack_bits,
    pack_mask,
    restore_value,
    to_plain,
    unpack,
    unpack_bits,
)
from chop.ir.stored.metadata import toml_text
from chop.numerics import FORMATS, Integer

SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS
    | st.none()
    | st.sampled_from([torch.float16, torch.device("cpu"), ..., slice(1, None)]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3),
    ),
    max_leaves=12,
)
TREES = st.dictionaries(
    st.text(max_size=6).filter(lambda key: not key.startswith("$")),
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.text(max_size=4).filter(lambda k: k[:1] != "$"), inner, max_size=3),
        ),
        max_leaves=10,
    ),
    max_size=4,
)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    plain = json.loads(json.dumps(to_plain(value), allow_nan=False))
    found = restore_value(plain)
    assert found == value
    assert type(found) is type(value)


def test_odd_values() -> None:
    assert math.isnan(restore_value(to_plain(math.nan)))
    for value in (torch.Size([2, 3]), 1 + 2j, torch.channels_last, {"$x": 1}, {(1, 2): "a"}):
        assert restore_value(to_plain(value)) == value
    assert to_plain(np.float32(0.5)) == 0.5
    with pytest.raises(NotStorable):
        to_plain(object())
    with pytest.raises(ValueError, match="unknown value"):
        restore_value({"$code": "1"})


@given(TREES)
def test_toml_reads_back_in_order(tree: dict[str, Any]) -> None:
    found = tomllib.loads(toml_text({("a", "b c"): tree}))["a"]["b c"]
    assert found == tree
    assert repr(found) == repr(tree)


@given(
    st.integers(1, 33).flatmap(
        lambda bits: st.tuples(
            st.just(bits),
            st.lists(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), max_size=40),
        )
    )
)
def test_bits_come_back(case: tuple[int, list[int]]) -> None:
    bits, codes = case
    packed = pack_bits(np.array(codes, dtype=np.int64), bits)
    assert len(packed) == -(-len(codes) * bits // 8)
    assert unpack_bits(packed, bits, len(codes), "int64").tolist() == codes


def test_long_tensors_are_packed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.random.default_rng(0).integers(-4, 4, 1000)
    whole = pack_bits(codes, 3)
    monkeypatch.setattr("chop.ir.stored.codec.CHUNK", 64)
    assert np.array_equal(pack_bits(codes, 3), whole)
    assert np.array_equal(unpack_bits(whole, 3, 1000, "int64"), codes)


@pytest.mark.parametrize("width", range(1, 17))
def test_integers_take_their_width(width: int) -> None:
    weight = torch.randn(40, 25)
    packed = pack("integer", Integer(width=width, frac_width=width // 2), weight)
    assert packed is not None
    assert packed.codes.numel() == 1000 * width // 8
    assert torch.equal(unpack(packed), Integer(width=width, frac_width=width // 2)(weight))


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_every_format_packs(name: str, dtype: torch.dtype) -> None:
    values = {"width": 6, "frac_width": 3, "exponent_width": 3, "scale": 0.1}
    fields = FORMATS[name].model_fields
    fmt = FORMATS[name](**{k: v for k, v in values.items() if k in fields})
    weight = torch.randn(7, 33).to(dtype)
    packed = pack(name, fmt, weight)
    rounded = fmt.round_to(weight)
    if packed is None:  # a mean taken again may differ in the last bit; then floats are stored
        assert not torch.equal(fmt.round_to(rounded), rounded)
        return
    assert torch.equal(unpack(packed), rounded)
    assert packed.codes.numel() == -(-7 * 33 * fmt.element_bits // 8)


def test_what_does_not_repeat_is_not_packed() -> None:
    fmt = FORMATS["binary"](stochastic=True, bipolar=True)
    assert pack("binary", fmt, torch.zeros(50, 50)) is None


@given(st.lists(st.booleans(), max_size=50))
def test_masks_come_back(flags: list[bool]) -> None:
    mask = torch.tensor(flags, dtype=torch.bool)
    packed = pack_mask(mask)
    assert packed.codes.numel() == -(-len(flags) // 8)
    assert torch.equal(unpack(packed), mask)
