"""Arguments with defaults: which are inputs of a graph, which are fixed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph


class Loss(nn.Module):
    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is not None:
            return (x - targets).sum()
        return 2 * x


class Mode(nn.Module):
    def forward(
        self, x: Tensor, mode: str = "up", flag: bool = True, *, mask: Any = None
    ) -> Tensor:
        if mode == "up" and flag is True:
            x = x + 1
        return x if mask is None else x * mask


class Kind:
    dtype = torch.float64


class Tuple(nn.Module):
    def forward(self, x: Tensor, shape: tuple[int, ...] = (2, -1), kind: Any = Kind) -> Tensor:
        return x.reshape(shape).to(kind.dtype if kind else torch.float16)


class Number(nn.Module):
    def forward(self, x: Tensor, factor: float = 2.0, shift: Tensor | None = None) -> Tensor:
        return x * factor if shift is None else x * factor + shift


class Count(nn.Module):
    def forward(self, x: Tensor, times: int = 3, factor: float = 2.0) -> Tensor:
        for _ in range(times):
            x = x + factor
        return x


class Last(nn.Module):
    """Decides by the type of an argument, as language models of transformers do."""

    def forward(self, x: Tensor, last: int | Tensor = 0) -> Tensor:
        return x[slice(-last, None) if isinstance(last, int) else last]


THREE = torch.tensor(3.0)


class Shifted(nn.Module):
    def forward(self, x: Tensor, shift: Tensor = THREE) -> Tensor:
        return x + shift if isinstance(shift, Tensor) else x


class Placed(nn.Module):
    def forward(self, x: Tensor, /, factor: int = 2) -> Tensor:
        return x * factor


X, Y = torch.randn(2, 4), torch.randn(2, 4)
ROWS = torch.tensor([1, 0, 1])


@pytest.mark.parametrize(
    ("model", "how", "inputs", "call"),
    [
        (Loss, {}, ["x"], {}),
        (Loss, {"example_inputs": {"x": X}}, ["x"], {}),
        (Loss, {"example_inputs": {"x": X, "targets": Y}}, ["x", "targets"], {"targets": Y}),
        (Loss, {"example_inputs": {"x": X, "targets": None}}, ["x"], {}),
        (Mode, {}, ["x"], {}),
        (Mode, {"cf_args": {"flag": False}}, ["x"], {}),
        (Mode, {"cf_args": {"mode": "down", "mask": 3}}, ["x"], {}),
        (Mode, {"example_inputs": {"x": X, "mode": "down"}}, ["x"], {}),
        (Mode, {"example_inputs": {"x": X, "mask": Y}}, ["x", "mask"], {"mask": Y}),
        (Tuple, {}, ["x"], {}),
        (Tuple, {"cf_args": {"shape": [8]}}, ["x"], {}),
        (Tuple, {"cf_args": {"kind": None}}, ["x"], {}),
        (Number, {}, ["x"], {}),
        (Number, {"cf_args": {"factor": 5.0}}, ["x"], {}),
        (
            Number,
            {"example_inputs": {"x": X, "factor": torch.tensor(3.0), "shift": Y}},
            ["x", "factor", "shift"],
            {"factor": torch.tensor(4.0), "shift": Y},
        ),
        (
            Number,
            {"example_inputs": {"x": X, "shift": Y}},
            ["x", "shift"],
            {"shift": Y},
        ),
        (Count, {}, ["x"], {}),
        (Count, {"cf_args": {"times": 2}}, ["x"], {}),
        (Last, {}, ["x"], {}),
        (Last, {"cf_args": {"last": 2}}, ["x"], {}),
        (Last, {"example_inputs": {"x": X}}, ["x"], {}),
        (Last, {"example_inputs": {"x": X, "last": ROWS}}, ["x", "last"], {"last": ROWS}),
        (Shifted, {}, ["x"], {}),
        (Shifted, {"example_inputs": {"x": X}}, ["x"], {}),
        (Placed, {"example_inputs": X}, ["x"], {}),
    ],
)
def test_the_branch_of_the_defaults_is_traced(
    model: Callable[[], nn.Module], how: dict[str, Any], inputs: list[str], call: dict[str, Any]
) -> None:
    graph = MaseGraph(model(), **how)
    assert [node.target for node in graph.nodes if node.op == "placeholder"] == inputs
    example = how.get("example_inputs", {})
    named = example if isinstance(example, dict) else {}
    examples = {k: v for k, v in named.items() if not isinstance(v, Tensor)}
    expected = model()(X, **{**how.get("cf_args", {}), **examples, **call})
    assert torch.equal(graph.model(X, **call), expected)
    assert torch.equal(run_graph(graph, {"x": X, **call}), expected)


def test_an_input_that_was_traced_as_given_must_be_given() -> None:
    factor = torch.tensor(2.0)
    graph = MaseGraph(Number(), example_inputs={"x": X, "factor": factor, "shift": Y})
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        graph.model(X)


def test_another_number_than_the_one_that_is_fixed_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'factor'"):
        MaseGraph(Number()).model(X, factor=3.0)


def test_a_value_for_an_argument_that_is_fixed_is_refused() -> None:
    with pytest.raises(GraphError, match=r"no input 'targets'; .* tensor for it in example_inputs"):
        run_graph(MaseGraph(Loss()), {"x": X, "targets": Y})


@pytest.mark.parametrize("what", ["cf_args", "example_inputs"])
def test_a_misspelt_argument_is_named(what: str) -> None:
    message = f"{what} do not fit Loss: it has no argument 'target', only 'x', 'targets'"
    with pytest.raises(GraphError, match=message):
        MaseGraph(Loss(), **{what: {"target": X}})
