"""The share of rounded MACs is that of the products which run, whoever calls them."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import chop
from chop.ir.graph.mase_graph import MaseGraph, MaseTracer
from chop.ir.graph.shapes import ShapedGraphModule
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    count_operations_analysis_pass,
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.transforms.quantize.one_line import FormatSpec, one_line_rules
from chop.passes.graph.utils import deepcopy_mase_graph

pytestmark = pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
Product = Callable[[Tensor, Tensor], Tensor]

ROUNDED: dict[str, Product] = {
    "matmul": lambda x, w: x @ w,
    "method": lambda x, w: x.matmul(w),
    "linalg.matmul": torch.linalg.matmul,
    "mm": torch.mm,
    "mv": lambda x, w: torch.mv(x, w[:, 0]),
    "dot": lambda x, w: torch.dot(x[0], w[:, 0]),
    "inner": lambda x, w: torch.inner(x, w.T),
    "inner of vectors": lambda x, w: x[0].inner(w[:, 0]),
    "tensordot": lambda x, w: torch.tensordot(x, w, dims=([1], [0])),
    "outer": lambda x, w: torch.outer(x[0], w[0]),
    "ger": lambda x, w: torch.ger(x[0], w[0]),
    "vecdot": lambda x, w: torch.linalg.vecdot(x, w[:, 0]),
    "vecdot of columns": lambda x, w: torch.linalg.vecdot(x, w[:, :4], dim=0),
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "addmm": lambda x, w: torch.addmm(w[0], x, w),
    "addmv": lambda x, w: torch.addmv(w[:, 1], x, w[:, 0]),
    "baddbmm": lambda x, w: torch.baddbmm(w[None], x[None], w[None]),
    "addbmm": lambda x, w: torch.addbmm(w, x.view(2, 4, 2), w[:2].expand(2, 2, 5)),
    "linear": lambda x, w: F.linear(x, w.T),
    "einsum": lambda x, w: torch.einsum("bi,ij->bj", x, w),
    "einsum of a list": lambda x, w: torch.einsum("bi,ij->bj", [x, w]),
    "einsum without a sum": lambda x, w: torch.einsum("bi,j->bij", x, w[0]),
    "conv1d": lambda x, w: F.conv1d(x[None], w[:, :4, None]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w.T[None], w.T[None]),
}
"""Functions of torch that the table of operations has, so that rules round both operands."""
NAMED: dict[str, tuple[Product, str]] = {
    "vdot": (lambda x, w: torch.vdot(x[0], w[:, 0]), "torch.vdot"),
    "kron": (torch.kron, "torch.kron"),
    "addr": (lambda x, w: torch.addr(x, x[0], w[:, 0]), "torch.addr"),
    "chain_matmul": (lambda x, w: torch.chain_matmul(x, w, w.T), "torch.chain_matmul"),
    "multi_dot": (lambda x, w: torch.linalg.multi_dot([x, w, w.T]), "torch.linalg.multi_dot"),
    "conv_tbc": (lambda x, w: torch.conv_tbc(x[None], w[None], w[0]), "conv_tbc"),
    "cdist": (lambda x, w: torch.cdist(x, w.T), "torch.cdist"),
    "cov": (lambda x, w: torch.cov(x), "torch.cov"),
    "matrix_power": (lambda x, w: torch.matrix_power(x, 3), "matrix_power"),
    "multi_head_attention": (
        lambda x, w: F.multi_head_attention_forward(
            x[:, None], x[:, None], x[:, None], 4, 2, w[:, :3].reshape(12, 1).expand(12, 4), None,
            None, None, False, 0.0, w[:, :4], None)[0], "multi_head_attention_forward"),
}  # fmt: skip
"""Functions with products that it does not have: they stay in floating point."""


class Net(nn.Module):
    """A layer, which can be quantised, and a function of its result and a weight."""

    def __init__(self, function: Product) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.layer = nn.Linear(6, 4)
        self.weight = nn.Parameter(torch.randn(4, 5))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x), self.weight)


RULES = one_line_rules(FormatSpec("integer", 8), calibrated=False)
X = torch.rand(4, 6) + 0.001


def quantised_graph(model: nn.Module, x: Tensor = X) -> MaseGraph:
    """The graph that torch.fx makes, quantised."""
    graph, _ = add_common_metadata_analysis_pass(MaseGraph(model), {"dummy_in": {"x": x}})
    graph, _ = quantize_transform_pass(graph, RULES)
    return graph


def seen_from_outside(model: nn.Module, x: Tensor = X) -> float:
    """The share of the MACs with both operands on the grid, as torch runs them."""
    from chop.nn.dispatched import watched_products

    def is_on_grid(tensor: Tensor) -> bool:
        return torch.equal(tensor * 2**7, (tensor * 2**7).round())

    with watched_products(is_on_grid) as watch:
        model(x)
    return watch.total.rounded / watch.total.macs


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that were logged."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", ROUNDED)
def test_what_the_table_has_is_rounded(name: str) -> None:
    graph = quantised_graph(Net(ROUNDED[name]))
    _, info = count_operations_analysis_pass(graph, {"report": False})
    assert info["rounded_share"] == 1.0
    assert info["not_rounded"] == []
    if name != "attention":  # torch scales queries and keys first
        assert seen_from_outside(graph.model) == 1.0


@pytest.mark.parametrize("name", NAMED)
def test_what_it_does_not_have_is_named(name: str) -> None:
    function, written = NAMED[name]
    graph = quantised_graph(Net(function))
    _, info = count_operations_analysis_pass(graph, {"report": False})
    (missing,) = info["not_rounded"]
    assert info["rounded_share"] < 1
    assert missing["out_of_reach"] == missing["share"] > 0.03
    assert written in missing["functions"][0]
    assert info["nodes"]["layer"]["rounded_macs"] > 0
    whole = count_operations_analysis_pass(graph, {"report": False, "dummy_in": {"x": X}})[1]
    assert whole["rounded_share"] == info["rounded_share"]


def test_the_share_is_the_one_seen_from_outside() -> None:
    for function, _ in NAMED.values():
        graph = quantised_graph(Net(function))
        _, info = summarize_quantization_analysis_pass(deepcopy_mase_graph(graph), graph)
        assert info["macs"]["rounded_share"] == seen_from_outside(graph.model)


@pytest.mark.parametrize(
    ("function", "layers", "rounded"),
    [
        (lambda x, w: torch.einsum("bi,ij,kj->bk", x, w, w), 4 * 6, 4 * 4 * 5 * 4),
        (lambda x, w: F.bilinear(x, x, w.T[:, :, None] * w[:4, :4]), 4 * 6, 4 * 5 * 4 * 4),
    ],
)
def test_what_the_first_product_makes_is_not_rounded(
    function: Product, layers: int, rounded: int
) -> None:
    graph = quantised_graph(Net(function))
    _, info = summarize_quantization_analysis_pass(deepcopy_mase_graph(graph), graph)
    layers *= 4
    assert info["macs"]["macs"] == layers + 2 * rounded
    assert info["macs"]["rounded_macs"] == layers + rounded
    assert info["macs"]["half_rounded_macs"] == rounded
    (missing,) = info["not_rounded"]
    assert missing["out_of_reach"] == rounded / (layers + 2 * rounded)


def window_attention(x: Tensor, inner: Tensor, outer: Tensor, heads: int) -> Tensor:
    """The attention of shifted windows as torchvision has it: one node to fx."""
    rows, length, width = x.shape
    x = torch.roll(x, 1, dims=1)
    parts = F.linear(x, inner).reshape(rows, length, 3, heads, width // heads)
    query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
    scores = (query * (width // heads) ** -0.5).matmul(key.transpose(-2, -1)).softmax(-1)
    return F.linear(scores.matmul(value).transpose(1, 2).reshape(rows, length, width), outer)


fx.wrap("window_attention")


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.inner = nn.Parameter(torch.randn(24, 8))
        self.outer = nn.Parameter(torch.randn(8, 8))
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(window_attention(x, self.inner, self.outer, 2))


ROWS = torch.rand(2, 6, 8) + 0.001


def test_a_function_that_fx_keeps_whole_is_counted_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    graph = quantised_graph(Windows(), ROWS)
    caplog.set_level(logging.INFO, "chop")
    _, info = summarize_quantization_analysis_pass(deepcopy_mase_graph(graph), graph)
    products = 2 * (6 * 8 * 24 + 2 * 6 * 6 * 8 + 6 * 8 * 8)
    assert info["macs"]["macs"] == products + 2 * 6 * 8 * 4
    assert info["macs"]["rounded_share"] == seen_from_outside(graph.model, ROWS) == 1 / 12
    said = "91.7% of the MACs stay in floating point, which no rule rounds: window_attention (torch"
    assert said in caplog.text


def test_torch_export_looks_into_it(caplog: pytest.LogCaptureFixture) -> None:
    model = Windows()
    quantised = chop.quantize(model, ROWS, width=8)
    assert isinstance(quantised.model, ShapedGraphModule)
    assert "torch.fx does not look into window_attention; using torch.export" in caplog.text
    assert quantised.info["macs"]["rounded_share"] == 1.0
    assert quantised.info["not_rounded"] == []
    assert seen_from_outside(quantised.model, ROWS) == 1.0
    assert torch.allclose(MaseGraph(model, example_inputs=ROWS).model(ROWS), model(ROWS), atol=1e-5)


def test_what_the_user_keeps_whole_stays_whole(caplog: pytest.LogCaptureFixture) -> None:
    tracer = MaseTracer(custom_leaf_functions=(window_attention,))
    graph = MaseGraph(Windows(), example_inputs=ROWS, tracer=tracer)
    assert not isinstance(graph.model, ShapedGraphModule)
    assert not warnings_in(caplog)


@pytest.mark.parametrize("name", ["kron", "conv_tbc"])
def test_quantize_says_what_stays_in_floating_point(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    function, written = NAMED[name]
    quantised = chop.quantize(Net(function), X, width=8, trace=False)
    (line,) = warnings_in(caplog)
    assert "of the MACs stay in floating point" in line
    assert written in line
    assert quantised.untraced.macs["rounded_share"] == seen_from_outside(quantised) < 1
    assert quantised.untraced.not_rounded[0]["node"] == "Net"


@pytest.mark.parametrize("name", ["tensordot", "outer", "vecdot", "attention", "einsum"])
def test_without_a_graph_the_share_is_measured_too(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model: Any = chop.quantize(Net(ROUNDED[name]), X, width=8, trace=False)
    assert model.untraced.macs["rounded_share"] == 1.0
    assert not warnings_in(caplog)
    marked = model(X)  # the marks are gone
    assert torch.equal(marked, model(X))
    if name != "attention":
        assert seen_from_outside(model) == 1.0


def test_layers_left_out_by_the_rules_are_no_surprise(caplog: pytest.LogCaptureFixture) -> None:
    quantised = chop.quantize(
        Net(ROUNDED["matmul"]), X, {"linear": {"config": {"name": "integer", "data_in_width": 8,
        "weight_width": 8}}, "by": "type"})  # fmt: skip
    (missing,) = quantised.info["not_rounded"]
    assert (missing["op"], missing["out_of_reach"]) == ("matmul", 0)
    assert quantised.info["macs"]["rounded_share"] == 24 / 44
    assert not warnings_in(caplog)


def test_a_large_model_is_measured_without_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    from chop.passes.graph.analysis.flops import operands

    monkeypatch.setattr(operands, "QUICK", 0)
    graph = quantised_graph(Net(NAMED["kron"][0]))
    _, info = summarize_quantization_analysis_pass(deepcopy_mase_graph(graph), graph)
    assert info["macs"]["rounded_share"] == seen_from_outside(graph.model)
