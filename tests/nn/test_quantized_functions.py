"""Every function operation in every number format."""

import copy
import pickle
from operator import attrgetter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.examples import FORMAT_NAMES, FUNCTION_OPS, config_of, function_example
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.nn.function import named_function
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import quantized_function
from chop.numerics import Integer
from chop.ops.op import Op, op_of_function
from chop.ops.table import OPS
from chop.passes.graph.transforms.quantize import quantized_funcs

every_op = pytest.mark.parametrize("op", FUNCTION_OPS, ids=attrgetter("name"))
CONFIG = config_of("integer")
FIXED = Integer(width=8, frac_width=4)


def tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@every_op
def test_it_is_the_float_function_on_rounded_operands(op: Op) -> None:
    call = function_example(op)
    for format_name in FORMAT_NAMES:
        config = config_of(format_name)
        operands = parse_quant_config(op, config, "test").operands
        torch.default_generator.manual_seed(1)
        result = quantized_function(op, format_name)(*call.args, config=config, **call.kwargs)
        torch.default_generator.manual_seed(1)
        expected = call.run(lambda role, x, operands=operands: operands[role](x))
        for ours, theirs in zip(tensors(result), tensors(expected), strict=True):
            assert ours.isfinite().all(), format_name
            assert torch.equal(ours, theirs), format_name


@every_op
def test_bypass_is_the_float_function(op: Op) -> None:
    call = function_example(op)
    config = config_of("integer", bypass=True)
    torch.default_generator.manual_seed(1)
    result = quantized_function(op, "integer")(*call.args, config=config, **call.kwargs)
    torch.default_generator.manual_seed(1)
    expected = call.run(lambda role, x: x)
    for ours, theirs in zip(tensors(result), tensors(expected), strict=True):
        assert torch.equal(ours, theirs)


@every_op
def test_functions_are_found_by_name(op: Op) -> None:
    for format_name in FORMAT_NAMES:
        function = quantized_function(op, format_name)
        assert function.__name__ == f"{op.name}_{format_name}"
        assert getattr(quantized_funcs, function.__name__) is function
        assert pickle.loads(pickle.dumps(function)) is function
        assert op_of_function(function) is op


def test_tensors_given_by_keyword_are_rounded() -> None:
    x, weight, bias = torch.randn(4, 6), torch.randn(3, 6), torch.randn(3)
    linear = quantized_function(OPS["linear"], "integer")
    expected = F.linear(FIXED(x), FIXED(weight), FIXED(bias))
    assert torch.equal(linear(input=x, weight=weight, bias=bias, config=CONFIG), expected)
    assert torch.equal(linear(x, bias=bias, weight=weight, config=CONFIG), expected)
    assert torch.equal(linear(x, weight, config=CONFIG), F.linear(FIXED(x), FIXED(weight)))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow"])
@pytest.mark.parametrize("scalar", [2, 2.5])
def test_a_number_is_an_operand_as_it_stands(name: str, scalar: float) -> None:
    op, x = OPS[name], 1.5 + torch.rand(3, 4)
    function = op.functions[0]
    for format_name in FORMAT_NAMES:
        config = config_of(format_name)
        rounded = parse_quant_config(op, config, "test").operands["data_in"](x)
        ours = quantized_function(op, format_name)
        assert torch.equal(ours(x, scalar, config=config), function(rounded, scalar))
        assert torch.equal(ours(scalar, x, config=config), function(scalar, rounded))


def test_broadcasting_integers_and_other_arguments_pass_through() -> None:
    add, total = (
        quantized_function(OPS["add"], "integer"),
        quantized_function(OPS["sum"], "integer"),
    )
    x, row, counts = torch.randn(3, 4), torch.randn(4), torch.arange(4)
    assert torch.equal(add(x, row, config=CONFIG), FIXED(x) + FIXED(row))
    assert torch.equal(add(x, counts, config=CONFIG), FIXED(x) + counts)
    assert torch.equal(
        add(x, other=row, alpha=2, config=CONFIG), torch.add(FIXED(x), FIXED(row), alpha=2)
    )
    assert torch.equal(total(x, 1, True, config=CONFIG), FIXED(x).sum(1, keepdim=True))
    assert torch.equal(total(x, dim=1, config=CONFIG), FIXED(x).sum(dim=1))
    softmax = quantized_function(OPS["softmax"], "integer")
    expected = torch.softmax(FIXED(x), 1, torch.float64)
    assert torch.equal(softmax(x, 1, torch.float64, config=CONFIG), expected)


def test_several_results_and_lists_of_operands() -> None:
    x = torch.randn(3, 4)
    largest = quantized_function(OPS["max"], "integer")
    values, indices = largest(x, 1, config=CONFIG | {"data_out_width": 3, "data_out_frac_width": 1})
    expected = FIXED(x).max(1)
    assert torch.equal(values, Integer(width=3, frac_width=1)(expected.values))
    assert torch.equal(indices, expected.indices)
    einsum = quantized_function(OPS["einsum"], "integer")
    assert torch.equal(einsum("ij,kj->ik", [x, x], config=CONFIG), FIXED(x) @ FIXED(x).T)


def test_a_function_may_write_in_place() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    expected, given = FIXED(x) + FIXED(y), x.clone()
    result = quantized_function(OPS["add"], "integer")(given, y, inplace=True, config=CONFIG)
    assert result is given
    assert torch.equal(given, expected)
    relu = quantized_function(OPS["relu"], "integer")
    for arguments in ({"inplace": True}, {"input": x.clone(), "inplace": True}):
        positional = () if "input" in arguments else (x.clone(),)
        result = relu(*positional, **arguments, config=CONFIG)
        assert result is (arguments.get("input") if not positional else positional[0])
    kept = x.clone()
    relu(x, config=CONFIG)
    assert torch.equal(x, kept)


def test_a_missing_weight_spec_is_noticed_when_there_is_a_weight() -> None:
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    layer_norm, x = quantized_function(OPS["layer_norm"], "integer"), torch.randn(2, 4)
    assert torch.equal(layer_norm(x, (4,), config=config), F.layer_norm(FIXED(x), (4,)))
    with pytest.raises(ConfigError, match="has a weight: 'weight_width'"):
        layer_norm(x, (4,), torch.ones(4), config=config)


def test_the_second_operand_of_matmul_falls_back_to_the_first() -> None:
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    x = torch.randn(4, 4)
    result = quantized_function(OPS["matmul"], "integer")(x, x, config=config)
    assert torch.equal(result, FIXED(x) @ FIXED(x))


def test_changing_the_dictionary_changes_the_result() -> None:
    x, config = torch.randn(3), dict(CONFIG)
    relu = quantized_function(OPS["relu"], "integer")
    first = relu(x, config=config)
    config["data_in_frac_width"] = 0
    assert not torch.equal(first, relu(x, config=config))
    assert config == CONFIG | {"data_in_frac_width": 0}


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scores = torch.matmul(x, x.transpose(1, 2))
        return torch.matmul(scores * 0.5, x) + 2


@pytest.mark.parametrize("format_name", ["integer", "block_fp"])
def test_a_graph_of_quantised_functions_copies_pickles_and_traces_again(format_name: str) -> None:
    graph = fx.symbolic_trace(Attention())
    config = config_of(format_name)
    for node in graph.graph.nodes:
        op = op_of_function(node.target) if node.op == "call_function" else None
        if op and op.quantizable:
            node.target = quantized_function(op, format_name)
            node.kwargs = {**node.kwargs, "config": config}
    graph.recompile()
    names = [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
    assert names == [f"{name}_{format_name}" for name in ("matmul", "mul", "matmul", "add")]
    x = torch.randn(2, 3, 4)
    expected = graph(x)
    assert not torch.equal(expected, Attention()(x))
    retraced = fx.symbolic_trace(graph)
    for twin in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph)), retraced):
        assert torch.equal(twin(x), expected)


@pytest.mark.parametrize("name", ["add_integr", "view_integer", "batch_norm1d_integer", "nonsense"])
def test_a_function_that_does_not_exist_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        named_function(name)


def test_operations_without_a_function_or_format_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_norm1d"):
        quantized_function(OPS["batch_norm1d"], "integer")
    with pytest.raises(ConfigError, match="did you mean 'integer'"):
        quantized_function(OPS["add"], "integr")


def test_a_configuration_for_another_format_is_refused() -> None:
    add, x = quantized_function(OPS["add"], "integer"), torch.randn(3)
    other = config_of("log")
    for config in (other, parse_quant_config(OPS["add"], other, "test")):
        with pytest.raises(ConfigError, match="add_integer cannot take the format 'log'"):
            add(x, x, config=config)
    assert torch.equal(add(x, x, config=config_of("fixed")), add(x, x, config=CONFIG))
    unnamed = {key: value for key, value in CONFIG.items() if key != "name"}
    assert torch.equal(add(x, x, config=unnamed), add(x, x, config=CONFIG))


def test_gradients_reach_every_operand() -> None:
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    quantized_function(OPS["matmul"], "integer")(x, y, config=CONFIG).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, FIXED(y.detach()).sum(1).expand(3, 4))
    assert y.grad is not None
    assert torch.equal(y.grad, FIXED(x.detach()).sum(0)[:, None].expand(4, 5))
