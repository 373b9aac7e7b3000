"""Running a graph leaves the model and the inputs as they were."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import meta_twin, preserve_model, run_graph


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, input: Tensor, other: Tensor, factor: float = 2.0) -> Tensor:  # noqa: A002
        self.calls.add_(1)
        return self.norm(self.relu(input)) + other * factor


@pytest.fixture
def graph() -> MaseGraph:
    return MaseGraph(Two())


def test_modes_buffers_and_inputs_are_restored(graph: MaseGraph) -> None:
    graph.modules["relu"].eval()
    x = torch.tensor([[-1.0, 1, -1, 1]] * 2)
    before = {name: value.clone() for name, value in graph.model.state_dict().items()}
    run_graph(graph, {"input": x, "other": x})
    assert x.min() == -1
    assert graph.modules["norm"].training
    assert not graph.modules["relu"].training
    for name, value in graph.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_inference_mode_around_a_run_changes_nothing(graph: MaseGraph) -> None:
    with torch.inference_mode():
        x = torch.tensor([[-1.0, 1, -1, 1]] * 2)
        graph.modules["norm"].register_buffer("made_here", torch.zeros(1))
        run_graph(graph, {"input": x, "other": x})
    assert x.min() == -1
    assert graph.model.get_buffer("calls") == 0


def test_modes_are_restored_after_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    with pytest.raises(ZeroDivisionError), preserve_model(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        raise ZeroDivisionError
    assert model[0].training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", ["input", "input_1"])
def test_inputs_are_found_by_argument_or_node_name(graph: MaseGraph, name: str) -> None:
    x = torch.ones(1, 4)
    result = run_graph(graph, {name: -x, "other": x})
    assert torch.equal(result, 2 * x)  # the default factor


def test_a_single_input_needs_no_name() -> None:
    graph = MaseGraph(nn.Sequential(nn.ReLU()))
    assert run_graph(graph, {"x": torch.ones(1)}) == 1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input": 1, "x": 1}, "the model has no input 'x'; its inputs are input, other "),
        ({"other": 1}, "no value is given for the model's input 'input'|no input"),
        ({"input": 1, "factor": 1}, "the model has no input 'factor'; its inputs are input"),
        ({"other": 1, "input_2": 1}, "the model has no input 'input_2'; its inputs are input"),
    ],
)
def test_wrong_inputs_are_named(graph: MaseGraph, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        run_graph(graph, inputs)


def test_a_node_that_cannot_run_is_named() -> None:
    graph = MaseGraph(nn.Sequential(nn.ReLU(), nn.Linear(4, 3)))
    with pytest.raises(
        GraphError, match=r"node '_1' \(call_module 1\) cannot run on inputs of shape \(2, 5\)"
    ):
        run_graph(graph, {"input": torch.ones(2, 5)})


def test_arguments_are_seen_before_they_are_overwritten(graph: MaseGraph) -> None:
    seen: dict[str, float] = {}

    def before(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if node.name == "relu":
            seen["in"] = args[0].min().item()

    def after(node: fx.Node, result: Any) -> None:
        if node.name == "relu":
            seen["out"] = result.min().item()

    x = -torch.ones(2, 4)
    run_graph(graph, {"input": x, "other": x}, before, after)
    assert seen == {"in": -1, "out": 0}


def test_the_meta_twin_holds_no_data(graph: MaseGraph) -> None:
    twin = meta_twin(graph.model)
    tensors = [*twin.parameters(), *twin.buffers()]
    assert tensors
    assert all(tensor.is_meta for tensor in tensors)
    assert not any(tensor.is_meta for tensor in graph.model.parameters())
    names = [name for name, _ in graph.model.named_parameters()]
    assert [name for name, _ in twin.named_parameters()] == names
