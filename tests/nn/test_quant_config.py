"""The flat dictionary of the labs, its rules and its errors."""

import copy
from typing import Any

import pytest
from ops.examples import FORMAT_NAMES, config_of

from chop.errors import ChopError, ConfigError
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.numerics import Binary, BlockFP, Integer
from chop.ops.table import OPS

DATA = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
WEIGHT = {"weight_width": 6, "weight_frac_width": 3}
LAB = DATA | WEIGHT | {"bias_width": 4, "bias_frac_width": 2}


def parsed(op: str, config: dict[str, Any]) -> QuantConfig:
    return parse_quant_config(OPS[op], config, "rule")


def test_every_role_has_its_format() -> None:
    operands = parsed("linear", LAB).operands
    assert operands == {
        "data_in": Integer(width=8, frac_width=4),
        "weight": Integer(width=6, frac_width=3),
        "bias": Integer(width=4, frac_width=2),
    }


@pytest.mark.parametrize("format_name", FORMAT_NAMES)
def test_back_and_forth_is_exact(format_name: str) -> None:
    for op in (op for op in OPS.values() if op.quantizable):
        for more in ({}, {"bypass": True}):
            quant = parse_quant_config(op, config_of(format_name, **more), "rule")
            assert parse_quant_config(op, quant.as_dict(), "rule") == quant
        assert set(quant.operands) == set(op.roles)


def test_the_dictionary_of_the_caller_stays_as_it_is() -> None:
    config = {**LAB, "bypass": False, "data_out_width": 8, "data_out_frac_width": 4}
    before = copy.deepcopy(config)
    assert "data_out" in parsed("linear", config).operands
    assert config == before


def test_no_frac_width_means_half_the_width() -> None:
    operands = parsed("relu", {"name": "fixed", "data_in_width": 9, "data_in_frac_width": None})
    assert operands.operands["data_in"] == Integer(width=9, frac_width=4, signed=False)


def test_relu_is_unsigned_unless_told_otherwise() -> None:
    assert parsed("relu", LAB).operands["data_in"] == Integer(width=8, frac_width=4, signed=False)
    signed = parsed("relu", LAB | {"data_in_signed": True})
    assert signed.operands["data_in"] == Integer(width=8, frac_width=4)
    assert parse_quant_config(OPS["relu"], signed.as_dict(), "rule") == signed
    assert parsed("gelu", LAB).operands["data_in"] == Integer(width=8, frac_width=4)


def test_blocks_skip_the_batch_of_data_but_not_of_weights() -> None:
    config = config_of("block_fp")
    skips = {role: fmt.skip_first_dim for role, fmt in parsed("linear", config).operands.items()}  # type: ignore[attr-defined]
    assert skips == {"data_in": True, "weight": False, "bias": False}
    second = parsed("bmm", config).operands["weight"]
    assert isinstance(second, BlockFP)
    assert second.skip_first_dim  # the second operand of a function is data as well
    own = parsed("linear", config | {"data_in_skip_first_dim": False}).operands["data_in"]
    assert isinstance(own, BlockFP)
    assert not own.skip_first_dim


def test_what_is_missing_is_taken_from_the_nearest_role() -> None:
    weight = Integer(width=6, frac_width=3)
    data = Integer(width=8, frac_width=4)
    assert parsed("linear", DATA | WEIGHT).operands["bias"] == weight
    assert parsed("matmul", DATA).operands == {"data_in": data, "weight": data}
    assert parsed("addmm", DATA | WEIGHT).operands["bias"] == weight
    attention = parsed("scaled_dot_product_attention", DATA | {"key_width": 4, "key_frac_width": 2})
    assert attention.operands == {
        "query": data,
        "key": Integer(width=4, frac_width=2),
        "value": data,
    }
    assert parsed("embedding", WEIGHT | {"name": "integer"}).operands == {"weight": weight}
    assert parsed("layer_norm", DATA).operands == {"data_in": data}


def test_formats_without_settings_serve_everything_or_what_is_mentioned() -> None:
    assert set(parsed("linear", {"name": "mxint8"}).operands) == {"data_in", "weight", "bias"}
    only = parsed("linear", {"name": "binary", "weight_bipolar": True})
    assert only.operands == {"weight": Binary(bipolar=True), "bias": Binary(bipolar=True)}
    assert parsed("relu", {"name": "binary", "weight_bipolar": True}).operands == {}


def test_bypass_needs_no_settings() -> None:
    quant = parsed("linear", {"name": "integer", "bypass": True})
    assert quant == QuantConfig("integer", {}, bypass=True)
    assert quant.as_dict() == {"name": "integer", "bypass": True}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("linear", DATA, "rule: linear needs 'weight_width'"),
    ("linear", {"name": "integer"} | WEIGHT, "rule: linear needs 'data_in_width'"),
    ("relu", DATA | {"wieght_width": 8}, "unknown key 'wieght_width': did you mean 'weight_width'"),
    ("relu", DATA | {"data_in_widht": 8}, "did you mean 'data_in_width'"),
    ("relu", DATA | {"data_in_exponent_width": 4}, "unknown key 'data_in_exponent_width'"),
    ("relu", DATA | {"width": 8}, "unknown key 'width'"),
    ("relu", DATA | {"bypas": True}, "did you mean 'bypass'"),
    ("relu", DATA | {"bypass": "yes"}, "bypass: true or false expected"),
    ("relu", DATA | {"data_in_width": 0}, "rule: data_in: width"),
    ("relu", DATA | {"data_in_width": -3}, "rule: data_in: width"),
    ("relu", DATA | {"data_in_frac_width": 1.5}, "rule: data_in: frac_width"),
    ("linear", DATA | WEIGHT | {"weight_width": "8"}, "rule: weight: width"),
    ("relu", {"data_in_width": 8}, "rule: 'name' of the number format is missing"),
    ("relu", {"name": "integr"}, "unknown number format 'integr': did you mean 'integer'"),
    ("relu", config_of("block_fp") | {"data_in_block_size": [0]}, "rule: data_in: block_size"),
]


@pytest.mark.parametrize(("op", "config", "message"), WRONG)
def test_mistakes_are_one_clear_line(op: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(op, config)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ChopError)


def test_keys_of_other_operations_are_tolerated() -> None:
    assert set(parsed("relu", LAB | {"query_width": 8, "query_frac_width": 4}).operands) == {
        "data_in"
    }
