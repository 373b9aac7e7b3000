"""Nodes of torch.export are the same operations as those of torch.fx."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.dataset import get_dataset_info
from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model
from chop.ops import OPS, op_of_function, op_of_node
from chop.ops.op import writes_in_place
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.utils import get_mase_op

aten = torch.ops.aten
OPERATORS = {name.partition("::")[2].partition(".")[0]
             for name in torch._C._dispatch_get_all_op_names()}  # fmt: skip


def names_of(graph: fx.Graph, modules: dict[str, nn.Module]) -> list[str]:
    found = [op_of_node(node, modules) for node in graph.nodes if node.op.startswith("call_")]
    assert None not in found
    return [op.name for op in found if op is not None]


def test_jsc_tiny_is_the_same_both_ways() -> None:
    model = get_model("jsc-tiny", "cls", dataset_info=get_dataset_info("jsc-sim")).eval()
    traced = MaseGraph(model)
    exported = torch.export.export(model, (torch.randn(4, 16),)).graph
    expected = ["batch_norm1d", "relu", "linear", "relu"]
    assert names_of(traced.fx_graph, traced.modules) == expected
    # The rank of a batch normalisation is in its module only.
    assert names_of(exported, {}) == ["batch_norm", *expected[1:]]
    in_place = [node.name for node in exported.nodes if writes_in_place(node)]
    assert in_place == ["relu_", "relu__1"]  # jsc-tiny has its ReLUs in place


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.LayerNorm(4)
        self.embedding, self.drop = nn.Embedding(9, 4), nn.Dropout()

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        x = F.max_pool2d(F.gelu(self.conv(x)), 2)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        x = self.drop(self.norm(x)) @ torch.eye(4) + self.embedding(index)
        x = torch.cat([x, x.softmax(-1)], 1).unsqueeze(0)
        x = F.scaled_dot_product_attention(x, x, x)
        return (x.transpose(1, 2)[:, 1:] * 2 - 1).mean(-1).clamp(-1, 1)


EXPECTED = """conv2d gelu max_pool2d adaptive_avg_pool2d flatten layer_norm dropout eye matmul
embedding add softmax cat unsqueeze scaled_dot_product_attention transpose getitem mul sub mean
clamp"""


def test_many_operations_of_an_exported_network() -> None:
    inputs = (torch.randn(2, 3, 8, 8), torch.tensor([1, 2]))
    graph = torch.export.export(Everything().eval(), inputs).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    found = {str(node.target): op_of_node(node, {}) for node in nodes}
    named = [op.name if op else target.split(".")[1] for target, op in found.items()]
    assert [name for name in EXPECTED.split() if name not in named] == []
    assert {target for target, op in found.items() if op is None} <= {"aten.eye.default"}


FORMS: list[tuple[Any, str]] = [
    (aten.linear.default, "linear"),
    (aten.relu.default, "relu"),
    (aten.relu_.default, "relu"),
    (aten.conv2d.default, "conv2d"),
    (aten.add.Tensor, "add"),
    (aten.add_.Scalar, "add"),
    (aten.matmul.default, "matmul"),
    (aten.addmm.default, "addmm"),
    (aten._softmax.default, "softmax"),
    (aten.native_layer_norm.default, "layer_norm"),
    (aten._native_batch_norm_legit_no_training.default, "batch_norm"),
    (aten.max_pool2d_with_indices.default, "max_pool2d"),
    (aten._adaptive_avg_pool2d.default, "adaptive_avg_pool2d"),
    (aten.upsample_bilinear2d.vec, "interpolate"),
    (aten.slice.Tensor, "getitem"),
    (aten._to_copy.default, "to"),
    (aten.sym_size.int, "size"),
]


@pytest.mark.parametrize(("operator", "name"), FORMS, ids=lambda each: str(each))
def test_aten_operators_by_name(operator: Any, name: str) -> None:
    assert op_of_function(operator) is OPS[name]


def test_every_name_in_the_table_is_one_of_aten() -> None:
    assert [name for op in OPS.values() for name in op.aten if name not in OPERATORS] == []
    assert op_of_function(aten.fft_fft.default) is None


class Unrolled(nn.Module):
    """What fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(len(x.shape)):
            x = self.linear(x).relu_()
        return x


def with_metadata(graph: MaseGraph, x: Tensor) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    return graph


RULE = {
    "by": "type",
    "linear": {"config": {"name": "integer", "data_in_width": 8, "weight_width": 8}},
}


def test_exported_nodes_are_known_but_not_quantised() -> None:
    """Their arguments may be in another order, so a graph of them is to be lifted first."""
    x = torch.randn(2, 4)
    module = torch.export.export(Unrolled(), (x,)).module(check_guards=False)
    graph = with_metadata(MaseGraph(module), x)
    ops = [get_mase_op(node) for node in graph.nodes if node.op == "call_function"]
    assert ops == ["linear", "relu"] * 2
    with pytest.raises(ConfigError, match="cannot be quantised"):
        quantize_transform_pass(graph, RULE)


def test_lifted_nodes_are_quantised() -> None:
    x = torch.randn(2, 4)
    graph = with_metadata(MaseGraph(Unrolled(), example_inputs={"x": x}), x)
    _, info = quantize_transform_pass(graph, RULE)
    assert info["quantized"] == {"linear": "LinearInteger", "linear_1": "LinearInteger"}
