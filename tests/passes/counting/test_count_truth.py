"""Counts against what can be worked out by hand, or by an independent way of counting."""

import operator
from functools import reduce
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from passes.counting.examples import Block, Fused, HandWritten, Residual, perceptron
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import count_operations_analysis_pass
from chop.passes.graph.analysis.flops.count import NodeCounter
from chop.passes.graph.analysis.flops.operands import run_shapes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "macs", "per"),
    [((16,), 80, "batch"), ((8, 16), 80, "sample"), ((8, 3, 16), 240, "sample")],
)
def test_linear(counted: Any, shape: tuple[int, ...], macs: int, per: str, bias: bool) -> None:
    info = counted(nn.Linear(16, 5, bias=bias), shape)
    assert info["per"] == per
    assert info["total"]["macs"] == macs
    assert info["total"]["flops"] == 2 * macs
    assert info["total"]["parameters"] == 80 + 5 * bias
    assert info["total"]["output_buffer_size"] == macs // 16


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, groups=2, stride=2), (4, 11), 180),
    (nn.Conv2d(4, 8, 3, padding=1, dilation=2, groups=4), (4, 9, 9), 3528),
    (nn.Conv2d(4, 8, (3, 1)), (4, 9, 9), 7 * 9 * 8 * 12),
    (nn.Conv3d(2, 3, (1, 2, 3)), (2, 4, 4, 5), 1296),
    (nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), (4, 5), 180),
    (nn.ConvTranspose2d(3, 5, 2, stride=2), (3, 4, 4), 960),
    (nn.ConvTranspose3d(2, 2, 2, dilation=2), (2, 3, 3, 3), 864),
]


@pytest.mark.parametrize(("layer", "shape", "macs"), CONVOLUTIONS, ids=str)
def test_convolutions(counted: Any, layer: nn.Module, shape: tuple[int, ...], macs: int) -> None:
    info = counted(layer, (2, *shape))
    assert info["per"] == "sample"
    assert info["total"]["macs"] == macs


@pytest.mark.parametrize(
    ("layer", "shape"),
    # Products with a border do not show in the derivative.
    [(nn.Linear(6, 4), (6,))]
    + [(layer, shape) for layer, shape, _ in CONVOLUTIONS if not any(layer.padding)],
    ids=str,
)
def test_one_mac_for_each_pair_of_input_and_output_that_a_weight_connects(
    counted: Any, layer: nn.Module, shape: tuple[int, ...]
) -> None:
    derivative = torch.autograd.functional.jacobian(layer, torch.randn(1, *shape))
    assert counted(layer, (3, *shape))["total"]["macs"] == int((derivative != 0).sum())


def test_functions_count_as_modules_do(counted: Any) -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(8, 2, 3, 3))
            self.matrix = nn.Parameter(torch.randn(5, 8))

        def forward(self, x: Tensor) -> Tensor:
            x = F.conv2d(x, self.kernel, bias=None, groups=2)
            x = F.avg_pool2d(x, kernel_size=6)
            return F.linear(input=x.flatten(1), weight=self.matrix)

    layers = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2, bias=False),
        nn.AvgPool2d(6),
        nn.Flatten(),
        nn.Linear(8, 5, bias=False),
    )
    as_functions = counted(Functional(), (2, 4, 8, 8))["total"]
    assert as_functions["parameters"] == 8 * 2 * 9 + 40
    assert as_functions == counted(layers, (2, 4, 8, 8))["total"]


def attention_inputs() -> list[Tensor]:
    return [torch.zeros(3, 2, length, size) for length, size in ((5, 4), (7, 4), (7, 6))]


def test_attention_by_hand_and_fused_count_the_same(counted: Any) -> None:
    fused, by_hand = (
        counted(each, *attention_inputs())["total"] for each in (Fused(), HandWritten())
    )
    scores = 2 * 5 * 7
    assert fused["macs"] == by_hand["macs"] == scores * (4 + 6)
    assert fused["flops"] == by_hand["flops"] == 2 * scores * (4 + 6) + 6 * scores
    assert fused["bitops"] == by_hand["bitops"] == scores * (4 + 6) * 32 * 32


def test_queries_broadcast_over_keys(counted: Any) -> None:
    shapes = [(1, 2, 5, 4), (3, 2, 7, 4), (3, 2, 7, 6)]
    assert counted(Fused(), *shapes)["total"]["macs"] == 3 * 2 * 5 * 7 * (4 + 6)


def test_multihead_attention_is_its_projections_and_its_heads(counted: Any) -> None:
    class Attend(nn.Module):
        def __init__(self, batch_first: bool) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2, kdim=6, vdim=10, batch_first=batch_first)

        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self.attend(query, key, value, need_weights=False)[0]

    projections = 5 * 8 * 8 + 7 * 6 * 8 + 7 * 10 * 8 + 5 * 8 * 8
    products = 2 * 5 * 7 * (4 + 4)
    shapes = [(3, 5, 8), (3, 7, 6), (3, 7, 10)]
    info = counted(Attend(batch_first=True), *shapes)
    assert info["per"] == "sample"
    assert info["total"]["macs"] == projections + products
    assert info["total"]["flops"] == 2 * (projections + products) + 6 * 2 * 5 * 7
    sequence_first = [(length, 3, size) for _, length, size in shapes]
    assert counted(Attend(batch_first=False), *sequence_first)["total"]["macs"] == 3 * (
        projections + products
    )


def test_products_broadcast(counted: Any) -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5, 4, 6))

        def forward(self, x: Tensor) -> Tensor:
            return x.matmul(self.weight)

    assert counted(Products(), (8, 1, 3, 4))["total"]["macs"] == 5 * 3 * 6 * 4


class Calls(nn.Module):
    """One function of its inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.function(a, b)


@pytest.mark.parametrize(
    ("function", "shapes", "macs"),
    [
        (operator.matmul, [(4,), (4,)], 4),
        (operator.matmul, [(3, 4), (4,)], 12),
        (torch.mm, [(3, 4), (4, 5)], 60),
        (torch.bmm, [(2, 3, 4), (2, 4, 5)], 60),
        (lambda a, b: torch.addmm(a, b, b.t()), [(3, 3), (3, 4)], 36),
        (lambda a, b: torch.einsum("bik,bjk->bij", a, b), [(2, 3, 4), (2, 5, 4)], 60),
    ],
)
def test_matrix_products(counted: Any, function: Any, shapes: list[Any], macs: int) -> None:
    info = counted(Calls(function), *shapes)
    times = info["batch_size"] if info["per"] == "sample" else 1
    wanted = macs * (shapes[0][0] if len(shapes[0]) == 3 else 1)
    assert info["total"]["macs"] * times == wanted
    assert info["total"]["flops"] == 2 * info["total"]["macs"]


@pytest.mark.parametrize(
    ("layer", "shape", "flops"),
    [
        (nn.BatchNorm2d(3), (3, 4, 4), 2 * 48),
        (nn.LayerNorm(6), (4, 6), 7 * 24),
        (nn.MaxPool2d(2), (3, 4, 4), 3 * 4 * 4),
        (nn.AvgPool1d(3, stride=1), (3, 8), 3 * 6 * 3),
        (nn.MaxPool2d((2, 1)), (3, 4, 4), 3 * 2 * 4 * 2),
        (nn.AdaptiveAvgPool2d(1), (3, 4, 4), 48),
        (nn.ReLU(), (10,), 10),
        (nn.Softmax(dim=-1), (10,), 50),
        (nn.Dropout(), (10,), 0),
        (nn.Flatten(), (2, 5), 0),
    ],
    ids=str,
)
def test_layers_without_products(
    counted: Any, layer: nn.Module, shape: tuple[int, ...], flops: int
) -> None:
    total = counted(layer, (4, *shape))["total"]
    assert (total["macs"], total["flops"], total["bitops"]) == (0, flops, 0)


def test_an_embedding_is_free_but_stored(counted: Any) -> None:
    total = counted(nn.Embedding(50, 8), torch.zeros(4, 6, dtype=torch.long))["total"]
    assert (total["macs"], total["flops"], total["parameters"]) == (0, 0, 400)
    assert total["input_buffer_bits"] == 6 * 64
    assert total["output_buffer_size"] == 48


def test_a_shared_layer_works_twice_and_is_stored_once(counted: Any) -> None:
    layer = nn.Linear(8, 8)
    info = counted(nn.Sequential(layer, nn.ReLU(), layer), (2, 8))
    assert info["total"]["macs"] == 2 * 64
    assert info["total"]["parameters"] == 72
    assert [node["parameters"] for node in info["nodes"].values() if node["macs"]] == [72, 72]


def test_tied_parameters_are_stored_once(counted: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    assert counted(Tied(), torch.zeros(2, 3, dtype=torch.long))["total"]["parameters"] == 400


@fx.wrap
def mystery(x: Tensor) -> Tensor:
    return x.cumprod(0)


def test_what_cannot_be_counted_is_named(counted: Any) -> None:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.larger = nn.Upsample(scale_factor=2)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(mystery(self.larger(x)))

    info = counted(Unknown(), (3, 5, 4))
    assert [each["node"] for each in info["uncounted"]] == ["larger", "mystery"]
    assert info["uncounted"][0]["op"] == "interpolate"
    assert info["uncounted"][1]["target"] == "mystery"
    assert info["nodes"]["larger"]["flops"] is None
    assert info["total"]["macs"] == 5 * 8 * 2
    assert info["total"]["parameters"] == sum(p.numel() for p in Unknown().parameters())


def whole_models() -> list[tuple[nn.Module, Tensor]]:
    tokens = torch.zeros(2, 6, dtype=torch.long)
    return [
        (perceptron(), torch.zeros(2, 16)),
        (Residual(), torch.zeros(2, 3, 8, 8)),
        (Block(HandWritten()), tokens),
        (Block(Fused()), tokens),
    ]


@pytest.mark.parametrize(("model", "x"), whole_models(), ids=lambda each: type(each).__name__)
def test_the_total_is_the_sum_of_the_nodes(counted: Any, model: nn.Module, x: Tensor) -> None:
    info = counted(model, x, backward=True)
    assert info["uncounted"] == []
    for key, value in info["total"].items():
        assert value == sum(node[key] for node in info["nodes"].values())
    assert info["total"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert info["total"]["parameter_bits"] == 32 * info["total"]["parameters"]


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (perceptron(), torch.zeros(2, 16)),
        (Residual(groups=1), torch.zeros(2, 3, 8, 8)),  # torch counts groups wrongly backward
        (Block(HandWritten()), torch.zeros(2, 6, dtype=torch.long)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_products_are_those_that_torch_runs(counted: Any, model: nn.Module, x: Tensor) -> None:
    info = counted(model, x, backward=True)
    others = [node for node in info["nodes"].values() if not node["macs"]]
    forward = 2 * info["total"]["macs"]
    backward = info["total"]["backward_flops"] - sum(node["backward_flops"] for node in others)
    with FlopCounterMode(display=False) as seen_forward:
        result = model.eval()(x)
    with FlopCounterMode(display=False) as seen_backward:
        result.sum().backward()
    assert seen_forward.get_total_flops() == forward * len(x)
    assert seen_backward.get_total_flops() == backward * len(x)


def test_frozen_layers_need_no_gradient(counted: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    nodes = list(counted(model, (3, 4), backward=True)["nodes"].values())
    assert [node["backward_flops"] for node in nodes] == [0, 0, 0, 2 * 16, 0]


def test_counting_leaves_the_model_alone() -> None:
    model = perceptron()
    graph = MaseGraph(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pass_args = {"dummy_in": {"input": torch.ones(4, 16)}, "report": False}
    count_operations_analysis_pass(graph, pass_args)
    assert sorted(pass_args) == ["dummy_in", "report"]
    assert all(module.training for module in graph.model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert reduce(operator.or_, (node.meta["mase"]["common"] for node in graph.nodes)) == {}


class AsFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, add_bias_kv=True)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        return F.multi_head_attention_forward(
            x, x, x, 8, 2, layer.in_proj_weight, layer.in_proj_bias, layer.bias_k, layer.bias_v,
            layer.add_zero_attn, 0.0, layer.out_proj.weight, layer.out_proj.bias,
        )[0]  # fmt: skip


def macs_of_batch(module: nn.Module, *shape: int) -> int:
    graph = MaseGraph(module)
    (name,) = (node.name for node in graph.nodes if node.op == "placeholder")
    counts = NodeCounter(graph, run_shapes(graph, {name: torch.zeros(shape)})).nodes()
    return sum(count.macs or 0 for count in counts.values())


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_attention_as_a_function_and_recurrent_layers_are_counted() -> None:
    rows, keys = 5 * 3, 5 + 1
    assert macs_of_batch(AsFunction(), 5, 3, 8) == 4 * rows * 8 * 8 + 2 * rows * keys * 8
    assert macs_of_batch(nn.Sequential(nn.LSTMCell(4, 6)), 3, 4) == 3 * 4 * 6 * (4 + 6)
    both_ways = nn.GRU(4, 6, num_layers=2, bidirectional=True)
    assert macs_of_batch(nn.Sequential(both_ways), 7, 3, 4) == 7 * 3 * 2 * 18 * (4 + 6 + 12 + 6)
    projected = nn.LSTM(4, 6, proj_size=2)
    assert macs_of_batch(nn.Sequential(projected), 7, 3, 4) == 7 * 3 * (24 * (4 + 2) + 6 * 2)
