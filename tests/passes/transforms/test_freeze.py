"""Freezing: plain formats that compute the same bits as those that learned."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Engine, LoweringError, lower
from chop.nn.learned import LearnedWidths
from chop.numerics import Integer
from chop.numerics.int_tensor import IntTensor
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    freeze_transform_pass,
    init_metadata_analysis_pass,
    load_mase_graph_interface_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
)


def learning(model: nn.Module, x: Tensor, **settings: Any) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    name = next(node.name for node in graph.nodes)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {name: x}})
    rule = {"config": {"name": "integer_trained", **settings}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "default": rule})
    return graph


class Mixed(nn.Module):
    """Layers with and without bias, groups, functions, a product of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, bias=False)
        self.grouped = nn.Conv1d(4, 4, 2, groups=2)
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x)).flatten(2)[:, :, :6]
        y = F.linear(self.grouped(y), self.weight)
        return torch.matmul(y, y.transpose(1, 2)).flatten(1)


def stir(model: nn.Module) -> None:
    """Bits as training may leave them: all sizes, from those that leave nothing up."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("frac_width"):
                value += torch.randn(value.shape, generator=generator) * 2


@pytest.mark.parametrize("granularity", ["element", "tensor"])
def test_the_frozen_graph_computes_the_same_bits(granularity: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, far = torch.randn(8, 2, 5, 5), torch.randn(8, 2, 5, 5) * 40
    graph = learning(Mixed(), x, weight_granularity=granularity)
    stir(graph.model)
    widths = LearnedWidths(graph.model)
    widths.calibrate([x])
    graph.model.eval()
    with torch.no_grad():
        expected = [graph.model(rows) for rows in (x, far)]
    trained = copy.deepcopy(graph.model).train()
    assert not torch.equal(expected[1], trained(far))  # for far rows saturate
    frozen, info = freeze_transform_pass(graph)
    assert frozen is graph
    assert info["frozen"]["conv"] == "Conv2dInteger"
    assert not [name for name in graph.model.state_dict() if "quantizers" in name]
    assert not graph.model._forward_pre_hooks
    save_mase_graph_interface_pass(graph, {"save_dir": tmp_path / "g", "weights": "codes"})
    loaded, _ = load_mase_graph_interface_pass(None, tmp_path / "g")
    for each in (graph, loaded, copy.deepcopy(graph)):
        with torch.no_grad():
            for rows, wanted in zip((x, far), expected, strict=True):
                assert torch.equal(each.model(rows), wanted)


def test_a_frozen_network_has_an_integer_program() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    graph = learning(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), x)
    stir(graph.model)
    LearnedWidths(graph.model).calibrate([x])
    graph.model.eval()
    with torch.no_grad():
        expected = graph.model(x)
        freeze_transform_pass(graph)
        (found,) = Engine(lower(graph, {"input": x}))(x)
        assert torch.equal(found.to(expected.dtype), expected)


def test_zeros_and_channels_that_nobody_reads_take_no_bits() -> None:
    torch.manual_seed(0)
    graph = learning(nn.Sequential(nn.Linear(4, 3)), torch.ones(2, 4))
    layer = graph.model.get_submodule("0")
    with torch.no_grad():
        layer.weight[:, 1] = 0.01
        layer.weight[0, 0] = 0.01
    x = torch.randn(16, 4)
    LearnedWidths(graph.model).calibrate([x])
    expected = graph.model.eval()(x)
    freeze_transform_pass(graph)
    layer = graph.model.get_submodule("0")
    weight, data = layer.w_quantizer, layer.x_quantizer
    assert isinstance(weight, Integer)
    assert isinstance(weight.width, IntTensor)
    assert weight.width.array[0, 0] == 0
    assert data.width.array.tolist()[1] == 0
    assert (data.width.array > 0).sum() == 3
    assert torch.equal(graph.model(x), expected)


def test_what_cannot_be_frozen_says_so() -> None:
    torch.manual_seed(0)
    graph = learning(nn.Sequential(nn.Linear(4, 3)), torch.ones(2, 4))
    with pytest.raises(LoweringError, match="the pass freeze turns the graph into one"):
        lower(graph, {"input": torch.ones(2, 4)})
    with pytest.raises(GraphError, match=r"data_in of node '_0' has seen no values"):
        freeze_transform_pass(graph)
    LearnedWidths(graph.model).calibrate([torch.randn(8, 4)])
    freeze_transform_pass(graph)
    with pytest.raises(GraphError, match="no operation of this graph has a format that learns"):
        freeze_transform_pass(graph)
