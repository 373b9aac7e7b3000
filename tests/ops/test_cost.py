"""Costs against torch's own counter, and by hand where it does not count."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.examples import FUNCTION_OPS, MODULE_OPS, function_example, module_example
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chop.ops.cost import CallShapes, Cost, PairedMacs, macs_only
from chop.ops.op import Op, call_of_function, call_of_module
from chop.ops.table import OPS


def counted_by_torch(run: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


PRODUCTS = ("linear", "conv", "matmul", "mm", "bmm", "baddbmm", "addmm")


@pytest.mark.parametrize(
    "op", [op for op in MODULE_OPS if op.name.startswith(PRODUCTS)], ids=lambda op: op.name
)
def test_layers_cost_what_torch_counts(op: Op) -> None:
    module, inputs = module_example(op)
    cost = op.cost(call_of_module(op, module, inputs, module(*inputs)))
    assert cost is not None
    assert cost.flops == 2 * cost.macs == counted_by_torch(lambda: module(*inputs))
    assert [product.operands for product in cost.products] == [("data_in", "weight")]


@pytest.mark.parametrize(
    "op", [op for op in FUNCTION_OPS if op.name.startswith(PRODUCTS)], ids=lambda op: op.name
)
def test_functions_cost_what_torch_counts(op: Op) -> None:
    call = function_example(op)
    result = call.run(lambda role, x: x)
    cost = op.cost(call_of_function(op, call.args, call.kwargs, result))
    assert cost is not None
    assert cost.flops == 2 * cost.macs == counted_by_torch(lambda: call.run(lambda role, x: x))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(8, 8, 3, groups=8, padding=1), (2, 8, 6, 6)),
        (nn.Conv2d(4, 6, 3, dilation=2, stride=2), (2, 4, 9, 9)),
        (nn.Conv1d(4, 6, 5, padding="same", padding_mode="circular"), (2, 4, 9)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1), (2, 4, 5, 5)),
        (nn.Linear(4, 3), (2, 5, 4)),
        (nn.Linear(4, 3), (4,)),
    ],
)
def test_groups_dilation_stride_and_rank(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    names = {nn.Conv2d: "conv2d", nn.Conv1d: "conv1d", nn.Linear: "linear"}
    op = OPS[names.get(type(module), "conv_transpose2d")]
    cost = op.cost(call_of_module(op, module, (x,), module(x)))
    assert cost is not None
    assert cost.flops == counted_by_torch(lambda: module(x))


IMAGE = torch.ones(1, 2, 4, 4)
MATRICES = ("ij,jk->ik", torch.ones(2, 3), torch.ones(3, 4))
DATA, PRODUCT = ("data_in",), ("data_in", "weight")
BY_HAND: list[tuple[str, nn.Module | None, tuple[Any, ...], Cost]] = [
    ("relu", nn.ReLU(), (torch.ones(2, 3),), Cost(other_flops=6)),
    ("softmax", nn.Softmax(1), (torch.ones(2, 3),), Cost(other_flops=30)),
    ("max_pool2d", nn.MaxPool2d(2), (IMAGE,), Cost(other_flops=32)),
    ("avg_pool2d", nn.AvgPool2d((2, 4)), (IMAGE,), Cost(other_flops=32)),
    ("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d(1), (IMAGE,), Cost(other_flops=32)),
    ("batch_norm1d", nn.BatchNorm1d(3), (torch.rand(2, 3),), Cost(other_flops=42)),
    ("batch_norm1d", nn.BatchNorm1d(3).eval(), (torch.rand(2, 3),), Cost(other_flops=12)),
    ("layer_norm", nn.LayerNorm(3), (torch.ones(2, 3),), Cost(other_flops=42)),
    ("layer_norm", nn.LayerNorm(3, bias=False), (torch.ones(2, 3),), Cost(other_flops=36)),
    ("rms_norm", nn.RMSNorm(3), (torch.ones(2, 3),), Cost(other_flops=24)),
    ("embedding", nn.Embedding(3, 2), (torch.tensor([1]),), Cost()),
    ("flatten", nn.Flatten(), (torch.ones(2, 3),), Cost()),
    ("dropout", nn.Dropout(), (torch.ones(2, 3),), Cost()),
    ("add", None, (torch.ones(2, 3), 2), Cost(other_flops=6)),
    ("mean", None, (torch.ones(2, 3), 1), Cost(other_flops=6)),
    ("matmul", None, (torch.ones(3), torch.ones(3)), Cost((PairedMacs(3, PRODUCT),))),
    ("einsum", None, MATRICES, Cost((PairedMacs(24, PRODUCT),))),
    ("einsum", None, ("ii->", torch.ones(3, 3)), Cost(other_flops=3)),
    ("max_pool2d", None, (IMAGE, 2), Cost(other_flops=32)),
]


@pytest.mark.parametrize(("name", "module", "args", "expected"), BY_HAND)
def test_costs_by_hand(
    name: str, module: nn.Module | None, args: tuple[Any, ...], expected: Cost
) -> None:
    op = OPS[name]
    if module is None:
        assert op.function is not None
        call = call_of_function(op, args, {}, op.function(*args))
    else:
        call = call_of_module(op, module, args, module(*args))
    assert op.cost(call) == expected


def test_attention_is_scores_softmax_and_sum() -> None:
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 6)
    op = OPS["scaled_dot_product_attention"]
    call = call_of_function(op, (q, k), {"value": v}, F.scaled_dot_product_attention(q, k, v))
    scores = 2 * 3 * 5 * 7
    assert op.cost(call) == Cost(
        (PairedMacs(scores * 4, ("query", "key")), PairedMacs(scores * 6, ("scores", "value"))),
        6 * scores,
    )


def test_arguments_by_name_are_taken_in_the_order_of_the_operation() -> None:
    x, w = torch.randn(2, 3, 5), torch.randn(5, 7)
    op = OPS["matmul"]
    call = call_of_function(op, (), {"other": w, "input": x}, x @ w)
    assert call.inputs == ((2, 3, 5), (5, 7))
    assert op.cost(call) == op.cost(call_of_function(op, (x, w), {}, x @ w))


def test_an_ellipsis_of_einsum_is_counted() -> None:
    batch = CallShapes(
        ((4, 1, 2, 3), (5, 3, 7)), (4, 5, 2, 7), attributes={"equation": "...ij,...jk"}
    )
    assert OPS["einsum"].cost(batch) == macs_only(4 * 5 * 2 * 3 * 7, "data_in", "weight")


@pytest.mark.parametrize("equation", ["i,i,i->", 7])
def test_what_cannot_be_counted_is_not_taken_for_free(equation: object) -> None:
    call = CallShapes(((2, 3), (3,)), (2,), attributes={"equation": equation})
    assert OPS["einsum"].cost(call) is None
    assert OPS["lstm"].cost(call) is None
    assert OPS["max_pool2d"].cost(call) is None


def test_every_quantisable_module_has_a_cost() -> None:
    for op in MODULE_OPS:
        module, inputs = module_example(op)
        torch.default_generator.manual_seed(1)
        cost = op.cost(call_of_module(op, module, inputs, module(*inputs)))
        assert (cost is None) == (op.name == "interpolate")
