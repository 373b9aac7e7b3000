"""Bit operations and stored bits of quantised graphs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.function import quantized_function
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import quantize_module
from chop.ops.op import op_of_module
from chop.ops.table import OPS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass,
    count_operations_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.flops import report_counts
from chop.passes.module.analysis import calculate_avg_bits_module_analysis_pass


def integer(data: int, weight: int, **more: Any) -> dict[str, Any]:
    return {
        "name": "integer",
        "data_in_width": data,
        "data_in_frac_width": 4,
        "weight_width": weight,
        "weight_frac_width": 2,
    } | more


def quantised(layer: nn.Module, config: dict[str, Any]) -> nn.Module:
    op = op_of_module(layer)
    assert op is not None
    return quantize_module(layer, op, parse_quant_config(op, config, "test"))


@pytest.mark.parametrize(("data", "weight"), [(8, 4), (3, 16), (1, 1)])
def test_each_mac_counts_the_product_of_its_widths(counted: Any, data: int, weight: int) -> None:
    config = integer(data, weight, bias_width=6, bias_frac_width=3)
    model = nn.Sequential(quantised(nn.Linear(16, 5), config), nn.ReLU(), nn.Linear(5, 2))
    info = counted(model, (4, 16))
    assert info["total"]["bitops"] == 80 * data * weight + 10 * 32 * 32
    assert info["total"]["parameter_bits"] == 80 * weight + 5 * 6 + 12 * 32
    assert info["nodes"]["_0"]["input_buffer_bits"] == 16 * data
    assert info["nodes"]["_0"]["output_buffer_bits"] == 5 * 32


def test_grouped_convolution_and_a_rounded_output(counted: Any) -> None:
    config = integer(8, 4, data_out_width=6, data_out_frac_width=3)
    layer = quantised(nn.Conv2d(4, 8, 3, groups=4, bias=False), config)
    info = counted(nn.Sequential(layer), (2, 4, 5, 5))
    assert info["total"]["bitops"] == 9 * 8 * 9 * 32
    assert info["total"]["output_buffer_bits"] == 72 * 6


def test_a_bypassed_layer_has_the_width_it_computes_in(counted: Any) -> None:
    model = nn.Sequential(quantised(nn.Linear(4, 4), integer(8, 4, bypass=True)))
    assert counted(model, (2, 4))["total"]["bitops"] == 16 * 32 * 32
    assert calculate_avg_bits_module_analysis_pass(model, {})[1] == {"average_bitwidth": 32.0}


def test_half_precision_counts_16_bits(counted: Any) -> None:
    x = torch.zeros(2, 4, dtype=torch.float16)
    total = counted(nn.Sequential(nn.Linear(4, 4, bias=False)).half(), x)["total"]
    assert (total["bitops"], total["parameter_bits"]) == (16 * 16 * 16, 16 * 16)


class QuantisedProduct(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6))
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = quantized_function(OPS["matmul"], "integer")(
            x, self.weight, config=self.config
        )
        return product


def test_quantised_functions_round_the_parameters_they_are_given(counted: Any) -> None:
    total = counted(QuantisedProduct(integer(8, 3)), (2, 4))["total"]
    assert total["bitops"] == 24 * 8 * 3
    assert total["parameter_bits"] == 24 * 3


@pytest.mark.parametrize(("value", "bits"), [(4, 70 * 4 * 8 * 8 + 70 * 6 * 32 * 4)])
def test_attention_multiplies_unrounded_scores_by_values(
    counted: Any, value: int, bits: int
) -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            attend = quantized_function(OPS["scaled_dot_product_attention"], "integer")
            config = integer(8, 8, value_width=value, value_frac_width=2)
            config = {key: item for key, item in config.items() if not key.startswith("weight")}
            attended: Tensor = attend(q, k, v, config=config)
            return attended

    shapes = [(3, 2, 5, 4), (3, 2, 7, 4), (3, 2, 7, 6)]
    assert counted(Attention(), *shapes)["total"]["bitops"] == bits


class LayerAndProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 5)
        self.matrix = nn.Parameter(torch.ones(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) @ self.matrix


def test_a_graph_that_the_quantise_pass_made() -> None:
    pass_args = {"dummy_in": {"x": torch.randn(8, 16)}}
    graph, _ = add_common_metadata_analysis_pass(MaseGraph(LayerAndProduct()), pass_args)
    rules = {"linear": {"config": integer(8, 6)}, "matmul": {"config": integer(7, 4)}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", **rules})
    _, info = count_operations_analysis_pass(graph, {"report": False})
    assert info["per"] == "sample"
    assert info["total"]["bitops"] == 80 * 8 * 6 + 15 * 7 * 4
    assert info["total"]["parameter_bits"] == 85 * 6 + 15 * 4
    _, averages = calculate_avg_bits_mg_analysis_pass(graph)
    assert averages["w_avg_bit"] == (85 * 6 + 15 * 4) / 100
    assert averages["data_avg_bit"] == (16 * 8 + 5 * 32 + 5 * 7) / (16 + 5 + 5)


BLOCKS = {
    "name": "block_fp",
    "data_in_width": 8,
    "data_in_exponent_width": 8,
    "data_in_block_size": [4],
    "weight_width": 6,
    "weight_exponent_width": 8,
    "weight_block_size": [1, 4],
}


def test_a_block_shares_its_exponent_in_memory_but_not_in_the_multiplier(counted: Any) -> None:
    layer = quantised(nn.Linear(8, 4, bias=False), BLOCKS)
    formats = layer.quant.operands
    data, weight = formats["data_in"], formats["weight"]
    total = counted(nn.Sequential(layer), (2, 8))["total"]
    assert total["bitops"] == 32 * data.element_bits * weight.element_bits
    assert total["parameter_bits"] == 32 * weight.element_bits + 8 * weight.shared_bits
    assert total["input_buffer_bits"] == 8 * data.element_bits + 2 * data.shared_bits
    assert weight.shared_bits > 0


def test_a_parameter_shared_with_an_unquantised_layer_is_stored_in_full(counted: Any) -> None:
    plain = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(quantised(plain, integer(8, 2)), plain)
    assert counted(model, (2, 4))["total"]["parameter_bits"] == 16 * 32
    assert calculate_avg_bits_module_analysis_pass(model)[1]["average_bitwidth"] == 32


def averages(model: nn.Module, x: Tensor) -> dict[str, Any]:
    _, info = calculate_avg_bits_mg_analysis_pass(MaseGraph(model), {"dummy_in": {"input": x}})
    return info


def test_averages_weigh_every_parameter_and_every_activation() -> None:
    model = nn.Sequential(
        quantised(nn.Linear(16, 5), integer(8, 4)), nn.ReLU(), nn.Flatten(), nn.Linear(5, 2)
    )
    info = averages(model, torch.zeros(4, 16))
    stored = 85 * 4 + 12 * 32
    assert info["w_avg_bit"] == stored / 97
    assert info["data_avg_bit"] == (16 * 8 + 5 * 32 + 5 * 32) / (16 + 5 + 5)
    assert info["nodes"]["_0"] == {
        "data_avg_bit": 8.0,
        "data_size": 64,
        "w_avg_bit": 4.0,
        "w_size": 85,
    }
    assert calculate_avg_bits_module_analysis_pass(model, {})[1] == {
        "average_bitwidth": stored / 97
    }


def test_fraction_bits_are_not_added_to_the_width() -> None:
    config = integer(8, 8, weight_frac_width=4)
    model = nn.Sequential(quantised(nn.Linear(4, 4), config))
    assert averages(model, torch.zeros(1, 4))["w_avg_bit"] == 8
    assert averages(model, torch.zeros(1, 4))["data_avg_bit"] == 8


def test_an_unquantised_model_has_32_bits_and_no_parameters_have_no_average() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert calculate_avg_bits_module_analysis_pass(model, {})[1] == {"average_bitwidth": 32.0}
    empty = averages(nn.Sequential(nn.ReLU()), torch.zeros(1, 4))
    assert empty["w_avg_bit"] != empty["w_avg_bit"]
    assert empty["data_avg_bit"] == 32


def test_pruned_and_quantised_layers_keep_their_width() -> None:
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Half())
    model = nn.Sequential(quantised(layer, integer(8, 2)))
    assert calculate_avg_bits_module_analysis_pass(model)[1]["average_bitwidth"] == 2
    assert averages(model, torch.zeros(1, 4))["w_avg_bit"] == 2


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * (torch.arange(4) % 2)


ROUNDED = {
    "both": (integer(8, 6), (80, 0)),
    "weights alone": ({"name": "mxint8", "weight_block_size": 4}, (0, 80)),
    "inputs alone": ({"name": "mxint8", "data_in_block_size": 4}, (0, 80)),
    "the bias alone": ({"name": "mxint8", "bias_block_size": 5}, (0, 0)),
    "bypassed": ({**integer(8, 6), "bypass": True}, (0, 0)),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_macs_are_rounded_if_both_operands_are(case: str) -> None:
    config, (both, one) = ROUNDED[case]
    pass_args = {"dummy_in": {"x": torch.randn(8, 16)}}
    graph, _ = add_common_metadata_analysis_pass(MaseGraph(LayerAndProduct()), pass_args)
    rules = {"linear": {"config": config}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", **rules})
    _, info = count_operations_analysis_pass(graph, {"report": False})
    assert info["total"]["macs"] == 80 + 15
    assert (info["total"]["rounded_macs"], info["total"]["half_rounded_macs"]) == (both, one)
    assert info["nodes"]["layer"]["rounded_macs"] == both
    assert info["rounded_share"] == both / 95
    line = f"MACs with both operands rounded: {both / 95:.1%} ({both} of 95); with one of the two: "
    assert f"{line}{one / 95:.1%}." in report_counts(info)


def test_the_share_of_no_macs_is_none(counted: Any) -> None:
    info = counted(nn.Sequential(nn.ReLU()), (2, 4))
    assert info["rounded_share"] is None
    assert "There are no MACs." in report_counts(info)


def test_scores_that_attention_makes_itself_are_not_rounded(counted: Any) -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            attend = quantized_function(OPS["scaled_dot_product_attention"], "integer")
            config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
            attended: Tensor = attend(q, k, v, config=config)
            return attended

    total = counted(Attention(), (3, 2, 5, 4), (3, 2, 7, 4), (3, 2, 7, 6))["total"]
    heads = 2 * 5 * 7
    assert (total["rounded_macs"], total["half_rounded_macs"]) == (heads * 4, heads * 6)
