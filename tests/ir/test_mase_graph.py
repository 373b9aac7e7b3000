"""Tracing: what becomes a graph, what does not, and what the user is told."""

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import chop
from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph, MaseMetadata, MaseTracer, metadata_of
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import quantize_module
from chop.ops.table import OPS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("calls", torch.zeros(()))


class Choice(Net):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line an error must name
            return x
        return self.layer(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Choice()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + math.sqrt(4)


class Flag(Net):
    def forward(self, x: Tensor, flag: bool, extra: Tensor | None = None) -> Tensor:
        return self.layer(x) if flag else x


class Length(Net):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(len(x)):
            x = torch.relu(self.layer(x))
        return x


class Counting(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * self.calls


def targets(graph: MaseGraph) -> list[tuple[str, Any]]:
    return [(node.op, node.target) for node in graph.nodes]


def test_the_public_paths_are_one_class() -> None:
    assert chop.MaseGraph is chop.ir.MaseGraph is chop.ir.graph.MaseGraph is MaseGraph


def test_a_bare_sequential_is_traced() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    graph = MaseGraph(model)
    x = torch.randn(2, 4)
    assert type(graph.model).__mro__[1] is fx.GraphModule
    assert torch.equal(graph.model(x), model(x))
    assert [op for op, _ in targets(graph)] == ["placeholder", *["call_module"] * 2, "output"]


def test_layers_are_shared_but_containers_are_not() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 3)), nn.ReLU())
    graph = MaseGraph(model)
    first = model[0][0]
    assert graph.modules["0.0"] is first
    graph.model.get_submodule("0").register_module("0", nn.Identity())
    assert model[0][0] is first


@pytest.mark.parametrize("training", [True, False])
def test_modes_are_kept(training: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).train(training)
    model[1].eval()
    graph = MaseGraph(model)
    assert [m.training for m in model] == [training, False]
    assert graph.model.training is training


def test_parameters_and_buffers_are_read_when_the_graph_runs() -> None:
    model = Counting()
    graph = MaseGraph(model)
    assert model.calls == 0
    assert graph.model(torch.ones(4)).tolist() == [1.0] * 4
    assert graph.model(torch.ones(4)).tolist() == [2.0] * 4


def test_a_graph_module_is_used_as_it_is() -> None:
    module = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    graph = MaseGraph(module)
    assert graph.model is module
    assert all(isinstance(node.meta["mase"], MaseMetadata) for node in graph.nodes)


def test_the_fx_graph_can_be_replaced() -> None:
    graph = MaseGraph(nn.Sequential(nn.ReLU(), nn.ReLU()))
    new = fx.Graph()
    new.output(new.call_function(torch.neg, (new.placeholder("x"),)))
    graph.fx_graph = new
    assert graph.model(torch.ones(1)).item() == -1
    assert metadata_of(next(iter(graph.nodes))).graph is new


def test_only_modules_are_taken() -> None:
    with pytest.raises(
        GraphError, match=r"takes a torch\.nn\.Module, not builtin_function_or_method"
    ):
        MaseGraph(torch.relu)  # type: ignore[arg-type]


def line_of(cls: type, text: str) -> int:
    import inspect

    lines, start = inspect.getsourcelines(cls)
    return start + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("model", [Choice(), Outer()])
def test_the_users_line_is_named(model: nn.Module) -> None:
    line = line_of(Choice, "if x.sum()")
    with pytest.raises(GraphError) as error:
        MaseGraph(model)
    message = str(error.value)
    assert f"{__file__}, line {line} (`if x.sum() > 0:" in message
    assert "custom_leaf_modules" in message
    assert "cf_args" in message
    assert "example_inputs" in message
    assert "\n" not in message


def test_a_model_that_is_all_torch_names_a_line_of_torch() -> None:
    with pytest.raises(
        GraphError, match=r"cannot trace AdaptiveLogSoftmaxWithLoss: .*\.py, line \d+"
    ):
        MaseGraph(nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5]))


def test_a_leaf_module_stays_whole() -> None:
    for tracer in (MaseTracer((Choice,)), MaseTracer(custom_leaf_layers=(Choice,))):
        graph = MaseGraph(Outer(), tracer=tracer)
        assert ("call_module", "inner") in targets(graph)
        x = torch.ones(1, 4)
        assert torch.equal(graph.model(x), x + 2)


def own_function(x: Tensor) -> Tensor:
    return x * 2 if x.dim() > 1 else x


class Calls(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return own_function(x) + math.floor(2.5)


def test_a_leaf_function_stays_whole() -> None:
    graph = MaseGraph(Calls(), tracer=MaseTracer(custom_leaf_functions=(own_function,)))
    assert ("call_function", own_function) in targets(graph)


def test_fixed_arguments_leave_no_input_behind() -> None:
    model = Flag()
    x = torch.randn(2, 4)
    graph = MaseGraph(model, {"flag": True, "extra": None})
    assert [n.name for n in graph.nodes if n.op == "placeholder"] == ["x"]
    assert torch.equal(graph.model(x), model.layer(x))
    assert torch.equal(MaseGraph(model, cf_args={"flag": False}).model(x), x)
    assert graph.cf_args == {"flag": True, "extra": None}


class Alike(nn.Module):
    def forward(self, flag: bool, flag_1: Tensor) -> Tensor:
        return flag_1 if flag else -flag_1


def test_an_argument_that_looks_like_a_fixed_one_stays() -> None:
    graph = MaseGraph(Alike(), {"flag": False})
    assert graph.model(torch.ones(1)) == -1


class Drop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


def test_a_function_that_keeps_training_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "chop"):
        MaseGraph(Drop().eval())
        assert not caplog.text
        MaseGraph(Drop())
    assert "node 'dropout' was traced with training=True and stays so" in caplog.text


def test_quantised_layers_stay_whole() -> None:
    config = {"name": "integer", "data_in_width": 8, "weight_width": 8}
    op = OPS["linear"]
    layer = quantize_module(nn.Linear(4, 4), op, parse_quant_config(op, config, "test"))
    assert targets(MaseGraph(nn.Sequential(layer)))[1] == ("call_module", "0")


def test_export_follows_code_that_depends_on_shapes(caplog: pytest.LogCaptureFixture) -> None:
    model = Length().eval()
    x = torch.randn(2, 4)
    with caplog.at_level(logging.WARNING, "chop"):
        graph = MaseGraph(model, example_inputs={"x": x})
    assert "using torch.export instead" in caplog.text
    assert f"line {line_of(Length, 'len(x)')}" in caplog.text
    assert torch.equal(graph.model(x), model(x))
    assert targets(graph)[1:-1] == [("call_module", "layer"), ("call_method", "relu")] * 2
    assert graph.modules["layer"] is model.layer


def test_export_is_not_used_where_fx_can_trace() -> None:
    graph = MaseGraph(nn.Sequential(nn.ReLU()), example_inputs={"input": torch.ones(1)})
    assert ("call_module", "0") in targets(graph)


def test_example_inputs_must_fit() -> None:
    with pytest.raises(GraphError, match="example_inputs do not fit Length: .*'x'"):
        MaseGraph(Length(), example_inputs={"y": torch.ones(1, 4)})


def test_values_that_decide_stop_export_too() -> None:
    line = line_of(Choice, "if x.sum()")
    with pytest.raises(GraphError, match=rf"line {line} .*custom_leaf_modules") as error:
        MaseGraph(Choice(), example_inputs={"x": torch.ones(1, 4)})
    assert "example_inputs" not in str(error.value)
