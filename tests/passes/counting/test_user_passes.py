"""The passes that students wrote by hand run on our graphs, and their numbers mean the same."""

import importlib.util
import sys
import types
from typing import Any

import pytest
import torch
from passes.counting.examples import perceptron
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import add_common_metadata_analysis_pass, count_operations_analysis_pass
from chop.passes.graph.analysis.quantization import calculate_flops_pass
from chop.passes.graph.utils import get_node_actual_target

KEYS = {
    "total_parameters",
    "computations",
    "backward_computations",
    "input_buffer_size",
    "output_buffer_size",
}


@pytest.fixture
def graph() -> MaseGraph:
    pass_args = {"dummy_in": {"input": torch.randn(8, 16)}}
    return add_common_metadata_analysis_pass(MaseGraph(perceptron()), pass_args)[0]


def first_value(entries: dict[str, Any], name: str) -> tuple[Tensor | None]:
    try:
        return (entries[name]["value"],)
    except KeyError:
        return (None,)


def test_a_pass_over_the_modules_of_a_graph(graph: MaseGraph) -> None:
    breakdown, total = {}, 0
    for node in graph.fx_graph.nodes:
        common = node.meta["mase"].parameters["common"]
        inputs = first_value(common["args"], "data_in_0")
        outputs = (common["results"]["data_out_0"]["value"],)
        module = get_node_actual_target(node)
        if isinstance(module, nn.Module):
            breakdown[module] = calculate_flops_pass(module, inputs, outputs)
            total += breakdown[module]["computations"]
    assert len(breakdown) == 4
    assert all(set(found) == KEYS for found in breakdown.values())
    batch_norm, relu = 2 * 8 * 16, 8 * 64
    assert total == batch_norm + 8 * (16 * 64 + 64) + relu + 8 * (64 * 5 + 5)


def expected(
    parameters: int, forward: int, backward: int, read: int, written: int
) -> dict[str, int]:
    return {
        "total_parameters": parameters,
        "computations": forward,
        "backward_computations": backward,
        "input_buffer_size": read,
        "output_buffer_size": written,
    }


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        (nn.Linear(16, 5), (8, 16), expected(85, 8 * 85, 16 * 85, 128, 40)),
        (nn.Linear(16, 5, bias=False), (8, 16), expected(80, 8 * 80, 16 * 80, 128, 40)),
        (nn.ReLU(), (8, 16), expected(0, 128, 128, 128, 128)),
        (nn.Dropout(), (8, 16), expected(0, 0, 0, 128, 128)),
        (nn.AdaptiveAvgPool2d(1), (1, 3, 4, 4), expected(0, 48, 48, 48, 3)),
        (nn.MaxPool2d(2), (1, 3, 4, 4), expected(0, 48, 48, 48, 12)),
        (
            nn.Conv2d(4, 8, 3, groups=2, bias=False),
            (1, 4, 5, 5),
            expected(144, 72 * 18, 144 * 18, 100, 72),
        ),
    ],
    ids=str,
)
def test_the_cost_of_one_module(
    layer: nn.Module, shape: tuple[int, ...], wanted: dict[str, int]
) -> None:
    x = torch.randn(shape)
    assert calculate_flops_pass(layer, (x,), (layer(x),)) == wanted
    assert calculate_flops_pass(layer, x, layer(x)) == wanted


def test_what_has_no_rule_or_no_tensors_is_an_error() -> None:
    x = torch.zeros(2, 4)
    with pytest.raises(GraphError, match="Opaque cannot be counted"):
        calculate_flops_pass(Opaque(), (x,), (x,))
    with pytest.raises(GraphError, match="Linear needs an input tensor"):
        calculate_flops_pass(nn.Linear(4, 4), (None,), (x,))


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def flop_pass(graph: MaseGraph, pass_args: dict[str, Any]) -> tuple[MaseGraph, dict[str, Any]]:
    """A user's pass that asks another tool to profile the traced model."""
    from thop import profile

    flops, parameters = profile(graph.model, inputs=(pass_args["dummy_in"],))
    return graph, {"FLOP": flops, "parameters": parameters}


def stand_in(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[float, float]:
    """Runs the model and counts it the way the tool does: MACs of the whole batch."""
    model(*inputs)
    pass_args = {"dummy_in": {"input": inputs[0]}, "report": False}
    _, info = count_operations_analysis_pass(MaseGraph(model), pass_args)
    return float(info["total"]["macs"] * len(inputs[0])), float(info["total"]["parameters"])


def test_a_pass_that_profiles_the_model(graph: MaseGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "thop", types.SimpleNamespace(profile=stand_in))
    _, found = flop_pass(graph, {"dummy_in": torch.randn(8, 16)})
    assert found == {"FLOP": 8 * (16 * 64 + 64 * 5), "parameters": 1445}


@pytest.mark.skipif(importlib.util.find_spec("thop") is None, reason="thop is not installed")
def test_the_same_pass_with_thop(graph: MaseGraph) -> None:
    _, found = flop_pass(graph, {"dummy_in": torch.randn(8, 16)})
    # thop adds four for each element of a batch normalisation to its MACs.
    assert found["FLOP"] == 8 * (16 * 64 + 64 * 5) + 4 * 8 * 16
