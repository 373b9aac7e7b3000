"""An operation is the same however it is written."""

import operator
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.errors import RegistrationError
from chop.ops import MaseType, Op, op_of_function, op_of_method, op_of_module, op_of_node
from chop.ops import op as lookup
from chop.ops.op import writes_in_place
from chop.ops.table import OPS

RELATED, MODULE = MaseType.MODULE_RELATED_FUNC, MaseType.MODULE
BUILTIN, IMPLICIT = MaseType.BUILTIN_FUNC, MaseType.IMPLICIT_FUNC

WRITTEN: list[tuple[str, MaseType, list[Any], list[str]]] = [
    ("linear", RELATED, [nn.Linear(2, 2), F.linear], []),
    ("conv2d", RELATED, [nn.Conv2d(1, 1, 1), F.conv2d, torch.conv2d], []),
    ("conv_transpose2d", RELATED, [nn.ConvTranspose2d(1, 1, 1), F.conv_transpose2d], []),
    ("batch_norm1d", MODULE, [nn.BatchNorm1d(2)], []),
    ("batch_norm2d", MODULE, [nn.BatchNorm2d(2)], []),
    ("batch_norm3d", MODULE, [nn.BatchNorm3d(2)], []),
    ("batch_norm", RELATED, [F.batch_norm, torch.batch_norm], []),
    ("layer_norm", RELATED, [nn.LayerNorm(2), F.layer_norm, torch.layer_norm], []),
    ("rms_norm", RELATED, [nn.RMSNorm(2), F.rms_norm, torch.rms_norm], []),
    ("max_pool2d", RELATED, [nn.MaxPool2d(2), F.max_pool2d, torch.max_pool2d], []),
    ("adaptive_avg_pool2d", RELATED, [nn.AdaptiveAvgPool2d(1), F.adaptive_avg_pool2d], []),
    ("embedding", RELATED, [nn.Embedding(2, 2), F.embedding], []),
    ("relu", RELATED, [nn.ReLU(), F.relu, torch.relu, F.relu_], ["relu", "relu_"]),
    ("sigmoid", RELATED, [nn.Sigmoid(), F.sigmoid, torch.sigmoid], ["sigmoid"]),
    ("tanh", RELATED, [nn.Tanh(), F.tanh, torch.tanh], ["tanh"]),
    ("softmax", RELATED, [nn.Softmax(0), F.softmax, torch.softmax], ["softmax"]),
    ("gelu", RELATED, [nn.GELU(), F.gelu], []),
    ("add", BUILTIN, [torch.add, operator.add, operator.iadd], ["add", "add_"]),
    ("sub", BUILTIN, [torch.sub, operator.sub, operator.isub], ["sub", "sub_"]),
    ("mul", BUILTIN, [torch.mul, operator.mul, operator.imul], ["mul", "mul_"]),
    ("div", BUILTIN, [torch.div, operator.truediv, operator.itruediv], ["div", "true_divide"]),
    ("pow", BUILTIN, [torch.pow, operator.pow], ["pow"]),
    ("neg", BUILTIN, [torch.neg, operator.neg], ["neg"]),
    ("matmul", BUILTIN, [torch.matmul, operator.matmul, operator.imatmul], ["matmul"]),
    ("bmm", BUILTIN, [torch.bmm], ["bmm"]),
    ("einsum", BUILTIN, [torch.einsum], []),
    ("scaled_dot_product_attention", BUILTIN, [F.scaled_dot_product_attention], []),
    ("mean", BUILTIN, [torch.mean], ["mean"]),
    ("max", BUILTIN, [torch.max], ["max"]),
    ("cumsum", BUILTIN, [torch.cumsum], ["cumsum"]),
    ("cat", BUILTIN, [torch.cat, torch.concat], []),
    ("stack", BUILTIN, [torch.stack], []),
    ("split", IMPLICIT, [torch.split], ["split"]),
    ("chunk", IMPLICIT, [torch.chunk], ["chunk"]),
    ("view", IMPLICIT, [], ["view"]),
    ("reshape", IMPLICIT, [torch.reshape], ["reshape"]),
    ("flatten", IMPLICIT, [nn.Flatten(), torch.flatten], ["flatten"]),
    ("transpose", IMPLICIT, [torch.transpose], ["transpose"]),
    ("permute", IMPLICIT, [torch.permute], ["permute"]),
    ("squeeze", IMPLICIT, [torch.squeeze], ["squeeze"]),
    ("unsqueeze", IMPLICIT, [torch.unsqueeze], ["unsqueeze"]),
    ("expand", IMPLICIT, [], ["expand"]),
    ("size", IMPLICIT, [], ["size"]),
    ("contiguous", IMPLICIT, [], ["contiguous"]),
    ("getitem", IMPLICIT, [operator.getitem], []),
    ("getattr", IMPLICIT, [getattr], []),
    ("dropout", IMPLICIT, [nn.Dropout(), F.dropout, torch.dropout], []),
    ("identity", RELATED, [nn.Identity()], []),
]


@pytest.mark.parametrize(
    ("name", "kind", "forms", "methods"), WRITTEN, ids=[row[0] for row in WRITTEN]
)
def test_every_form_is_the_same_operation(
    name: str, kind: MaseType, forms: list[Any], methods: list[str]
) -> None:
    op = OPS[name]
    assert op.mase_type is kind
    for form in forms:
        found = op_of_module(form) if isinstance(form, nn.Module) else op_of_function(form)
        assert found is op, form
    for method in methods:
        assert op_of_method(method) is op


SPECIFIED = """linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
batch_norm1d batch_norm2d batch_norm3d layer_norm group_norm instance_norm1d instance_norm2d
instance_norm3d rms_norm embedding relu relu6 leaky_relu elu selu gelu silu sigmoid tanh hardtanh
hardswish hardsigmoid softplus softsign softmax log_softmax add sub mul div neg pow sqrt exp matmul
bmm baddbmm addmm einsum scaled_dot_product_attention mean sum max min cumsum""".split()
MOVING = """cat stack split chunk view reshape flatten transpose permute squeeze unsqueeze expand
size contiguous getitem dropout identity""".split()


def test_all_that_was_asked_for_is_there() -> None:
    assert all(OPS[name].quantizable for name in SPECIFIED)
    assert not any(OPS[name].quantizable for name in MOVING)


def test_every_pool_of_torch_is_there() -> None:
    pools = {cls for name, cls in vars(nn).items() if "Pool" in name and "Unpool" not in name}
    assert pools == {op.module for op in OPS.values() if "_pool" in op.name}


def test_rows_are_consistent() -> None:
    for op in OPS.values():
        roles = {argument.role for argument in op.arguments} - {None}
        assert op.module or op.functions or op.methods, op.name
        assert op.unsigned <= {*op.roles, *op.inner}
        assert op.optional <= {"weight", "bias"}
        if op.quantizable and op.functions:
            assert roles == set(op.roles), op.name
        for name in op.methods:
            assert hasattr(torch.Tensor, name)


class TwoProducts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.matmul(x, x)
        second = torch.matmul(first, x)
        return self.linear(second @ x).add_(1).view(-1) * 2


def test_nodes_are_told_apart_by_what_they_call() -> None:
    model = TwoProducts()
    graph = fx.symbolic_trace(model).graph
    modules = dict(model.named_modules())
    found = [op_of_node(node, modules) for node in graph.nodes]
    names = [op.name if op else None for op in found]
    expected = [None, "matmul", "matmul", "matmul", "linear", "add", "view", "mul", None]
    assert names == expected
    assert [node.name for node in graph.nodes if writes_in_place(node)] == ["add_"]


@pytest.mark.parametrize("function", [operator.iadd, F.relu_, torch.relu_])
def test_functions_that_write_in_place(function: Any) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert writes_in_place(graph.call_function(function, (x,)))
    assert not writes_in_place(graph.call_function(torch.relu, (x,)))
    assert not writes_in_place(x)


def test_what_is_unknown_has_no_operation() -> None:
    assert op_of_module(nn.Sequential()) is None
    assert op_of_function(len) is None
    assert op_of_method("nonsense") is None


def test_a_subclass_is_the_operation_of_its_nearest_base() -> None:
    class Mine(nn.Linear):
        pass

    assert op_of_module(Mine(2, 2)) is OPS["linear"]


def test_copies_of_a_row_are_the_row() -> None:
    assert pickle.loads(pickle.dumps(OPS["linear"])) is OPS["linear"]


def test_users_add_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    def swish(x: Tensor) -> Tensor:
        return x * x.sigmoid()

    monkeypatch.setattr(OPS, "_entries", dict(OPS))
    row = {"mase_type": RELATED, "description": "A user's own"}
    OPS.add("swish", Op(name="swish", functions=(swish,), **row))
    assert op_of_function(swish) is OPS["swish"]
    OPS.add("again", Op(name="again", functions=(swish,), **row))
    with pytest.raises(RegistrationError, match="'swish' and 'again' both claim"):
        op_of_function(swish)
    lookup._indexes.cache_clear()
