"""An exported graph gives the numbers of its model, or refuses."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.exported import ShapedGraphModule
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / len(x)


class Columns(nn.Module):
    """The loop depends on columns alone, so rows are free."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        total = self.layer(x[:, :1])
        for i in range(1, x.shape[1]):
            total = total + i * self.layer(x[:, i : i + 1])
        return total / x.shape[0]


class Even(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if x.shape[0] % 2 == 0 else x


class Single(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 100 * x if x.shape[0] == 1 else x


class Few(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if x.shape[0] < 5 else x


CASES = [
    # model, shape it is made for, shapes it must take, shapes it must refuse
    (Mean(), (2, 4), [(2, 4)], [(3, 4), (1, 4), (2, 5), (2, 4, 1), (4,)]),
    (Columns(), (3, 4), [(3, 4), (1, 4), (7, 4)], [(3, 5), (3, 3), (3, 4, 1)]),
    (Columns(), (1, 4), [(1, 4), (2, 4)], [(1, 3)]),
    (Even(), (4, 3), [(4, 3)], [(3, 3)]),
    (Even(), (3, 3), [(3, 3)], [(4, 3)]),
    (Single(), (3, 3), [(3, 3), (2, 3), (9, 3)], [(1, 3)]),
    (Single(), (1, 3), [(1, 3)], [(2, 3)]),
    (Few(), (3, 3), [(3, 3), (4, 3)], [(5, 3)]),
]


@pytest.mark.parametrize(
    ("model", "made_for", "takes", "refuses"),
    CASES,
    ids=[f"{type(case[0]).__name__}-{case[1]}" for case in CASES],
)
def test_a_graph_computes_as_its_model_or_refuses(
    model: nn.Module,
    made_for: tuple[int, ...],
    takes: list[tuple[int, ...]],
    refuses: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    graph = MaseGraph(model, example_inputs={"x": torch.randn(made_for)})
    save_mase_graph_interface_pass(graph, tmp_path / "saved")
    forms = [graph, copy.deepcopy(graph), load_mase_graph(tmp_path / "saved")]
    for each in forms:
        for shape in takes:
            x = torch.randn(shape)
            torch.testing.assert_close(each.model(x), model(x))
            torch.testing.assert_close(run_graph(each, {"x": x}), model(x))
        for shape in refuses:
            with pytest.raises(GraphError, match=refusal_of(shape)) as refused:
                each.model(torch.randn(shape))
            assert "\n" not in str(refused.value)
            with pytest.raises(GraphError, match=refusal_of(shape)):
                run_graph(each, {"x": torch.randn(shape)})
            with pytest.raises(GraphError, match=refusal_of(shape)):
                run_graph(each, {"x": torch.randn(shape)}, on_meta=True)


def refusal_of(shape: tuple[int, ...]) -> str:
    return rf"node 'x': this graph was made for shape \(.*\), not {re.escape(str(shape))}; "


@pytest.mark.parametrize(
    ("case", "shown"),
    [(0, "(2, 4)"), (1, "(any, 4)"), (5, "(2 or more, 3)"), (7, "(0 to 4, 3)")],
    ids=str,
)
def test_the_refusal_states_the_shape(case: int, shown: str) -> None:
    model, made_for, *_ = CASES[case]
    graph = MaseGraph(model, example_inputs={"x": torch.randn(made_for)})
    with pytest.raises(GraphError, match=re.escape(f"made for shape {shown}, not (9, 9)")):
        graph.model(torch.randn(9, 9))


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(x.shape[1]):
            x = x + y
        return x


def test_inputs_that_belong_together_must_have_as_many_rows() -> None:
    graph = MaseGraph(Pair(), example_inputs={"x": torch.ones(4, 3), "y": torch.ones(4, 3)})
    assert graph.model(torch.ones(2, 3), y=torch.ones(2, 3)).tolist() == [[4.0] * 3] * 2
    with pytest.raises(
        GraphError, match=r"node 'y': .* as many rows as 'x' has, which is 2, not 1"
    ):
        graph.model(torch.ones(2, 3), torch.ones(1, 3))
    with pytest.raises(GraphError, match="node 'y': this graph was made for a tensor, not a float"):
        graph.model(torch.ones(2, 3), 1.0)


class Listed(nn.Module):
    def forward(self, parts: list[Tensor], scales: dict[str, float | Tensor]) -> Tensor:
        for _ in range(len(parts[0])):
            parts = [part * scales["a"] + scales["b"] for part in parts]
        return parts[0] + parts[1]


def test_a_graph_with_containers_of_tensors_refuses_too() -> None:
    model, b = Listed(), torch.ones(())
    inputs = {"parts": [torch.ones(2), torch.ones(2)], "scales": {"a": 2.0, "b": b}}
    graph = MaseGraph(model, example_inputs=inputs)
    torch.testing.assert_close(graph.model(**inputs), model(**inputs))
    with pytest.raises(GraphError, match=r"node 'parts_1': .* made for shape \(2,\), not \(3,\)"):
        graph.model([torch.ones(2), torch.ones(3)], {"a": 2.0, "b": b})
    with pytest.raises(GraphError, match=r"node 'scales_a': .* made for 2\.0, not 3\.0"):
        graph.model(inputs["parts"], {"a": 3.0, "b": b})


def test_a_pickled_graph_still_refuses() -> None:
    """Processes that are not forks are sent their model so."""
    graph = MaseGraph(Mean(), example_inputs={"x": torch.ones(2, 4)})
    again = pickle.loads(pickle.dumps(graph.model))
    assert isinstance(again, ShapedGraphModule)
    assert again(torch.ones(2, 4)).tolist() == [[0.5] * 4] * 2
    with pytest.raises(GraphError, match=refusal_of((3, 4))):
        again(torch.ones(3, 4))


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, flag: bool, shift: Tensor) -> Tensor:
        for _ in range(len(x)):
            x = self.layer(x) + shift if flag else x
        return x


def test_an_exported_graph_has_no_input_for_fixed_arguments() -> None:
    model, x, shift = Fixed(), torch.ones(2, 4), torch.full((4,), 3.0)
    cf_args = {"flag": True, "shift": shift}
    graph = MaseGraph(model, cf_args, example_inputs={"x": x})
    assert torch.equal(graph.model(x), model(x, True, shift))
    assert graph.modules["layer"] is model.layer  # shared, as by fx
    assert graph.model.get_parameter("layer.weight") is model.layer.weight
